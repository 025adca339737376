//go:build root

package tunable_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable"
)

// The kernel's own sysctls, in a network namespace of the test's.
func TestKernel(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	h := tunable.Host{Root: sysroot.New("/"), Dir: "/"}
	for name, values := range map[string][]string{
		"net.core.somaxconn":  {"1000", "2000"},
		"net.ipv4.tcp_rmem":   {"4096 131072 2097152", "4096 131072 4194304"}, // the kernel puts tabs between them
		"net/ipv4/ip_forward": {"1"},
	} {
		conformance.Run(t, conformance.Case{Actuator: h.Actuators()[tunable.KindSysctl], Target: tunable.Sysctl(name),
			Values: values, Gone: "net.core.no_such"})
	}
	a := h.Actuators()[tunable.KindSysctl]
	if err := a.Write(t.Context(), "net.core.somaxconn", "many"); err == nil {
		t.Error("the kernel took a word for a number")
	}
}

//go:build root

package tunable_test

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/testhost"
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
		// Empty at first: the kernel keeps what it has when nothing is written.
		"net.ipv4.ip_local_reserved_ports": {"3306", "3306,5432-5433"},
	} {
		conformance.Run(t, conformance.Case{Actuator: h.Actuators()[tunable.KindSysctl], Target: tunable.Sysctl(name),
			Values: values, Gone: "net.core.no_such"})
	}
	a := h.Actuators()[tunable.KindSysctl]
	if err := a.Write(t.Context(), "net.core.somaxconn", "many"); err == nil {
		t.Error("the kernel took a word for a number")
	}
}

// The queue of a disk of the test's own, which says nothing of itself: the scheduler comes back with what the kernel
// sets anew with it.
func TestKernelQueue(t *testing.T) {
	name, _ := testhost.LoopDevice(t, 16<<20)
	disk := filepath.Base(name)
	h := tunable.Host{Root: sysroot.New("/"), Dir: "/"}
	a := h.Actuators()[tunable.KindQueueByName]
	scheduler, requests := tunable.Target("disk "+disk+"/scheduler"), tunable.Target("disk "+disk+"/nr_requests")
	held := func() string {
		t.Helper()
		value, err := a.Read(t.Context(), scheduler.Addr)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	other := "mq-deadline"
	if strings.HasPrefix(held(), other) {
		other = "none"
	}
	conformance.Run(t, conformance.Case{Actuator: a, Target: scheduler, Values: []string{other},
		Refused: "no-such-scheduler", Gone: "no-such-disk/scheduler"})
	text, err := h.Root.ReadText("/sys/block/" + disk + "/queue/scheduler")
	if err != nil {
		t.Fatal(err)
	}
	offered := strings.Join(strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(text)), ", ")
	if err := a.Write(t.Context(), scheduler.Addr, "no-such"); err == nil ||
		!strings.HasSuffix(err.Error(), "the kernel offers "+offered+" for this disk") {
		t.Errorf("a scheduler that the kernel does not have: %v", err)
	}
	conformance.Run(t, conformance.Case{Actuator: a, Target: tunable.Target("disk " + disk + "/read_ahead_kb"),
		Values: []string{"16", "4096"}})
	if err := change.Set(t.Context(), a, requests, "32"); err != nil {
		t.Fatal(err)
	}
	before := held()
	if err := change.Set(t.Context(), a, scheduler, other); err != nil {
		t.Fatal(err)
	}
	if now := held(); strings.HasSuffix(now, "nr_requests=32") {
		t.Errorf("the kernel keeps the number of requests with another scheduler: %s", now)
	}
	if _, err := a.Undo(t.Context(), change.Of(scheduler, before, other)); err != nil {
		t.Error(err)
	}
	if now := held(); now != before {
		t.Errorf("it is %q, want %q", now, before)
	}
}

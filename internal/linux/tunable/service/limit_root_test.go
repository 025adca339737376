//go:build root

package service_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/tunable/service"
)

// Limits of a process of the test's, as the kernel gives and shows them.
func TestKernelLimits(t *testing.T) {
	sleep := exec.CommandContext(t.Context(), "sleep", "600")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	pid := sleep.Process.Pid
	h := newHost(t)
	show := func() {
		file := fmt.Sprintf("proc/%d/limits", pid)
		text, err := os.ReadFile("/" + file)
		if err != nil {
			t.Fatal(err)
		}
		put(t, h.Dir, file, string(text))
	}
	h.Systemd = units(pid)
	h.SetLimit = func(pid, resource int, soft, hard uint64) error {
		defer show()
		return service.Prlimit(pid, resource, soft, hard)
	}
	show()
	a := h.Actuators()[service.KindLimit]
	for _, key := range []string{"LimitNOFILE", "LimitNPROC", "LimitMEMLOCK"} {
		target := change.Target{Kind: service.KindLimit, Addr: "db.service/" + key}
		now, err := a.Read(t.Context(), target.Addr)
		if err != nil {
			t.Fatal(err)
		}
		hard := now[strings.Index(now, ":")+1:] // to raise it takes a capability that root in a container may lack
		conformance.Run(t, conformance.Case{Actuator: a, Target: target, Values: []string{"100:" + hard, "50:" + hard}})
	}
	err := a.Write(t.Context(), "db.service/LimitNOFILE", "1099511627776")
	if err == nil || !strings.Contains(err.Error(), "fs.nr_open") {
		t.Errorf("more files than fs.nr_open: %v", err)
	}
}

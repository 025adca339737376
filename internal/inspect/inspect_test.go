package inspect

import (
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
)

// A child without a controller, as systemd leaves most of its units, says nothing about the controller's files.
func TestHasKnobLooksOnlyWhereTheControllerIs(t *testing.T) {
	unified := host.Hierarchy{ID: "unified", Version: 2, Mount: "/sys/fs/cgroup",
		Controllers: []string{"cpu", "memory", "pids"}}
	model := cgroupfake.New([]host.Hierarchy{unified}, cgroupfake.Options{Without: []string{"memory.high"}})
	top := cgroup.Dir{Hierarchy: "unified", Path: "/"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(model.Make(top.Child("init.scope")))
	has := hasKnob(model.Tree)
	if got := has("unified", "cpu.weight"); got != knob.Unknown {
		t.Errorf("cpu.weight, with no child that has the cpu controller: %v", got)
	}
	model.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "read" && o.File.Name == "cgroup.controllers" {
			return syscall.EIO
		}
		return nil
	})
	has = hasKnob(model.Tree)
	if got := has("unified", "memory.max"); got != knob.Unknown {
		t.Errorf("memory.max, where nothing tells which controllers the child has: %v", got)
	}
	model.Intercept(nil)
	must(model.Enable(top, []string{"memory"}))
	has = hasKnob(model.Tree)
	for file, want := range map[string]knob.Verdict{"cpu.weight": knob.Unknown, "memory.max": knob.Yes,
		"memory.high": knob.No} {
		if got := has("unified", file); got != want {
			t.Errorf("%s, where only memory is enabled: %v, want %v", file, got, want)
		}
	}
}

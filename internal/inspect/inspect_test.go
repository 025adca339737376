package inspect

import (
	"slices"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/transaction"
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

// What a probe left is removed below our groups, and at the top of a hierarchy where outermost groups are there.
func TestSweepOfProbes(t *testing.T) {
	hierarchies := []host.Hierarchy{{ID: "cpu", Version: 1, Mount: "/sys/fs/cgroup/cpu", Controllers: []string{"cpu"}},
		{ID: "unified", Version: 2, Mount: "/sys/fs/cgroup", Controllers: []string{"memory"}}}
	for name, test := range map[string]struct {
		names layout.Names
		stay  []string
	}{
		"outermost groups": {layout.Names{}, []string{"bulkhead.g", "db", "site"}},
		"a root group":     {layout.Names{Root: "db"}, []string{".probe-4711-5-1", "bulkhead.g", "db", "site"}},
	} {
		t.Run(name, func(t *testing.T) {
			model := cgroupfake.New(hierarchies, cgroupfake.Options{})
			for _, h := range hierarchies {
				top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
				for _, dir := range []cgroup.Dir{top.Child("bulkhead.g"), top.Child("db"), top.Child("site"),
					top.Child(".probe-4711-5-1"), top.Child("db").Child(".probe-4711-5-2")} {
					if err := model.Make(dir); err != nil {
						t.Fatal(err)
					}
				}
			}
			c := &transaction.Controller{Host: host.New(t.TempDir()), Self: procfs.ID{PID: 1, Start: 1}}
			if err := sweepProbes(c, model.Tree, test.names, false); err != nil {
				t.Fatal(err)
			}
			for _, h := range hierarchies {
				if left, err := model.Children(cgroup.Dir{Hierarchy: h.ID, Path: "/"}); err != nil ||
					!slices.Equal(left, test.stay) {
					t.Errorf("%s: left are %q, %v, want %q", h.ID, left, err, test.stay)
				}
			}
		})
	}
}

package control

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// On a host of cgroup v1, where each controller has a tree of its own, a command enters its group in every tree or in
// none: whichever one refuses it, it is where it was in all the others, and nothing is recorded of it.
func TestRunEntersAllTreesOrNone(t *testing.T) {
	root := linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
	facts, err := host.New(root).Facts()
	if err != nil {
		t.Fatal(err)
	}
	kernel := cgroupfake.New(facts.Hierarchies, cgroupfake.Options{})
	c, err := transaction.Open(transaction.Options{State: t.TempDir(), Root: root, Tree: kernel.Tree})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.LockWait = time.Second
	p := kernel.Spawn()
	linuxtest.Process(t, root, 4845, p.PID, 1, p.Start, "/usr/bin/bulkhead run jobs -- /usr/bin/report")
	c.Self = p
	where := func() map[string]string {
		at := kernel.Membership(p.PID)
		var text strings.Builder
		for i, h := range facts.Hierarchies {
			names := strings.Join(h.Controllers, ",")
			if h.ID == procfs.UnifiedID {
				names = ""
			}
			fmt.Fprintf(&text, "%d:%s:%s\n", len(facts.Hierarchies)-1-i, names, at[h.ID])
		}
		file := filepath.Join(root, "proc", strconv.Itoa(p.PID), "cgroup")
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return at
	}
	home := where()
	_, err = Do(t.Context(), c, api.Request{Verb: "apply", By: "test", Sources: []policy.Source{{Path: "test.yaml",
		Text: "version: 1\ngroups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50, cpu: {weight: 50}, " +
			"memory: {max: 1GiB}}\n"}}})
	if err != nil {
		t.Fatal(err)
	}
	enter := func() error { return Enter(t.Context(), c, Entry{Group: "jobs", By: "test", Command: "report"}) }
	pins := func() []state.Pin {
		d, err := state.Load(c.Store, state.DocPins)
		if err != nil {
			t.Fatal(err)
		}
		return d.Pins
	}
	if err := enter(); err != nil {
		t.Fatal(err)
	}
	var trees []string
	for hierarchy, at := range where() {
		if at != home[hierarchy] {
			trees = append(trees, hierarchy)
		}
	}
	if len(trees) < 3 || len(pins()) != 1 {
		t.Fatalf("it has entered %v, with the pins %+v", trees, pins())
	}
	_, err = Do(t.Context(), c, api.Request{Verb: "move-back", PIDs: []int{p.PID}, By: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if at := where(); !maps.Equal(at, home) || len(pins()) > 0 {
		t.Fatalf("sent back, it is in %v, with the pins %+v", at, pins())
	}
	for _, tree := range trees {
		kernel.Intercept(func(o cgroupfake.Operation) error {
			refused := o.File.Hierarchy == tree && o.File.Path != home[tree]
			if refused && o.Op == "write" && o.File.Name == "cgroup.procs" {
				return syscall.EACCES
			}
			return nil
		})
		if err := enter(); err == nil || !strings.Contains(err.Error(), "enter group \"jobs\"") {
			t.Errorf("%s refuses: %v", tree, err)
		}
		kernel.Intercept(nil)
		if at := where(); !maps.Equal(at, home) || len(pins()) > 0 {
			t.Errorf("%s refuses: it is in %v, with the pins %+v", tree, at, pins())
		}
	}
}

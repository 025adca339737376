package control

import (
	"context"
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

// trees is a host of cgroup v1 that is nowhere but in memory: each controller has a tree of its own in the model of the
// kernel, and /proc is files.
type trees struct {
	*transaction.Controller
	t      *testing.T
	kernel *cgroupfake.Kernel
	facts  *host.Facts
	root   string
	all    []procfs.ID
	moved  bool // since /proc/PID/cgroup was written
	// refuse gives the error of a write; nil refuses none.
	refuse func(o cgroupfake.Operation) error
}

func newTrees(t *testing.T) *trees {
	t.Helper()
	m := &trees{t: t, root: linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))}
	var err error
	if m.facts, err = host.New(m.root).Facts(); err != nil {
		t.Fatal(err)
	}
	m.kernel = cgroupfake.New(m.facts.Hierarchies, cgroupfake.Options{})
	m.Controller, err = transaction.Open(transaction.Options{State: t.TempDir(), Root: m.root, Tree: m.kernel.Tree})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	m.LockWait = time.Second
	m.kernel.Intercept(func(o cgroupfake.Operation) error {
		if m.moved {
			m.moved = false
			m.refresh()
		}
		if m.refuse != nil {
			if err := m.refuse(o); err != nil {
				return err
			}
		}
		m.moved = o.Op == "write" && o.File.Name == "cgroup.procs"
		return nil
	})
	return m
}

// start makes a process.
func (m *trees) start(command string) procfs.ID {
	m.t.Helper()
	id := m.kernel.Spawn()
	linuxtest.Process(m.t, m.root, 4845, id.PID, 1, id.Start, command)
	m.all = append(m.all, id)
	m.refresh()
	return id
}

// refresh writes who is where.
func (m *trees) refresh() {
	for _, id := range m.all {
		at := m.kernel.Membership(id.PID)
		var text strings.Builder
		for i, h := range m.facts.Hierarchies {
			names := strings.Join(h.Controllers, ",")
			if h.ID == procfs.UnifiedID {
				names = ""
			}
			fmt.Fprintf(&text, "%d:%s:%s\n", len(m.facts.Hierarchies)-1-i, names, at[h.ID])
		}
		file := filepath.Join(m.root, "proc", strconv.Itoa(id.PID), "cgroup")
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
}

// where is the directory of a process in each tree.
func (m *trees) where(id procfs.ID) map[string]string {
	m.refresh()
	return m.kernel.Membership(id.PID)
}

// must does a verb.
func (m *trees) must(r api.Request) *api.Reply {
	m.t.Helper()
	m.refresh()
	r.By = "test"
	reply, err := Do(m.t.Context(), m.Controller, r)
	if err != nil {
		m.t.Fatalf("%s: %v", r.Verb, err)
	}
	m.refresh()
	return reply
}

func (m *trees) apply(groups string) {
	m.t.Helper()
	m.must(api.Request{Verb: "apply", Sources: []policy.Source{{Path: "test.yaml", Text: "version: 1\n" + groups}}})
}

// On a host of cgroup v1, where each controller has a tree of its own, a command enters its group in every tree or in
// none: whichever one refuses it, it is where it was in all the others, and nothing is recorded of it.
func TestRunEntersAllTreesOrNone(t *testing.T) {
	m := newTrees(t)
	p := m.start("/usr/bin/bulkhead run jobs -- /usr/bin/report")
	m.Self = p
	home := m.where(p)
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50, cpu: {weight: 50}, " +
		"memory: {max: 1GiB}}\n")
	enter := func() error {
		return Enter(t.Context(), m.Controller, Entry{Group: "jobs", By: "test", Command: "report"})
	}
	pins := func() []state.Pin {
		d, err := state.Load(m.Store, state.DocPins)
		if err != nil {
			t.Fatal(err)
		}
		return d.Pins
	}
	if err := enter(); err != nil {
		t.Fatal(err)
	}
	var trees []string
	for hierarchy, at := range m.where(p) {
		if at != home[hierarchy] {
			trees = append(trees, hierarchy)
		}
	}
	if len(trees) < 3 || len(pins()) != 1 {
		t.Fatalf("it has entered %v, with the pins %+v", trees, pins())
	}
	m.must(api.Request{Verb: "move-back", PIDs: []int{p.PID}})
	if at := m.where(p); !maps.Equal(at, home) || len(pins()) > 0 {
		t.Fatalf("sent back, it is in %v, with the pins %+v", at, pins())
	}
	for _, tree := range trees {
		m.refuse = func(o cgroupfake.Operation) error {
			refused := o.File.Hierarchy == tree && o.File.Path != home[tree]
			if refused && o.Op == "write" && o.File.Name == "cgroup.procs" {
				return syscall.EACCES
			}
			return nil
		}
		if err := enter(); err == nil || !strings.Contains(err.Error(), "enter group \"jobs\"") {
			t.Errorf("%s refuses: %v", tree, err)
		}
		m.refuse = nil
		if at := m.where(p); !maps.Equal(at, home) || len(pins()) > 0 {
			t.Errorf("%s refuses: it is in %v, with the pins %+v", tree, at, pins())
		}
	}
}

// What is set while a command waits for its turn holds for it, too: it enters the trees of the limits that its group
// has by then.
func TestRunGoesByWhatWasSetMeanwhile(t *testing.T) {
	m := newTrees(t)
	p := m.start("/usr/bin/bulkhead run jobs -- /usr/bin/report")
	m.Self = p
	m.apply("groups:\n  jobs: {role: helper, match: [{exe: backup}], cpu: {weight: 50}}\n")
	err := Enter(t.Context(), m.Controller, Entry{Group: "jobs", By: "test", Command: "report",
		Turn: func(context.Context) (func(), error) {
			m.must(api.Request{Verb: "set", Assign: []string{"jobs:memory.max=1GiB"}})
			return func() {}, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if at := m.where(p); at["cpu"] == "/" || at["memory"] != at["cpu"] {
		t.Errorf("it is in %v", at)
	}
}

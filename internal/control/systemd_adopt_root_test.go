//go:build root

package control

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd/unitfiles"
	"bulkhead/internal/systemd/unitname"
)

// A unit that is adopted moves at its next start, not before, and the group's limits hold it then in the group's slice.
func TestAdoptedUnitMovesAtItsNextStart(t *testing.T) {
	s := newUnitSite(t)
	program, rule := s.sleeper(81004)
	unit := s.service("db", program)
	home := s.unit(unit).ControlGroup
	reply := s.apply(fmt.Sprintf("groups:\n  app: {role: database, adopt: next-start, match: [{cmdline: '%s'}], "+
		"memory: {max: 128MiB}}\n", rule))
	if got := s.unit(unit).ControlGroup; got != home {
		t.Errorf("it moved to %s while it ran", got)
	}
	s.reads("before its restart", home, "memory.limit_in_bytes", "memory.max", "134217728")
	if !slices.ContainsFunc(reply.Plan.Steps, func(st plan.Step) bool { return st.Kind == unitfiles.KindDropIn }) {
		t.Errorf("no drop-in: %+v", reply.Plan.Steps)
	}
	s.reload(2)
	s.reads("reloaded before its restart", home, "memory.limit_in_bytes", "memory.max", "134217728")
	if s.of("cpu").Version == 2 {
		s.reads("reloaded before its restart", home, "cpu.shares", "cpu.weight", "1000") // its role's
	}
	s.restart(unit)
	slice, _ := unitname.SliceName(s.root, "app")
	inside := path.Join(s.slice, slice)
	if got := s.unit(unit).ControlGroup; got != path.Join(inside, unit) {
		t.Errorf("after its restart it is in %s", got)
	}
	s.full()
	s.reads("after its restart", inside, "memory.limit_in_bytes", "memory.max", "134217728")
	s.reload(2)
	s.reads("after reloads", inside, "memory.limit_in_bytes", "memory.max", "134217728")
	s.must(api.Request{Verb: "release", All: true})
	s.reads("after release", inside, "memory.limit_in_bytes", "memory.max", "max")
	if drops, err := s.systemd.DropIns(); err != nil || len(drops) > 0 {
		t.Errorf("drop-ins %v, %v", drops, err)
	}
	if !s.unit(unit).Active() {
		t.Error("release stopped the unit")
	}
	s.restart(unit)
	if got := s.unit(unit).ControlGroup; got != home {
		t.Errorf("after release and restart it is in %s", got)
	}
}

// Processes that are a part of a unit are taken out of it only when the group says so, and its main process never.
func TestPartOfAUnitNeedsAsking(t *testing.T) {
	s := newUnitSite(t)
	mark := fmt.Sprintf("81005.%d", os.Getpid())
	unit := s.service("cron", fmt.Sprintf("/bin/sh -c 'sleep %s & exec sleep 81006'", mark))
	rule := "^sleep " + strings.ReplaceAll(mark, ".", `\.`) + "$"
	dir := s.unit(unit).ControlGroup
	child := s.findProcess(rule, mark)
	group := func(more string) string {
		return fmt.Sprintf("groups:\n  jobs: {%s match: [{cmdline: '%s'}], cpu: {limit: 0.5}}\n", more, rule)
	}
	reply := s.apply(group(""))
	if at := s.where("cpu", child); at != dir && at != "/" && at != path.Dir(dir) {
		t.Errorf("it was taken out, to %s", at)
	}
	if !slices.ContainsFunc(reply.Plan.Notes,
		func(n plan.Note) bool { return n.NotEnforced && strings.Contains(n.Text, "from_unit") }) {
		t.Errorf("nothing says that it is not held: %+v", reply.Plan.Notes)
	}
	s.apply(group("from_unit: true,"))
	if at := s.where("cpu", child); !strings.HasPrefix(at, s.slice+"/") {
		t.Errorf("it is in %s", at)
	}
	s.must(api.Request{Verb: "release", All: true})
	if at := s.where("cpu", child); strings.HasPrefix(at, s.slice) || !s.Host.Proc.Alive(child) {
		t.Errorf("after release it is in %s", at)
	}
}

// An administrator's slice gets a group's limits, takes a command in, and is itself again after release (the case of
// the ScyllaDB documents).
func TestSliceOfAnAdministrator(t *testing.T) {
	s := newUnitSite(t)
	name := strings.ReplaceAll(s.root, "-", "") + "-helper.slice"
	file := filepath.Join("/etc/systemd/system", name)
	if err := os.WriteFile(file, []byte("[Slice]\nMemoryMax=900M\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.systemd.Stop(context.Background(), name)
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		_ = s.systemd.Reload(context.Background())
	})
	s.reload(1)
	if err := s.systemd.Start(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	before := s.stateOf(name)
	dir, err := unitname.SliceDir(name)
	if err != nil {
		t.Fatal(err)
	}
	p, rule := marked(t, 81007)
	loose(t, s, p)
	s.apply(fmt.Sprintf("groups:\n  helper: {role: helper, slice: '%s', match: [{cmdline: '%s'}], memory: {max: "+
		"5%%}, tasks: 99}\n", name, rule))
	s.reads("after apply", dir, "pids.max", "pids.max", "99")
	if at := s.where("memory", p); !strings.HasPrefix(at, dir+"/") {
		t.Errorf("the command is in %s", at)
	}
	s.reload(3)
	s.reads("after reloads", dir, "pids.max", "pids.max", "99")
	s.must(api.Request{Verb: "release", All: true})
	if after := s.stateOf(name); after != before {
		t.Errorf("after release:\n%s\nbefore:\n%s", after, before)
	}
	if !s.Host.Proc.Alive(p) {
		t.Error("release ended the process")
	}
}

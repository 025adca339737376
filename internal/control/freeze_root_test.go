//go:build root

package control

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/freeze"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/state"
	"bulkhead/internal/testhost"
)

func TestFreezeAndThaw(t *testing.T) {
	s := newSite(t)
	id := testhost.SpawnAs(t, "frozen-"+s.root, "sh", "-c", "while :; do :; done")
	tree := testhost.Tree(t)
	before := testhost.Snapshot(t, tree, s.root, id)
	s.apply("groups:\n  a:\n    match: [{exe: /nonexistent/x}]\n    cpu: {limit: 1}\n    groups:\n      hog: {match: " +
		"[{cmdline: '^frozen-" + s.root + "'}], cpu: {limit: 1}}\n")
	applied := testhost.Snapshot(t, tree, s.root, id)
	ticks := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id.PID))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))
		return fields[12] + "+" + fields[13]
	}
	s.must(api.Request{Verb: "freeze", Groups: []string{"a/hog"}, For: 300 * time.Millisecond})
	frozen := ticks()
	time.Sleep(200 * time.Millisecond)
	if now := ticks(); now != frozen {
		t.Errorf("frozen, yet it ran: %s, then %s ticks", frozen, now)
	}
	if _, err := s.Look(context.Background(), reconcile.LookOptions{Full: true}); err != nil {
		t.Errorf("a look beside a freeze: %v", err)
	}
	time.Sleep(200 * time.Millisecond)
	if err := freeze.ThawDue(t.Context(), s.Reconciler.Controller, time.Now()); err != nil {
		t.Fatal(err)
	}
	testhost.WaitFor(t, "the process runs again", func() bool { return ticks() != frozen })
	if got := testhost.Snapshot(t, tree, s.root, id); got != applied {
		t.Errorf("after the thaw:\n%s\nbefore the freeze:\n%s", got, applied)
	}
	s.must(api.Request{Verb: "freeze", Groups: []string{"a"}, For: time.Hour})
	s.must(api.Request{Verb: "release", All: true})
	if got := testhost.Snapshot(t, tree, s.root, id); got != before {
		t.Errorf("released while frozen:\n%s\nbefore:\n%s", got, before)
	}
	frozen = ticks()
	testhost.WaitFor(t, "the released process runs", func() bool { return ticks() != frozen })
	if _, err := s.try(api.Request{Verb: "freeze", Groups: []string{"a"}}); api.CodeOf(err) != api.CodeUsage {
		t.Errorf("a freeze without an end: %v", err)
	}
}

// frozen says whether the kernel holds a process, through whatever this machine freezes by.
func (s *site) frozen(id procfs.ID) bool {
	s.t.Helper()
	h := s.of("cpu")
	if h.Version == 1 {
		h = s.of("freezer")
	}
	at := s.whereIn(h.ID, id)
	if at == "/" || !strings.HasPrefix(at, "/"+s.root) {
		return false
	}
	is, err := testhost.Tree(s.t).Frozen(cgroup.Dir{Hierarchy: h.ID, Path: at})
	if err != nil {
		s.t.Fatal(err)
	}
	return is
}

// nested applies a policy of two groups, one in the other, with a process each.
func (s *site) nested() (outer, inner procfs.ID) {
	s.t.Helper()
	outer, m1 := marked(s.t, 70071)
	inner, m2 := marked(s.t, 70072)
	s.apply("groups:\n  outer:\n    match: [{cmdline: '" + m1 + "'}]\n    cpu: {limit: 1}\n" +
		"    groups: {inner: {match: [{cmdline: '" + m2 + "'}], cpu: {limit: 1}}}\n")
	return outer, inner
}

// Each of two freezes, one in the other, ends by itself, in whatever order they began and end.
func TestNestedFreezes(t *testing.T) {
	for _, c := range []struct{ first, second, thawed, then string }{
		{"outer", "outer/inner", "outer", "outer/inner"},
		{"outer", "outer/inner", "outer/inner", "outer"},
		{"outer/inner", "outer", "outer", "outer/inner"},
		{"outer/inner", "outer", "outer/inner", "outer"},
	} {
		t.Run(c.first+" first, "+c.thawed+" thawed first", func(t *testing.T) {
			s := newSite(t)
			outer, inner := s.nested()
			tree := testhost.Tree(t)
			applied := testhost.Snapshot(t, tree, s.root, outer, inner)
			is := func(when string, wantOuter, wantInner bool) {
				t.Helper()
				if gotOuter, gotInner := s.frozen(outer), s.frozen(inner); gotOuter != wantOuter ||
					gotInner != wantInner {
					t.Errorf("%s: outer stopped %t, inner stopped %t; want %t, %t", when, gotOuter, gotInner, wantOuter,
						wantInner)
				}
			}
			s.must(api.Request{Verb: "freeze", Groups: []string{c.first}, For: time.Hour})
			is("one freeze", c.first == "outer", true)
			s.must(api.Request{Verb: "freeze", Groups: []string{c.second}, For: time.Hour})
			is("two freezes", true, true)
			text, want := s.must(api.Request{Verb: "thaw", Groups: []string{c.thawed}}).Text,
				`group "outer/inner" stays frozen until`
			if c.thawed == "outer/inner" {
				want = `group "outer/inner" stays stopped: group "outer" is frozen until`
			}
			if !strings.Contains(text, want) {
				t.Errorf("the reply does not say what goes on: %q", text)
			}
			is("one thawed", c.thawed != "outer", true)
			if text := s.must(api.Request{Verb: "thaw", Groups: []string{c.then}}).Text; text != "running again" {
				t.Errorf("both thawed: %q", text)
			}
			if got := testhost.Snapshot(t, tree, s.root, outer, inner); got != applied {
				t.Errorf("both thawed:\n%s\nbefore:\n%s", got, applied)
			}
		})
	}
}

func TestReleaseOfNestedFreezes(t *testing.T) {
	s := newSite(t)
	outer, inner := s.nested()
	tree := testhost.Tree(t)
	applied := testhost.Snapshot(t, tree, s.root, outer, inner)
	freeze := func() {
		t.Helper()
		for _, group := range []string{"outer", "outer/inner"} {
			s.must(api.Request{Verb: "freeze", Groups: []string{group}, For: time.Hour})
		}
	}
	freeze()
	s.must(api.Request{Verb: "thaw", Groups: []string{"outer", "outer/inner"}})
	if got := testhost.Snapshot(t, tree, s.root, outer, inner); got != applied {
		t.Errorf("both thawed at once:\n%s\nbefore:\n%s", got, applied)
	}
	freeze()
	s.must(api.Request{Verb: "release", All: true})
	if s.frozen(outer) || s.frozen(inner) {
		t.Error("released, and still stopped")
	}
	for _, h := range testhost.Hierarchies(t) {
		if there, _ := tree.Exists(s.at(h.ID, "")); there {
			t.Errorf("%s still has the root group", h.ID)
		}
	}
}

// Bulkhead that stops itself, or who waits for it, holds the lock for ever.
func TestFreezeFromInside(t *testing.T) {
	s := newSite(t)
	self, m := marked(t, 70073)
	s.apply("groups:\n  g: {match: [{cmdline: '" + m +
		"'}], cpu: {limit: 1}}\n  all: {match: [{exe: /nonexistent/x}], cpu: {limit: 1}}\n")
	parent := testhost.Spawn(t, "sh", "-c", "sleep 3600; :")
	s.must(api.Request{Verb: "move", Group: "all", PIDs: []int{parent.PID}})
	var child procfs.ID
	testhost.WaitFor(t, "the child", func() bool {
		procs, err := s.Host.Proc.Processes(procfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(procs, func(p procfs.Process) bool { return p.PPID == parent.PID && p.Comm == "sleep" })
		if i >= 0 {
			child = procs[i].ID
		}
		return i >= 0
	})
	really := s.Self
	for _, c := range []struct {
		group string
		self  procfs.ID
	}{{"g", self}, {"all", parent}, {"all", child}} {
		s.Controller.Self = c.self
		if err := freeze.Outside(t.Context(), s.Reconciler.Controller,
			[]string{c.group}); api.CodeOf(err) != api.CodeRefused {
			t.Errorf("outside %s: %v", c.group, err)
		}
		_, err := s.try(api.Request{Verb: "freeze", Groups: []string{c.group}, For: time.Hour, Force: true,
			Reason: "test"})
		if api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), "inside") ||
			api.HintOf(err) != "run it from outside" {
			t.Errorf("freeze %s from inside: code %d, %v", c.group, api.CodeOf(err), err)
		}
		if s.frozen(c.self) {
			t.Errorf("process %d of group %s is stopped", c.self.PID, c.group)
		}
	}
	s.Controller.Self = really
	if err := freeze.Outside(t.Context(), s.Reconciler.Controller, []string{"g", "all"}); err != nil {
		t.Errorf("from outside: %v", err)
	}
}

// frozenGroup applies a policy of one group g with a process.
func (s *site) frozenGroup(number int) procfs.ID {
	s.t.Helper()
	p, m := marked(s.t, number)
	s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n")
	return p
}

func TestFreezeIsEndedByWhoBeganIt(t *testing.T) {
	s := newSite(t)
	p := s.frozenGroup(70074)
	first := s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Hour}).Frozen
	second := s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: 2 * time.Hour}).Frozen
	for _, c := range []struct {
		who    string
		own    []state.Freeze
		says   string
		frozen bool
	}{
		{"the first", first, "was frozen again by test", true},
		{"the second", second, "running again", false},
		{"the second, once more", second, "is not frozen any more", false},
	} {
		text, err := freeze.End(context.Background(), s.Reconciler.Controller, c.own, "test")
		if err != nil || !strings.Contains(text, c.says) {
			t.Errorf("%s ends its own: %q, %v", c.who, text, err)
		}
		if got := s.frozen(p); got != c.frozen {
			t.Errorf("%s has ended its own: stopped %t", c.who, got)
		}
	}
}

// Nobody ended a freeze: the command that held it was killed, and there is no agent.
func TestOverdueFreezeEndsWithTheNextChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.frozenGroup(70075)
	overdue := func() bool {
		st, err := inspect.Status(t.Context(), s.Reconciler.Controller)
		if err != nil || len(st.Groups) != 1 || st.Groups[0].Frozen == "" {
			t.Fatalf("status %+v, %v", st, err)
		}
		return st.Groups[0].Overdue
	}
	const short = 2 * time.Second
	ends := s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: short}).Frozen[0].Ends
	if is := overdue(); is && time.Now().Before(ends) {
		t.Error("overdue before its end")
	}
	time.Sleep(time.Until(ends) + 50*time.Millisecond)
	if !overdue() || !s.frozen(p) {
		t.Error("ended and still in force, yet not overdue")
	}
	s.must(api.Request{Verb: "set", Assign: []string{"g:cpu.limit=0.5"}, DryRun: true})
	if !s.frozen(p) {
		t.Error("a dry run ended the freeze")
	}
	s.must(api.Request{Verb: "set", Assign: []string{"g:cpu.limit=0.5"}})
	if s.frozen(p) {
		t.Error("another change left the overdue freeze in force")
	}
	if st, err := inspect.Status(t.Context(), s.Reconciler.Controller); err != nil || st.Groups[0].Frozen != "" {
		t.Errorf("status %+v, %v", st, err)
	}
}

// Stopped with the lock held, a command that enters a frozen group would keep it frozen for ever.
func TestRunInAFrozenGroupIsRefused(t *testing.T) {
	s := newSite(t)
	outer, _ := s.nested()
	s.must(api.Request{Verb: "freeze", Groups: []string{"outer"}, For: time.Hour})
	for _, group := range []string{"outer", "outer/inner"} {
		if err := Enter(t.Context(), s.Reconciler.Controller,
			Entry{Group: group, By: "test"}); api.CodeOf(err) != api.CodeRefused {
			t.Fatalf("enter %s: code %d, %v", group, api.CodeOf(err), err)
		}
	}
	s.must(api.Request{Verb: "thaw", Groups: []string{"outer"}})
	if s.frozen(outer) {
		t.Error("still stopped")
	}
}

func TestFreezeOfAnEarlierBootIsForgotten(t *testing.T) {
	s := newSite(t)
	p := s.frozenGroup(70076)
	old := []state.Freeze{{Group: "g", Ends: time.Now().Add(time.Hour), By: "test", Boot: "an earlier one"}}
	lock, err := s.Lock(t.Context(), "freeze", "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store.Save(state.DocFreezes, old); err != nil {
		t.Fatal(err)
	}
	lock.Release()
	if st, err := inspect.Status(t.Context(), s.Reconciler.Controller); err != nil || st.Groups[0].Frozen != "" {
		t.Errorf("status %+v, %v", st, err)
	}
	if _, err := s.try(api.Request{Verb: "thaw", Groups: []string{"g"}}); api.CodeOf(err) != api.CodeUsage {
		t.Errorf("thaw: %v", err)
	}
	if err := freeze.ThawDue(t.Context(), s.Reconciler.Controller, old[0].Ends.Add(time.Minute)); err != nil {
		t.Error(err)
	}
	var kept []state.Freeze
	if _, err := s.Store.Load(state.DocFreezes, &kept); err != nil || len(kept) != 0 {
		t.Errorf("kept %+v, %v", kept, err)
	}
	s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Hour})
	if !s.frozen(p) {
		t.Error("not stopped")
	}
	s.must(api.Request{Verb: "thaw", Groups: []string{"g"}})
}

func TestFreezeIsOneEntryOfTheHistory(t *testing.T) {
	s := newSite(t)
	s.frozenGroup(70077)
	s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Hour, Reason: "month end"})
	s.must(api.Request{Verb: "thaw", Groups: []string{"g"}, Reason: "done"})
	s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Nanosecond})
	if err := freeze.ThawDue(t.Context(), s.Reconciler.Controller, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Hour})
	s.must(api.Request{Verb: "release", All: true, Reason: "away"})
	entries, err := s.Store.History()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s by %s: %s", e.Verb, e.By, e.Reason))
	}
	want := []string{
		"apply by test: ", "freeze by test: month end", "thaw by test: done",
		"freeze by test: ", "thaw by bulkhead: the freeze has ended", "freeze by test: ", "release by test: away",
	}
	if !slices.Equal(got, want) {
		t.Errorf("history\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Members that are started while others are stopped are stopped too.
func TestFreezeStopsAForkStorm(t *testing.T) {
	s := newSite(t)
	name := "storm-" + s.root
	// A rule that names no process yet: the storm begins when its group is there, and no agent places it.
	s.apply("groups:\n  g: {match: [{cmdline: '^" + name + "'}], cpu: {limit: 2}}\n")
	storm := func() []procfs.ID {
		procs, err := s.Host.Proc.Processes(procfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var ids []procfs.ID
		for _, p := range procs {
			if len(p.Args) > 0 && p.Args[0] == name && p.State != 'Z' {
				ids = append(ids, p.ID)
			}
		}
		return ids
	}
	first := testhost.SpawnAs(t, name, "sh", "-c",
		"n=0; while [ $n -lt 300 ]; do n=$((n+1)); (while :; do sleep 5; done) & sleep 0.003; done; wait")
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{first.PID}})
	testhost.WaitFor(t, "the storm", func() bool { return len(storm()) > 10 })
	reply := s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Hour})
	defer s.must(api.Request{Verb: "release", All: true})
	caught := storm()
	for _, id := range caught {
		if !s.frozen(id) {
			t.Errorf("process %d of %d runs on; notes %q", id.PID, len(caught), reply.Notes)
		}
	}
	if len(caught) >= 300 {
		t.Fatal("the storm was over before the freeze")
	}
	time.Sleep(50 * time.Millisecond)
	if later := storm(); len(later) != len(caught) {
		t.Errorf("the storm goes on: %d processes, then %d", len(caught), len(later))
	}
}

//go:build root

package control

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/freeze"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/transaction"
)

// limited is a policy of a group g with a CPU limit.
func limited(mark, limit string) string {
	return "groups:\n  g: {match: [{cmdline: '" + mark + "'}], cpu: {limit: " + limit + "}}\n"
}

// killed has a copy apply a policy and be killed after a step.
func (s *site) killed(text string, step int) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(s.sources(text)[0].Text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if !applyAndDie(s.t, s.state, file, step) {
		s.t.Fatalf("the copy did not die after step %d", step)
	}
	s.reopen()
}

// The repair that status and the docs name must not take the sound policy away when somebody else was faster.
func TestRollbackAfterSomebodyElseUndidIt(t *testing.T) {
	for name, other := range map[string]func(s *site){
		"nobody": func(*site) {},
		"the agent": func(s *site) {
			if _, err := s.Look(context.Background(), reconcile.LookOptions{Full: true}); err != nil {
				s.t.Fatal(err)
			}
		},
		"a verb":     func(s *site) { s.must(api.Request{Verb: "set", Assign: []string{"g:tasks=50"}}) },
		"a rollback": func(s *site) { s.must(api.Request{Verb: "rollback"}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			_, m := marked(t, 70201)
			s.apply(limited(m, "1"))
			s.apply(limited(m, "0.5"))
			s.killed(limited(m, "0.25"), 0)
			if st, err := inspect.Status(t.Context(), s.Reconciler.Controller); err != nil ||
				!strings.HasPrefix(st.Pending, "apply begun at ") ||
				st.UnderWay != "" {
				t.Fatalf("status %+v, %v", st, err)
			}
			other(s)
			reply := s.must(api.Request{Verb: "rollback"})
			if name == "nobody" {
				if !strings.Contains(reply.Recovered, "undid the apply") {
					t.Errorf("reply %+v", reply)
				}
				reply = s.must(api.Request{Verb: "rollback"})
			}
			want := "already undone: nothing to do; the apply of revision 3, which was interrupted, "
			if !strings.HasPrefix(reply.Text, want) || !strings.Contains(reply.Text, "`bulkhead rollback --to 1`") {
				t.Errorf("it says %q", reply.Text)
			}
			s.holds("after rollback", "g:cpu.limit=0.5")
			_, err := s.try(api.Request{Verb: "rollback", To: 3})
			if api.CodeOf(err) != api.CodeUsage || !strings.Contains(api.HintOf(err), "in force are 1 to 2;") {
				t.Errorf("back to what never was: code %d, %v, hint %q", api.CodeOf(err), err, api.HintOf(err))
			}
			if r := s.apply(limited(m, "0.75")); r.Revision != 4 {
				t.Errorf("the next policy is revision %d", r.Revision)
			}
			if r := s.must(api.Request{Verb: "rollback"}); r.Revision != 5 || r.Like != 2 {
				t.Errorf("one back: revision %d like %d", r.Revision, r.Like)
			}
			s.holds("one back", "g:cpu.limit=0.5")
		})
	}
}

// The very first apply, interrupted: there is nothing to show yet but that.
func TestStatusOfAnInterruptedFirstApply(t *testing.T) {
	s := newSite(t)
	_, m := marked(t, 70202)
	s.killed(limited(m, "1"), 1)
	if _, err := inspect.Status(t.Context(), s.Reconciler.Controller); err == nil ||
		!strings.Contains(err.Error(), "interrupted: apply begun at") ||
		!strings.Contains(api.HintOf(err), "rollback") {
		t.Errorf("%v, hint %q", err, api.HintOf(err))
	}
	s.must(api.Request{Verb: "rollback"})
	if r := s.must(api.Request{Verb: "rollback"}); !strings.HasSuffix(r.Text, "; no policy is in force") {
		t.Errorf("it says %q", r.Text)
	}
}

// Each change of what is recorded is in the history, also when the host already is as asked.
func TestEveryChangeIsInTheHistory(t *testing.T) {
	s := newSite(t)
	_, m := marked(t, 70203)
	s.apply(limited(m, "1"))
	r := s.must(api.Request{Verb: "apply", Sources: s.sources(limited(m, "1") + "# why\n"), Reason: "a comment"})
	if !r.Recorded || r.Revision != 2 {
		t.Errorf("a comment: %+v", r)
	}
	if r := s.apply(limited(m, "1") + "# why\n"); r.Recorded || r.Changed {
		t.Errorf("the same again: %+v", r)
	}
	s.must(api.Request{Verb: "set", Assign: []string{"g:cpu.limit=1"}})
	s.must(api.Request{Verb: "unset", Assign: []string{"g:cpu.limit"}})
	s.must(api.Request{Verb: "release", Groups: []string{"g"}})
	if r := s.must(api.Request{Verb: "release", Groups: []string{"g"}, Reason: "again"}); r.Recorded {
		t.Errorf("released again: %+v", r)
	}
	s.must(api.Request{Verb: "release", All: true, Reason: "all of it"})
	entries, err := s.Store.History()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries[1:] {
		got = append(got, fmt.Sprintf("%s %s %d %s %s", e.Verb, e.What, e.Revision, e.Outcome, e.Reason))
	}
	want := []string{
		"apply  2 committed a comment", "set g:cpu.limit=1 2 committed ", "unset g:cpu.limit 2 committed ",
		"release g 0 committed ", "release --all 0 committed all of it",
	}
	if !slices.Equal(got, want) {
		t.Errorf("history\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A released group takes no change until the next apply, and rollback does not guess after a release.
func TestReleasedGroupTakesNoChange(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70204)
	s.apply(limited(m, "1"))
	s.apply(limited(m, "0.5"))
	s.must(api.Request{Verb: "release", Groups: []string{"g"}})
	stray, _ := marked(t, 70205)
	for _, r := range []api.Request{
		{Verb: "set", Assign: []string{"g:cpu.limit=0.25"}},
		{Verb: "move", Group: "g", PIDs: []int{stray.PID}},
		{Verb: "freeze", Groups: []string{"g"}, For: time.Hour},
	} {
		_, err := s.try(r)
		if api.CodeOf(err) != api.CodeFailed ||
			!strings.Contains(err.Error(), `group "g" was released: it holds no limits`) ||
			api.HintOf(err) != "`bulkhead apply` governs it again" {
			t.Errorf("%s: code %d, %v, hint %q", r.Verb, api.CodeOf(err), err, api.HintOf(err))
		}
	}
	if s.frozen(p) {
		t.Error("the process is stopped")
	}
	if _, err := s.try(api.Request{Verb: "rollback"}); api.CodeOf(err) != api.CodeUsage ||
		!strings.Contains(err.Error(), "the last change was a release") {
		t.Errorf("rollback: code %d, %v", api.CodeOf(err), err)
	}
	if r := s.must(api.Request{Verb: "rollback", To: 1}); r.Like != 1 {
		t.Errorf("reply %+v", r)
	}
	s.holds("back to 1", "g:cpu.limit=1")
}

// Taken out of a stopped group by hand a process would stay stopped where nothing shows it.
func TestNobodyIsMovedOutOfAFrozenGroup(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70206)
	stray, _ := marked(t, 70207)
	s.apply(limited(m, "1") + "  other: {match: [{exe: /nonexistent/x}], cpu: {limit: 1}}\n")
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{stray.PID}})
	s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Hour})
	for _, r := range []api.Request{
		{Verb: "move", Group: "other", PIDs: []int{p.PID}},
		{Verb: "move", Group: "other", PIDs: []int{stray.PID}, Force: true, Reason: "test"},
		{Verb: "move-back", PIDs: []int{stray.PID}},
	} {
		_, err := s.try(r)
		if api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), `group "g" is frozen until `) ||
			!strings.Contains(api.HintOf(err), "bulkhead thaw g") {
			t.Errorf("%s: code %d, %v, hint %q", r.Verb, api.CodeOf(err), err, api.HintOf(err))
		}
	}
	if !s.frozen(p) || !s.frozen(stray) {
		t.Error("somebody runs")
	}
	s.must(api.Request{Verb: "thaw", Groups: []string{"g"}})
	s.must(api.Request{Verb: "move", Group: "other", PIDs: []int{p.PID}, Force: true, Reason: "by hand"})
	if got := s.where("cpu", p); got != "/"+s.root+"/other" || s.frozen(p) {
		t.Errorf("thawed and moved: in %s, stopped %t", got, s.frozen(p))
	}
}

// What was frozen, until when and by whom is in the history, whatever reason was given.
func TestFreezeAndThawNameTheirEnd(t *testing.T) {
	s := newSite(t)
	s.frozenGroup(70208)
	held := s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Hour, Reason: "month end"}).Frozen
	s.must(api.Request{Verb: "thaw", Groups: []string{"g"}, Reason: "done"})
	short := s.must(api.Request{Verb: "freeze", Groups: []string{"g"}, For: time.Nanosecond}).Frozen
	if err := freeze.ThawDue(t.Context(), s.Reconciler.Controller, time.Now()); err != nil {
		t.Fatal(err)
	}
	entries, err := s.Store.History()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []journal.Entry{
		{Verb: "freeze", What: "g --for 1h", Reason: "month end", Text: "frozen until " + held[0].Until()},
		{Verb: "thaw", What: "g", Reason: "done",
			Text: "running again; g was frozen until " + held[0].Until() + " by test"},
		{Verb: "freeze", What: "g --for 1ns", Text: "frozen until " + short[0].Until()},
		{Verb: "thaw", What: "g", Reason: "the freeze has ended",
			Text: "running again; g was frozen until " + short[0].Until() + " by test"},
	} {
		if e := entries[i+1]; e.Verb != want.Verb || e.What != want.What || e.Reason != want.Reason ||
			e.Text != want.Text {
			t.Errorf("entry %+v\nwant %+v", e, want)
		}
	}
}

// An apply that still runs is not called interrupted, and is not undone under its feet.
func TestStatusWhileAnApplyIsStopped(t *testing.T) {
	s := newSite(t)
	_, m := marked(t, 70209)
	s.apply(limited(m, "1"))
	other, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	inside, goOn, done := make(chan bool), make(chan bool), make(chan error)
	other.AfterStep = func(int, plan.Step) {
		select {
		case inside <- true:
			<-goOn
		case <-goOn:
		}
	}
	go func() {
		_, err := Do(context.Background(), other,
			api.Request{Verb: "apply", Sources: s.sources(limited(m, "0.5")), By: "ann"})
		done <- err
	}()
	<-inside
	for _, c := range []*transaction.Controller{s.Controller,
		other} { // also the one that makes the change, as an agent is
		st, err := inspect.Status(t.Context(), c)
		if err != nil || st.Pending != "" || !strings.HasPrefix(st.UnderWay, "apply by ann since ") {
			t.Errorf("pending %q, under way %q, %v", st.Pending, st.UnderWay, err)
		}
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st, err := inspect.Status(t.Context(), s.Reconciler.Controller); err != nil || st.Pending != "" ||
		st.UnderWay != "" || st.Revision != 2 {
		t.Errorf("afterwards: %+v, %v", st, err)
	}
	s.holds("afterwards", "g:cpu.limit=0.5")
}

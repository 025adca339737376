//go:build root

package control

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/testhost"
)

// An ambiguous process, or one whose limit is refused, must not keep the agent from placing the others.
func TestLookGoesOnBesideTrouble(t *testing.T) {
	s := newSite(t)
	s.Agent = s.Self
	_, m1 := marked(t, 70026)
	fine := fmt.Sprintf("70027.%d", os.Getpid())
	both := fmt.Sprintf("70028.%d", os.Getpid())
	s.apply(fmt.Sprintf(`groups:
  a: {match: [{cmdline: '%s'}, {cmdline: '^sleep %s$'}], cpu: {limit: 1}}
  b: {match: [{cmdline: '^sleep %s$'}], cpu: {limit: 1}}
  c: {match: [{cmdline: '^sleep %s$'}], cpu: {limit: 1}}
`, m1, both, both, fine))
	torn, placed := testhost.Spawn(t, "sleep", both), testhost.Spawn(t, "sleep", fine)
	home := s.where("cpu", torn)
	procs, err := s.Host.Proc.Processes(procfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done, err := s.Look(context.Background(), reconcile.LookOptions{Processes: procs, Changed: true})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(torn.PID)) {
		t.Errorf("the ambiguous process is not named: %v", err)
	}
	if !slices.Contains(done.Moved, placed.PID) {
		t.Errorf("moved %v", done.Moved)
	}
	if got := s.where("cpu", placed); got != "/"+s.root+"/c" {
		t.Errorf("the process beside it is in %s", got)
	}
	if got := s.where("cpu", torn); got != home {
		t.Errorf("the ambiguous process is in %s", got)
	}
}

// What came since the last full look is placed although a directory that it saw has gone.
func TestPlacesIntoAGroupThatIsGone(t *testing.T) {
	s := newSite(t)
	s.Agent = s.Self
	argument := fmt.Sprintf("70029.%d", os.Getpid())
	s.apply("groups:\n  g: {match: [{cmdline: '^sleep " + argument + "$'}], cpu: {limit: 1}}\n")
	look := func(full bool) reconcile.LookResult {
		t.Helper()
		procs, err := s.Host.Proc.Processes(procfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		done, err := s.Look(t.Context(), reconcile.LookOptions{Processes: procs, Changed: true, Full: full})
		if err != nil {
			t.Error(err)
		}
		return done
	}
	look(true)
	if err := testhost.Tree(t).Remove(s.at(s.of("cpu").ID, "g")); err != nil {
		t.Fatal(err)
	}
	p := testhost.Spawn(t, "sleep", argument)
	if done := look(false); !slices.Contains(done.Moved, p.PID) {
		t.Errorf("moved %v", done.Moved)
	}
	if got := s.where("cpu", p); got != "/"+s.root+"/g" {
		t.Errorf("the process is in %s", got)
	}
}

func TestReleasedStaysReleasedUntilApply(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70031)
	text := "groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n"
	home := s.where("cpu", p)
	s.apply(text)
	s.must(api.Request{Verb: "release", Groups: []string{"g"}})
	s.reopen()
	if _, err := s.Look(context.Background(), reconcile.LookOptions{Full: true, Changed: true}); err != nil {
		t.Fatal(err)
	}
	if got := s.where("cpu", p); got != home {
		t.Errorf("a released process is in %s, not in %s", got, home)
	}
	s.apply(text)
	if got := s.where("cpu", p); got != "/"+s.root+"/g" {
		t.Errorf("after apply the process is in %s", got)
	}
	if _, err := s.try(api.Request{Verb: "release", Groups: []string{"nosuch"}}); api.CodeOf(err) != api.CodeUsage {
		t.Errorf("release of an unknown group: %v", err)
	}
}

// A group that somebody else made in ours stays, and ours above it, without limits and processes; that is said,
// and a later release finishes.
func TestReleaseLeavesForeignGroups(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70033)
	home := s.where("cpu", p)
	s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}, memory: {max: 1GiB}}\n")
	f, err := s.Host.Facts()
	if err != nil {
		t.Fatal(err)
	}
	_, setting, err := parse.Assignment("g:cpu.limit=1", "")
	if err != nil {
		t.Fatal(err)
	}
	limit := needs(f, policy.Settings{setting})
	tree, g := testhost.Tree(t), s.at(s.of("cpu").ID, "g")
	theirs := g.Child("theirs")
	if err := tree.Make(theirs); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tree.Remove(theirs) }()
	for range 2 {
		reply := s.must(api.Request{Verb: "release", All: true})
		if notes := reply.Plan.Notes; len(notes) != 1 || !strings.Contains(notes[0].Text, theirs.Path) ||
			!strings.Contains(notes[0].Text, "bulkhead did not make it") {
			t.Errorf("notes %+v", notes)
		}
		if got := s.where("cpu", p); got != home {
			t.Errorf("the process is in %s, was in %s", got, home)
		}
		for _, row := range limit {
			if got, err := tree.Read(g.File(row.File)); err != nil || !row.Same(row.Default, row.Parse(got)) {
				t.Errorf("%s of the released group holds %q, %v", row.File, got, err)
			}
		}
	}
	if err := tree.Remove(theirs); err != nil {
		t.Fatal(err)
	}
	s.must(api.Request{Verb: "release", All: true})
	if there, err := tree.Exists(g.Parent()); there || err != nil {
		t.Errorf("the root group is still there: %v", err)
	}
}

func TestMoveHoldsAgainstTheRules(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70041)
	home := s.where("cpu", p)
	s.apply("groups:\n  ruled: {match: [{cmdline: '" + m +
		"'}], cpu: {limit: 1}}\n  other: {match: [{exe: /nonexistent/x}], cpu: {limit: 1}}\n")
	s.must(api.Request{Verb: "move", Group: "other", PIDs: []int{p.PID}, Force: true, Reason: "by hand"})
	if _, err := s.Look(context.Background(), reconcile.LookOptions{Full: true}); err != nil {
		t.Fatal(err)
	}
	if got := s.where("cpu", p); got != "/"+s.root+"/other" {
		t.Errorf("moved by hand, then looked: in %s", got)
	}
	s.must(api.Request{Verb: "move-back", PIDs: []int{p.PID}})
	if got := s.where("cpu", p); got != "/"+s.root+"/ruled" {
		t.Errorf("given back to the rules: in %s", got)
	}
	// One that no rule claims goes home: by --back, and at the end of its time.
	stray := testhost.Spawn(t, "sleep", "70042")
	s.must(api.Request{Verb: "move", Group: "other", PIDs: []int{stray.PID}})
	s.must(api.Request{Verb: "move-back", PIDs: []int{stray.PID}})
	if got := s.where("cpu", stray); got != home {
		t.Errorf("given back, with no rule to take it: in %s, not in %s", got, home)
	}
	s.must(api.Request{Verb: "move", Group: "other", PIDs: []int{stray.PID}, For: 50 * time.Millisecond})
	if got := s.where("cpu", stray); got != "/"+s.root+"/other" {
		t.Errorf("moved for a while: in %s", got)
	}
	time.Sleep(100 * time.Millisecond)
	if _, err := s.Look(context.Background(), reconcile.LookOptions{Full: true}); err != nil {
		t.Fatal(err)
	}
	if got := s.where("cpu", stray); got != home {
		t.Errorf("after its time: in %s, not in %s", got, home)
	}
	if _, err := s.try(api.Request{Verb: "move", Group: "other", PIDs: []int{1}}); api.CodeOf(err) != api.CodeRefused {
		t.Errorf("move of PID 1: %v", err)
	}
	s.must(api.Request{Verb: "release", All: true})
	if got := s.where("cpu", p); got != home {
		t.Errorf("released: in %s, not in %s", got, home)
	}
}

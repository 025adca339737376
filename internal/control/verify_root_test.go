//go:build root

package control

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// broken are the limits that verify calls not enforced, as "group key".
func (s *site) broken() []string {
	s.t.Helper()
	bad, err := s.differing()
	if err != nil {
		s.t.Fatal(err)
	}
	return bad
}

func (s *site) differing() (bad []string, err error) {
	all, err := inspect.Verify(s.t.Context(), s.Reconciler.Controller, nil)
	for _, v := range all {
		if !v.OK {
			bad = append(bad, strings.TrimSpace(v.Group+" "+string(v.Key)))
		}
	}
	return bad, err
}

// TestVerifySeesEveryKindOfDifference: a limit in a file of a group and of the root group, a value of a process,
// and a member that is outside.
func TestVerifySeesEveryKindOfDifference(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70071)
	q, n := marked(t, 70072)
	sources := s.sources("groups:\n  g: {match: [{cmdline: '" + m + "'}, {cmdline: '" + n + "'}], cpu: {limit: 1}, " +
		"oom_score_adj: 300, tasks: 50}\n")
	sources[0].Text = strings.Replace(sources[0].Text, "host: {", "host: {weight: 200, ", 1)
	s.must(api.Request{Verb: "apply", Sources: sources})
	if bad := s.broken(); len(bad) > 0 {
		t.Fatalf("after apply these are not enforced: %q", bad)
	}
	tree := testhost.Tree(t)
	cpu := s.of("cpu")
	weight := "cpu.shares"
	if cpu.Version == 2 {
		weight = "cpu.weight"
	}
	for _, tt := range []struct {
		what   string
		tamper func() error
		want   string
	}{
		{"the root group's weight", func() error { return tree.Write(s.at(cpu.ID, "").File(weight), "77") },
			"cpu.weight"},
		{"a process's oom_score_adj", func() error { return s.Host.Proc.WriteOOMScoreAdj(q, 700) }, "g oom_score_adj"},
		{"a group's limit", func() error { return tree.Write(s.at(s.of("pids").ID, "g").File("pids.max"), "60") },
			"g tasks"},
		{"a member's place", func() error { return tree.Move(cgroup.Dir{Hierarchy: cpu.ID, Path: "/"}, p) },
			"g members"},
	} {
		if err := tt.tamper(); err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		if bad := s.broken(); !slices.Equal(bad, []string{tt.want}) {
			t.Errorf("%s was changed: verify calls %q not enforced, want %q", tt.what, bad, tt.want)
		}
		s.must(api.Request{Verb: "apply", Sources: sources})
		if bad := s.broken(); len(bad) > 0 {
			t.Fatalf("%s was changed and put right: %q", tt.what, bad)
		}
	}
}

// TestVerifyOfWhatSeveralLack: what several groups ask and this host does not hold is held in none of them.
func TestVerifyOfWhatSeveralLack(t *testing.T) {
	s := newSite(t)
	s.apply("groups:\n  a: {role: helper, match: [{exe: /nonexistent/a}]}\n  b: {role: helper, match: [{exe: " +
		"/nonexistent/b}]}\n")
	v, _, err := s.Current(t.Context(), transaction.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"a", "b"} {
		for _, l := range inspect.Verifiable(v).Limits(group) {
			if l.Key == policy.KeyIOWeight && l.OK {
				t.Errorf("%s: io.weight, which is not built, is %q and ok", group, l.InForce)
			}
		}
	}
}

// TestMoveWithoutItsTree: only the process named moves; with --tree its descendants do, now and later.
func TestMoveWithoutItsTree(t *testing.T) {
	s := newSite(t)
	s.apply("groups:\n  g: {match: [{exe: /nonexistent/x}], cpu: {limit: 1}}\n")
	parent := testhost.Spawn(t, "sh", "-c", "sleep 70081 & sleep 70082; wait")
	children := func() (pids []int) {
		testhost.WaitFor(t, "two children", func() bool {
			all, err := s.Host.Proc.Processes(procfs.Options{})
			if err != nil {
				t.Fatal(err)
			}
			pids = nil
			for _, p := range all {
				if p.PPID == parent.PID && p.Comm == "sleep" {
					pids = append(pids, p.PID)
				}
			}
			return len(pids) == 2
		})
		return pids
	}()
	inside := func() int {
		pids, err := testhost.Tree(t).Procs(s.at(s.of("cpu").ID, "g"))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, pid := range pids {
			if pid == parent.PID || slices.Contains(children, pid) {
				n++
			}
		}
		return n
	}
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{parent.PID}})
	if n := inside(); n != 1 {
		t.Errorf("moved alone: %d processes are in the group", n)
	}
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{parent.PID}, Tree: true})
	if n := inside(); n != 3 {
		t.Errorf("moved with its tree: %d processes are in the group", n)
	}
}

// TestStatusSaysWhatIsChargedElsewhere: memory that a process had before it was moved stays charged where it was.
func TestStatusSaysWhatIsChargedElsewhere(t *testing.T) {
	s := newSite(t)
	s.apply("groups:\n  g: {match: [{exe: /nonexistent/x}], memory: {max: 512MiB}}\n")
	held := testhost.HoldMemory(t)
	held.Touch(96 << 20)
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{held.ID.PID}})
	elsewhere := func() int64 {
		t.Helper()
		st, err := inspect.Status(t.Context(), s.Reconciler.Controller)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range st.Groups {
			if g.Group == "g" {
				return g.ChargedElsewhere
			}
		}
		t.Fatal("the group is not shown")
		return 0
	}
	if got := elsewhere(); got < 90<<20 || got > 120<<20 {
		t.Errorf("%d bytes are said to be charged elsewhere, of 96 MiB", got)
	}
}

// TestStraysAreSeenAtOnce: what somebody else moves, out of a group or into one, is found by the next full look.
func TestStraysAreSeenAtOnce(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70091)
	q, n := marked(t, 70092)
	other := testhost.Spawn(t, "sleep", "70093")
	s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}, {cmdline: '" + n + "'}], cpu: {limit: 1}}\n")
	scan := s.Host.Proc.NewScanner()
	look := func() {
		t.Helper()
		scan.Recheck(s.Strays()...)
		procs, changed, err := scan.Look(true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Look(t.Context(), reconcile.LookOptions{Processes: procs, Changed: changed,
			Full: true}); err != nil {
			t.Fatal(err)
		}
	}
	look()
	cpu := s.of("cpu").ID
	home := s.where("cpu", other)
	if err := testhost.Tree(t).Move(cgroup.Dir{Hierarchy: cpu, Path: home}, p); err != nil {
		t.Fatal(err)
	}
	if err := testhost.Tree(t).Move(s.at(cpu, "g"), other); err != nil {
		t.Fatal(err)
	}
	strays := s.Strays()
	if !slices.Contains(strays, p.PID) || !slices.Contains(strays, other.PID) || slices.Contains(strays, q.PID) {
		t.Errorf("strays %v; %d left the group, %d came, %d stayed", strays, p.PID, other.PID, q.PID)
	}
	look()
	if got := s.where("cpu", p); got != "/"+s.root+"/g" {
		t.Errorf("after the next full look it is in %s", got)
	}
}

// TestVerifyWaitsForAChange: what differs while somebody changes the host is no finding before that is done.
func TestVerifyWaitsForAChange(t *testing.T) {
	s := newSite(t)
	_, m := marked(t, 70073)
	s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], tasks: 50}\n")
	tree, limit := testhost.Tree(t), s.at(s.of("pids").ID, "g").File("pids.max")
	lock, err := s.Store.Lock("set", "root")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if err := tree.Write(limit, "60"); err != nil {
		t.Fatal(err)
	}
	type finding struct {
		bad []string
		err error
	}
	found := make(chan finding, 1)
	go func() {
		bad, err := s.differing()
		found <- finding{bad, err}
	}()
	select {
	case f := <-found:
		t.Fatalf("in the middle of a change these are called not enforced: %q, %v", f.bad, f.err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := tree.Write(limit, "50"); err != nil {
		t.Fatal(err)
	}
	lock.Release()
	if f := <-found; len(f.bad) > 0 || f.err != nil {
		t.Errorf("after the change these are called not enforced: %q, %v", f.bad, f.err)
	}
}

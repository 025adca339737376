//go:build root

package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/inspect"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// site is a test's own host: a root group name, a state directory, a controller.
type site struct {
	t     testing.TB
	root  string
	state string
	*reconcile.Reconciler
}

func newSite(t testing.TB) *site {
	t.Helper()
	testhost.RequireRoot(t)
	s := &site{t: t, root: testhost.Root(t), state: t.TempDir()}
	s.reopen()
	return s
}

// reopen is what a new process sees.
func (s *site) reopen() {
	s.t.Helper()
	c, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	s.Reconciler = &reconcile.Reconciler{Controller: c}
}

// sources is a policy over the test's own root.
func (s *site) sources(groups string) []policy.Source {
	return []policy.Source{{Path: "test.yaml", Text: "version: 1\nhost: {root: " + s.root + "}\n" + groups}}
}

func (s *site) must(r api.Request) *api.Reply {
	s.t.Helper()
	reply, err := s.try(r)
	if err != nil {
		s.t.Fatalf("%s: %v", r.Verb, err)
	}
	return reply
}

func (s *site) try(r api.Request) (*api.Reply, error) {
	r.By = "test"
	return Do(context.Background(), s.Reconciler.Controller, r)
}

func (s *site) apply(groups string) *api.Reply {
	s.t.Helper()
	return s.must(api.Request{Verb: "apply", Sources: s.sources(groups)})
}

// at is a directory of a group.
func (s *site) at(hierarchy, group string) cgroup.Dir {
	return cgroup.Dir{Hierarchy: hierarchy, Path: "/" + filepath.Join(s.root, group)}
}

// of is the hierarchy that holds a controller, in whatever version and mount this machine has it.
func (s *site) of(controller string) host.Hierarchy {
	s.t.Helper()
	facts, err := s.Host.Facts()
	if err != nil {
		s.t.Fatal(err)
	}
	h, ok := facts.HierarchyOf(controller)
	if !ok {
		s.t.Fatalf("no hierarchy of this machine holds %s", controller)
	}
	return h
}

// holds fails the test unless the kernel holds a limit, "g:cpu.limit=0.5", in every file that the knob
// table has for it on this machine.
func (s *site) holds(when, limit string) {
	s.t.Helper()
	group, setting, err := parse.Assignment(limit, "")
	if err != nil {
		s.t.Fatal(err)
	}
	facts, err := s.Host.Facts()
	if err != nil {
		s.t.Fatal(err)
	}
	settings := policy.Settings{setting}
	rows := needs(facts, settings)
	if len(rows) == 0 {
		s.t.Fatalf("this machine has no file for %s", limit)
	}
	for _, row := range rows {
		want, _, err := row.Encode(knob.Input{Settings: settings, Facts: facts})
		if err != nil {
			s.t.Fatal(err)
		}
		file := s.at(row.HierarchyID(facts), group).File(row.Name(""))
		if got, err := testhost.Tree(s.t).Read(file); err != nil || !row.Same(want, row.Parse(got)) {
			s.t.Errorf("%s: %s holds %q, %v; %s is %q", when, file, got, err, limit, want)
		}
	}
}

// where is the path of a process in the hierarchy of a controller.
func (s *site) where(controller string, id procfs.ID) string {
	s.t.Helper()
	return s.whereIn(s.of(controller).ID, id)
}

// whereIn is the path of a process in a hierarchy.
func (s *site) whereIn(hierarchy string, id procfs.ID) string {
	s.t.Helper()
	procs, err := s.Host.Proc.Processes(procfs.Options{PIDs: []int{id.PID}})
	if err != nil || len(procs) != 1 {
		s.t.Fatalf("process %d: %v, %v", id.PID, procs, err)
	}
	return procs[0].Cgroups[hierarchy]
}

// marked starts a sleeping process that a rule can find by its command line.
func marked(t testing.TB, seconds int) (procfs.ID, string) {
	t.Helper()
	mark := fmt.Sprintf("%d.%d", seconds, os.Getpid())
	return testhost.Spawn(t, "sleep", mark), "^sleep " + strings.ReplaceAll(mark, ".", "[.]") + "$"
}

// fullPolicy uses every controller this machine has, and of memory what its version has.
func (s *site) fullPolicy(inner, child, batch, device string) string {
	s.t.Helper()
	memory := "swappiness: 10, oom: kill"
	if s.of("memory").Version == 2 {
		memory = "low: 64MiB, high: 256MiB, swap: 0, oom: kill-group"
	}
	return fmt.Sprintf(`groups:
  db1:
    role: database
    match: [{cmdline: '%s'}]
    cpu: {weight: 500, limit: 1.5, period: 50ms, burst: 5ms, cpus: "0"}
    memory: {max: 512MiB, %s}
    tasks: 500
    io: [{on: %s, write: {bandwidth: 20MiB/s, iops: 1000}}]
    groups:
      backup: {role: helper, match: [{cmdline: '%s'}], cpu: {limit: 0.5}, memory: {max: 128MiB}}
  batch: {role: batch, match: [{cmdline: '%s'}], oom_score_adj: 500}
`, inner, memory, device, child, batch)
}

func TestApplyTwiceChangesNothingAndReleaseGivesTheHostBack(t *testing.T) {
	s := newSite(t)
	dev, _ := testhost.LoopDevice(t, 16<<20)
	p1, m1 := marked(t, 70001)
	p2, m2 := marked(t, 70002)
	p3, m3 := marked(t, 70003)
	tree := testhost.Tree(t)
	before := testhost.Snapshot(t, tree, s.root, p1, p2, p3)
	text := s.fullPolicy(m1, m2, m3, dev)
	if r := s.apply(text); !r.Changed || r.Revision != 1 {
		t.Fatalf("first apply: %+v", r)
	}
	if got := s.where("cpu", p1); got != "/"+s.root+"/db1/db" {
		t.Errorf("the database is in %s", got)
	}
	if got := s.where("memory", p2); got != "/"+s.root+"/db1/backup" {
		t.Errorf("the helper is in %s", got)
	}
	applied := testhost.Snapshot(t, tree, s.root, p1, p2, p3)
	r := s.apply(text)
	if r.Changed || len(r.Plan.Steps) != 0 || r.Revision != 1 {
		t.Errorf("second apply: changed %t, revision %d, steps %+v", r.Changed, r.Revision, r.Plan.Steps)
	}
	if got := testhost.Snapshot(t, tree, s.root, p1, p2, p3); got != applied {
		t.Errorf("the second apply changed the host:\n%s\nbefore:\n%s", got, applied)
	}
	all, err := inspect.Verify(t.Context(), s.Reconciler.Controller, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if !v.OK {
			t.Errorf("%s %s: asked %s, in force %q: %s", v.Group, v.Key, v.Asked, v.InForce, v.Reason)
		}
	}
	s.must(api.Request{Verb: "release", All: true})
	if got := testhost.Snapshot(t, tree, s.root, p1, p2, p3); got != before {
		t.Errorf("after release --all:\n%s\nbefore:\n%s", got, before)
	}
	for _, h := range testhost.Hierarchies(t) {
		if there, _ := tree.Exists(s.at(h.ID, "")); there {
			t.Errorf("%s still has the root group", h.ID)
		}
	}
	if score, err := s.Host.Proc.ReadOOMScoreAdj(p3); err != nil || score != 0 {
		t.Errorf("oom_score_adj after release: %d, %v", score, err)
	}
}

// The environment by which a copy of this test binary is told to apply and to die after a step.
const (
	envState = "BULKHEAD_TEST_APPLY_STATE"
	envText  = "BULKHEAD_TEST_APPLY_POLICY"
	envStep  = "BULKHEAD_TEST_APPLY_DIE_AFTER"
)

func TestKillAfterEveryStepThenRollback(t *testing.T) {
	s := newSite(t)
	dev, _ := testhost.LoopDevice(t, 16<<20)
	p1, m1 := marked(t, 70011)
	p2, m2 := marked(t, 70012)
	p3, m3 := marked(t, 70013)
	tree := testhost.Tree(t)
	sources := s.sources(s.fullPolicy(m1, m2, m3, dev))
	before := testhost.Snapshot(t, tree, s.root, p1, p2, p3)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(sources[0].Text), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := inspect.PlanFor(t.Context(), s.Reconciler.Controller, sources, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	steps, least := len(v.Plan.Steps), 40
	if s.of("cpu").ID == procfs.UnifiedID {
		least = 25 // one directory for each group, not one in each hierarchy
	}
	if steps < least {
		t.Fatalf("the plan has only %d steps", steps)
	}
	every := 3 // steps
	if os.Getenv("LONG") != "" {
		every = 1
	}
	for n := steps - 1; n >= 0; n -= every { // the last one, too
		if died := applyAndDie(t, s.state, file, n); !died {
			t.Fatalf("the copy did not die after step %d", n)
		}
		s.reopen()
		if _, pending := s.Store.Pending(); !pending {
			t.Fatalf("killed after step %d: nothing is pending", n)
		}
		s.must(api.Request{Verb: "rollback"})
		if got := testhost.Snapshot(t, tree, s.root, p1, p2, p3); got != before {
			t.Fatalf("killed after step %d (%+v), rolled back:\n%s\nbefore:\n%s", n, v.Plan.Steps[n], got, before)
		}
		if _, _, err := s.Current(t.Context(), transaction.ViewOptions{}); err == nil {
			t.Fatalf("killed after step %d, rolled back: a policy counts as applied", n)
		}
	}
}

// applyAndDie has a copy of the test binary apply a policy and kill itself, as `kill -9` would, after
// one step.
func applyAndDie(t testing.TB, state, file string, step int) (died bool) {
	t.Helper()
	p, err := os.StartProcess("/proc/self/exe", []string{"apply", "-test.run=^TestApplyInACopy$"}, &os.ProcAttr{
		Env:   append(os.Environ(), envState+"="+state, envText+"="+file, fmt.Sprintf("%s=%d", envStep, step)),
		Files: []*os.File{nil, nil, os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(st.String(), "killed")
}

// TestApplyInACopy is the other end of applyAndDie; on its own it has nothing to apply.
func TestApplyInACopy(t *testing.T) {
	state := os.Getenv(envState)
	if state == "" {
		return
	}
	var die int
	if _, err := fmt.Sscan(os.Getenv(envStep), &die); err != nil {
		t.Fatal(err)
	}
	sources, err := yamlform.Read(os.Getenv(envText))
	if err != nil {
		t.Fatal(err)
	}
	c, err := transaction.Open(transaction.Options{State: state})
	if err != nil {
		t.Fatal(err)
	}
	c.AfterStep = func(i int, _ plan.Step) {
		if i == die {
			self, _ := os.FindProcess(os.Getpid())
			_ = self.Kill()
			select {}
		}
	}
	_, err = Do(context.Background(), c, api.Request{Verb: "apply", Sources: sources, By: "copy"})
	t.Fatalf("still alive after step %d: %v", die, err)
}

func TestSetUnsetAndItsEnd(t *testing.T) {
	s := newSite(t)
	_, m := marked(t, 70021)
	s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n")
	s.must(api.Request{Verb: "set", Assign: []string{"g:cpu.limit=0.5"}, For: time.Hour})
	s.holds("after set", "g:cpu.limit=0.5")
	if r := s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n"); r.Changed ||
		len(r.Overrides) != 1 {
		t.Errorf("apply keeps overrides and lists them: %+v", r)
	}
	s.holds("after apply", "g:cpu.limit=0.5")
	s.must(api.Request{Verb: "set", Assign: []string{"g:cpu.limit=0.25"}, For: 100 * time.Millisecond})
	time.Sleep(200 * time.Millisecond)
	if _, err := s.Look(context.Background(), reconcile.LookOptions{}); err != nil {
		t.Fatal(err)
	}
	s.holds("after the end of the override", "g:cpu.limit=1")
	s.must(api.Request{Verb: "set", Assign: []string{"g:cpu.limit=0.25", "g:tasks=50"}})
	s.holds("after set", "g:tasks=50")
	s.must(api.Request{Verb: "unset", Assign: []string{"g:cpu.limit"}})
	s.holds("after unset", "g:cpu.limit=1")
	for _, bad := range []string{"nosuch:cpu.limit=1", "g:cpu.limt=1", "g:cpu.limit=9999", "g:memory.max=48G",
		"g:cpu.limit=-1"} {
		_, err := s.try(api.Request{Verb: "set", Assign: []string{bad}})
		if api.CodeOf(err) != api.CodeUsage {
			t.Errorf("set %s: code %d, %v", bad, api.CodeOf(err), err)
		}
	}
	s.holds("after refused changes", "g:cpu.limit=1")
}

func TestScoreGoesBackWhenNoLongerAsked(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70025)
	for _, step := range []struct {
		limit string
		want  int
	}{{", oom_score_adj: 300", 300}, {"", 0}, {", oom_score_adj: 200", 200}} {
		s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}" + step.limit + "}\n")
		if got, err := s.Host.Proc.ReadOOMScoreAdj(p); err != nil || got != step.want {
			t.Errorf("with %q: oom_score_adj %d, %v, want %d", step.limit, got, err, step.want)
		}
	}
}

func TestRollbackToARevision(t *testing.T) {
	s := newSite(t)
	_, m := marked(t, 70061)
	text := func(limit string) string {
		return "groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: " + limit + "}}\n"
	}
	for _, limit := range []string{"1", "0.5", "0.25"} {
		s.apply(text(limit))
	}
	s.must(api.Request{Verb: "rollback"})
	s.holds("one back", "g:cpu.limit=0.5")
	s.must(api.Request{Verb: "rollback", To: 1})
	s.holds("back to 1", "g:cpu.limit=1")
	if _, err := s.try(api.Request{Verb: "rollback", To: 99}); api.CodeOf(err) != api.CodeUsage {
		t.Errorf("back to a revision that never was: %v", err)
	}
	entries, err := s.Store.History()
	if err != nil {
		t.Fatal(err)
	}
	var verbs []string
	for _, e := range entries {
		verbs = append(verbs, fmt.Sprintf("%s %d", e.Verb, e.Revision))
	}
	if want := []string{"apply 1", "apply 2", "apply 3", "rollback 4", "rollback 5"}; !slices.Equal(verbs, want) {
		t.Errorf("history %q, want %q", verbs, want)
	}
}

func TestSecondChangeIsTurnedAway(t *testing.T) {
	s := newSite(t)
	lock, err := s.Store.Lock("apply", "the first one")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	other, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.LockWait = 50 * time.Millisecond
	_, err = Do(context.Background(), other, api.Request{Verb: "release", All: true, By: "the second one"})
	if api.CodeOf(err) != api.CodeLocked || !strings.Contains(err.Error(), "the first one") {
		t.Errorf("code %d, %v", api.CodeOf(err), err)
	}
}

func TestForceNeedsAReason(t *testing.T) {
	s := newSite(t)
	_, err := s.try(api.Request{Verb: "apply", Sources: s.sources("groups: {}\n"), Force: true})
	var own *api.Error
	if !errors.As(err, &own) || own.Code != api.CodeUsage || own.Hint == "" {
		t.Errorf("%v", err)
	}
}

// needs are the rows of a host that settings are written by.
func needs(f *host.Facts, s policy.Settings) []*knob.Row {
	return slices.DeleteFunc(knob.RowsFor(f), func(r *knob.Row) bool { return len(r.Instances(s)) == 0 })
}

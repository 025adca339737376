package control

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/state"
)

// A host whose policy an earlier version applied keeps its root group until the next apply, which brings every group
// over in one change that can be undone.
func TestFormerLayoutIsBroughtOver(t *testing.T) {
	const (
		groups = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50, memory: {max: 1GiB}}\n"
		before = "/bulkhead.slice/bulkhead-jobs.slice"
		after  = "/bulkhead.jobs.slice"
	)
	m := newMachine(t, "252.39")
	now := time.Now()
	m.Clock = func() time.Time { return now }
	job := m.start("/usr/bin/backup all")
	m.apply("host: {root: bulkhead}\n" + groups)
	m.reads("with a root group", before, "pids.max", "50")

	// An earlier version wrote the same without naming the root group.
	var a state.Applied
	_, err := m.Store.Load(state.DocApplied, &a)
	m.must(err)
	a.Flat, a.Sources[0].Text = false, strings.Replace(a.Sources[0].Text, "host: {root: bulkhead}\n", "", 1)
	lock, err := m.Store.Lock("test", "test")
	m.must(err)
	m.must(m.Store.Save(state.DocApplied, a))
	lock.Release()

	done, err := m.full()
	if err != nil || done.Repaired > 0 {
		t.Fatalf("a look: %+v, %v; want that nothing is changed", done, err)
	}
	m.reads("after a look", before, "pids.max", "50")

	m.onTrial(api.Request{Verb: "apply", Sources: m.policy(groups)}, time.Minute)
	m.reads("on trial", after, "pids.max", "50")
	if _, err := m.do(api.Request{Verb: "rollback"}); err != nil {
		t.Fatal(err)
	}
	m.reads("undone", before, "pids.max", "50")
	if left := m.kernel.Dump(); strings.Contains(left, "bulkhead.jobs") {
		t.Errorf("undone, and of the new layout there is still\n%s", left)
	}

	m.apply(groups)
	m.reads("applied", after, "pids.max", "50")
	if at := m.where(job); !strings.HasPrefix(at, after+"/") {
		t.Errorf("the job is in %s", at)
	}
	if left := m.kernel.Dump(); strings.Contains(left, "bulkhead.slice") {
		t.Errorf("of the former layout there is still\n%s", left)
	}
	if done, err := m.full(); err != nil || done.Repaired > 0 {
		t.Errorf("a look after it: %+v, %v", done, err)
	}

	m.release()
	if left := m.kernel.Dump(); strings.Contains(left, "bulkhead") {
		t.Errorf("released, and there is still\n%s", left)
	}
}

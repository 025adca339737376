package control

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/reconcile"
)

// killed is what a controller dies of in the midst of a plan.
type killed struct{}

// reopened is the controller of the next process that works on the same state directory, the one before killed or
// ended.
func (m *machine) reopened(killAt int) {
	m.t.Helper()
	dir := m.Store.Dir()
	m.must(m.Controller.Close())
	before := m.Controller
	m.open(dir)
	m.Clock, m.Self, m.Agent, m.SetLimit = before.Clock, before.Self, before.Agent, before.SetLimit
	m.Remount, m.UpdateLoader, m.Reread = before.Remount, before.UpdateLoader, before.Reread
	m.ChangePolicy, m.Labels = before.ChangePolicy, before.Labels
	if killAt >= 0 {
		m.AfterStep = func(i int, _ plan.Step) {
			if i == killAt {
				panic(killed{})
			}
		}
	}
}

// surviving does something that may be killed, and then has the next process take over.
func (m *machine) surviving(do func()) {
	defer m.reopened(-1)
	defer func() {
		if r := recover(); r != nil {
			if _, expected := r.(killed); !expected {
				panic(r)
			}
		}
	}()
	do()
}

// rebooted is the host after a reboot: other processes, no groups, no transient units, the same state directory.
func (m *machine) rebooted(boot int) *machine {
	m.t.Helper()
	next := newMachine(m.t, "252.39")
	m.must(os.WriteFile(filepath.Join(next.proc, "sys/kernel/random/boot_id"),
		fmt.Appendf(nil, "00000000-0000-0000-0000-%012d\n", boot), 0o644))
	own := next.Store
	next.Store, next.Clock = m.Store, m.Clock
	next.reopened(-1)
	_ = own.Close()
	return next
}

// The policies of a sequence: windows, another limit, another group.
var sequencePolicies = []string{
	"groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n" +
		"schedules: [{name: night, when: \"0 22 * * *\", zone: UTC, for: 6h, set: {jobs: {tasks: 500}}}]\n",
	"groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 20, cpu: {limit: 1}}\n",
	"groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 80}\n  web: {role: helper, match: [{exe: " +
		"httpd}], tasks: 60}\n",
}

// Whatever comes after whatever: applies, sets, windows, ends of overrides, changes that wait to be confirmed, kills at
// any step, restarts, clocks that jump and reboots; a release gives the host back as it was, and no limit was ever one
// that nobody had asked for.
func TestAnySequenceIsGivenBack(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	was := checks.Value.String()
	defer func() { _ = checks.Value.Set(was) }()
	if err := checks.Value.Set(cmp.Or(os.Getenv("SEQUENCES"), "5")); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(r *rapid.T) {
		m := newMachine(t, "252.39")
		begin := func() string {
			m.start("/usr/bin/backup all")
			m.start("/usr/bin/httpd")
			return m.state()
		}
		before := begin()
		now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
		m.Clock = func() time.Time { return now }
		asked := []string{"max", "", "50", "500", "20", "80"}
		boots := 0
		verb := func(q api.Request) {
			q.ConfirmWithin = rapid.SampledFrom([]time.Duration{0, 0, 0, time.Hour}).Draw(r, "confirm within")
			if !slices.Contains(api.OnTrial, q.Verb) {
				q.ConfirmWithin = 0
			}
			m.reopened(rapid.SampledFrom([]int{-1, -1, 0, 1, 2, 4, 8}).Draw(r, "killed at"))
			m.surviving(func() { _, _ = m.do(q) }) // what is refused changes nothing, and that is checked
		}
		look := func() {
			m.surviving(func() {
				m.refresh()
				procs, err := m.Host.Proc.Processes(procfs.Options{})
				m.must(err)
				_, _ = m.Look(context.Background(),
					reconcile.LookOptions{Processes: procs, Changed: true, Full: rapid.Bool().Draw(r, "full")})
				_ = m.MindTrial(context.Background())
			})
		}
		r.Repeat(map[string]func(*rapid.T){
			"apply": func(r *rapid.T) {
				verb(api.Request{Verb: "apply", Sources: m.policy(rapid.SampledFrom(sequencePolicies).Draw(r,
					"policy"))})
			},
			"set": func(r *rapid.T) {
				limit := rapid.IntRange(5, 9).Draw(r, "tasks")
				asked = append(asked, fmt.Sprint(limit))
				verb(api.Request{Verb: "set", Assign: []string{fmt.Sprintf("jobs:tasks=%d", limit)},
					For: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(r, "for")})
			},
			"unset":    func(*rapid.T) { verb(api.Request{Verb: "unset", Assign: []string{"jobs:tasks"}}) },
			"confirm":  func(*rapid.T) { verb(api.Request{Verb: "confirm"}) },
			"rollback": func(*rapid.T) { verb(api.Request{Verb: "rollback"}) },
			"release":  func(*rapid.T) { verb(api.Request{Verb: "release", Groups: []string{"jobs"}}) },
			"time passes": func(r *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 1500).Draw(r, "minutes")) * time.Minute)
				look()
			},
			"the clock jumps": func(r *rapid.T) {
				now = now.AddDate(rapid.SampledFrom([]int{-1, 1}).Draw(r, "years"), 0, 0)
				look()
			},
			"reboot": func(*rapid.T) {
				boots++
				m = m.rebooted(boots)
				before = begin()
				look()
			},
			"": func(r *rapid.T) {
				const dir = "/bulkhead.jobs.slice"
				if there, _ := m.kernel.Exists(at(dir)); there {
					if got, err := m.kernel.Read(at(dir).File("pids.max")); err == nil && !slices.Contains(asked, got) {
						r.Fatalf("the limit is %q, and was never asked for: %q", got, asked)
					}
				}
			},
		})
		m.reopened(-1)
		reply, err := m.do(api.Request{Verb: "release", All: true})
		if err != nil {
			r.Fatalf("release: %v: %+v", err, reply)
		}
		if after := m.state(); after != before {
			r.Fatalf("after release:\n%s", differs(after, before))
		}
	})
}

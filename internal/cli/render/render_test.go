package render

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/probe"
	"bulkhead/internal/proof"
	"bulkhead/internal/state"
	"bulkhead/internal/verify"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden holds a text to testdata/NAME.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
	}
}

// printed is what a verb's answer looks like.
func printed(print func(out io.Writer)) string {
	var out bytes.Buffer
	print(&out)
	return out.String()
}

// at is a time that prints the same everywhere.
func at(minute int) time.Time { return time.Date(2026, 3, 1, 12, minute, 0, 0, time.Local) }

func ptr(n int64) *int64 { return &n }

func TestStatusText(t *testing.T) {
	st := &api.Status{
		Revision: 7, AppliedAt: at(0), AppliedBy: "ann (sudo)", Load: "1.50 0.75 0.25",
		Agent: api.AgentStatus{
			Running: true, PID: 812, Since: at(1), Source: "a look every 1s", LastLook: at(30), Looks: 1700, Moved: 3,
			Repaired: 1,
			Events:   120, Lost: 3, Error: "lock held",
		},
		Pending: "apply begun at 2026-03-01 12:00:00", UnderWay: "apply by ann since 2026-03-01 12:00:00; process 77",
		Differs: 1, Released: []string{"reports"},
		Tuned: 2, Overrides: []string{"override 2: mysql3306:cpu.limit=4 until 2026-03-01 14:00:00"},
		Notes: []plan.Note{
			{Group: "mysql3306", Key: "memory.low", Text: "cgroup v1 has no memory.low", NotEnforced: true},
			{Group: "", Text: "the root group is not alone", NotEnforced: true},
			{Group: "mysql3306", Key: "io.weight", Text: "a default"},
		},
		Groups: []api.GroupStatus{
			{
				Group: "mysql3306", Role: "database", Instance: "mariadb 3306 (/var/lib/mysql)",
				Frozen: "2026-03-01 13:00:00", MemorySource: "cgroup",
				Members: []api.Member{{PID: 4711, Comm: "mariadbd", User: "mysql", Placed: true},
					{PID: 4712, Comm: "late", User: "mysql"}},
				Limits: []verify.Limit{
					{Key: "cpu.limit", Asked: "4", From: "override 2", File: "cpu.cfs_quota_us", InForce: "4 cores",
						OK: true},
					{Key: "tasks", Asked: "500", From: "class standard", File: "pids.max", InForce: "400 tasks"},
					{Key: "memory.low", Asked: "1GiB", From: "group", Reason: "cgroup v1 has no memory.low"},
					{Key: "io.write.iops", On: "/dev/sda", Asked: "500", From: "group",
						File: "blkio.throttle.write_iops_device", InForce: "500 IOPS", OK: true,
						Reason: "direct IO only"},
					{Key: "io.weight", Asked: "1000", From: "role database", Default: true},
				},
				Share: plan.Share{Limit: 4, Guaranteed: 1.5, Percent: 18.75},
				Usage: metrics.Usage{
					CPU: metrics.CPU{User: ptr(12_300_000), System: ptr(400_000), Periods: ptr(100),
						ThrottledPeriods: ptr(7), Throttled: ptr(250_000)},
					Memory: metrics.Memory{Anonymous: ptr(3 << 30), File: ptr(1 << 20), Shared: ptr(0),
						Swap: ptr(0), Current: ptr(4 << 30), Peak: ptr(5 << 30), OOMKills: ptr(0)},
				},
				Tasks: metrics.TaskStates{Total: 40, Running: 2, Blocked: 1},
			},
			{Group: "reports", Role: "batch", Released: true,
				Members: []api.Member{{PID: 99, Comm: "psql", User: "report"}}},
			{Group: "batch", Role: "batch", MemorySource: "processes"},
		},
	}
	golden(t, "status", printed(func(out io.Writer) { Status(out, st, nil, 0); StatusOf(out, st) }))
	st = &api.Status{Revision: 1, AppliedAt: at(0), AppliedBy: "root", Load: "0.00 0.00 0.00",
		Released: []string{"everything", "reports"}}
	golden(t, "status-released", printed(func(out io.Writer) { Status(out, st, nil, 0); StatusOf(out, st) }))
}

func TestOrphansText(t *testing.T) {
	golden(t, "orphans", printed(func(out io.Writer) {
		Orphans(out, []classify.Orphan{
			{PID: 812, Processes: 3, What: "mariadb 3307 (/srv/b), 3 of its 3 processes", Why: "no rule matches"},
			{PID: 9100, Processes: 1, What: "helper (backup, mysqldump): nothing tells which of mysql3306, " +
				"mysql3307 it serves", Why: "no rule matches"},
		})
		Orphans(out, nil)
	}))
}

func TestInstancesText(t *testing.T) {
	id := func(pid int) procfs.ID { return procfs.ID{PID: pid} }
	golden(t, "instances", printed(func(out io.Writer) {
		printInstances(out, []engine.Instance{
			{
				Engine: engine.MySQL, Flavor: engine.MariaDB, Version: "10.11", Main: id(812), User: "mysql",
				Port: 3306, Ports: []int{3306}, Socket: "/run/m.sock", DataDir: "/d", Seen: true,
				Members:  []engine.Member{{ID: id(812), Part: engine.PartMain}},
				Evidence: []string{"listens on port 3306"},
				Helpers: []engine.Helper{
					{ID: id(900), Kind: engine.HelperBackup, Tool: "mariabackup", Sure: true, How: "--port=3306",
						Rate: engine.Rate{Option: "--throttle", Given: "--throttle=40"}},
					{ID: id(901), Kind: engine.HelperBackup, Tool: "mysqldump",
						How: "nothing tells which of mysql3306, mysql3307 it serves"},
				},
			},
			{Engine: engine.Oracle, SID: "BX1", Main: id(4001), User: "oracle",
				Members: []engine.Member{{ID: id(4001), Part: engine.PartMain}}, Evidence: []string{"works in /o/dbs"},
				Container: true},
		})
	}))
}

func TestVerifyText(t *testing.T) {
	all := []verify.Reading{
		{Group: "a", Limit: verify.Limit{Key: "cpu.limit", Asked: "50% = 0.5", File: "cpu.cfs_quota_us",
			InForce: "0.5 cores", OK: true}},
		{Group: "a", Limit: verify.Limit{Key: "memory.low", Asked: "1GiB",
			Reason: "cgroup v1 has no memory.low"}},
	}
	golden(t, "verify", printed(func(out io.Writer) { Verified(out, all) }))
	text := printed(func(out io.Writer) { Verified(out, all[:1]) })
	if !strings.HasSuffix(text, "1 limit read back, 0 not enforced\n") {
		t.Error(text)
	}
}

func TestProbedText(t *testing.T) {
	part := func(d float64) *float64 { return &d }
	all := []verify.Result{
		{Group: "a", Key: "cpu.limit", How: "alone", Asked: "0.5", Measured: "0.497 cores", Difference: part(-0.006),
			Verdict: probe.Held},
		{Group: "a", Key: "io.write.bandwidth", On: "/data", Device: "sdb", How: "buffered", Asked: "50MB/s",
			Measured: "171.20 MB/s", Difference: part(2.424), Verdict: probe.NotEnforced, Reason: "direct IO only"},
		{Group: "a", Key: "memory.low", How: "read back", Asked: "1GiB", Measured: "1 GiB", Verdict: probe.NotMeasured,
			Reason: "no probe for it"},
		{Group: "b", Key: "cpu.weight", How: "contended", Asked: "500: 75.0 % beside a rival", Measured: "93.0 %",
			Difference: part(0.18), Verdict: probe.NotDecided,
			Reason: "two of the same weight got 80.0 % and the rest"},
	}
	golden(t, "probed", printed(func(out io.Writer) {
		ProbePlan(out, verify.Plan{
			Loads: []verify.Measurement{
				{Group: "a", Key: "cpu.limit", What: "2 threads burn CPU", Where: "beside",
					Takes: 2300 * time.Millisecond},
				{Group: "a", Key: "io.write.bandwidth", On: "/data", Device: "/dev/sdb", What: "4 MiB are written",
					Where: "inside", Takes: time.Second, Bytes: 4 << 20},
			},
			Takes: 3300 * time.Millisecond, Bytes: 4 << 20,
			Left: []verify.Unmeasured{{Group: "a", Key: "memory.low", Why: "no probe for it"}},
		}, true)
		Probed(out, all)
	}))
	text := printed(func(out io.Writer) { Probed(out, all[:1]) })
	if !strings.HasSuffix(text, "1 limit measured, 0 not enforced\n") {
		t.Error(text)
	}
}

func TestExplainText(t *testing.T) {
	e := &inspect.Explanation{
		Process: procfs.Process{ID: procfs.ID{PID: 4711}, Comm: "mariadbd"}, Group: "mysql3306",
		By: classify.ByRule, Placed: true,
		Helper: "it is a helper (backup, mariabackup) of mysql 3306 (/d): --port=3306; its own limit " +
			"would be --throttle",
		Attempts: []classify.Attempt{
			{Rule: classify.Rule{Group: "mysql3306", Text: "user: mysql"}, Matched: true, Score: 64,
				Why: "all keys match: user"},
			{Rule: classify.Rule{Group: "mysql3306", Text: "engine: mysql"}, Matched: true, Score: 4096,
				Why: "all keys match: engine"},
			{Rule: classify.Rule{Group: "reports", Text: "user: report"}, Score: 64,
				Why: `user is "mysql", not "report"`},
		},
		Levels: []inspect.LevelLimits{
			{Group: "mysql3306", Limits: []verify.Limit{{Key: "tasks", Asked: "500", From: "group",
				File: "pids.max", InForce: "500 tasks", OK: true}}},
			{Group: "all"},
		},
	}
	golden(t, "explain", printed(func(out io.Writer) { Explanation(out, e) }))
	watched := *e
	watched.Watched, watched.When = time.Second, &api.PlacedAt{At: time.Date(2026, 11, 20, 9, 15, 0, 0, time.Local),
		Took: 61234 * time.Nanosecond, How: "as the kernel told of it"}
	watched.Biting = []inspect.Throttled{
		{Group: "mysql3306", Key: "cpu.limit", How: "throttled in 9 of 10 periods; its threads waited 1.2s together"},
		{Group: "all", Key: "io.read.iops", On: "/data", How: "99 % of it was used"},
	}
	golden(t, "explain-watched", printed(func(out io.Writer) {
		Explanation(out, &watched)
		watched.Biting = nil
		Explanation(out, &watched)
	}))
	if got := ExplanationView(e).Rule; got != "engine: mysql" {
		t.Errorf("the winner is %q", got)
	}
	for _, c := range []struct {
		change func(e *inspect.Explanation)
		want   string
	}{
		{func(e *inspect.Explanation) { e.Placed = false },
			"belongs to group mysql3306, by the rule engine: mysql, and is not placed: it is outside now; `bulkhead " +
				"apply` or the agent's next look brings it in\n"},
		{func(e *inspect.Explanation) { e.Reason = "it is real-time" }, "and is not placed: it is real-time\n"},
		{func(e *inspect.Explanation) { e.Group, e.Reason = "", "no rule matches" },
			"process 4711 (mariadbd): in no group: no rule matches\n"},
	} {
		c.change(e)
		if text := printed(func(out io.Writer) { Explanation(out, e) }); !strings.Contains(text, c.want) {
			t.Errorf("%s\nwithout: %s", text, c.want)
		}
	}
}

func TestHistoryText(t *testing.T) {
	dir := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a"}
	read := cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a"}.File("blkio.throttle.read_bps_device")
	read.Key = "8:0"
	id := procfs.ID{PID: 4711, Start: 88123}
	moved := change.Change{Target: cgroup.Membership(id, "cpu"), Old: "/", New: dir.Path}
	made := func(c change.Change) journal.Change { return journal.Change{Change: c} }
	entries := []journal.Entry{
		{N: 1, Time: at(0), Verb: "apply", By: "root", Reason: "first", Outcome: journal.Committed, Revision: 1,
			Changes: []journal.Change{
				made(change.Change{Target: dir.Target(), New: cgroup.There}),
				made(change.Change{Target: dir.File("cpu.shares").Target(), New: "102"}),
				made(change.Change{Target: read.Target(), Old: "0", New: "10485760"}),
				{Name: "mariadbd", Change: moved},
				{Name: "mariadbd", Change: change.Change{Target: id.ScoreTarget(), Old: "0", New: "500"}},
			}},
		{N: 2, Time: at(1), Verb: "release", By: "ann (sudo)", Outcome: journal.Undone, Changes: []journal.Change{
			// For the undo of the next one.
			made(change.Change{Target: dir.File("cpu.shares").Target(), Old: "102", New: "102"}),
			made(change.Change{Target: dir.Target(), Old: cgroup.There}),
		}},
		{N: 3, Time: at(2), Verb: "thaw", By: "agent", Outcome: journal.Committed, Text: "running again"},
		{N: 4, Time: at(3), Verb: "freeze", What: "a --for 10m", By: "root", Reason: "a snapshot",
			Outcome: journal.Committed, Text: "frozen until 2026-03-01 12:13:00"},
	}
	golden(t, "history", printed(func(out io.Writer) { History(out, entries, false) }))
	golden(t, "history-long", printed(func(out io.Writer) { History(out, entries, true) }))
	if text := printed(func(out io.Writer) { History(out, nil, true) }); text != "nothing was changed yet\n" {
		t.Errorf("no history: %q", text)
	}
}

func TestReplyText(t *testing.T) {
	dir := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a"}
	one := procfs.ID{PID: 1}
	var steps []plan.Step
	for _, c := range []change.Change{
		change.Of(dir.Target(), "", cgroup.There), change.Of(dir.File("a").Target(), "", "1"),
		change.Of(dir.File("b").Target(), "", "1"), change.Of(dir.Target(), cgroup.There, ""),
		change.Of(cgroup.Membership(one, "cpu"), "/", "/a"), change.Of(cgroup.Membership(one, "memory"), "/", "/a"),
		change.Of(one.ScoreTarget(), "0", "1"),
	} {
		steps = append(steps, plan.Step{Change: c})
	}
	notes := []plan.Note{
		{Group: "a", Key: "memory.low", Text: "cgroup v1 has none", NotEnforced: true},
		{Group: "b", Key: "memory.low", Text: "cgroup v1 has none", NotEnforced: true},
		{Group: "a", Key: "io.weight", Text: "a default"},
		{Group: "a", Text: "process 5 (x) is not moved: it is real-time"},
	}
	const (
		lowA     = "NOT ENFORCED HERE: a: memory.low: cgroup v1 has none\n"
		lowB     = "NOT ENFORCED HERE: b: memory.low: cgroup v1 has none\n"
		realtime = "note: a: process 5 (x) is not moved: it is real-time\n"
	)
	for name, c := range map[string]struct {
		reply api.Reply
		q     api.Request
		want  string
	}{
		"everything": {
			api.Reply{Plan: plan.Plan{Steps: steps, Notes: notes}, Changed: true, Revision: 3,
				Skipped: []string{"process 9 exited"}, Overrides: []string{"override 1: a:tasks=5"}},
			api.Request{Verb: "apply"},
			"done: 1 directory made, 3 values written, 1 process moved, 1 directory removed; revision 3\nskipped: " +
				"process 9 exited\n" +
				"in force over the policy: override 1: a:tasks=5\n" + lowA + lowB + realtime,
		},
		"nothing": {api.Reply{Revision: 3}, api.Request{Verb: "apply"},
			"nothing to do: the host already is as asked\n"},
		"set": {api.Reply{Plan: plan.Plan{Steps: steps[1:2], Notes: notes}},
			api.Request{Verb: "set", Assign: []string{"a:memory.low=1GiB"}},
			"done: 1 value written\n" + lowA + realtime},
		"set void": {api.Reply{Recorded: true, Plan: plan.Plan{Notes: notes[:2]}},
			api.Request{Verb: "set", Assign: []string{"a:memory.low=1GiB"}},
			"recorded; there is nothing to write\n" + lowA},
		"move": {api.Reply{Plan: plan.Plan{Steps: steps[4:6], Notes: notes[:3]}}, api.Request{Verb: "move"},
			"done: 1 process moved\n"},
		"freeze": {api.Reply{Changed: true, Text: "frozen until then"}, api.Request{Verb: "freeze"},
			"frozen until then\n"},
		"undone": {api.Reply{Changed: true, Recovered: "undid the apply"}, api.Request{Verb: "rollback"},
			"undid the apply\n"},
		"comment": {api.Reply{Recorded: true, Revision: 7}, api.Request{Verb: "apply"},
			"recorded as revision 7; no change was needed on the host\n"},
		"unset": {api.Reply{Recorded: true, Revision: 7}, api.Request{Verb: "unset"},
			"recorded; no change was needed on the host\n"},
		"back": {api.Reply{Plan: plan.Plan{Steps: steps[1:2]}, Revision: 4, Like: 1},
			api.Request{Verb: "rollback"}, "done: 1 value written; revision 4, which repeats revision 1\n"},
		"back, no": {api.Reply{Recorded: true, Revision: 4, Like: 1}, api.Request{Verb: "rollback"},
			"recorded as revision 4, which repeats revision 1; no change was needed on the host\n"},
		"both": {api.Reply{Changed: true, Recovered: "undid the apply", Text: "frozen until then"},
			api.Request{Verb: "freeze"}, "undid the apply\nfrozen until then\n"},
		"undone 2": {api.Reply{Changed: true, Recovered: "undid the apply", Text: "undid the apply"},
			api.Request{Verb: "rollback"}, "undid the apply\n"},
		"dry": {api.Reply{Text: "would thaw"}, api.Request{Verb: "thaw", DryRun: true}, "would thaw\n"},
	} {
		got := printed(func(out io.Writer) {
			if !c.q.DryRun {
				Reply(out, out, &c.reply, c.q)
			} else if err := DryRun(out, &c.reply, nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		if got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, c.want)
		}
	}
}

// What --json prints has names that scripts can rely on: snake_case, none left to the name in the source.
func TestJSONNames(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	seen := map[reflect.Type]bool{}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		text := reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
		asJSON := reflect.TypeFor[interface{ MarshalJSON() ([]byte, error) }]()
		if typ.Kind() != reflect.Struct || seen[typ] || typ.Implements(text) || typ.Implements(asJSON) {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-" || !f.IsExported():
				continue
			case f.Anonymous && name == "":
			case !snake.MatchString(name):
				t.Errorf("%s.%s is %q in JSON", path, f.Name, name)
			}
			walk(path+"."+f.Name, f.Type)
		}
	}
	for _, v := range []any{
		discoveryJSON{}, explanationJSON{}, CheckView{}, plan.Plan{}, api.Reply{}, api.Status{},
		verify.Reading{},
		journal.Entry{}, problemsJSON{}, ScenarioView{}, proof.Result{}, proof.Comparison{}, proof.Outcome{},
	} {
		walk(reflect.TypeOf(v).String(), reflect.TypeOf(v))
	}
}

func TestMembersAreListedShortly(t *testing.T) {
	var all []api.Member
	for pid := range 15 {
		all = append(all, api.Member{PID: pid + 1, Comm: "postgres", User: "postgres", Placed: pid != 0})
	}
	got := members(all, true)
	if !strings.HasPrefix(got, "postgres 1 (postgres) NOT PLACED YET, postgres 2 (postgres), ") ||
		!strings.HasSuffix(got, ", and 3 more") {
		t.Error(got)
	}
	if got := members(all[:1], false); got != "postgres 1 (postgres)" {
		t.Error(got)
	}
}

func TestTrialText(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.Local)
	guard := &state.Watch{Until: at, Groups: map[string]state.Baseline{"app": {}}}
	for want, trial := range map[string]state.Trial{
		"ON TRIAL: the set of revision 2 by root is undone at 2026-11-23 12:00:00 unless `bulkhead " +
			"confirm` comes before": {Verb: "set", Revision: 2, By: "root", Confirm: at},
		"ON TRIAL: the set of revision 2 by root is undone when it does app harm, watched until " +
			"2026-11-23 12:00:00": {Verb: "set", Revision: 2, By: "root", Guard: guard},
		"ON TRIAL: the set of revision 2 by root is undone at 2026-11-23 12:00:00 unless `bulkhead confirm` comes " +
			"before, and is undone when it does app harm, watched until 2026-11-23 12:00:00": {Verb: "set", Revision: 2,
			By: "root", Confirm: at, Guard: guard},
		"ON TRIAL: the set of revision 2 by root is undone when SELinux denies mysqld_t something, watched until " +
			"2026-11-23 12:00:00": {Verb: "set", Revision: 2, By: "root", Guard: &state.Watch{Until: at,
			Domains: []string{"mysqld_t"}}},
		"ON TRIAL: the set of revision 2 by root is undone when it does app harm or SELinux denies a_t, b_t " +
			"something, watched until 2026-11-23 12:00:00": {Verb: "set", Revision: 2, By: "root",
			Guard: &state.Watch{Until: at, Groups: guard.Groups, Domains: []string{"a_t", "b_t"}}},
	} {
		if got := trialText(&trial); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

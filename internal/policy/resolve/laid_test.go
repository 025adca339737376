package resolve

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// resolved fits a policy that begins with its groups to testHost.
func resolved(t *testing.T, text string) (*policy.Policy, policy.Problems) {
	t.Helper()
	p, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: "version: 1\n" + text}})
	if err != nil {
		t.Fatal(err)
	}
	return Policy(p, testHost(), testResolver())
}

// What a window brings is noted, and what holds without it once. A weight takes the place of a role's idle.
func TestNotesOfWindows(t *testing.T) {
	p, problems := resolved(t, `groups:
  reports: {role: batch, match: [{user: a}], memory: {max: 2GiB, high: 3GiB}}
  jobs: {match: [{user: b}], cpu: {idle: true}}
schedules:
  - name: nightly
    when: "30 1 * * *"
    for: 1h
    set: {reports: {cpu: {weight: 500}, memory: {high: 4GiB}}, jobs: {cpu: {weight: 500}}}
  - {name: weekly, when: "30 1 * * sun", for: 1h, set: {reports: {tasks: 500}}}
`)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var said []string
	for _, n := range p.Notes {
		said = append(said, n.Group+" "+n.Text)
	}
	if want := []string{"reports memory.high 3GiB never acts", "reports memory.high 4GiB (schedule nightly) never acts",
		"jobs cpu.weight has no effect"}; !slices.EqualFunc(said, want, strings.HasPrefix) {
		t.Errorf("notes %q, want %q", said, want)
	}
}

// A weight that is laid over a group takes away what its role asks instead of one, and nothing that somebody asked for.
func TestUnder(t *testing.T) {
	weight := policy.Setting{Key: policy.KeyCPUWeight, Value: policy.Weight(500)}
	tasks := policy.Setting{Key: policy.KeyTasks, Value: policy.Count(5)}
	idle := policy.Setting{Key: policy.KeyCPUIdle, Value: policy.Flag(true), From: "role batch"}
	own := idle
	own.From = "group"
	for name, test := range map[string]struct {
		laid policy.Setting
		idle policy.Setting
		left int
	}{
		"a weight over a role": {weight, idle, 1}, "a weight over the group": {weight, own, 2},
		"something else": {tasks, idle, 2},
	} {
		weaker := policy.Settings{tasks, test.idle}
		if got := Under(weaker, policy.Settings{test.laid}); len(got) != test.left || len(weaker) != 2 {
			t.Errorf("%s: left are %v of %v", name, got, weaker)
		}
	}
}

// A limit below 1 % of a core is one where the kernel's longest period holds it, unless the policy has a shorter one.
func TestSmallCPULimits(t *testing.T) {
	for cpu, says := range map[string]string{
		"limit: 0.005": "", "limit: 0.001": "", "limit: 0.005, burst: 1ms": "", "limit: 0.005, period: 200ms": "",
		"limit: 0.0009":               "cpu.limit 0.0009 of a period of 1s is 900us",
		"limit: 0.005, period: 100ms": "cpu.limit 0.005 of a period of 100ms is 500us",
		"limit: 0.005, burst: 2ms":    "cpu.burst 2ms is more than cpu.limit 0.005 in 200ms",
	} {
		_, problems := resolved(t, "groups: {a: {match: [{user: a}], cpu: {"+cpu+"}}}\n")
		if (says == "") != (len(problems) == 0) || len(problems) > 0 && !strings.HasPrefix(problems[0].Msg, says) {
			t.Errorf("%s: %v, want %q", cpu, problems, says)
		}
	}
}

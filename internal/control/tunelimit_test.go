package control

import (
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/state"
)

// A limit of huge pages of a group comes with `tune apply` and goes with its rollback; what the policy says counts, and
// `tune status` shows both.
func TestTuneLimitsAGroup(t *testing.T) {
	const groups, dir = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n", "/bulkhead.jobs.slice"
	limit := state.Tuned{Rule: "MEM-47", Name: "jobs:memory.huge", On: "2MiB", Value: "20MiB"}
	m := tunedMachine(t)
	m.apply(groups)

	m.tune(lowSwap, limit)
	m.tunedAs("tuned", "1; always; vm.swappiness = 1")
	m.reads("tuned", dir, "hugetlb.2MB.max", "20971520")
	m.reads("tuned", dir, "hugetlb.2MB.rsvd.max", "20971520")
	if reply := m.tune(limit); len(reply.Plan.Steps) > 0 {
		t.Errorf("once more: %+v", reply.Plan.Steps)
	}
	all, err := inspect.Tuning(t.Context(), m.Controller)
	m.must(err)
	shown := 0
	for _, a := range all {
		if a.Limit && a.Name == limit.Name && a.Wanted == limit.Value {
			shown++
		}
	}
	if shown != 1 {
		t.Errorf("tune status has the limit %d times: %+v", shown, all)
	}

	m.apply(strings.Replace(groups, "tasks: 50", "tasks: 50, memory: {huge: {2MiB: 8MiB}}", 1))
	m.reads("by the policy", dir, "hugetlb.2MB.max", "8388608")
	m.apply(groups)
	m.reads("of the policy again without", dir, "hugetlb.2MB.max", "20971520")

	_, err = m.do(api.Request{Verb: "tune rollback", Rules: []string{"MEM-47"}})
	m.must(err)
	for _, file := range []string{"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"} {
		m.reads("rolled back", dir, file, "max")
	}
	m.tunedAs("what another rule set stays", "1; always; vm.swappiness = 1")
}

// Only limits of huge pages are set by tune, of a size that there is.
func TestTuneRefusesOtherLimits(t *testing.T) {
	m := tunedMachine(t)
	for _, tt := range []state.Tuned{
		{Rule: "X", Name: "jobs:memory.max", On: "2MiB", Value: "20MiB"},
		{Rule: "X", Name: "jobs:memory.huge", On: "3MiB", Value: "20MiB"},
		{Rule: "X", Name: "jobs:memory.huge", On: "2MiB", Value: "much"},
	} {
		if _, err := m.do(api.Request{Verb: "tune apply", Tune: []state.Tuned{tt}}); err == nil {
			t.Errorf("%+v is taken", tt)
		}
	}
}

package snapshot

import (
	"testing"

	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/resolve"
	"bulkhead/internal/state"
)

// A weight that `set` or a window gives a group of role batch counts: the group is idle no more.
func TestWeightLaidOverABatch(t *testing.T) {
	batch := func() []classify.Group {
		g := &policy.Group{Role: policy.RoleBatch}
		return []classify.Group{{Path: "reports", Settings: resolve.RoleSettings(g)}}
	}
	check := func(what string, groups []classify.Group, problems policy.Problems) {
		t.Helper()
		idle, _ := groups[0].Settings.Get(policy.KeyCPUIdle, "")
		weight, _ := groups[0].Settings.Get(policy.KeyCPUWeight, "")
		if len(problems) > 0 || idle.Value != nil || weight.Value != policy.Weight(500) {
			t.Errorf("%s: %v, %v, %v", what, groups[0].Settings, weight, problems)
		}
	}
	groups := batch()
	over := state.Override{ID: 3, Group: "reports", Key: policy.KeyCPUWeight, Text: "reports:cpu.weight=500"}
	check("set", groups, layOver(groups, over, &host.Facts{}, resolve.Resolver{}))
	groups = batch()
	set := policy.Settings{{Key: policy.KeyCPUWeight, Value: policy.Weight(500), From: "schedule nightly"}}
	nightly := policy.Schedule{Set: []policy.Scheduled{{Group: "reports", Settings: set}}}
	groups, problems := layWindows(groups, []policy.Schedule{nightly})
	check("a window", groups, problems)
	groups = batch()
	over.Key, over.Text = policy.KeyTasks, "reports:tasks=5"
	problems = layOver(groups, over, &host.Facts{}, resolve.Resolver{})
	if idle, _ := groups[0].Settings.Get(policy.KeyCPUIdle, ""); len(problems) > 0 || idle.Value != policy.Flag(true) {
		t.Errorf("something else is set: %v, %v", groups[0].Settings, problems)
	}
}

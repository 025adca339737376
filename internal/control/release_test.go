package control

import (
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/plan"
)

// A release fails when somebody is still held, and not for an empty directory.
func TestStillHeld(t *testing.T) {
	for name, c := range map[string]struct {
		step plan.Step
		held bool
	}{
		"a limit":      {plan.Step{Op: plan.OpWrite, File: "memory.max"}, true},
		"a process":    {plan.Step{Op: plan.OpMove}, true},
		"a score":      {plan.Step{Op: plan.OpOOMScore}, true},
		"a directory":  {plan.Step{Op: plan.OpRemoveDir}, false},
		"a controller": {plan.Step{Op: plan.OpWrite, File: "cgroup.subtree_control"}, false},
	} {
		err := stillHeld(&outcome{leftOut: []plan.Step{{Op: plan.OpRemoveDir}, c.step},
			Reply: api.Reply{Notes: []string{"not done: this", "not done: that"}}})
		if (err != nil) != c.held || c.held &&
			(api.CodeOf(err) != api.CodeFailed || !strings.Contains(err.Error(), "this; not done: that")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := stillHeld(&outcome{}); err != nil {
		t.Error(err)
	}
}

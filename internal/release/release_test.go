package release

import (
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
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
		err := StillHeld(&transaction.Outcome{LeftOut: []plan.Step{{Op: plan.OpRemoveDir}, c.step},
			Reply: api.Reply{Notes: []string{"not done: this", "not done: that"}}})
		if (err != nil) != c.held || c.held &&
			(api.CodeOf(err) != api.CodeFailed || !strings.Contains(err.Error(), "this; not done: that")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := StillHeld(&transaction.Outcome{}); err != nil {
		t.Error(err)
	}
}

// A release that could not look at interfaces says which it leaves as they are, where it ever changed some.
func TestReleaseSaysWhichInterfacesStay(t *testing.T) {
	c, err := transaction.Open(transaction.Options{State: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cause := errors.New("operation not permitted")
	if notes := leftShaped(c.Store, "b", cause); len(notes) > 0 {
		t.Errorf("of none: %+v", notes)
	}
	lock, err := c.Lock(t.Context(), "apply", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	if err := c.Store.Save(state.DocNetwork,
		state.Network{Boot: "b", Devices: map[string]state.Interface{"eth1": {}, "eth0": {}}}); err != nil {
		t.Fatal(err)
	}
	if notes := leftShaped(c.Store, "b", cause); len(notes) != 1 || !notes[0].NotEnforced ||
		notes[0].Text != "limits on eth0, eth1 stay as they are: operation not permitted" {
		t.Errorf("of two: %+v", notes)
	}
}

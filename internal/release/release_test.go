package release

import (
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// A release fails when somebody is still held, and not for an empty directory.
func TestStillHeld(t *testing.T) {
	dir := cgroup.Dir{Hierarchy: "unified", Path: "/bulkhead.a"}
	removal := plan.Step{Change: change.Of(dir.Target(), cgroup.There, "")}
	for name, c := range map[string]struct {
		step plan.Step
		held bool
	}{
		"a limit":      {plan.Step{Change: change.Change{Target: dir.File("memory.max").Target()}}, true},
		"a process":    {plan.Step{Change: change.Change{Target: cgroup.Membership(procfs.ID{PID: 7}, "cpu")}}, true},
		"a score":      {plan.Step{Change: change.Change{Target: procfs.ID{PID: 7}.ScoreTarget()}}, true},
		"a directory":  {removal, false},
		"a controller": {plan.Step{Change: change.Change{Target: dir.File(cgroup.SubtreeControl).Target()}}, false},
	} {
		err := StillHeld(&transaction.Outcome{LeftOut: []plan.Step{removal, c.step},
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

// A release says from which interfaces it takes limits that its records know nothing of.
func TestReleaseSaysWhatIsNotRecorded(t *testing.T) {
	device := func(name string, governed bool) plan.NetDevice {
		return plan.NetDevice{State: netshape.State{Device: tc.Device{Link: tc.Link{Name: name}}}, Governed: governed}
	}
	n := &plan.Network{Was: map[string]netshape.Wanted{"eth0": {}},
		Devices: []plan.NetDevice{device("eth0", true), device("eth1", true), device("eth2", false)}}
	notes := unrecordedShares(n, "/var/lib/bulkhead")
	if len(notes) != 1 || !strings.HasPrefix(notes[0].Text, "limits of bulkhead on eth1 are taken away, too") ||
		notes[0].NotEnforced {
		t.Errorf("%+v", notes)
	}
	if notes := unrecordedShares(nil, ""); len(notes) > 0 {
		t.Errorf("without a network: %+v", notes)
	}
}

package control

import (
	"errors"
	"testing"

	"bulkhead/internal/apply"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// A plan that leaves interfaces as they are, forced past what the kernel lacks for them, does not forget what was on
// them before.
func TestForcedPastTheKernelKeepsOriginals(t *testing.T) {
	c, err := Open(Options{State: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lock, err := c.lock(t.Context(), "apply", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	original := &netshape.Foreign{Egress: []netshape.Change{{Verb: tc.Replace, What: netshape.Qdisc, Device: "eth0",
		Index: 2}}}
	if err := c.Store.Save(state.DocNetwork,
		state.Network{Boot: "b", Devices: map[string]state.Interface{"eth0": {Index: 2,
			Original: original}}}); err != nil {
		t.Fatal(err)
	}
	device := netshape.State{Device: tc.Device{Link: tc.Link{Name: "eth0", Index: 2}}}
	v := &View{Snapshot: &snapshot.Snapshot{Facts: &host.Facts{BootID: "b"}, Network: &plan.Network{
		Devices: []plan.NetDevice{{State: device, Governed: true, Original: original}},
	}}}
	v.Plan.Refusals = []plan.Refusal{{Group: "a", Reason: "network on eth0: this kernel has no IFB"}}
	if err := c.settleNetwork(v, nil); err != nil {
		t.Fatal(err)
	}
	if r, err := state.NetworkRecord(c.Store, "b"); err != nil || r.Devices["eth0"].Original == nil {
		t.Errorf("the record says %+v, %v", r, err)
	}
}

// Where no watchdog can be started nothing is changed but by a release, which goes on without.
func TestReleaseNeedsNoWatchdog(t *testing.T) {
	c, err := Open(Options{State: t.TempDir(),
		Watchdog: []string{"-test.list=^$"}}) // ends, and never says that it is there
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, releasing := range []bool{false, true} {
		settle, err := c.guard(t.Context(), nil, releasing)(apply.Guarded{}, func(error) { t.Error("stopped") })
		if (err == nil) != releasing {
			t.Fatalf("releasing %t: %v", releasing, err)
		}
		if releasing && settle(false) != nil {
			t.Error("it is not settled")
		}
	}
}

// A release that could not look at interfaces says which it leaves as they are, where it ever changed some.
func TestReleaseSaysWhichInterfacesStay(t *testing.T) {
	c, err := Open(Options{State: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cause := errors.New("operation not permitted")
	if notes := leftShaped(c.Store, "b", cause); len(notes) > 0 {
		t.Errorf("of none: %+v", notes)
	}
	lock, err := c.lock(t.Context(), "apply", "test")
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

// A watchdog that finds its change undone leaves everything as it is, also while somebody else has the lock.
func TestBiteWhileSomebodyElseChanges(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	other, err := journal.Open(state, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c, err := Open(Options{State: state})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lock, err := other.Lock("apply", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	id, err := other.Begin(journal.Txn{Boot: "b", Verb: "apply"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.biteByJournal(t.Context(), apply.Guarded{Txn: id}); err == nil {
		t.Error("what is under way counts as undone")
	}
	if err := other.End(id, journal.Undone, ""); err != nil {
		t.Fatal(err)
	}
	if err := c.biteByJournal(t.Context(), apply.Guarded{Txn: id}); err != nil {
		t.Error(err)
	}
}

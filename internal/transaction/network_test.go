package transaction

import (
	"testing"

	"bulkhead/internal/apply"
	"bulkhead/internal/host"
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
	lock, err := c.Lock(t.Context(), "apply", "test")
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
	if err := settleNetwork(c, v, nil); err != nil {
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
		settle, err := guard(t.Context(), c, nil, releasing)(apply.Guarded{}, func(error) { t.Error("stopped") })
		if (err == nil) != releasing {
			t.Fatalf("releasing %t: %v", releasing, err)
		}
		if releasing && settle(false) != nil {
			t.Error("it is not settled")
		}
	}
}

package resolve

import (
	"slices"
	"testing"

	"bulkhead/internal/policy"
)

// Two entries may mean one interface: the peers of both have to stay within reach.
func TestPeersOfOneInterface(t *testing.T) {
	h := policy.HostPart{Network: []policy.NetworkLink{
		{On: "eth0", Dev: "eth0", Peer: "192.0.2.2:22"}, {On: "default", Dev: "eth0", Peer: "192.0.2.1:22"},
		{On: "eth1", Dev: "eth1", Peer: "192.0.2.1:22"}, {On: "gone", Peer: "192.0.2.3:22"}, {On: "eth2", Dev: "eth2"},
	}}
	if got, want := h.Peers(), []string{"192.0.2.1:22", "192.0.2.2:22"}; !slices.Equal(got, want) {
		t.Errorf("peers are %q, want %q", got, want)
	}
}

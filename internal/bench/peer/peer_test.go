package peer

import (
	"context"
	"testing"

	"bulkhead/internal/bench/process"
)

// A release that is cut off is done by the next one.
func TestPeerReleasedAgain(t *testing.T) {
	n := process.NewSupervisor()
	defer n.Close()
	p := &Peer{Paths: process.Programs{"cgdelete": "/bin/true", "lscgroup": "/bin/true"}, Supervisor: n,
		groups: []group{{"a", []string{"cpu"}}, {"b", []string{"cpu"}}}}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Release(cut); err == nil || len(p.groups) != 2 {
		t.Errorf("cut off: %v; %d groups are known", err, len(p.groups))
	}
	if err := p.Release(t.Context()); err != nil || p.Governs() {
		t.Errorf("%v; %d groups are known", err, len(p.groups))
	}
}

package bench

import (
	"context"
	"testing"

	"bulkhead/internal/bench/process"
)

// A release that is cut off is done by the next one.
func TestPeerReleasedAgain(t *testing.T) {
	n := process.NewSupervisor()
	defer n.Close()
	p := &peer{paths: process.Programs{"cgdelete": "/bin/true", "lscgroup": "/bin/true"}, supervisor: n,
		groups: []peerGroup{{"a", []string{"cpu"}}, {"b", []string{"cpu"}}}}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.release(cut); err == nil || len(p.groups) != 2 {
		t.Errorf("cut off: %v; %d groups are known", err, len(p.groups))
	}
	if err := p.release(t.Context()); err != nil || p.governs() {
		t.Errorf("%v; %d groups are known", err, len(p.groups))
	}
}

//go:build root

package control

import (
	"errors"
	"os"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/testhost"
)

// On a machine with two NUMA nodes a group with memory on one of them gets the other one only when that is asked for;
// on cgroup v2 its pages move then, on v1 they stay.
func TestNodesNeedAsking(t *testing.T) {
	s := newSite(t)
	if facts, err := s.Host.Facts(); err != nil {
		t.Fatal(err)
	} else if len(facts.Nodes) < 2 {
		if os.Getenv("BULKHEAD_LAB") != "" {
			t.Fatal("a machine of the lab has two nodes")
		}
		t.Skip("this machine has one NUMA node")
	}
	s.apply("groups:\n  g: {match: [{exe: /nonexistent/x}], memory: {max: 400MiB, numa: 0}}\n")
	holder := testhost.HoldMemory(t)
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{holder.ID.PID}})
	if !holder.Touch(60 << 20) {
		t.Fatal("the holder was killed")
	}
	_, err := s.try(api.Request{Verb: "set", Assign: []string{"g:memory.numa=1"}})
	var refused *apply.RefusedError
	if !errors.As(err, &refused) || api.CodeOf(err) != api.CodeRefused ||
		!strings.Contains(err.Error(), "MiB of it are on node 0") || !strings.Contains(refused.Hint(), "--migrate") {
		t.Fatalf("not asked for: %v", err)
	}
	t.Log(err)
	s.holds("refused", "g:memory.numa=0")
	s.must(api.Request{Verb: "set", Assign: []string{"g:memory.numa=1"}, Migrate: true})
	s.holds("asked for", "g:memory.numa=1")
	left := s.onNode("g", 0)
	t.Logf("%d MiB are on node 0 then", left>>20)
	if moves := s.of("cpuset").Version == 2; moves && left > 30<<20 || !moves && left < 50<<20 {
		t.Errorf("%d bytes are on node 0, moved %t", left, moves)
	}
	s.must(api.Request{Verb: "unset", Assign: []string{"g:memory.numa"}}) // the way back needs no asking
	s.holds("back", "g:memory.numa=0")
}

// onNode is how much memory of a group is on a NUMA node.
func (s *site) onNode(group string, node int) int64 {
	s.t.Helper()
	h := s.of("memory")
	facts, err := s.Host.Facts()
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := testhost.Tree(s.t).Read(s.at(h.ID, group).File("memory.numa_stat"))
	if err != nil {
		s.t.Fatal(err)
	}
	return cgroup.NodeBytes(text, h.Version, facts.PageSize)[node]
}

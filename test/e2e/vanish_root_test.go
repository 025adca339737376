//go:build root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/testhost"
)

// A path that vanishes while the agent looks keeps its limit in force, as does every other limit; status says which
// path is gone. When it is there again nothing is left of that, and a release gives everything back.
func TestPathThatVanishesKeepsItsLimit(t *testing.T) {
	s := newSite(t)
	before := s.snapshot()
	loop, number := testhost.LoopDevice(t, 32<<20)
	dir := filepath.Join(t.TempDir(), "data dir\nof two lines")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.write(fmt.Sprintf("groups:\n  load:\n    match: [{cmdline: 'matches nothing at all here'}]\n    io: [{on: %q, "+
		"read: {bandwidth: 64MiB/s}}, {on: %s, read: {bandwidth: 10MiB/s}}]\n", dir, loop))
	s.must("apply")
	asked := s.readLimits("load")
	if len(asked) != 2 || asked[number] != 10<<20 {
		t.Fatalf("limits are %v", asked)
	}
	agent := s.agent()
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	soon(t, "status to say which path is gone", func() bool {
		st := s.status()
		return strings.Contains(st.Agent.Error, "there is no such path") && len(st.Problems) == 1 &&
			strings.Contains(st.Problems[0].Msg, "data dir")
	})
	looks := s.status().Agent.Looks
	soon(t, "five more looks", func() bool { return s.status().Agent.Looks >= looks+5 })
	if now := s.readLimits("load"); fmt.Sprint(now) != fmt.Sprint(asked) {
		t.Errorf("limits are %v, were %v\n%s", now, asked, agent.said())
	}
	s.exits(4, []string{"there is no such path", "as it was"}, "verify", "load", "--json")
	s.exits(2, []string{"there is no such path on this host"}, "apply") // a new apply is for what there is
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	soon(t, "a look without a complaint", func() bool {
		st := s.status()
		return st.Agent.Error == "" &&
			len(st.Problems) == 0
	})
	s.verified("load")
	s.must("release", "--all")
	s.same("after a release", before)
}

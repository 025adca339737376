//go:build root

package control

import (
	"context"
	"fmt"
	"os"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/systemd"
)

// Before an adopted unit starts again, bulkhead has an empty slice beside it. A release then ends that slice, and takes
// the slice above it for none of its own: what somebody has set of system.slice stays.
func TestReleaseBeforeTheRestart(t *testing.T) {
	s := newUnitSite(t)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("it sets the weight of system.slice: for the lab's machines only")
	}
	weight := systemd.Property{Name: "CPUWeight", Value: uint64(150)}
	if err := s.systemd.SetProperties(t.Context(), "system.slice", systemd.Runtime, weight); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.systemd.RestoreOverrides(context.Background(), "system.slice", nil); err != nil {
			t.Error(err)
		}
	})
	program, rule := s.sleeper(84001)
	unit := s.service("db", program, "CPUWeight=120")
	home := s.unit(unit).ControlGroup
	s.apply(fmt.Sprintf("groups:\n  app: {role: database, adopt: next-start, match: [{cmdline: '%s'}]}\n", rule))
	s.reads("after apply", home, "cpu.shares", "cpu.weight", map[int]string{1: "10240", 2: "1000"}[s.of("cpu").Version])
	s.must(api.Request{Verb: "release", All: true})
	theirs := map[int][2]string{1: {"1536", "1228"}, 2: {"150", "120"}}[s.of("cpu").Version]
	s.reads("after release", "/system.slice", "cpu.shares", "cpu.weight", theirs[0])
	s.reads("after release", home, "cpu.shares", "cpu.weight", theirs[1])
	if u := s.unit("system.slice"); u.Properties["CPUWeight"] != weight.Value {
		t.Errorf("system.slice has CPUWeight=%v", u.Properties["CPUWeight"])
	}
	if ours := s.ourUnits(); len(ours) > 0 {
		t.Errorf("left behind: %v", ours)
	}
	if !s.unit(unit).Active() || s.unit(unit).ControlGroup != home {
		t.Error("release touched the service")
	}
}

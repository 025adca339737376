//go:build root

package control

import (
	"os"
	"slices"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/testhost"
)

// From the policy to the mount option and back. Kernel 6.18 keeps moves fast until the next boot, so outside of the lab
// this runs only when FAST=1 asks for it.
func TestFastMovesThroughTheVerbs(t *testing.T) {
	if os.Getenv("BULKHEAD_LAB") == "" && os.Getenv("FAST") != "1" {
		t.Skip("it would leave this kernel with fast moves until it is booted again; FAST=1 runs it, as the lab does")
	}
	s := newSite(t)
	facts, err := s.Host.Facts()
	if err != nil {
		t.Fatal(err)
	}
	_, mounted := facts.Hierarchy(procfs.UnifiedID)
	has := mounted && facts.Kernel.AtLeast(6, 0)
	option := cgroup.File{Dir: cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: "/"}, Name: cgroup.FavorDynmods}
	holds := func(when, want string) {
		t.Helper()
		if !has {
			return
		}
		if got, err := (cgroup.MountOptions{Tree: testhost.Tree(t)}).Read(t.Context(), option.String()); err != nil ||
			got != want {
			t.Errorf("%s: the option is %q, %v; want %q", when, got, err, want)
		}
	}
	holds("before", "off")
	_, m := marked(t, 70081)
	groups := "groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n"
	fast := "agent: {fast_moves: on}\n" + groups
	reply := s.apply(fast)
	switches := slices.ContainsFunc(reply.Plan.Steps, func(st plan.Step) bool { return st.Kind == cgroup.KindOption })
	if switches != has {
		t.Errorf("apply switches: %t, and the kernel has it: %t", switches, has)
	}
	holds("applied", "on")
	if again := s.apply(fast); again.Changed {
		t.Errorf("again: %+v", again.Plan.Steps)
	}
	s.apply(groups)
	holds("applied without", "off")
	s.apply(fast)
	s.reopen()
	s.must(api.Request{Verb: "release", All: true})
	holds("released", "off")
}

package snapshot

import (
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Where a group sits in the directory of the one above it, which has a limit of a disk (cgroup v1), what that counts is
// not the group's.
func TestCountedIsOfTheGroupItself(t *testing.T) {
	f := &host.Facts{Hierarchies: []host.Hierarchy{{ID: "cpuacct", Version: 1, Controllers: []string{"cpuacct"}},
		{ID: "blkio", Version: 1, Controllers: []string{"blkio"}}}}
	groups := []classify.Group{{Path: "a", Inner: true, Settings: policy.Settings{{Key: policy.KeyIOReadBandwidth,
		On: "8:0", Dev: "8:0", Value: policy.Rate(1 << 20)}}}, {Path: "a/x", Parent: "a"}}
	s := &Snapshot{Layout: layout.New(f, layout.Names{}, layout.NewForest(f, policy.HostPart{}, groups), nil)}
	on := func(group string) (dirs []cgroup.Dir) {
		for _, all := range s.Counted(group).Dirs {
			for _, d := range all {
				if d.Hierarchy == "blkio" {
					dirs = append(dirs, d)
				}
			}
		}
		return dirs
	}
	if all := on("a"); len(all) != 1 || s.Layout.Owner[all[0]] != "a" {
		t.Errorf("what a does on disks is counted by %v", all)
	}
	if member := s.Layout.Member("a/x")["blkio"]; s.Layout.Owner[member] != "a" {
		t.Fatalf("a/x sits in %v: the test shows nothing", member)
	}
	if all := on("a/x"); len(all) != 0 {
		t.Errorf("what a/x does on disks is said to be counted by %v", all)
	}
}

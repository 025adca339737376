package planner

import (
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

// A change of nodes says what becomes of the memory on those that go, and is refused unless it was asked for.
func TestNodesUnderMemory(t *testing.T) {
	on := func(nodes ...int) policy.Settings {
		return settings("group", "memory.numa", policy.IDs{Set: idset.New(nodes...)})
	}
	for name, c := range map[string]struct {
		h       host.Hierarchy
		to      []int
		member  bool
		migrate bool
		bytes   map[int]int64
		says    string // "": nothing
	}{
		"v2": {v2("cpuset", "memory"), []int{1}, true, false, map[int]int64{0: 3 << 30, 1: 5 << 30},
			"memory.numa changes under 1 process: 3 GiB of it are on node 0; they move to the other nodes at once, " +
				"in about 3s at 1 GiB a second, while its processes wait"},
		"a large one": {v2("cpuset", "memory"), []int{1}, true, false, map[int]int64{0: 300 << 30},
			"300 GiB of it are on node 0; they move to the other nodes at once, in about 5m0s at 1 GiB a second"},
		"v1": {v1("cpuset", "memory"), []int{1}, true, false, map[int]int64{0: 3 << 30},
			"3 GiB of it are on node 0; they stay there, as cpuset.memory_migrate is 0"},
		"v1 that moves": {v1("cpuset", "memory"), []int{1}, true, true, map[int]int64{0: 2 << 30},
			"2 GiB of it are on node 0; they move to the other nodes at once, in about 2s"},
		"not known": {v2("cpuset", "memory"), []int{1}, true, false, nil,
			"how much memory it has on node 0 is not known"},
		"nothing there":         {v2("cpuset", "memory"), []int{1}, true, false, map[int]int64{0: 0, 1: 5 << 30}, ""},
		"nobody there":          {v2("cpuset", "memory"), []int{1}, false, false, map[int]int64{0: 1 << 30}, ""},
		"one more, and no less": {v2("cpuset", "memory"), []int{0, 1}, true, false, map[int]int64{0: 1 << 30}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(factsWith(c.h), group("a", on(0)))
			if c.member {
				member(&in, proc(100, 1, "mysqld", in.Facts), "a")
			}
			inPlace(&in)
			in.Classified.Groups = groupsOf(group("a", on(c.to...))).Groups
			inUse(&in).onNodes = map[string]map[int]int64{"a": c.bytes}
			dir := cgroup.Dir{Hierarchy: c.h.ID, Path: "/bulkhead/a"}
			inUse(&in).migrates = map[cgroup.Dir]bool{dir: c.migrate}
			note := ""
			for _, n := range Make(in).Notes {
				if n.Key == policy.KeyMemoryNUMA && strings.Contains(n.Text, "node 0") {
					note = n.Text
				}
			}
			in.AskNodes = true
			p := Make(in)
			if c.says == "" {
				if note != "" || len(p.Refusals) > 0 {
					t.Errorf("note %q, refusals %+v", note, p.Refusals)
				}
				return
			}
			if len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, c.says) ||
				p.Refusals[0].Hint != "--migrate does it" {
				t.Errorf("refusals %+v, want %q", p.Refusals, c.says)
			}
			if note == "" {
				t.Error("without asking it says nothing")
			}
		})
	}
}

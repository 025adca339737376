package planner

import (
	"maps"
	"strconv"
	"testing"

	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
)

// TestProtection: each directory above one with memory.low has at least the sum of those below, unless its group
// asks for an amount itself, and a group's own processes have what its children leave of that.
func TestProtection(t *testing.T) {
	low := func(mib int64) policy.Settings { return settings("group", "memory.low", policy.Bytes(mib<<20)) }
	for _, c := range []struct {
		name   string
		groups []classify.Group
		want   map[string]int64 // path below our root → MiB
	}{
		{"the groups above", []classify.Group{group("a", nil), group("a/x", low(100)), group("a/y", low(50)),
			group("a/z", nil)},
			map[string]int64{"": 150, "/a": 150, "/a/x": 100, "/a/y": 50}},
		{"own processes", []classify.Group{group("a", low(100)), group("a/x", nil)},
			map[string]int64{"": 100, "/a": 100, "/a/db": 100}},
		{"own processes and a child", []classify.Group{group("a", low(100)), group("a/x", low(30)), group("b", low(5))},
			map[string]int64{"": 105, "/a": 100, "/a/db": 70, "/a/x": 30, "/b": 5}},
		{"the children ask for more", []classify.Group{group("a", low(100)), group("a/x", low(80)),
			group("a/y", low(80))},
			map[string]int64{"": 100, "/a": 100, "/a/x": 80, "/a/y": 80}},
		{"none", []classify.Group{group("a", settings("group", "memory.low", policy.Unlimited{})), group("a/x", nil)},
			map[string]int64{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := map[string]int64{}
			for _, w := range Make(input(factsWith(v2("memory")), c.groups...)).Want {
				n, err := strconv.ParseInt(w.Value, 10, 64)
				if w.File().Name == "memory.low" && err == nil {
					got[w.File().Dir.Path[len("/bulkhead"):]] = n >> 20
				}
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("MiB of memory.low: %v, want %v", got, c.want)
			}
		})
	}
}

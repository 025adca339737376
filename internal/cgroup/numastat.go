package cgroup

import (
	"slices"
	"strconv"
	"strings"
)

// NodeBytes reads memory.numa_stat: bytes by node. On cgroup v1 they are pages, of the group and those below it
// ("hierarchical_total=5 N0=3 N1=2"); on v2 bytes by kind ("anon N0=4096 N1=0"), of which anonymous and file pages are
// all that is somewhere.
func NodeBytes(text string, version int, pageSize int64) map[int]int64 {
	nodes := map[int]int64{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		kind, _, _ := strings.Cut(words[0], "=")
		unit := int64(1)
		if version == 1 {
			unit = pageSize
		}
		if !slices.Contains(map[int][]string{1: {"hierarchical_total"}, 2: {"anon", "file"}}[version], kind) {
			continue
		}
		for _, w := range words[1:] {
			node, count, ok := strings.Cut(strings.TrimPrefix(w, "N"), "=")
			id, err1 := strconv.Atoi(node)
			n, err2 := strconv.ParseInt(count, 10, 64)
			if ok && err1 == nil && err2 == nil {
				nodes[id] += n * unit
			}
		}
	}
	return nodes
}

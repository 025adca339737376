package sampling

import (
	"context"
	"os"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// The files that tell memory of groups by NUMA node: that of the memory controller, and one for each size of pages of a
// pool (kernel 5.17), named by that between the two words.
const memoryOnNodes = "memory.numa_stat"

var poolOnNodes = [2]string{"hugetlb.", ".numa_stat"}

// nodes reads on which NUMA nodes memory of groups is, and in which pages.
func (k *Kernel) nodes(ctx context.Context, m *collect.Meter) (collect.Put, error) {
	w := k.watched.Load()
	k.onNodes.Begin(time.Now())
	all := make(map[string]map[int]map[string]int64, len(w.groups))
	for _, g := range w.groups {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		nodes := map[int]map[string]int64{}
		for _, dirs := range g.from.Dirs {
			for _, d := range dirs {
				if texts, err := k.onNodes.Texts(w.tree, d); err == nil { // else it is gone meanwhile
					addNodes(nodes, texts, w.tree.Version(d))
				}
			}
		}
		if len(nodes) > 0 {
			all[g.Group.Group] = nodes
		}
		m.Rest()
	}
	return func(s *observe.Sample) {
		for i := range s.Groups {
			s.Groups[i].Nodes = all[s.Groups[i].Group]
		}
	}, nil
}

// addNodes adds what the files of a directory tell.
func addNodes(nodes map[int]map[string]int64, texts map[string]string, version int) {
	add := func(node int, pages string, bytes int64) {
		if nodes[node] == nil {
			nodes[node] = map[string]int64{}
		}
		nodes[node][pages] += bytes
	}
	for name, text := range texts {
		if name == memoryOnNodes {
			for node, on := range cgroup.NodePages(text, version, int64(os.Getpagesize())) {
				add(node, observe.PagesUsual, on.Usual)
				add(node, observe.PagesCache, on.Cache)
				if on.Transparent != nil {
					add(node, observe.PagesTransparent, *on.Transparent)
				}
			}
			continue
		}
		size := strings.TrimSuffix(strings.TrimPrefix(name, poolOnNodes[0]), poolOnNodes[1])
		for node, bytes := range cgroup.PoolNodes(text) {
			add(node, size, bytes)
		}
	}
}

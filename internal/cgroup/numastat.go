package cgroup

import (
	"slices"
	"strconv"
	"strings"
)

// OnNode is memory of a group on one node, in bytes, by the pages that it is in.
type OnNode struct {
	Usual       int64
	Transparent *int64 // huge ones; nil where they are not told, and so are among the usual ones
	Cache       int64  // page cache; shared memory is none
}

// NodeBytes reads memory.numa_stat: bytes by node. On cgroup v1 they are pages, of the group and those below it
// ("hierarchical_total=5 N0=3 N1=2"); on v2 bytes by kind ("anon N0=4096 N1=0"), of which anonymous and file pages are
// all that is somewhere: of the host file pages have swap cache among them, of a group they have not (mm/swap_state.c).
func NodeBytes(text string, version int, pageSize int64) map[int]int64 {
	nodes := map[int]int64{}
	if version == 1 {
		addNodes(nodes, nodeLines(text, "hierarchical_total")["hierarchical_total"], pageSize)
		return nodes
	}
	lines := nodeLines(text, "anon", "file")
	addNodes(nodes, lines["anon"], 1)
	addNodes(nodes, lines["file"], 1)
	return nodes
}

// kindsOf are the lines of memory.numa_stat that NodePages takes, by version.
var kindsOf = [...][]string{
	1: {"hierarchical_anon", "hierarchical_file", "hierarchical_unevictable"},
	2: {"anon", "file", "shmem", "anon_thp", "shmem_thp"},
}

// NodePages reads memory.numa_stat, too. Transparent huge pages are told by v2 alone, where the kernel has them. A
// pool's pages are none of these: see [PoolNodes].
func NodePages(text string, version int, pageSize int64) map[int]OnNode {
	lines := nodeLines(text, kindsOf[version]...)
	all := map[int]OnNode{}
	each := func(kind string, do func(on *OnNode, n int64)) {
		for node, n := range lines[kind] {
			on := all[node]
			do(&on, n)
			all[node] = on
		}
	}
	if version == 1 {
		usual := func(on *OnNode, n int64) { on.Usual += n * pageSize }
		each("hierarchical_anon", usual)
		each("hierarchical_unevictable", usual) // what is locked has a list of its own, whatever it is
		each("hierarchical_file", func(on *OnNode, n int64) { on.Cache += n * pageSize })
		return all
	}
	each("anon", func(on *OnNode, n int64) { on.Usual += n })
	each("file", func(on *OnNode, n int64) { on.Cache += n })
	each("shmem", func(on *OnNode, n int64) { on.Usual, on.Cache = on.Usual+n, max(on.Cache-n, 0) })
	huge := func(on *OnNode, n int64) {
		on.Usual = max(on.Usual-n, 0) // the kernel's counters are not read at one instant
		if on.Transparent != nil {
			n += *on.Transparent
		}
		on.Transparent = &n
	}
	each("anon_thp", huge)
	each("shmem_thp", huge)
	return all
}

// PoolNodes reads hugetlb.SIZE.numa_stat (kernel 5.17): bytes by node of the group and those below it in huge pages of
// a pool.
func PoolNodes(text string) map[int]int64 {
	lines := nodeLines(text, "hierarchical_total", "total")
	if all, v1 := lines["hierarchical_total"]; v1 {
		return all
	}
	return lines["total"]
}

// nodeLines gives the numbers of nodes in lines of a numa_stat that begin with these words, by the word.
func nodeLines(text string, kinds ...string) map[string]map[int]int64 {
	all := map[string]map[int]int64{}
	for line := range strings.Lines(text) {
		first, more, _ := strings.Cut(line, " ")
		kind, _, _ := strings.Cut(first, "=")
		if more == "" || !slices.Contains(kinds, kind) {
			continue
		}
		nodes := map[int]int64{}
		for _, w := range strings.Fields(more) {
			node, count, ok := strings.Cut(strings.TrimPrefix(w, "N"), "=")
			id, err1 := strconv.Atoi(node)
			n, err2 := strconv.ParseInt(count, 10, 64)
			if ok && err1 == nil && err2 == nil {
				nodes[id] += n
			}
		}
		all[kind] = nodes
	}
	return all
}

func addNodes(to, more map[int]int64, times int64) {
	for node, n := range more {
		to[node] += n * times
	}
}

package cgroup

import (
	"strconv"
	"strings"
)

// The pages that memory of a group is in, as [NodePages] tells them: the usual ones, transparent huge ones, and the page
// cache, which is in either.
const (
	PagesUsual       = "usual"
	PagesTransparent = "transparent"
	PagesCache       = "cache"
)

// NodeBytes reads memory.numa_stat: bytes by node. On cgroup v1 they are pages, of the group and those below it
// ("hierarchical_total=5 N0=3 N1=2"); on v2 bytes by kind ("anon N0=4096 N1=0"), of which anonymous and file pages are
// all that is somewhere.
func NodeBytes(text string, version int, pageSize int64) map[int]int64 {
	nodes := map[int]int64{}
	if version == 1 {
		addNodes(nodes, nodeLines(text)["hierarchical_total"], pageSize)
		return nodes
	}
	lines := nodeLines(text)
	addNodes(nodes, lines["anon"], 1)
	addNodes(nodes, lines["file"], 1)
	return nodes
}

// NodePages reads memory.numa_stat, too: bytes by node and by the pages that they are in. Shared memory is no page cache.
// On cgroup v1 and on v2 before kernel 5.11, which do not tell of transparent huge pages here, these are among the usual
// ones. A pool's pages are not in that file: see [PoolNodes].
func NodePages(text string, version int, pageSize int64) map[int]map[string]int64 {
	lines := nodeLines(text)
	all := map[int]map[string]int64{}
	add := func(pages string, times int64, kinds ...string) {
		for _, kind := range kinds {
			for node, n := range lines[kind] {
				if all[node] == nil {
					all[node] = map[string]int64{}
				}
				all[node][pages] += n * times
			}
		}
	}
	if version == 1 {
		// What is locked is on a list of its own, whatever it is.
		add(PagesUsual, pageSize, "hierarchical_anon", "hierarchical_unevictable")
		add(PagesCache, pageSize, "hierarchical_file")
		return all
	}
	add(PagesUsual, 1, "anon", "shmem")
	add(PagesUsual, -1, "anon_thp", "shmem_thp")
	add(PagesTransparent, 1, "anon_thp", "shmem_thp")
	add(PagesCache, 1, "file")
	add(PagesCache, -1, "shmem")
	for _, pages := range all {
		for kind, n := range pages {
			pages[kind] = max(n, 0) // the kernel's counters are not read at one instant
		}
	}
	return all
}

// PoolNodes reads hugetlb.SIZE.numa_stat (kernel 5.17): bytes by node of the group and those below it in huge pages of a
// pool.
func PoolNodes(text string) map[int]int64 {
	lines := nodeLines(text)
	if all, v1 := lines["hierarchical_total"]; v1 {
		return all
	}
	return lines["total"]
}

// nodeLines gives the numbers of nodes in each line of a numa_stat, by what the line begins with.
func nodeLines(text string) map[string]map[int]int64 {
	all := map[string]map[int]int64{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		kind, _, _ := strings.Cut(words[0], "=")
		nodes := map[int]int64{}
		for _, w := range words[1:] {
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

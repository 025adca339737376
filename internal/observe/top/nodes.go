package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/observe"
)

const (
	groupNodes = "bulkhead_group_memory_node_bytes"
	hostNodes  = "bulkhead_host_numa_memory_bytes"
)

// Nodes is memory of a group by NUMA node and page size, and how much of the nodes is free.
type Nodes struct {
	// Pages are the pages that it is in: the usual ones, transparent huge ones, those of pools, the smallest first, and
	// page cache.
	Pages []Pages `json:"pages"`
	Nodes []Node  `json:"nodes"` // by number; those without memory of the group, too
	// Missing says in sentences what is not in the figures, or not told apart; "" is nothing.
	Missing string `json:"missing,omitempty"`
}

// Pages is a kind of pages.
type Pages struct {
	Name  string `json:"name"` // "usual", "transparent", "2MB", "cache"
	Title string `json:"title"`
}

// Node is one NUMA node. All amounts are bytes; Total is 0 where it is not known.
type Node struct {
	ID    int     `json:"node"`
	Bytes []Bytes `json:"bytes"` // in the order of Pages
	All   Bytes   `json:"all"`
	Total Bytes   `json:"total"`
	Free  Bytes   `json:"free"`
	Part  float64 `json:"part"` // of the group's memory on all nodes
	Share string  `json:"share"`
}

// Bytes is an amount, and how it is shown.
type Bytes struct {
	Value float64 `json:"value"`
	Text  string  `json:"text"`
}

func bytesOf(v float64) Bytes { return Bytes{v, size(v)} }

// Nodes gives memory of a group by NUMA node; nil where nothing is known of it.
func (s *State) Nodes(group string) *Nodes {
	figures := s.Figures(groupNodes, group)
	if len(figures) == 0 {
		return nil
	}
	of := map[int]map[string]float64{}
	names := []string{}
	for _, f := range figures {
		id, err := strconv.Atoi(f.Labels[0])
		if err != nil {
			continue
		}
		if of[id] == nil {
			of[id] = map[string]float64{}
		}
		of[id][f.Labels[1]] = f.Value
		names = append(names, f.Labels[1])
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
	})
	n := &Nodes{}
	for _, name := range slices.Compact(names) {
		n.Pages = append(n.Pages, Pages{name, pagesTitle(name)})
	}
	whole := map[string]map[int]float64{"total": {}, "free": {}}
	for _, f := range s.Figures(hostNodes, "") {
		if id, err := strconv.Atoi(f.Labels[0]); err == nil && whole[f.Labels[1]] != nil {
			whole[f.Labels[1]][id] = f.Value
			if f.Labels[1] == "total" && f.Value > 0 && of[id] == nil {
				of[id] = map[string]float64{}
			}
		}
	}
	n.fill(of, whole)
	huge, _ := s.sum(hostMemory, "", false, "huge")
	n.Missing = n.missing(huge > 0)
	return n
}

// missing says which kinds of pages are not told apart or not counted; pool says that the host has huge pages of one.
func (n *Nodes) missing(pool bool) string {
	var all []string
	has := func(is func(Pages) bool) bool { return slices.ContainsFunc(n.Pages, is) }
	named := func(name string) bool { return has(func(p Pages) bool { return p.Name == name }) }
	switch {
	case !named(observe.PagesUsual):
		all = append(all, "Only huge pages of pools are counted for this group: all else takes the memory controller, "+
			"which limits of memory give it.")
	case !named(observe.PagesTransparent):
		all = append(all, "Transparent huge pages are not told apart here (cgroup v1 never does): they are among the "+
			"usual ones.")
	}
	if pool && !has(func(p Pages) bool { return poolSize(p.Name) > 0 }) {
		all = append(all, "Huge pages of a pool are not counted for this group: that takes memory.huge in its limits, "+
			"and kernel 5.17.")
	}
	return strings.Join(all, " ")
}

// fill adds the nodes, by number: of is the group's memory, and whole what the host has.
func (n *Nodes) fill(of map[int]map[string]float64, whole map[string]map[int]float64) {
	sum := 0.0
	for id, pages := range of {
		one := Node{ID: id, Total: bytesOf(whole["total"][id]), Free: bytesOf(whole["free"][id])}
		all := 0.0
		for _, p := range n.Pages {
			one.Bytes = append(one.Bytes, bytesOf(pages[p.Name]))
			all += pages[p.Name]
		}
		one.All = bytesOf(all)
		sum += all
		n.Nodes = append(n.Nodes, one)
	}
	slices.SortFunc(n.Nodes, func(a, b Node) int { return a.ID - b.ID })
	for i := range n.Nodes {
		if sum > 0 {
			n.Nodes[i].Part = n.Nodes[i].All.Value / sum
		}
		n.Nodes[i].Share = percent(n.Nodes[i].Part)
	}
}

// rank orders kinds of pages: usual, transparent, those of pools by their size, page cache.
func rank(name string) float64 {
	const last = 1 << 62
	switch name {
	case observe.PagesUsual:
		return 0
	case observe.PagesTransparent:
		return 1
	case observe.PagesCache:
		return last
	}
	return max(poolSize(name), 2)
}

// poolSize is the size of a pool's pages in bytes, as the kernel names them in files of hugetlb; 0 for other names.
func poolSize(name string) float64 {
	for unit, bytes := range map[string]float64{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30} {
		if text, is := strings.CutSuffix(name, unit); is {
			if n, err := strconv.ParseFloat(text, 64); err == nil {
				return n * bytes
			}
		}
	}
	return 0
}

func pagesTitle(name string) string {
	switch name {
	case observe.PagesUsual:
		return "usual pages"
	case observe.PagesTransparent:
		return "transparent huge pages"
	case observe.PagesCache:
		return "page cache"
	}
	if poolSize(name) > 0 {
		return "pool, pages of " + name[:len(name)-2] + " " + name[len(name)-2:len(name)-1] + "iB"
	}
	return name
}

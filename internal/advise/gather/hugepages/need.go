// Package hugepages says how many pages of a pool of huge pages the databases of a host take, with what that is
// computed from, and how large the pool is to be for all of them.
//
// Of reads the settings and /proc/PID/maps of one instance, which walks no page tables; it takes root for processes of
// others. Together adds up. All sizes are bytes. The functions keep nothing and may be called concurrently.
package hugepages

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/pagemap"
)

// Need is what one instance takes of a pool.
type Need struct {
	Instance string `json:"instance"`
	Page     int64  `json:"page_bytes"` // the size of the pages
	// Pages is what it takes when it starts with huge pages. 0 of engines that take none of a pool.
	Pages   int64  `json:"pages"`
	Unknown string `json:"unknown,omitempty"` // why Pages is not known
	// Told says that its settings ask for huge pages, and Setting which one does, or does not.
	Told    bool    `json:"told"`
	Setting string  `json:"setting,omitempty"` // "huge_pages = try (/etc/postgresql.conf:3)"
	Inputs  []Input `json:"inputs"`
	Holds   int64   `json:"holds_pages"`     // that it has mapped now
	Nodes   []int   `json:"nodes,omitempty"` // on which it may take memory, where these are not all
}

// Input is one part of a Need.
type Input struct {
	Name  string `json:"name"` // "innodb_buffer_pool_size"
	Bytes int64  `json:"bytes"`
	Pages int64  `json:"pages"`
	From  string `json:"from"`
}

// String is the input for people: "innodb_buffer_pool_size 128 MiB: 64 (/etc/my.cnf:3)".
func (i Input) String() string {
	return fmt.Sprintf("%s %s: %d (%s)", i.Name, fact.Size(i.Bytes), i.Pages, i.From)
}

// Of gives what an instance takes of a pool of pages of the default size of a host, or of the size that it asks for.
func Of(h *host.Host, facts *host.Facts, inst engine.Instance, s settings.Settings) Need {
	n := Need{Instance: inst.Name(), Page: facts.HugePage, Inputs: []Input{}}
	if n.Page == 0 {
		return n
	}
	n.Nodes = nodesOf(h, facts, inst.Main.PID)
	ranges, err := pagemap.Ranges(h.Proc, inst.Main.PID)
	if err != nil {
		n.Unknown = fmt.Sprintf("its maps cannot be read: %v", err)
	}
	switch inst.Engine {
	case engine.PostgreSQL:
		n.postgres(inst, s, ranges)
	case engine.MySQL:
		n.mysql(inst, s, ranges)
	case engine.Oracle:
		n.oracle(h, inst, ranges)
	default:
		n.Unknown = ""
	}
	return n
}

// pages is how many pages so many bytes take.
func (n *Need) pages(bytes int64) int64 { return (bytes + n.Page - 1) / n.Page }

func (n *Need) add(name string, bytes, pages int64, from string) {
	n.Inputs = append(n.Inputs, Input{name, bytes, pages, from})
	n.Pages += pages
}

func valuesOf(inst engine.Instance, s settings.Settings) fact.Values {
	v := fact.Values{}
	s.Facts(inst, v)
	return v
}

// says fills in which setting asks for huge pages.
func (n *Need) says(name string, v fact.Value, asks ...any) {
	if v.Unknown != "" {
		n.Setting = name + ": " + v.Unknown
		return
	}
	n.Told = slices.Contains(asks, v.Is)
	row, _ := fact.Find("instance." + name)
	n.Setting = fmt.Sprintf("%s = %s (%s)", name, fact.Format(row, v.Is), strings.TrimSuffix(v.From, " "+name))
}

// postgres: the shared memory that the postmaster maps at its start, without a name, in one piece. What it maps later,
// and the segment by which others find that the directory is in use, lie in the usual pages.
func (n *Need) postgres(inst engine.Instance, s settings.Settings, ranges []pagemap.Mapping) {
	v := valuesOf(inst, s)
	n.says("huge_pages", v.Get("instance.huge_pages"), "on", "try")
	page, said := s.Huge(inst)
	if size, known := page.Is.(int64); known && size > 0 {
		n.Page = size
	}
	sizes := sizesOf(ranges, func(m pagemap.Mapping) bool {
		return m.Shared && (m.File == pagemap.PoolFile || strings.HasPrefix(m.File, "/dev/zero"))
	})
	for _, m := range sizes {
		if m.File == pagemap.PoolFile {
			n.Holds += n.pages(m.Size)
		}
	}
	if pages, known := said.Is.(int64); known && pages >= 0 {
		n.Unknown = ""
		n.add("shared_memory_size_in_huge_pages", pages*n.Page, pages, said.From)
		return
	}
	if n.Unknown != "" {
		return
	}
	for _, m := range sizes {
		n.add("shared memory", m.Size, n.pages(m.Size), "/proc/"+strconv.Itoa(inst.Main.PID)+"/maps")
	}
	if len(sizes) == 0 {
		n.Unknown = "its maps show no shared memory without a name (shared_memory_type = mmap)"
	}
}

// mysql: what its settings say. What it has mapped already counts where it is more.
func (n *Need) mysql(inst engine.Instance, s settings.Settings, ranges []pagemap.Mapping) {
	n.says("large_pages", valuesOf(inst, s).Get("instance.large_pages"), true)
	for _, m := range ranges {
		if m.File == pagemap.PoolFile || strings.HasPrefix(m.File, "/SYSV") {
			n.Holds += n.pages(m.Size)
		}
	}
	all, err := s.Large(inst, n.Page)
	n.Unknown = ""
	if err != nil {
		n.Unknown = err.Error()
		return
	}
	for _, l := range all {
		n.add(l.Name, l.Bytes*l.Times, n.pages(l.Bytes)*l.Times, l.From)
	}
	if more := n.Holds - n.Pages; more > 0 && n.Told {
		n.add("mapped beyond that", more*n.Page, more, "/proc/"+strconv.Itoa(inst.Main.PID)+"/maps")
	}
}

// oracle: each SysV segment of the instance takes its size and one page more (document 401749.1 of Oracle's support).
func (n *Need) oracle(h *host.Host, inst engine.Instance, ranges []pagemap.Mapping) {
	if n.Unknown != "" {
		return
	}
	const where = "/proc/sysvipc/shm"
	whole := map[string]int64{}
	text, _ := h.Root.ReadText(where) // of another IPC namespace it tells nothing of these
	for line := range strings.Lines(text) {
		const idAt, sizeAt = 1, 3 // key shmid perms size
		if fields := strings.Fields(line); len(fields) > sizeAt {
			whole[fields[idAt]], _ = strconv.ParseInt(fields[sizeAt], 10, 64)
		}
	}
	for _, m := range sizesOf(ranges, func(m pagemap.Mapping) bool { return strings.HasPrefix(m.File, "/SYSV") }) {
		_, id, _ := strings.Cut(m.Object, ":")
		id = id[strings.LastIndexByte(id, ':')+1:]
		size, from := whole[id], where
		if size == 0 {
			size, from = m.Size, "/proc/"+strconv.Itoa(inst.Main.PID)+"/maps"
		}
		n.add("SGA, segment "+id, size, size/n.Page+1, from)
	}
	used, _ := h.Root.ReadText(path.Join("/proc", strconv.Itoa(inst.Main.PID), "status"))
	for line := range strings.Lines(used) {
		if value, is := strings.CutPrefix(line, "HugetlbPages:"); is && strings.TrimSpace(value) != "0 kB" {
			n.Holds = n.Pages
		}
	}
	n.Told, n.Setting = len(n.Inputs) > 0, "use_large_pages is TRUE unless its parameters say otherwise"
	if !n.Told {
		n.Setting = "its SGA is in no SysV segment: with MEMORY_TARGET it lies in /dev/shm, and can have no huge pages"
	}
}

// sizesOf adds up the ranges of each object that fits, in the order of addresses.
func sizesOf(ranges []pagemap.Mapping, fits func(pagemap.Mapping) bool) (all []pagemap.Mapping) {
	for _, m := range ranges {
		at := slices.IndexFunc(all, func(o pagemap.Mapping) bool { return o.Object == m.Object })
		switch {
		case !fits(m):
		case at >= 0 && m.Object != "":
			all[at].Size += m.Size
		default:
			all = append(all, m)
		}
	}
	return all
}

// nodesOf are the nodes on which a process may take memory; nil is all of them, or not known.
func nodesOf(h *host.Host, facts *host.Facts, pid int) (nodes []int) {
	const some = 4096 // the first line of numa_maps: the rest takes long
	dir := path.Join("/proc", strconv.Itoa(pid))
	var allowed, bound *idset.Set
	status, _ := h.Root.ReadText(path.Join(dir, "status"))
	for line := range strings.Lines(status) {
		if list, is := strings.CutPrefix(line, "Mems_allowed_list:"); is {
			if set, err := idset.Parse(strings.TrimSpace(list)); err == nil {
				allowed = &set
			}
		}
	}
	first, _ := h.Root.ReadSome(path.Join(dir, "numa_maps"), some)
	if fields := strings.Fields(string(first)); len(fields) > 1 {
		mode, list, _ := strings.Cut(fields[1], ":")
		if set, err := idset.Parse(list); err == nil && strings.HasPrefix(mode, "bind") {
			bound = &set
		}
	}
	all := 0
	for _, n := range facts.Nodes {
		if n.MemTotal == 0 {
			continue
		}
		all++
		if (allowed == nil || allowed.Contains(n.ID)) && (bound == nil || bound.Contains(n.ID)) {
			nodes = append(nodes, n.ID)
		}
	}
	if len(nodes) == all {
		return nil
	}
	return nodes
}

// Pool is how large the pool of pages of the default size is to be.
type Pool struct {
	Page      int64   `json:"page_bytes"`
	Instances int64   `json:"instances_pages"` // of all that are told to use them
	Margin    int64   `json:"margin_pages"`    // 1 %
	Others    int64   `json:"others_pages"`    // that other programs hold or have reserved
	Pages     int64   `json:"pages"`           // together
	Has       int64   `json:"has_pages"`       // now, without surplus ones
	Missing   int64   `json:"missing_pages"`   // of Pages, on the nodes where they are wanted
	Nodes     []Share `json:"nodes,omitempty"` // where an instance may take memory on some nodes alone
	// Unknown names the instances that are told to use huge pages and of which it is not known how many.
	Unknown []string `json:"unknown,omitempty"`
}

// Share is what a node is to have, and has.
type Share struct {
	Node  int   `json:"node"`
	Pages int64 `json:"pages"`
	Has   int64 `json:"has_pages"`
}

// String is the pool as hugepages= of the kernel takes it, "139", or by node, "0:512,1:256".
func (p Pool) String() string {
	var nodes []string
	for _, s := range p.Nodes {
		nodes = append(nodes, fmt.Sprintf("%d:%d", s.Node, s.Pages))
	}
	return cmp.Or(strings.Join(nodes, ","), strconv.FormatInt(p.Pages, 10))
}

// AtLeast is the pool with no page less than it has.
func (p Pool) AtLeast() Pool {
	p.Pages, p.Nodes = max(p.Pages, p.Has), slices.Clone(p.Nodes)
	for i := range p.Nodes {
		p.Nodes[i].Pages = max(p.Nodes[i].Pages, p.Nodes[i].Has)
	}
	return p
}

// Together adds up what all instances of a host take of the pool of the default size. A margin of 1 % is for what they
// take for a time alone; less than a page is none.
func Together(all []Need, m host.Memory) Pool {
	p := Pool{Page: m.HugePage}
	const percent = 100
	holds, pinned := int64(0), false
	for _, n := range all {
		if n.Page != p.Page {
			continue
		}
		holds += n.Holds
		if !n.Told {
			continue
		}
		if n.Unknown != "" {
			p.Unknown = append(p.Unknown, n.Instance)
		}
		p.Instances += n.Pages
		pinned = pinned || n.Nodes != nil && n.Pages > 0
	}
	p.Margin = p.Instances / percent
	if at := slices.IndexFunc(m.Pools, func(o host.HugePages) bool { return o.Size == p.Page }); at >= 0 {
		now := m.Pools[at]
		p.Has = now.Pages - now.Surplus
		p.Others = max(0, now.Pages-now.Free+now.Reserved-holds)
	}
	p.Pages = p.Instances + p.Margin + p.Others
	p.Missing = max(0, p.Pages-p.Has)
	if pinned {
		p.spread(all, m)
	}
	return p
}

// spread divides the pool among the nodes: what is pinned to the nodes of its instance, the rest evenly.
func (p *Pool) spread(all []Need, m host.Memory) {
	every := []int{}
	for _, n := range m.Nodes {
		if n.Total == 0 {
			continue
		}
		s := Share{Node: n.ID}
		for _, o := range n.Pools {
			if o.Size == p.Page {
				s.Has = o.Pages - o.Surplus
			}
		}
		every, p.Nodes = append(every, n.ID), append(p.Nodes, s)
	}
	give := func(pages int64, nodes []int) {
		for at := range p.Nodes {
			if i := slices.Index(nodes, p.Nodes[at].Node); i >= 0 {
				share := pages / int64(len(nodes))
				if int64(i) < pages%int64(len(nodes)) {
					share++
				}
				p.Nodes[at].Pages += share
			}
		}
	}
	free := p.Margin + p.Others
	for _, n := range all {
		switch {
		case n.Page != p.Page || !n.Told:
		case n.Nodes == nil:
			free += n.Pages
		default:
			give(n.Pages, n.Nodes)
		}
	}
	give(free, every)
	p.Missing = 0
	for _, s := range p.Nodes {
		p.Missing += max(0, s.Pages-s.Has)
	}
}

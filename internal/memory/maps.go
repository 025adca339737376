package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/pagemap"
	"bulkhead/internal/linux/procfs"
)

// Instance is what the maps of an instance tell. What several of its processes share counts once.
type Instance struct {
	Summary
	Pages []Pages `json:"pages"`       // by page size; the usual size is always there
	Files int64   `json:"files_bytes"` // of programs, libraries and other files that it has mapped
	// SavedTables is how much smaller its page tables would be if what is in the usual pages now, and fills whole
	// 2 MiB, were in pages of 2 MiB: each such piece takes one page table (4 KiB) less.
	SavedTables int64     `json:"page_tables_saved_bytes"`
	Nodes       []Use     `json:"nodes"`    // by number
	Policies    []Policy  `json:"policies"` // most memory first
	Members     []Process `json:"by_process"`
}

// Pages is the memory in pages of one size. For the usual size the last two are 0.
type Pages struct {
	Size        int64 `json:"page_bytes"`
	Shared      int64 `json:"shared_bytes"`
	Private     int64 `json:"private_bytes"`
	Transparent int64 `json:"transparent_bytes"` // of the usual pages: in transparent huge pages
	Mapped      int64 `json:"mapped_bytes"`      // of pages of a pool: all that it may touch, each object once
}

// Use is the memory of an instance on one node, files left out.
type Use struct {
	Node   int             `json:"node"`
	Bytes  int64           `json:"bytes"`
	BySize map[int64]int64 `json:"by_page_bytes"`
}

// Policy is where new pages go, and how much memory has that policy.
type Policy struct {
	Policy string `json:"policy"`
	Bytes  int64  `json:"bytes"`
}

// Process is what the numa_maps of one process say, files and what it shares with others in full: the figures of
// numastat(8) -p.
type Process struct {
	PID    int           `json:"pid"`
	Part   string        `json:"part"`
	Nodes  map[int]int64 `json:"nodes"`
	Dirty  int64         `json:"dirty_bytes"`
	Active int64         `json:"active_bytes"`
	Mapped int64         `json:"mapped_bytes"`
}

// Read reads the maps of an instance, one process after the other, and stops when ctx ends. Processes that end
// meanwhile are left out; the error matches procfs.ErrExited when all of them did.
func Read(ctx context.Context, h *host.Host, facts *host.Facts, thp string, inst engine.Instance) (*Instance, error) {
	s, err := Summarize(h, facts, thp, inst)
	if err != nil {
		return nil, err
	}
	r := reading{page: facts.PageSize, pages: map[int64]*Pages{facts.PageSize: {Size: facts.PageSize}},
		nodes: map[int]map[int64]int64{}, policies: map[string]int64{}, objects: map[string]*object{},
		swapped: map[string]int64{}}
	i := &Instance{Summary: s, Members: []Process{}}
	for _, member := range inst.Members {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read the maps of %s: %w", inst.Name(), err)
		}
		areas, err := pagemap.Areas(h.Proc, member.ID.PID)
		if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, procfs.ErrExited) {
			err = nil // without CONFIG_NUMA
		}
		if errors.Is(err, procfs.ErrExited) {
			continue
		}
		if err != nil {
			return nil, err
		}
		mappings, err := pagemap.Mappings(h.Proc, member.ID.PID)
		if errors.Is(err, procfs.ErrExited) {
			continue
		}
		if err != nil {
			return nil, err
		}
		i.Members = append(i.Members, processOf(member, areas))
		r.add(mappings, areas)
	}
	if len(i.Members) == 0 {
		return nil, procfs.ErrExited
	}
	r.finish(i)
	return i, nil
}

func processOf(member engine.Member, areas []pagemap.Area) Process {
	p := Process{PID: member.ID.PID, Part: member.Part, Nodes: map[int]int64{}}
	for _, a := range areas {
		for node, n := range a.Nodes {
			p.Nodes[node] += n
		}
		p.Dirty += a.Dirty
		p.Active += a.Active
		p.Mapped += a.Mapped
	}
	return p
}

// reading adds up the mappings of the processes of an instance.
type reading struct {
	page     int64
	pages    map[int64]*Pages
	nodes    map[int]map[int64]int64 // node, page size
	policies map[string]int64
	files    int64
	swap     int64
	swapped  map[string]int64 // of objects that processes share: what that process has which has most
	saved    int64
	objects  map[string]*object // of pools
}

// object is something in pages of a pool that processes share. How many of its pages all of them together have touched
// is not told: at least as many as the one that touched most, on each node.
type object struct {
	size, page, touched int64
	nodes               map[int]int64
	policy              string
}

const hugePage = 2 << 20

// add adds the mappings of one process.
func (r *reading) add(mappings []pagemap.Mapping, areas []pagemap.Area) {
	at := make(map[uint64]pagemap.Area, len(areas))
	for _, a := range areas {
		at[a.Start] = a
	}
	swapped := map[string]int64{}
	for _, m := range mappings {
		area := at[m.Start]
		if m.Shared && m.Object != "" {
			swapped[m.Object] += m.Swap
			r.swapped[m.Object] = max(r.swapped[m.Object], swapped[m.Object])
		} else {
			r.swap += m.Swap
		}
		if m.PageSize > r.page {
			r.pooled(m, area)
			continue
		}
		if !m.IsMemory() {
			if m.Resident > 0 {
				private := part(m.Proportional, m.Anonymous, m.Resident) // written copies of pages of the file
				r.files += m.Proportional - private
				r.usual(private, false, area)
			}
			continue
		}
		r.usual(m.Proportional, m.Shared, area)
		r.pages[r.page].Transparent += part(m.Proportional, m.Transparent, m.Resident)
		r.saved += max(m.Resident-m.Transparent, 0) / hugePage * r.page
	}
}

// part is amount times of/all.
func part(amount, of, all int64) int64 {
	if all == 0 {
		return 0
	}
	return int64(float64(amount) * float64(of) / float64(all))
}

// usual adds memory in pages of the usual size. It lies on nodes as the process sees the mapping's pages.
func (r *reading) usual(amount int64, shared bool, area pagemap.Area) {
	if shared {
		r.pages[r.page].Shared += amount
	} else {
		r.pages[r.page].Private += amount
	}
	all := area.Bytes()
	for node, n := range area.Nodes {
		r.on(node, r.page, part(amount, n, all))
	}
	r.policies[area.Policy] += amount
}

func (r *reading) on(node int, size, amount int64) {
	if r.nodes[node] == nil {
		r.nodes[node] = map[int64]int64{}
	}
	r.nodes[node][size] += amount
}

// pooled adds memory in pages of a pool.
func (r *reading) pooled(m pagemap.Mapping, area pagemap.Area) {
	if r.pages[m.PageSize] == nil {
		r.pages[m.PageSize] = &Pages{Size: m.PageSize}
	}
	touched := max(m.Pool, area.Bytes()) // smaps tells it from kernel 4.4 on
	if !m.Shared || m.Object == "" {
		p := r.pages[m.PageSize]
		p.Private, p.Mapped = p.Private+touched, p.Mapped+m.Size
		r.policies[area.Policy] += touched
		for node, n := range area.Nodes {
			r.on(node, m.PageSize, n)
		}
		return
	}
	key := fmt.Sprintf("%s:%d", m.Object, m.PageSize)
	o := r.objects[key]
	if o == nil {
		o = &object{page: m.PageSize, nodes: map[int]int64{}, policy: area.Policy}
		r.objects[key] = o
	}
	o.size, o.touched = max(o.size, m.Size), max(o.touched, touched)
	for node, n := range area.Nodes {
		o.nodes[node] = max(o.nodes[node], n)
	}
}

// finish writes the sums into an instance.
func (r *reading) finish(i *Instance) {
	for _, o := range r.objects {
		p := r.pages[o.page]
		sum := int64(0)
		for node, n := range o.nodes {
			r.on(node, o.page, n)
			sum += n
		}
		p.Shared, p.Mapped = p.Shared+max(o.touched, sum), p.Mapped+o.size
		r.policies[o.policy] += max(o.touched, sum)
	}
	i.Files, i.SavedTables, i.Swap = r.files, min(r.saved, i.PageTables), r.swap
	for _, n := range r.swapped {
		i.Swap += n
	}
	i.Pages, i.Nodes, i.Policies = []Pages{}, []Use{}, []Policy{}
	for _, size := range slices.Sorted(maps.Keys(r.pages)) {
		i.Pages = append(i.Pages, *r.pages[size])
	}
	for _, node := range slices.Sorted(maps.Keys(r.nodes)) {
		u := Use{Node: node, BySize: r.nodes[node]}
		for _, n := range u.BySize {
			u.Bytes += n
		}
		i.Nodes = append(i.Nodes, u)
	}
	for name, n := range r.policies {
		if name != "" && n > 0 {
			i.Policies = append(i.Policies, Policy{name, n})
		}
	}
	slices.SortFunc(i.Policies, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Policy, b.Policy))
	})
}

// All is all memory of the instance, files left out.
func (i *Instance) All() (sum int64) {
	for _, p := range i.Pages {
		sum += p.Shared + p.Private
	}
	return sum
}

// Imbalance is how many times as much memory the fullest node has as an even share; 1 is even. 0 where nodes are not
// told.
func (i *Instance) Imbalance(nodes int) float64 {
	all, most := int64(0), int64(0)
	for _, u := range i.Nodes {
		all, most = all+u.Bytes, max(most, u.Bytes)
	}
	if all == 0 {
		return 0
	}
	return float64(most) * float64(nodes) / float64(all)
}

// reaches says whether memory of the policy may lie on a node: all may but what is bound to others.
func (p Policy) reaches(node int) bool {
	mode, list, _ := strings.Cut(p.Policy, ":")
	if !strings.HasPrefix(mode, "bind") {
		return true
	}
	nodes, err := idset.Parse(list)
	return err != nil || nodes.Contains(node)
}

// Warnings says what is amiss with where the memory lies: a node that it does not fit into, and nodes that are full
// while others have room.
func (i *Instance) Warnings(m host.Memory) []string {
	list := []string{}
	nodes := m.WithMemory()
	if len(nodes) < 2 {
		return list
	}
	smallest := slices.MinFunc(nodes, func(a, b host.NodeMemory) int { return cmp.Compare(a.Total, b.Total) })
	spread := int64(0)
	for _, p := range i.Policies {
		if strings.Contains(p.Policy, "interleave") || !p.reaches(smallest.ID) {
			spread += p.Bytes
		}
	}
	if i.All()-spread > smallest.Total {
		list = append(list, fmt.Sprintf("it has more memory that is not interleaved than node %d has at all: that "+
			"node may swap while others have room; start it with `numactl --interleave=all`, or its own setting "+
			"for it (innodb_numa_interleave)", smallest.ID))
	}
	for _, n := range nodes {
		const full, roomy = 50, 5 // a fiftieth and a fifth
		free := func(o host.NodeMemory) bool { return o.ID != n.ID && o.Free > o.Total/roomy }
		if n.Free < n.Total/full && slices.ContainsFunc(nodes, free) {
			list = append(list, fmt.Sprintf("node %d is full while another has a fifth free", n.ID))
		}
	}
	return list
}

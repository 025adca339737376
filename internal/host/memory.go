package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/meminfo"
)

// Memory is the memory of a host. Amounts are bytes.
type Memory struct {
	Total      int64        `json:"total_bytes"`
	Available  int64        `json:"available_bytes"`
	SwapTotal  int64        `json:"swap_total_bytes"`
	SwapFree   int64        `json:"swap_free_bytes"`
	PageTables int64        `json:"page_tables_bytes"`
	Page       int64        `json:"page_bytes"`        // the usual page size
	THP        string       `json:"transparent"`       // "always", "madvise" or "never"; "" where the kernel has none
	THPSize    int64        `json:"transparent_bytes"` // of one; 0 where the kernel has none
	HugePage   int64        `json:"huge_page_bytes"`   // the default size of huge pages; 0 where the kernel has none
	Pools      []HugePages  `json:"huge_page_pools"`   // by page size
	Nodes      []NodeMemory `json:"nodes"`             // by number
}

// HugePages is a pool of huge pages (Documentation/admin-guide/mm/hugetlbpage.rst). Amounts but for the size are pages.
type HugePages struct {
	Size     int64 `json:"page_bytes"`
	Pages    int64 `json:"pages"`
	Free     int64 `json:"free"`
	Reserved int64 `json:"reserved"` // of the free ones: promised to mappings, not touched yet
	Surplus  int64 `json:"surplus"`  // more than were asked for
}

// NodeMemory is the memory of a NUMA node.
type NodeMemory struct {
	ID        int         `json:"id"`
	CPUs      string      `json:"cpus"` // "0-3"
	Total     int64       `json:"total_bytes"`
	Free      int64       `json:"free_bytes"`
	Distances []int       `json:"distances"` // to each node, as the firmware says: 10 is itself
	Pools     []HugePages `json:"huge_page_pools"`
}

// WithMemory are the nodes that have memory: some have CPUs alone.
func (m Memory) WithMemory() []NodeMemory {
	return slices.DeleteFunc(slices.Clone(m.Nodes), func(n NodeMemory) bool { return n.Total == 0 })
}

// Memory reads the memory of a host, with the page sizes and nodes of its facts.
func (h *Host) Memory(facts *Facts) (Memory, error) {
	info, err := h.MemInfo()
	if err != nil {
		return Memory{}, err
	}
	m := Memory{Total: info["MemTotal"], Available: info["MemAvailable"], SwapTotal: info["SwapTotal"],
		SwapFree: info["SwapFree"], PageTables: info["PageTables"], Page: facts.PageSize,
		HugePage: info["Hugepagesize"], Nodes: []NodeMemory{}}
	const transparent = "/sys/kernel/mm/transparent_hugepage"
	if text, err := h.Root.ReadText(transparent + "/enabled"); err == nil {
		_, chosen, _ := strings.Cut(text, "[")
		m.THP, _, _ = strings.Cut(chosen, "]")
		m.THPSize, _ = h.Root.ReadInt(transparent + "/hpage_pmd_size") // kernel 4.10
	}
	if m.Pools, err = h.pools(facts, "/sys/kernel/mm/hugepages"); err != nil {
		return Memory{}, err
	}
	for _, n := range facts.Nodes {
		dir := "/sys/devices/system/node/node" + strconv.Itoa(n.ID)
		node := NodeMemory{ID: n.ID, CPUs: n.CPUs.String(), Total: n.MemTotal, Distances: []int{}}
		if node.Free, err = h.nodeFree(n.ID); err != nil {
			return Memory{}, err
		}
		text, _ := h.Root.ReadText(dir + "/distance")
		for _, d := range strings.Fields(text) {
			if n, err := strconv.Atoi(d); err == nil {
				node.Distances = append(node.Distances, n)
			}
		}
		if node.Pools, err = h.pools(facts, dir+"/hugepages"); err != nil {
			return Memory{}, err
		}
		m.Nodes = append(m.Nodes, node)
	}
	return m, nil
}

// pools reads the pools of the host or of a node. That of a node does not tell what is reserved.
func (h *Host) pools(facts *Facts, dir string) ([]HugePages, error) {
	all := []HugePages{}
	for _, size := range facts.HugePageSizes {
		p := HugePages{Size: size}
		for file, into := range map[string]*int64{
			"nr_hugepages": &p.Pages, "free_hugepages": &p.Free, "resv_hugepages": &p.Reserved,
			"surplus_hugepages": &p.Surplus,
		} {
			n, err := h.Root.ReadInt(path.Join(dir, "hugepages-"+strconv.FormatInt(size>>10, 10)+"kB", file))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			*into = n
		}
		all = append(all, p)
	}
	return all, nil
}

// nodeFree is how much memory of a NUMA node is free now, in bytes. A machine without NUMA is one node.
func (h *Host) nodeFree(id int) (int64, error) {
	file := fmt.Sprintf("/sys/devices/system/node/node%d/meminfo", id)
	info, err := meminfo.Read(h.Root, file)
	if errors.Is(err, fs.ErrNotExist) && id == 0 {
		info, err = h.MemInfo()
	}
	return info["MemFree"], err
}

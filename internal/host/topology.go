package host

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/meminfo"
	"bulkhead/internal/linux/procfs"
)

// MemInfo returns /proc/meminfo: amounts of memory in bytes, the HugePages_ counters as counts.
func (h *Host) MemInfo() (map[string]int64, error) {
	return meminfo.Read(h.Root, meminfo.File)
}

func (h *Host) memoryFacts(f *Facts) error {
	info, err := h.MemInfo()
	if err != nil {
		return err
	}
	if f.MemTotal = info["MemTotal"]; f.MemTotal == 0 {
		return errors.New("parse /proc/meminfo: no MemTotal")
	}
	f.SwapTotal, f.HugePage = info["SwapTotal"], info["Hugepagesize"]
	if f.PageSize, err = h.Proc.PageSize(); err != nil {
		return err
	}
	f.HugePageSizes, err = h.hugePageSizes()
	return err
}

func (h *Host) hugePageSizes() ([]int64, error) {
	names, err := h.Root.ReadDir("/sys/kernel/mm/hugepages")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // built without CONFIG_HUGETLBFS
	}
	if err != nil {
		return nil, err
	}
	var sizes []int64
	for _, name := range names {
		digits, found := strings.CutPrefix(name, "hugepages-")
		if !found {
			continue
		}
		size, err := procfs.ParseAmount(strings.Replace(digits, "kB", " kB", 1))
		if err != nil {
			return nil, fmt.Errorf("parse /sys/kernel/mm/hugepages/%s: %w", name, err)
		}
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	return sizes, nil
}

func (h *Host) topologyFacts(f *Facts) error {
	var err error
	if f.CPUs, err = h.readIDSet("/sys/devices/system/cpu/online"); err != nil {
		return err
	}
	const nodes = "/sys/devices/system/node"
	online, err := h.readIDSet(nodes + "/online")
	if errors.Is(err, fs.ErrNotExist) {
		f.Nodes = []Node{{ID: 0, CPUs: f.CPUs, MemTotal: f.MemTotal}} // built without CONFIG_NUMA
		return nil
	}
	if err != nil {
		return err
	}
	for _, id := range online {
		node, err := h.node(fmt.Sprintf("%s/node%d", nodes, id), id)
		if err != nil {
			return err
		}
		node.CPUs = node.CPUs.Intersect(f.CPUs)
		f.Nodes = append(f.Nodes, node)
	}
	return nil
}

func (h *Host) node(dir string, id int) (Node, error) {
	cpus, err := h.readIDSet(dir + "/cpulist")
	if err != nil {
		return Node{}, err
	}
	info, err := meminfo.Read(h.Root, dir+"/meminfo")
	if err != nil {
		return Node{}, err
	}
	return Node{ID: id, CPUs: cpus, MemTotal: info["MemTotal"]}, nil
}

func (h *Host) readIDSet(name string) (idset.Set, error) {
	text, err := h.Root.ReadText(name)
	if err != nil {
		return nil, err
	}
	set, err := idset.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return set, nil
}

// LoadAverage returns the load over 1, 5 and 15 minutes as /proc/loadavg prints it: "0.10 0.25 0.31".
func (h *Host) LoadAverage() (string, error) {
	text, err := h.Root.ReadText("/proc/loadavg")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(text)
	if len(fields) < 3 {
		return "", fmt.Errorf("parse /proc/loadavg: %q has no three numbers", text)
	}
	return strings.Join(fields[:3], " "), nil
}

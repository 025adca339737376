package cgroupfake

import (
	"fmt"
	"syscall"

	"bulkhead/internal/cgroup/cgroupfake/kstrto"
)

// hugetlbFiles are those of the hugetlb controller. Values are rounded down to whole huge pages; v2
// prints a fresh limit as a number and "max" only after it was written (measured on 6.18; 6.1 prints a
// fresh one as "max", and v1's rounded down).
func hugetlbFiles(sizes []int64) []*file {
	var files []*file
	for _, size := range sizes {
		name := "hugetlb." + sizeName(size)
		fresh := fmt.Sprint(kstrto.NoLimit / 4096 * 4096)
		for _, rsvd := range []string{"", ".rsvd"} {
			v1, v2 := name+rsvd+".limit_in_bytes", name+rsvd+".max"
			files = append(files,
				&file{name: v1, version: 1, controller: "hugetlb", initial: fresh, write: writeHuge(v1, "-1", size)},
				counter(name+rsvd+".usage_in_bytes", 1, "hugetlb", "0"),
				counter(name+rsvd+".max_usage_in_bytes", 1, "hugetlb", "0"),
				counter(name+rsvd+".failcnt", 1, "hugetlb", "0"),
				&file{name: v2, version: 2, controller: "hugetlb", place: notRoot, initial: fresh,
					write: writeHuge(v2, "max", size)},
				counter(name+rsvd+".current", 2, "hugetlb", "0").at(notRoot),
			)
		}
		files = append(files,
			counter(name+".events", 2, "hugetlb", "max 0").at(notRoot),
			counter(name+".events.local", 2, "hugetlb", "max 0").at(notRoot),
			&file{name: name + ".numa_stat", version: 2, controller: "hugetlb", place: notRoot, read: noPages},
		)
	}
	return files
}

// noPages is hugetlb's statistic by NUMA node of a group that uses none.
func noPages(k *kernel, _ *group) string {
	text := "total=0"
	for _, node := range k.options.Nodes {
		text += fmt.Sprintf(" N%d=0", node)
	}
	return text
}

func writeHuge(name, unlimited string, size int64) func(*kernel, *group, string) error {
	return func(k *kernel, g *group, text string) error {
		if g.root() {
			return syscall.EINVAL
		}
		n, err := kstrto.Memory(text, unlimited, k.options.PageSize)
		if err != nil {
			return err
		}
		n = n / size * size
		g.values[name] = fmt.Sprint(n)
		if unlimited == "max" && n == kstrto.NoLimit/size*size {
			g.values[name] = "max"
		}
		return nil
	}
}

// sizeName is how the kernel names a huge page size in file names (mem_fmt).
func sizeName(size int64) string {
	switch {
	case size >= 1<<30:
		return fmt.Sprintf("%dGB", size>>30)
	case size >= 1<<20:
		return fmt.Sprintf("%dMB", size>>20)
	}
	return fmt.Sprintf("%dKB", size>>10)
}

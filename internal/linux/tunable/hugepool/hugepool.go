// Package hugepool makes pools of huge pages larger and smaller (Documentation/admin-guide/mm/hugetlbpage.rst): that of
// the default size by its sysctl, that of a size, on all nodes or on one, by its file below /sys.
//
// The kernel gives fewer pages than it was asked for, without an error, when memory is in pieces. So a pool grows in
// steps, each of which is read back; after one that fell short the kernel is asked to put memory together
// (compact_memory), and asked again.
package hugepool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"

	"bulkhead/internal/linux/meminfo"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Sysctl is that of the pool of the default size.
const Sysctl = "vm.nr_hugepages"

const sysctlFile = "/proc/sys/vm/nr_hugepages"

var poolFile = regexp.MustCompile(`^/sys/(kernel/mm|devices/system/node/node[0-9]+)/hugepages/hugepages-[0-9]+kB/` +
	`nr_hugepages$`)

// Is says whether a file is that of a pool.
func Is(file string) bool { return file == sysctlFile || poolFile.MatchString(file) }

// OnNode is the file of the pool of pages of a size, in bytes, on a node.
func OnNode(node int, size int64) string {
	return fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-%dkB/nr_hugepages", node, size>>10)
}

// OfSize is the file of the pool of pages of a size, in bytes, on all nodes.
func OfSize(size int64) string {
	return fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", size>>10)
}

// Overlap says whether two files are pools that have pages in common: that of all nodes and that of one. Page is the
// default size of huge pages, in bytes.
func Overlap(a, b string, page int64) bool {
	sizeA, nodeA := scope(a, page)
	sizeB, nodeB := scope(b, page)
	return sizeA == sizeB && (nodeA == "") != (nodeB == "")
}

// scope is of which size the pages of a pool are, and its node; "" is all nodes.
func scope(file string, page int64) (size, node string) {
	if dir, _, of := strings.Cut(file, "/hugepages/"); of && strings.Contains(dir, "/node/") {
		node = dir
	}
	if file == sysctlFile {
		return fmt.Sprintf("hugepages-%dkB", page>>10), node
	}
	return path.Base(path.Dir(file)), node
}

// Read gives the pages of a pool that stay when nobody uses them. Files below /sys count surplus ones, which go when
// who uses them ends, and the sysctl does not.
func Read(root *sysroot.FS, file string) (int64, error) {
	n, err := root.ReadInt(file)
	if err != nil || file == sysctlFile {
		return n, err
	}
	surplus, err := root.ReadInt(path.Join(path.Dir(file), "surplus_hugepages"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return n - surplus, err
}

// Pool is one pool. Write writes a value to a file of the kernel's.
type Pool struct {
	Root  *sysroot.FS
	File  string
	Write func(file, value string) error
}

// ShortError says that the kernel did not give as many pages as were wanted. The pool has what it gave.
type ShortError struct {
	File      string
	Want, Got int64
}

func (e *ShortError) Error() string {
	return fmt.Sprintf("%s: the kernel gave %d of %d huge pages, after it put memory together: too much of it is in "+
		"use, or in pieces. Stop the databases whose memory it will be and try again, or have the pages set aside at "+
		"boot: `bulkhead tune apply RULE --at-boot` writes them into the kernel command line", e.File, e.Got, e.Want)
}

// How a pool grows: in so many steps, none of fewer pages; each short one is tried again so many times while the kernel
// gives more.
const (
	steps  = 8
	least  = 64
	trials = 3
)

// kept is the share of memory that growing leaves available, in percent.
const kept = 10

// Set makes the pool of a size. It stops between steps when ctx ends. Growing is refused where less than a tenth of the
// memory would stay available; where the kernel gives too few pages the error is a *ShortError.
func (p Pool) Set(ctx context.Context, want int64) error {
	got, err := Read(p.Root, p.File)
	if err != nil {
		return err
	}
	if want <= got {
		return p.Write(p.File, strconv.FormatInt(want, 10))
	}
	if err := p.growth(want - got); err != nil {
		return err
	}
	step := max((want-got+steps-1)/steps, least)
	for got < want {
		if err := ctx.Err(); err != nil {
			return err
		}
		to := min(got+step, want)
		if got, err = p.reach(to); err != nil {
			return err
		}
		if got < to {
			return &ShortError{p.File, want, got}
		}
	}
	return nil
}

// reach asks for so many pages, until the kernel gives no more, and says how many the pool has then.
func (p Pool) reach(to int64) (got int64, err error) {
	for trial, before := 0, int64(-1); trial <= trials; trial, before = trial+1, got {
		if trial > 0 {
			if err := p.compact(); err != nil {
				return got, err
			}
		}
		if err := p.Write(p.File, strconv.FormatInt(to, 10)); err != nil {
			return 0, err
		}
		if got, err = Read(p.Root, p.File); err != nil || got >= to || trial > 0 && got <= before {
			return got, err
		}
	}
	return got, nil
}

// compact has the kernel put memory together, of the node or of all.
func (p Pool) compact() error {
	file := "/proc/sys/vm/compact_memory"
	if node := p.node(); node != "" {
		file = path.Join(node, "compact")
	}
	if !p.Root.Exists(file) { // a kernel without CONFIG_COMPACTION
		return nil
	}
	return p.Write(file, "1")
}

// Room says in the words of an error that there is no room for a pool of a size: Set would refuse it.
func Room(root *sysroot.FS, name string, want int64) error {
	if name == Sysctl {
		name = sysctlFile
	}
	p := Pool{Root: root, File: name}
	got, err := Read(root, name)
	if err != nil || want <= got {
		return err
	}
	return p.growth(want - got)
}

// growth says in the words of an error that growing by so many pages would leave too little memory: of the host, and of
// the node whose pool it is. Where that is not told there is nothing to go by: it is a check more than the kernel's.
func (p Pool) growth(pages int64) error {
	host, err := meminfo.Read(p.Root, meminfo.File)
	size := host["Hugepagesize"]
	if _, kb, of := strings.Cut(path.Base(path.Dir(p.File)), "hugepages-"); of && err == nil {
		size, err = procfs.ParseAmount(strings.TrimSuffix(kb, "kB") + " kB")
	}
	if err != nil || size == 0 {
		return nil //nolint:nilerr // as said above
	}
	check := func(what string, available, whole int64) error {
		if whole == 0 || available == 0 || pages <= (available-whole/100*kept)/size {
			return nil
		}
		return fmt.Errorf("%s: %d huge pages more of %d kB each are wanted, %d MiB %s are available, and less than a "+
			"tenth would be left: stop the databases whose memory it will be and try again, or have the pages set "+
			"aside at boot: `bulkhead tune apply RULE --at-boot`", p.File, pages, size>>10, available>>20, what)
	}
	if err := check("of the host", host["MemAvailable"], host["MemTotal"]); err != nil || p.node() == "" {
		return err
	}
	info, err := meminfo.Read(p.Root, path.Join(p.node(), "meminfo"))
	if err != nil {
		return nil //nolint:nilerr // as said above
	}
	// A node does not tell what is available: it is what is free, and what the kernel takes back first.
	available := info["MemFree"] + info["Active(file)"] + info["Inactive(file)"] + info["SReclaimable"]
	return check("of "+path.Base(p.node()), available, info["MemTotal"])
}

// node is the directory of the node whose pool it is; "" for all nodes.
func (p Pool) node() string {
	_, node := scope(p.File, 0)
	return node
}

package knob

import (
	"fmt"
	"math"
	"slices"

	"bulkhead/internal/host"
	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// table is every row there is, in the order of the keys. It is complete after the package is
// initialised and never changes.
var table = build()

func build() []*Row {
	rows := slices.Concat(cpuRows(), cpusetRows(), memoryRows(), tasksRows(), hugeRows(), blkioRows(), ioWeightRows(),
		networkRows())
	for _, r := range rows {
		r.Same, r.Loosens = r.form.Same, r.form.Loosens
		if r.serves == nil {
			r.serves = r.Keys[:1]
		}
		if r.needed == nil {
			r.needed = anyOf(r.Keys[0])
		}
	}
	return rows
}

func tasksRows() []*Row {
	row := Row{
		Controller: "pids", File: "pids.max", Keys: []policy.Key{policy.KeyTasks}, Unit: "processes and threads",
		Descends: true, Default: "max",
		Up: 50, Down: 50, Risk: RiskSlow, form: format.Number{None: "max",
			Unit: func(n int64) string { return format.Decimal(n) + " tasks" }}, Encode: encodeTasks,
		properties: []string{"TasksMax"},
	}
	return []*Row{
		on(1, "", row, func(r *Row) { r.Since = "4.3" }),
		on(2, "", row, func(r *Row) { r.Since = "4.5" }),
	}
}

func encodeTasks(in Input) (string, bool, error) {
	n, limited, set := get[policy.Count](in.Settings, policy.KeyTasks, "")
	if !limited {
		return "max", set, nil
	}
	if n < 0 {
		return "", true, fmt.Errorf("encode tasks %q: below zero", n)
	}
	return format.Decimal(int64(n)), true, nil
}

// hugeRows are two files for each size of pages: that of pages in use and that of pages that are promised. Beyond the
// first alone a process is promised pages and ends by SIGBUS when it touches one (measured on 6.18); the second has
// mmap(2) and shmget(2) refuse them (ENOMEM), which a database answers with usual pages, or says so
// (Documentation/admin-guide/cgroup-v2.rst, hugetlb_cgroup.c).
func hugeRows() []*Row {
	row := func(version int, file, since string, form format.Number) *Row {
		return &Row{
			Controller: "hugetlb", Version: version, File: file, Since: since, Keys: []policy.Key{policy.KeyMemoryHuge},
			Unit: "bytes", PerSize: true,
			Descends: true, Default: form.None, Up: 47, Down: 47, Risk: RiskBus, form: form,
			Encode: encodeHuge(form.None),
		}
	}
	promised := func(version int, file string, form format.Number) *Row {
		r := row(version, file, "5.7", form)
		r.Late, r.Risk, r.serves = true, RiskRefused, []policy.Key{}
		r.Instead = "the limit of pages in use alone, beyond which a process ends by SIGBUS"
		return r
	}
	// A fresh directory shows v1's giant number on v2, and "max" only once that was written (measured on 6.18).
	v1 := format.Number{None: "-1", Giant: true, Unit: format.ByteCount}
	v2 := format.Number{None: "max", Giant: true, Unit: format.ByteCount}
	return []*Row{
		promised(1, "hugetlb.%s.rsvd.limit_in_bytes", v1),
		row(1, "hugetlb.%s.limit_in_bytes", "", v1),
		promised(2, "hugetlb.%s.rsvd.max", v2),
		row(2, "hugetlb.%s.max", "5.6", v2),
	}
}

// encodeHuge gives a limit of huge pages rounded down to a whole page, as the kernel does.
func encodeHuge(none string) func(Input) (string, bool, error) {
	return func(in Input) (string, bool, error) {
		asked, limited, set := get[policy.Bytes](in.Settings, policy.KeyMemoryHuge, in.On)
		if !limited {
			return none, set, nil
		}
		size := policy.HugePageSize(in.On)
		if size == 0 {
			return "", true, fmt.Errorf("encode memory.huge: unknown page size %q", in.On)
		}
		pages := int64(asked) / size
		if pages == 0 && asked > 0 {
			return "", true, fmt.Errorf("encode memory.huge %q: less than one page of %s", asked,
				format.ByteCount(size))
		}
		return format.Decimal(pages * size), true, nil
	}
}

// blkioRows are v1's four throttle files and v2's io.max, which holds all four. v1 holds a limit for
// the processes of that very directory only (measured: 4.6 GB/s in the child of a 10 MiB/s group).
func blkioRows() []*Row {
	var rows []*Row
	var keys []policy.Key
	for _, limit := range format.IOMaxFields {
		keys = append(keys, limit.Key)
	}
	for i, file := range []string{"read_bps", "write_bps", "read_iops", "write_iops"} {
		limit := format.IOMaxFields[i]
		unit := "bytes per second"
		if limit.Key == policy.KeyIOReadIOPS || limit.Key == policy.KeyIOWriteIOPS {
			unit = "operations per second"
		}
		r := &Row{
			Controller: "blkio", Version: 1, File: "blkio.throttle." + file + "_device", Keys: keys[i : i+1],
			Unit: unit, PerDevice: true,
			Default: "0", Up: 70, Down: 70, Risk: RiskSlow, form: format.Number{None: "0", Unit: limit.Unit},
			Encode: encodeThrottle(limit.Key),
		}
		// those for operations are taken and written nowhere on v1 (measured on 252)
		r.properties = []string{limit.Property}
		if limit.Write {
			r.Reach, r.Partly = "holds what a process hands to the disk itself: direct IO, O_SYNC, fsync, msync; "+
				"not enforced for buffered writes that the kernel's own threads write back later", true
		}
		rows = append(rows, r)
	}
	var properties []string
	for _, f := range format.IOMaxFields {
		properties = append(properties, f.Property)
	}
	return append(rows, &Row{
		properties: properties,
		Controller: "blkio", Version: 2, File: "io.max", Since: "4.5", Keys: keys,
		Unit: "bytes or operations per second", PerDevice: true,
		Descends: true, Default: format.IOMax{}.Parse(""), Up: 70, Down: 70, Risk: RiskSlow, form: format.IOMax{},
		serves: keys,
		Encode: encodeIOMax,
		Partly: true,
		Reach: "buffered writes are held only together with the memory controller on cgroup v2, on file systems " +
			"with cgroup writeback (ext2, ext4, xfs, btrfs, f2fs)",
	})
}

// rate reads an io limit of a device; whole numbers above zero only, 0 would lift the limit on v1 and
// is refused on v2.
func rate(s policy.Settings, key policy.Key, device string) (value string, limited, set bool, err error) {
	setting, set := s.Get(key, device)
	if !set || !limits(setting) {
		return "", false, set, nil
	}
	var n int64
	switch v := setting.Value.(type) {
	case policy.Rate:
		n = int64(v)
	case policy.IOPS:
		if v >= math.MaxUint32 { // THROTL_IOPS_MAX of block/blk-throttle.c: the kernel's "no limit"
			return "", false, true, nil
		}
		n = int64(v)
	}
	if n <= 0 {
		return "", true, true, fmt.Errorf("encode %s %q: must be above zero", key, setting.Value)
	}
	return format.Decimal(n), true, true, nil
}

func encodeThrottle(key policy.Key) func(Input) (string, bool, error) {
	return func(in Input) (string, bool, error) {
		value, limited, set, err := rate(in.Settings, key, in.On)
		if !limited {
			return "0", set, err
		}
		return value, true, err
	}
}

func encodeIOMax(in Input) (string, bool, error) {
	values := format.IOMax{}.Values("")
	any := false
	for i, limit := range format.IOMaxFields {
		value, limited, set, err := rate(in.Settings, limit.Key, in.On)
		if err != nil {
			return "", true, err
		}
		if limited && value == "1" {
			// tg_set_limit, block/blk-throttle.c
			return "", true, fmt.Errorf("encode %s %q: the kernel takes 2 and more", limit.Key, value)
		}
		if limited {
			values[i] = value
		}
		any = any || set
	}
	return format.IOMax{}.Join(values), any, nil
}

// RowsFor gives the rows that this host can hold: those whose controller sits in a mounted, writable
// hierarchy of the row's version, less those that its kernel is too old for or was built without.
func RowsFor(f *host.Facts) []*Row {
	var rows []*Row
	for _, r := range table {
		h, ok := f.Hierarchy(r.HierarchyID(f))
		if ok && !h.ReadOnly && r.usable(f.Kernel) && !slices.Contains(h.Lacks, r.File) && weighs(f, r.via) &&
			(r.File != FileClassID || SortsByNetCls(f)) {
			rows = append(rows, r)
		}
	}
	return rows
}

// Table gives all rows of both versions in a stable order. The rows are shared: do not change them.
func Table() []*Row {
	rows := make([]*Row, len(table))
	copy(rows, table)
	return rows
}

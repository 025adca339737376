package knob

import (
	"fmt"
	"math"
	"slices"

	"bulkhead/internal/policy"
)

// table is every row there is, in the order of the keys. It is complete after the package is
// initialised and never changes.
var table = build()

func build() []*Row {
	rows := slices.Concat(cpuRows(), cpusetRows(), memoryRows(), tasksRows(), hugeRows(), blkioRows(), ioWeightRows(),
		networkRows())
	for _, r := range rows {
		r.Same, r.Loosens = r.form.same, r.form.loosens
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
		Up: 50, Down: 50, Risk: RiskSlow, form: number{none: "max",
			unit: func(n int64) string { return plain(n) + " tasks" }}, Encode: encodeTasks,
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
	return plain(int64(n)), true, nil
}

func hugeRows() []*Row {
	row := func(version int, file, since string, form number) *Row {
		return &Row{
			Controller: "hugetlb", Version: version, File: file, Since: since, Keys: []policy.Key{policy.KeyMemoryHuge},
			Unit: "bytes", PerSize: true,
			Descends: true, Default: form.none, Up: 47, Down: 47, Risk: RiskOOM, form: form,
			Encode: encodeHuge(form.none),
		}
	}
	return []*Row{
		row(1, "hugetlb.%s.limit_in_bytes", "", number{none: "-1", giant: true, unit: byteCount}),
		// A fresh directory shows v1's giant number, and "max" only once that was written (measured on 6.18).
		row(2, "hugetlb.%s.max", "5.6", number{none: "max", giant: true, unit: byteCount}),
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
			return "", true, fmt.Errorf("encode memory.huge %q: less than one page of %s", asked, byteCount(size))
		}
		return plain(pages * size), true, nil
	}
}

// blkioRows are v1's four throttle files and v2's io.max, which holds all four. v1 holds a limit for
// the processes of that very directory only (measured: 4.6 GB/s in the child of a 10 MiB/s group).
func blkioRows() []*Row {
	var rows []*Row
	var keys []policy.Key
	for _, limit := range ioMaxFields {
		keys = append(keys, limit.key)
	}
	for i, file := range []string{"read_bps", "write_bps", "read_iops", "write_iops"} {
		limit := ioMaxFields[i]
		unit := "bytes per second"
		if limit.key == policy.KeyIOReadIOPS || limit.key == policy.KeyIOWriteIOPS {
			unit = "operations per second"
		}
		r := &Row{
			Controller: "blkio", Version: 1, File: "blkio.throttle." + file + "_device", Keys: keys[i : i+1],
			Unit: unit, PerDevice: true,
			Default: "0", Up: 70, Down: 70, Risk: RiskSlow, form: number{none: "0", unit: limit.unit},
			Encode: encodeThrottle(limit.key),
		}
		// those for operations are taken and written nowhere on v1 (measured on 252)
		r.properties = []string{limit.property}
		if limit.write {
			r.Reach, r.Partly = "holds what a process hands to the disk itself: direct IO, O_SYNC, fsync, msync; "+
				"not enforced for buffered writes that the kernel's own threads write back later", true
		}
		rows = append(rows, r)
	}
	var properties []string
	for _, f := range ioMaxFields {
		properties = append(properties, f.property)
	}
	return append(rows, &Row{
		properties: properties,
		Controller: "blkio", Version: 2, File: "io.max", Since: "4.5", Keys: keys,
		Unit: "bytes or operations per second", PerDevice: true,
		Descends: true, Default: ioMax{}.parse(""), Up: 70, Down: 70, Risk: RiskSlow, form: ioMax{}, serves: keys,
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
	return plain(n), true, true, nil
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
	values := ioMax{}.values("")
	any := false
	for i, limit := range ioMaxFields {
		value, limited, set, err := rate(in.Settings, limit.key, in.On)
		if err != nil {
			return "", true, err
		}
		if limited && value == "1" {
			// tg_set_limit, block/blk-throttle.c
			return "", true, fmt.Errorf("encode %s %q: the kernel takes 2 and more", limit.key, value)
		}
		if limited {
			values[i] = value
		}
		any = any || set
	}
	return ioMax{}.join(values), any, nil
}

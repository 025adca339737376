package knob

import (
	"fmt"
	"math"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// memoryV1 and memoryV2 are the two ways to write an amount of memory.
var (
	memoryV1 = format.Number{None: "-1", Giant: true, Paged: true, Unit: format.ByteCount}
	memoryV2 = format.Number{None: "max", Paged: true, Unit: format.ByteCount}
)

// swapOption is what the swap files hang on: before kernel 6.1 the accounting of swap could be left
// out of the kernel or switched off, and some distributions did.
const swapOption = "swap accounting (boot with swapaccount=1)"

// nestedSince is the kernel from which memory.swappiness and memory.oom_control may differ between a
// group and the groups above it ("mm: memcontrol: remove hierarchy restrictions for swappiness and
// oom_control"). Before, a write below a directory with use_hierarchy fails with EINVAL.
const nestedSince = "3.16"

// hierarchicalSince is the kernel from which v1's memory.use_hierarchy is always 1. Before, a group's
// limits hold the groups below it only where it was set; systemd sets it on the root.
const hierarchicalSince = "5.11"

func memoryRows() []*Row {
	key := func(k policy.Key) []policy.Key { return []policy.Key{k} }
	return append([]*Row{
		{
			Controller: "memory", Version: 1, File: "memory.memsw.limit_in_bytes",
			Keys: []policy.Key{policy.KeyMemorySwap, policy.KeyMemoryMax}, Unit: "bytes of memory and swap",
			Descends: true, Default: "-1", Option: swapOption, OptionUntil: "6.1", Up: 40, Down: 44, Risk: RiskOOM,
			form:   memoryV1,
			Reach:  "v1 limits memory and swap together: memory that a group does not use it may use as swap",
			serves: key(policy.KeyMemorySwap), needed: allOf(policy.KeyMemorySwap, policy.KeyMemoryMax),
			Encode: encodeMemsw,
		},
		{
			Controller: "memory", Version: 1, File: "memory.limit_in_bytes", Keys: key(policy.KeyMemoryMax),
			Unit: "bytes", Descends: true, Default: "-1",
			Up: 41, Down: 43, Risk: RiskOOM, form: memoryV1, Encode: encodeBytes(policy.KeyMemoryMax, "-1"),
			properties: []string{"MemoryMax", "MemoryLimit"},
		},
		{
			Controller: "memory", Version: 1, File: "memory.swappiness", Keys: key(policy.KeyMemorySwappiness),
			Unit: "0–100, 0–200 since 5.8", Inherits: true,
			Default: "60", Nested: nestedSince, Up: 45, Down: 45, form: format.Number{Unit: format.Decimal},
			Encode: encodeSwappiness,
			Reach:  "each directory has a value of its own, copied from its parent when it is made",
		},
		{
			Controller: "memory", Version: 1, File: "memory.oom_control", Keys: key(policy.KeyMemoryOOM),
			Unit: "1 pauses, 0 kills", Inherits: true, Descends: true,
			Default: "0", Nested: nestedSince, Up: 46, Down: 46,
			form:   format.OOMControl{Number: format.Number{Invert: true, Unit: format.Either("kill", "pause")}},
			Encode: encodeOOM(policy.OOM("pause")),
			Reach:  "kill and pause only: cgroup v1 does not kill a group as a whole",
		},
	}, memoryV2Rows()...)
}

func memoryV2Rows() []*Row {
	row := func(r Row) *Row {
		r.Controller, r.Version, r.Descends, r.Unit = "memory", 2, true, "bytes"
		r.form = memoryV2
		return &r
	}
	// size is a file that holds the bytes of one limit.
	size := func(key policy.Key, r Row) *Row {
		r.Keys, r.Encode = []policy.Key{key}, encodeBytes(key, r.Default)
		return row(r)
	}
	group := row(Row{File: "memory.oom.group", Since: "4.19", Late: true, Keys: []policy.Key{policy.KeyMemoryOOM},
		Default: "0", Up: 46, Down: 46})
	group.Unit, group.form, group.Encode = "1 kills all, 0 one",
		format.Number{Invert: true, Unit: format.Either("kill", "kill-group")}, encodeOOM(policy.OOM("kill-group"))
	group.Instead = "kill"
	group.Reach = "kill and kill-group only: cgroup v2 does not pause a group that is out of memory"
	return []*Row{
		size(policy.KeyMemorySwap, Row{File: "memory.swap.max", properties: []string{"MemorySwapMax"}, Since: "4.5",
			Default: "max", Up: 40, Down: 44, Risk: RiskOOM, Option: swapOption, OptionUntil: "6.1"}),
		size(policy.KeyMemoryMax, Row{File: "memory.max", properties: []string{"MemoryMax"}, Since: "4.5",
			Default: "max", Up: 41, Down: 45, Risk: RiskOOM}),
		size(policy.KeyMemoryHigh, Row{File: "memory.high", properties: []string{"MemoryHigh"}, Since: "4.5",
			Default: "max", Up: 42, Down: 43, Risk: RiskSlow}),
		size(policy.KeyMemoryLow, Row{File: "memory.low", properties: []string{"MemoryLow"}, Since: "4.5",
			Default: "0", Up: 43, Down: 42, Covers: true}),
		size(policy.KeyMemoryMin, Row{File: "memory.min", properties: []string{"MemoryMin"}, Since: "4.18", Late: true,
			Default: "0", Up: 44, Down: 41, Covers: true}),
		group,
	}
}

// encodeBytes gives an amount of memory rounded down to a page, as the kernel does. none is what "max"
// is written as: no limit, or no protection.
func encodeBytes(key policy.Key, none string) func(Input) (string, bool, error) {
	return func(in Input) (string, bool, error) {
		asked, limited, set := get[policy.Bytes](in.Settings, key, "")
		if !limited {
			return none, set, nil
		}
		pages := int64(asked) / in.pageSize()
		if pages == 0 && asked > 0 {
			return "", true, fmt.Errorf("encode %s %q: less than one page of %s", key, asked,
				format.ByteCount(in.pageSize()))
		}
		return format.Decimal(pages * in.pageSize()), true, nil
	}
}

// encodeMemsw gives v1's limit of memory and swap together. It takes both parts: without memory.max
// there is nothing that the swap could be added to.
func encodeMemsw(in Input) (string, bool, error) {
	swap, swapLimited, swapSet := get[policy.Bytes](in.Settings, policy.KeyMemorySwap, "")
	limit, maxLimited, _ := get[policy.Bytes](in.Settings, policy.KeyMemoryMax, "")
	if !swapLimited || !maxLimited {
		return "-1", swapSet, nil
	}
	if swap > math.MaxInt64-limit {
		return "-1", true, nil
	}
	// Each part is rounded by itself, so that the sum never falls below memory.limit_in_bytes.
	page := in.pageSize()
	return format.Decimal((int64(limit)/page + int64(swap)/page) * page), true, nil
}

// encodeSwappiness gives memory.swappiness, which goes to 200 since kernel 5.8.
func encodeSwappiness(in Input) (string, bool, error) {
	n, limited, set := get[policy.Count](in.Settings, policy.KeyMemorySwappiness, "")
	if !limited {
		return "60", set, nil
	}
	top := int64(200)
	if !in.kernel().Since("5.8") {
		top = 100
	}
	if int64(n) < 0 || int64(n) > top {
		return "", true, fmt.Errorf("encode memory.swappiness %q: this kernel takes 0 to %d", n, top)
	}
	return format.Decimal(int64(n)), true, nil
}

// encodeOOM gives "1" for the behaviour that a file switches on and "0" for the others.
func encodeOOM(switched policy.OOM) func(Input) (string, bool, error) {
	return func(in Input) (string, bool, error) {
		asked, _, set := get[policy.OOM](in.Settings, policy.KeyMemoryOOM, "")
		if asked == switched {
			return "1", true, nil
		}
		return "0", set, nil
	}
}

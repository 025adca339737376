// Package knob is the table of limits: for each kernel file that holds one, how a value is encoded,
// parsed, compared and ordered, since when it exists, and what it does to others. A new limit is a
// new row here, not a new branch somewhere.
//
// Everything is pure: a row turns settings into the text of a file and back, Sequence puts changes
// into an order that the kernel accepts, Capabilities says what a host can hold. Nothing here opens a
// file. docs/knobs.md is generated from the table.
package knob

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// Row is one kernel file that holds (part of) a limit.
type Row struct {
	Controller string       // v1 name: "cpu", "memory", "blkio", "pids", "cpuset", "hugetlb", "net_cls"
	Version    int          // 1 or 2: of the hierarchy that holds the controller
	File       string       // "cpu.cfs_quota_us"; "%s" stands for the page size of hugetlb files
	Since      string       // kernel version that brought it, "" for older than 3.10
	Keys       []policy.Key // the settings it is computed from; the first is the one it is named after
	Unit       string       // of the value in the file, for people: "µs", "bytes"
	PerDevice  bool         // a line per device, keyed "major:minor"; values here are without that key
	PerSize    bool         // a file per huge page size

	// Seed: written as soon as the directory is made, from the nearest ancestor's value when the
	// group asks for none, because the kernel takes no task before (v1 cpuset).
	Seed bool
	// Inherits: a new directory starts with its parent's value of that moment instead of Default (v1
	// memory.swappiness, memory.oom_control, net_cls.classid).
	Inherits bool
	// Descends: a parent's value holds its children too. False for v1 blkio.throttle,
	// memory.swappiness and net_cls.classid.
	Descends bool
	// Covers: a directory's value counts only as far as every directory above it has at least the sum
	// of those below: v2 memory.min and memory.low give no protection otherwise, v1 cpu.rt_runtime_us
	// is refused (EINVAL).
	Covers bool
	// Default is what a fresh directory holds, and what is written when a limit is taken away.
	Default string

	// Late: the file is younger than its controller, so that a mounted controller does not show that
	// it is there. RowsFor leaves the row out on kernels before Since.
	Late bool
	// Nested is the kernel from which the file may be written in a directory below another one; ""
	// when it always may.
	Nested string
	// Option is the build or boot option without which the file is missing, OptionUntil the kernel
	// since which it is always on ("" for never).
	Option, OptionUntil string

	// Up and Down order the rows of one group when its limits are raised and lowered: smaller first.
	Up, Down int
	// Resets names files of the same directory whose value the kernel changes when this one is written.
	Resets []string
	Risk   Risk

	// Reach says what the limit does not do although the kernel takes it; "" when it holds all.
	Reach string
	// Partly marks a Reach that leaves a part of what the limit is for without any limit.
	Partly bool
	// Instead is what bulkhead uses where the file is missing; "" for nothing.
	Instead string

	// Encode gives the value for a group. ok is false when the group's settings ask nothing of this
	// file; an error names a value that the kernel would refuse.
	Encode func(in Input) (value string, ok bool, err error) `json:"-"`
	Same   func(want, got string) bool                       `json:"-"` // equal up to the kernel's rounding
	// going from one to the other raises what is allowed
	Loosens func(from, to string) bool `json:"-"`

	// properties are those of systemd that write the file in a unit's directory, the better one first where they
	// stand for the same. None: systemd leaves the file alone.
	properties []string

	// via is what a setting must be held by for the row to be the one that holds it; "" for all.
	via string

	form   format.Format
	bundle bundle
	serves []policy.Key // the keys whose capability this file decides
	needed func(policy.Settings) bool
}

// Input is what a row's value is computed from.
type Input struct {
	Settings policy.Settings // of one group, resolved
	Facts    *host.Facts
	On       string // the device ("8:16") or page size ("2MB") this value is for
	PageSize int64  // bytes; 0 takes that of Facts, or 4096
	Class    uint32 // of traffic control, for the group's packets; 0 for none
}

// Risk says what writing a knob may do to what runs.
type Risk string

// Risks, from none to the worst.
const (
	RiskNone    Risk = ""
	RiskSlow    Risk = "may slow the group"
	RiskOOM     Risk = "may end in an OOM kill"
	RiskBus     Risk = "may end a process by SIGBUS"
	RiskRefused Risk = "may be refused huge pages"
	RiskMigrate Risk = "may move memory between nodes"
)

// Verdict answers "can this host hold that limit".
type Verdict string

// Verdicts.
const (
	Yes     Verdict = "yes"
	No      Verdict = "no"
	Unknown Verdict = "could not tell"
)

// Capability is one line of the table that discover prints.
type Capability struct {
	Key       policy.Key `json:"key"`
	Verdict   Verdict    `json:"verdict"`
	Hierarchy string     `json:"hierarchy,omitempty"`
	Files     []string   `json:"files,omitempty"`
	Reason    string     `json:"reason,omitempty"`  // why not, or what it does not reach
	Instead   string     `json:"instead,omitempty"` // what is used instead, or "nothing"
}

// HierarchyID gives the ID of the mounted hierarchy of the row's version that holds its controller,
// "" when there is none.
func (r *Row) HierarchyID(f *host.Facts) string {
	h, ok := f.HierarchyOf(r.Controller)
	if !ok || h.Version != r.Version {
		return ""
	}
	return h.ID
}

// Name is the file's name. on is the page size of a hugetlb file ("2MB"); other rows ignore it.
func (r *Row) Name(on string) string {
	if !r.PerSize {
		return r.File
	}
	return fmt.Sprintf(r.File, on)
}

// Parse turns what the kernel shows into what Encode would have written for it, so that the two can
// be compared as text and read values can be written back. Of a per-device file it takes the rest of
// one device's line (see Line); "", no line, is no limit.
func (r *Row) Parse(got string) string { return r.form.Parse(strings.TrimSpace(got)) }

// Human is a file's value for people: "0.5 cores", "8 GiB", "unlimited".
func (r *Row) Human(value string) string { return r.form.Human(r.Parse(value)) }

// HumanIn is Human with what the files of the same directory hold, by name: with its period at hand,
// v1's CPU quota is a number of cores, and v1's limit on memory and swap together leaves so much swap.
func (r *Row) HumanIn(value string, files map[string]string) string {
	if period, ok := files["cpu.cfs_period_us"]; ok && r.File == "cpu.cfs_quota_us" {
		if b, ok := format.BandwidthFrom(r.Parse(value), strings.TrimSpace(period)); ok {
			return format.CPUMax{}.Human(b.String())
		}
	}
	if memory, ok := files["memory.limit_in_bytes"]; ok && r.File == "memory.memsw.limit_in_bytes" {
		both, err := strconv.ParseInt(r.Parse(value), 10, 64)
		alone, errAlone := strconv.ParseInt(strings.TrimSpace(memory), 10, 64)
		if err == nil && errAlone == nil && both >= alone {
			return fmt.Sprintf("%s of swap (%s with memory)", policy.Bytes(both-alone).Human(),
				policy.Bytes(both).Human())
		}
	}
	return r.Human(value)
}

// Line picks the value of one device out of the text of a whole per-device file, "" when it has no
// line there. Other rows give the text back.
func (r *Row) Line(text, on string) string {
	if !r.PerDevice {
		return text
	}
	return cgroup.Line(text, on)
}

// Devices lists the devices that have a line in the text of a whole per-device file, by number.
func (r *Row) Devices(text string) []string {
	if !r.PerDevice {
		return nil
	}
	return cgroup.Devices(text)
}

// Instances lists what the row is needed for: the devices or page sizes that the settings limit, [""]
// for a row without either, nothing when the settings do not ask for it. A setting that asks for what
// the kernel does anyway ("max", cpu.idle off, memory.oom kill) needs no file.
func (r *Row) Instances(s policy.Settings) []string {
	if !r.PerDevice && !r.PerSize {
		if r.needed(s) {
			return []string{""}
		}
		return nil
	}
	var on []string
	seen := map[string]bool{}
	for _, setting := range s {
		place := setting.On
		if r.PerDevice {
			place = setting.Dev
		}
		if place != "" && !seen[place] && limits(setting) && r.computedFrom(setting.Key) &&
			(r.via == "" || r.via == setting.Via) {
			seen[place] = true
			on = append(on, place)
		}
	}
	return on
}

// Asked says whether settings need the row, or may: of one whose device cannot be told now, what is in force stays.
func (r *Row) Asked(s policy.Settings) bool {
	return len(r.Instances(s)) > 0 || r.PerDevice && slices.ContainsFunc(s,
		func(one policy.Setting) bool { return one.Lost != "" && r.computedFrom(one.Key) })
}

func (r *Row) computedFrom(key policy.Key) bool {
	for _, k := range r.Keys {
		if k == key {
			return true
		}
	}
	return false
}

// usable says whether the row may be written in a group on this kernel, as far as its version tells.
// An unknown version counts as new.
func (r *Row) usable(v host.Version) bool {
	return !r.Late || v.Since(r.Since)
}

// Nests says whether a kernel takes the file below another group.
func (r *Row) Nests(kernel host.Version) bool { return kernel.Since(r.Nested) }

// pageSize is the size that the kernel rounds memory values to, in bytes.
func (in Input) pageSize() int64 {
	if in.PageSize > 0 {
		return in.PageSize
	}
	if in.Facts != nil && in.Facts.PageSize > 0 {
		return in.Facts.PageSize
	}
	return 4096
}

// kernel is the version of the running kernel, the zero value when it is not known.
func (in Input) kernel() host.Version {
	if in.Facts == nil {
		return host.Version{}
	}
	return in.Facts.Kernel
}

// get finds a setting's value of one type; set says whether the key is there at all, limited whether
// it is a limit rather than "max".
func get[T policy.Value](s policy.Settings, key policy.Key, on string) (value T, limited, set bool) {
	setting, ok := s.Get(key, on)
	if !ok {
		return value, false, false
	}
	value, limited = setting.Value.(T)
	return value, limited, true
}

// limits says whether a setting asks for something that the kernel does not do of itself: "max" lifts
// a limit, cpu.idle off and memory.oom kill are what every directory starts with.
func limits(s policy.Setting) bool {
	switch v := s.Value.(type) {
	case nil, policy.Unlimited:
		return false
	case policy.Flag:
		return bool(v)
	case policy.OOM:
		return v != "kill"
	default:
		return true
	}
}

// anyOf is true for settings that limit one of the keys.
func anyOf(keys ...policy.Key) func(policy.Settings) bool {
	return func(s policy.Settings) bool {
		for _, key := range keys {
			if setting, ok := s.Get(key, ""); ok && limits(setting) {
				return true
			}
		}
		return false
	}
}

// allOf is true for settings that limit each of the keys.
func allOf(keys ...policy.Key) func(policy.Settings) bool {
	return func(s policy.Settings) bool {
		for _, key := range keys {
			if setting, ok := s.Get(key, ""); !ok || !limits(setting) {
				return false
			}
		}
		return true
	}
}

package systemd

import (
	"fmt"
	"math"
	"slices"
)

// Row is one property that limits or accounts, with what this systemd makes of it on either version of cgroups.
type Row struct {
	Name    string `json:"name"`            // on D-Bus: "CPUQuotaPerSecUSec"
	Setting string `json:"setting"`         // in a unit file: "CPUQuota"
	Since   int    `json:"since"`           // the release that brought it
	Until   int    `json:"until,omitempty"` // the first release without it; 0 for none
	Form    Form   `json:"form"`

	// V1 and V2 are the files that systemd writes it to; "" for none. Where it has none systemd takes the property,
	// shows it and holds nothing.
	V1 string `json:"v1,omitempty"`
	V2 string `json:"v2,omitempty"`
	// V1Note says what the v1 file holds of it.
	V1Note string `json:"v1_note,omitempty"`

	Min, Max uint64 `json:"-"` // of numbers, beside "max" and not set
	// Step is what systemd rounds to in the file that it keeps a value in, so that an odd one changes at the next
	// reload: 252 turns CPUQuotaPerSecUSec=1234567 into "CPUQuota=123%" (measured). Encode rounds to it; 0 is 1.
	Step      uint64   `json:"step,omitempty"`
	IdleSince int      `json:"-"` // of a weight: the release that takes "idle"
	Unset     bool     `json:"-"` // a number whose largest value is "not set" and not "no limit"
	Words     []string `json:"-"`
	// ScopeSince is the release since which scopes have it too, where that is later; 0 when they have it since Since.
	ScopeSince int `json:"-"`
	// Units are the types of unit that have it; nil is service, scope and slice.
	Units []string `json:"-"`
	// StartOnly: SetProperties is refused on a loaded unit; it is given with a transient unit or by drop-in.
	StartOnly bool `json:"start_only,omitempty"`
	// Stronger: where this property is set too, systemd ignores the row (systemd.resource-control(5), "Unified and
	// legacy control group hierarchies").
	Stronger string `json:"stronger,omitempty"`
	Source   string `json:"source"`
}

const (
	resourceControl = "systemd.resource-control(5)"
	// v1Gone is the release that dropped cgroup v1 (NEWS, "Changes with 258").
	v1Gone = 258

	weightMin, weightMax = 1, 10000
	sharesMin, sharesMax = 2, 262144
)

func documented(setting string, since int) string {
	return fmt.Sprintf("%s, %s=, added in version %d", resourceControl, setting, since)
}

func bytesRow(name string, since int, v1, v2 string, least uint64) Row {
	return Row{Name: name, Setting: name, Since: since, Form: FormBytes, V1: v1, V2: v2, Min: least,
		Max: math.MaxUint64 - 1, Source: documented(name, since)}
}

func devicesRow(name, v1, v2 string, least, most uint64) Row {
	return Row{Name: name, Setting: name, Since: 230, Form: FormDevices, V1: v1, V2: v2, Min: least, Max: most,
		Source: documented(name, 230)}
}

func flagRow(name string, since int) Row {
	return Row{Name: name, Setting: name, Since: since, Form: FormFlag, Source: documented(name, since)}
}

// table follows systemd.resource-control(5) of 257, which says of each setting which version added it, and the same
// page of 252 for the ones that 253 stopped documenting (CPUShares=, MemoryLimit=). Ranges are those that 252
// refused when asked. v1 files are those that 252's page and its "best-effort translation" name.
var table = []Row{
	{
		Name: "CPUWeight", Setting: "CPUWeight", Since: 232, Form: FormWeight, Min: weightMin, Max: weightMax,
		IdleSince: 252,
		V1:        "cpu.shares", V1Note: "weight × 1024/100; idle is the smallest weight there", V2: "cpu.weight",
		Source: documented("CPUWeight", 232),
	},
	{
		Name: "CPUShares", Setting: "CPUShares", Since: 208, Until: v1Gone, Form: FormNumber, Min: sharesMin,
		Max: sharesMax, Unset: true,
		V1: "cpu.shares", V2: "cpu.weight", Stronger: "CPUWeight",
		Source: resourceControl + " of 252, deprecated options: CPUShares=; NEWS of 213 names it as older",
	},
	{
		Name: "CPUQuotaPerSecUSec", Setting: "CPUQuota", Since: 213, Form: FormMicros, Min: 1, Max: 1_000_000_000_000,
		Step: 10_000,
		V1:   "cpu.cfs_quota_us", V2: "cpu.max", Source: documented("CPUQuota", 213),
	},
	{
		Name: "CPUQuotaPeriodUSec", Setting: "CPUQuotaPeriodSec", Since: 242, Form: FormMicros, Min: 1000,
		Max: 1_000_000, Unset: true,
		V1: "cpu.cfs_period_us", V2: "cpu.max", Source: documented("CPUQuotaPeriodSec", 242),
	},
	{Name: "AllowedCPUs", Setting: "AllowedCPUs", Since: 244, Form: FormSet, V2: "cpuset.cpus",
		Source: documented("AllowedCPUs", 244)},
	{Name: "AllowedMemoryNodes", Setting: "AllowedMemoryNodes", Since: 244, Form: FormSet, V2: "cpuset.mems",
		Source: documented("AllowedMemoryNodes", 244)},
	bytesRow("MemoryMin", 240, "", "memory.min", 0),
	{
		Name: "MemoryLow", Setting: "MemoryLow", Since: 231, Form: FormBytes, V2: "memory.low", Max: math.MaxUint64 - 1,
		Source: resourceControl +
			" names 240, for MemoryMin= and MemoryLow= in one; it came with MemoryHigh= and MemoryMax= (NEWS of 231: " +
			"the memory controller on v2)",
	},
	bytesRow("MemoryHigh", 231, "", "memory.high", 1),
	bytesRow("MemoryMax", 231, "memory.limit_in_bytes", "memory.max", 1),
	{
		Name: "MemoryLimit", Setting: "MemoryLimit", Since: 208, Until: v1Gone, Form: FormBytes, Min: 1,
		Max: math.MaxUint64 - 1,
		V1:  "memory.limit_in_bytes", V2: "memory.max", Stronger: "MemoryMax",
		Source: resourceControl + " of 252, deprecated options: MemoryLimit=; NEWS of 231 names it as older",
	},
	bytesRow("MemorySwapMax", 232, "", "memory.swap.max", 0),
	bytesRow("MemoryZSwapMax", 253, "", "memory.zswap.max", 0),
	{
		Name: "IOWeight", Setting: "IOWeight", Since: 230, Form: FormWeight, Min: weightMin, Max: weightMax,
		V1: "blkio.weight", V1Note: "weight × 500/100, between 10 and 1000; CFQ and BFQ only", V2: "io.weight",
		Source: documented("IOWeight", 230),
	},
	devicesRow("IODeviceWeight", "blkio.weight_device", "io.weight", weightMin, weightMax),
	devicesRow("IOReadBandwidthMax", "blkio.throttle.read_bps_device", "io.max", 1, math.MaxUint64-1),
	devicesRow("IOWriteBandwidthMax", "blkio.throttle.write_bps_device", "io.max", 1, math.MaxUint64-1),
	devicesRow("IOReadIOPSMax", "", "io.max", 1, math.MaxUint64-1),
	devicesRow("IOWriteIOPSMax", "", "io.max", 1, math.MaxUint64-1),
	{
		Name: "TasksMax", Setting: "TasksMax", Since: 227, Form: FormNumber, Min: 1, Max: math.MaxUint64 - 1,
		V1: "pids.max", V2: "pids.max", Source: documented("TasksMax", 227),
	},
	{
		Name: "OOMPolicy", Setting: "OOMPolicy", Since: 243, ScopeSince: 253, Form: FormWord,
		Words: []string{"continue", "stop", "kill"}, StartOnly: true,
		Units: []string{"service", "scope"}, V2: "memory.oom.group",
		Source: "systemd.service(5), OOMPolicy=, added in version 243; systemd.scope(5), added in version 253",
	},
	flagRow("CPUAccounting", 208),
	flagRow("MemoryAccounting", 208),
	flagRow("TasksAccounting", 227),
	flagRow("IOAccounting", 230),
}

// Table gives all rows in a stable order. The rows are shared: do not change them.
func Table() []*Row {
	rows := make([]*Row, len(table))
	for i := range table {
		rows[i] = &table[i]
	}
	return rows
}

// RowOf finds a property of the table by its name on D-Bus.
func RowOf(name string) (*Row, bool) {
	for i := range table {
		if table[i].Name == name {
			return &table[i], true
		}
	}
	return nil, false
}

// Known says whether a release of systemd knows the property on a type of unit ("service", "scope", "slice").
func (r *Row) Known(v Version, unitType string) bool {
	units := r.Units
	if units == nil {
		units = []string{"service", "scope", "slice"}
	}
	switch {
	case !slices.Contains(units, unitType), !v.AtLeast(r.Since):
		return false
	case r.Until > 0 && v.Number >= r.Until:
		return false
	}
	return unitType != "scope" || v.AtLeast(r.ScopeSince)
}

// Route is the way by which a limit reaches a unit's directory.
type Route string

// Routes.
const (
	ByProperty Route = "property" // systemd writes the file, and writes it again at every reload
	ByFile     Route = "file"     // systemd leaves that file alone, so that what we write stays
	ByNone     Route = "none"     // only at the unit's next start
)

// Route says how this property's limit is set on a unit of that type under cgroups of that version (1 or 2, of the
// hierarchy that holds its controller), and why. An accounting switch is always a property.
func (r *Row) Route(v Version, unitType string, cgroups int) (Route, string) {
	file := r.V2
	if cgroups == 1 {
		file = r.V1
	}
	switch {
	case !r.Known(v, unitType):
		if r.Until > 0 && v.Number >= r.Until {
			return ByFile, fmt.Sprintf("systemd dropped %s with %d, this is %s", r.Name, r.Until, v)
		}
		return ByFile, fmt.Sprintf("systemd knows %s on a %s %s, this is %s", r.Name, unitType, r.from(unitType), v)
	case r.Form != FormFlag && file == "":
		return ByFile, fmt.Sprintf("systemd takes %s on cgroup v%d and writes it nowhere", r.Name, cgroups)
	case r.StartOnly:
		return ByNone, fmt.Sprintf("systemd takes %s at a unit's start only, by drop-in", r.Name)
	}
	return ByProperty, ""
}

func (r *Row) from(unitType string) string {
	switch {
	case r.Units != nil && !slices.Contains(r.Units, unitType):
		return "never"
	case unitType == "scope":
		return fmt.Sprintf("since %d", max(r.Since, r.ScopeSince))
	}
	return fmt.Sprintf("since %d", r.Since)
}

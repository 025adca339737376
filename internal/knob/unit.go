package knob

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Unit is a systemd unit whose directory holds files of this table.
type Unit struct {
	Name    string
	Version systemd.Version // of the systemd that owns it
}

// quotaStep is the share of a period that systemd keeps a CPU quota to: whole per cent (measured on 252).
const quotaStep = 100

// Properties gives the properties of systemd that bring the row's file in a unit's directory to the values of that
// directory, which text gives: the whole line of a plain file, one device's of a per-device file, "" for one that
// is not known. devices are those that a file of the directory is to have a line for; nil is none. ok is false when the
// file must be written by ourselves: systemd does not know it on such a unit, or takes the property and writes nothing.
func (r *Row) Properties(u Unit, devices func(file string) []string, text func(file, device string) string) (
	set []systemd.Assignment, ok bool) {
	if r.via == policy.ViaBFQ && !u.Version.AtLeast(bfqByProperty) {
		return nil, false
	}
	for _, name := range r.properties {
		row, known := systemd.RowOf(name)
		if !known || !row.Known(u.Version, unitname.TypeOf(u.Name)) {
			continue // an older name for it may follow
		}
		if r.File == "cpu.idle" && !u.Version.AtLeast(row.IdleSince) {
			return nil, false
		}
		if route, _ := row.Route(u.Version, unitname.TypeOf(u.Name), r.Version); route != systemd.ByProperty {
			return nil, false
		}
		if slices.ContainsFunc(set, func(a systemd.Assignment) bool { return a.Name == row.Stronger }) {
			continue
		}
		value, ok := r.propertyText(row, devices, text)
		if !ok {
			return nil, false
		}
		set = append(set, systemd.Assignment{Name: name, Text: value})
	}
	if r.bundle == bundleBandwidth && r.File != "cpu.cfs_burst_us" && !slices.ContainsFunc(set,
		func(a systemd.Assignment) bool { return a.Name == "CPUQuotaPeriodUSec" }) {
		// Before 242 every period is 100 ms.
		if b := r.bandwidthIn(text); !b.Unlimited() && b.Period != format.DefaultPeriod {
			return nil, false
		}
	}
	return set, len(set) > 0
}

// PropertySettings names the settings of a unit that write the row's file, whether systemd knows them or not.
func (r *Row) PropertySettings() []string {
	var names []string
	for _, name := range r.properties {
		if row, known := systemd.RowOf(name); known {
			names = append(names, row.Setting)
		}
	}
	return names
}

// propertyText is the value of one property.
func (r *Row) propertyText(row *systemd.Row, devices func(file string) []string,
	text func(file, device string) string) (string, bool) {
	value := r.Parse(text(r.File, ""))
	switch row.Name {
	case "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec":
		b := r.bandwidthIn(text)
		switch {
		case b.Unlimited():
			return "max", true
		case row.Name == "CPUQuotaPeriodUSec":
			return strconv.FormatInt(b.Period, 10), true
		}
		return strconv.FormatInt(b.Quota*1_000_000/b.Period, 10), true
	case "CPUWeight":
		return r.weightText(row, text)
	case "CPUShares":
		return value, value != format.IdleShares
	}
	switch row.Form {
	case systemd.FormDevices:
		return r.deviceText(row, devices, text), true
	case systemd.FormSet:
		return value, true
	}
	if value == r.Default || value == "-1" {
		return map[bool]string{true: "0", false: "max"}[r.Default == "0"], true
	}
	return value, value != ""
}

// weightText gives CPUWeight for cpu.weight, cpu.shares and v2's cpu.idle. systemd turns a weight into v1's shares by
// weight × 1024 / 100, rounded down.
func (r *Row) weightText(row *systemd.Row, text func(file, device string) string) (string, bool) {
	if r.Version == 2 {
		if strings.TrimSpace(text("cpu.idle", "")) == "1" {
			return "idle", true
		}
		if weight := strings.TrimSpace(text("cpu.weight", "")); weight != defaultWeight {
			return weight, true // "" for one that is not known: not set
		}
		return "", true
	}
	value := r.Parse(text(r.File, ""))
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case value == defaultShares || value == "":
		return "", true
	case err != nil || value == format.IdleShares:
		return "", false
	}
	weight := (n*100 + 1023) / 1024
	if weight*1024/100 != n {
		weight = n * 100 / 1024
	}
	return strconv.FormatInt(min(max(weight, int64(row.Min)), int64(row.Max)), 10), true
}

// deviceText gives the lines of a property per device: the node that udev makes for each number, and the value.
func (r *Row) deviceText(row *systemd.Row, devices func(file string) []string,
	text func(file, device string) string) string {
	files := []string{r.File}
	switch {
	case devices == nil:
		return ""
	case r.via != "":
		files = weightFiles
	}
	var lines []string
	for _, file := range files {
		for _, device := range devices(file) {
			value := r.Parse(text(file, device))
			switch {
			case file == bfqFile:
				value = propertyWeight(value)
			case r.via == "" && r.Version == 2:
				i := slices.IndexFunc(format.IOMaxFields,
					func(f format.IOMaxField) bool { return f.Property == row.Name })
				value = format.IOMax{}.Values(value)[i]
			}
			if value != "" && value != "0" && value != "max" && value != r.Default {
				lines = append(lines, "/dev/block/"+device+" "+value)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// bandwidthIn reads a directory's CPU limit from cpu.max, or from v1's pair of files.
func (r *Row) bandwidthIn(text func(file, device string) string) format.Bandwidth {
	if r.Version == 2 {
		b, ok := format.CPUMax{}.Value(text("cpu.max", ""))
		if !ok {
			return format.Bandwidth{Quota: -1, Period: format.DefaultPeriod}
		}
		return b
	}
	b, ok := format.BandwidthFrom(strings.TrimSpace(text("cpu.cfs_quota_us", "")),
		strings.TrimSpace(text("cpu.cfs_period_us", "")))
	if !ok {
		return format.Bandwidth{Quota: -1, Period: format.DefaultPeriod}
	}
	return b
}

// Settle rounds a value to what systemd keeps of it in a unit, so that a daemon-reload does not change it; other values
// it gives back as they are. period is what cpu.cfs_period_us is to hold, for v1's quota.
func (r *Row) Settle(u Unit, value, period string) string {
	if r.bundle != bundleBandwidth {
		return r.settleWeight(u, value)
	}
	var b format.Bandwidth
	var ok bool
	switch r.File {
	case "cpu.max":
		b, ok = format.CPUMax{}.Value(value)
	case "cpu.cfs_quota_us":
		b, ok = format.BandwidthFrom(value, period)
	}
	if !ok || b.Unlimited() {
		return value
	}
	b.Quota = max(b.Quota*quotaStep/b.Period, 1) * b.Period / quotaStep
	if r.File == "cpu.max" {
		return b.String()
	}
	return strconv.FormatInt(b.Quota, 10)
}

// settleWeight gives the shares that systemd makes of the weight nearest to them.
func (r *Row) settleWeight(u Unit, value string) string {
	if r.File != "cpu.shares" || value == defaultShares || value == format.IdleShares {
		return value
	}
	set, ok := r.Properties(u, nil, func(file, _ string) string {
		if file == r.File {
			return value
		}
		return ""
	})
	if !ok || set[0].Name != "CPUWeight" {
		return value
	}
	weight, err := strconv.ParseInt(set[0].Text, 10, 64)
	if err != nil {
		return value
	}
	return fmt.Sprint(max(weight*1024/100, 2))
}

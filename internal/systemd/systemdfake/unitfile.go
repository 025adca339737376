package systemdfake

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/systemd"
)

const (
	adminDir     = "etc/systemd/system"
	transientDir = "run/systemd/transient"
	controlDir   = "etc/systemd/system.control"
	runtimeDir   = "run/systemd/system.control"
)

// searchPath is where drop-ins come from; of two with the same name the first counts (systemd.unit(5)).
var searchPath = []string{controlDir, runtimeDir, transientDir, adminDir, "run/systemd/system",
	"usr/lib/systemd/system"}

// setting is one assignment of a unit file.
type setting struct{ key, value string }

// settings are those of all files of a unit, in the order they count.
type settings []setting

func (s settings) last(key string) string {
	for _, one := range slices.Backward(s) {
		if one.key == key {
			return one.value
		}
	}
	return ""
}

// list gives the assignments of a list since the last empty one.
func (s settings) list(key string) []string {
	var values []string
	for _, one := range s {
		switch {
		case one.key != key:
		case one.value == "":
			values = nil
		default:
			values = append(values, one.value)
		}
	}
	return values
}

func parseFile(text string) settings {
	var s settings
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.ContainsAny(line[:1], "#;[") {
			continue
		}
		if key, value, ok := strings.Cut(line, "="); ok {
			s = append(s, setting{strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
	return s
}

// value reads a property of the table from a unit's settings as D-Bus types it.
func value(s settings, r *systemd.Row) any {
	text := s.last(r.Setting)
	switch r.Form {
	case systemd.FormFlag:
		return text == "yes" || text == "true" || text == "1"
	case systemd.FormWord:
		return cmp.Or(text, "stop")
	case systemd.FormSet:
		return bits(s.list(r.Setting))
	case systemd.FormDevices:
		lines := []systemd.DeviceValue{}
		for _, one := range s.list(r.Setting) {
			at := strings.LastIndexByte(one, ' ')
			n, _ := number(r, one[at+1:])
			d := systemd.DeviceValue{Path: strings.ReplaceAll(strings.Trim(one[:at], `"`), "%%", "%"), Value: n}
			lines = slices.DeleteFunc(lines, func(o systemd.DeviceValue) bool { return o.Path == d.Path })
			if n != systemd.Infinity {
				lines = append(lines, d)
			}
		}
		return lines
	}
	if text == "" {
		return unsetValue(r)
	}
	n, err := number(r, text)
	if err != nil {
		return unsetValue(r)
	}
	return n
}

func unsetValue(r *systemd.Row) uint64 {
	if r.Name == "MemoryMin" || r.Name == "MemoryLow" {
		return 0
	}
	return systemd.Infinity
}

// number reads what a unit file says. It is written apart from the client's encoding on purpose.
func number(r *systemd.Row, text string) (uint64, error) {
	switch {
	case text == "infinity":
		return systemd.Infinity, nil
	case text == "idle":
		return 0, nil
	case strings.HasSuffix(text, "%"):
		f, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
		return uint64(math.Round(f * 10_000)), err
	case r.Form == systemd.FormMicros:
		for suffix, factor := range map[string]float64{"us": 1, "ms": 1e3, "s": 1e6} {
			f, err := strconv.ParseFloat(strings.TrimSuffix(text, suffix), 64)
			if err == nil && strings.HasSuffix(text, suffix) {
				return uint64(math.Round(f * factor)), nil
			}
		}
	}
	shift := 0
	if i := strings.IndexByte("KMGT", text[len(text)-1]); i >= 0 {
		shift, text = 10*(i+1), text[:len(text)-1]
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n << shift, err
}

func bits(lists []string) []byte {
	set := []byte{}
	for _, list := range lists {
		ids, _ := idset.Parse(list)
		for _, id := range ids {
			for len(set) <= id/8 {
				set = append(set, 0)
			}
			set[id/8] |= 1 << (id % 8)
		}
	}
	if len(set) > 0 {
		for len(set)%8 != 0 { // words of 64 bits come back
			set = append(set, 0)
		}
	}
	return set
}

// fileText is what systemd writes to a file for a property; false when it is not set.
func fileText(s settings, r *systemd.Row, file string) (string, bool) {
	read := func(name string) uint64 {
		row, _ := systemd.RowOf(name)
		n, _ := value(s, row).(uint64)
		return n
	}
	switch file {
	case "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us":
		return quotaText(file, read("CPUQuotaPerSecUSec"), read("CPUQuotaPeriodUSec"))
	case "io.max", "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device", "blkio.weight_device",
		"memory.oom.group":
		return "", false // devices are not modelled
	case "cpu.weight", "cpu.shares", "io.weight", "blkio.weight":
		return weightText(s, r, file)
	case "cpuset.cpus", "cpuset.mems":
		ids := value(s, r).([]byte)
		text, err := r.Decode(ids)
		return text, err == nil && text != ""
	}
	n, _ := value(s, r).(uint64)
	if stronger, ok := systemd.RowOf(r.Stronger); ok && s.last(stronger.Setting) != "" {
		return fileText(s, stronger, file)
	}
	if weaker := map[string]string{"MemoryMax": "MemoryLimit"}[r.Name]; n == systemd.Infinity && weaker != "" &&
		r.Until == 0 {
		n = read(weaker)
	}
	if n == unsetValue(r) {
		return "", false
	}
	if n == systemd.Infinity {
		return "max", true
	}
	if r.Form == systemd.FormBytes {
		n = n / 4096 * 4096 // the kernel counts pages
	}
	return strconv.FormatUint(n, 10), true
}

func quotaText(file string, quota, period uint64) (string, bool) {
	if period == systemd.Infinity {
		period = 100_000
	}
	period = min(max(period, 1000), 1_000_000)
	switch {
	case file == "cpu.cfs_period_us":
		return strconv.FormatUint(period, 10), true
	case quota == systemd.Infinity && file == "cpu.max":
		return fmt.Sprintf("max %d", period), true
	case quota == systemd.Infinity:
		return "-1", true
	}
	text := strconv.FormatUint(quota*period/1_000_000, 10)
	if file == "cpu.max" {
		text += " " + strconv.FormatUint(period, 10)
	}
	return text, true
}

func weightText(s settings, r *systemd.Row, file string) (string, bool) {
	n, _ := value(s, r).(uint64)
	if n == systemd.Infinity || r.Name == "CPUShares" && s.last("CPUWeight") != "" {
		return "", false
	}
	if r.Name == "CPUWeight" && n == 0 {
		if file == "cpu.shares" {
			return "2", true
		}
		return "", false // cpu.idle
	}
	switch {
	case file == "cpu.shares" && r.Name == "CPUWeight":
		n = n * 1024 / 100
	case file == "cpu.weight" && r.Name == "CPUShares":
		n = min(max(n*100/1024, 1), 10000)
	}
	return strconv.FormatUint(n, 10), true
}

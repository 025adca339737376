package format

import (
	"strconv"
	"strings"

	"bulkhead/internal/policy"
)

// IOMax is v2's io.max for one device: "rbps=N wbps=N riops=N wiops=N", each may be "max".
type IOMax struct{}

// IOMaxFields are the limits of io.max in the order the kernel shows them.
var IOMaxFields = []IOMaxField{
	{"rbps", policy.KeyIOReadBandwidth, false, perSecond, "IOReadBandwidthMax"},
	{"wbps", policy.KeyIOWriteBandwidth, true, perSecond, "IOWriteBandwidthMax"},
	{"riops", policy.KeyIOReadIOPS, false, iops, "IOReadIOPSMax"},
	{"wiops", policy.KeyIOWriteIOPS, true, iops, "IOWriteIOPSMax"},
}

// IOMaxField is one limit of io.max.
type IOMaxField struct {
	name     string
	Key      policy.Key
	Write    bool
	Unit     func(int64) string
	Property string // systemd's
}

// Values reads the four limits; missing ones are "max". Fields that it does not know do not count.
func (IOMax) Values(text string) [4]string {
	values := [4]string{"max", "max", "max", "max"}
	for _, field := range strings.Fields(text) {
		name, value, _ := strings.Cut(field, "=")
		for i, known := range IOMaxFields {
			if known.name == name {
				values[i] = value
			}
		}
	}
	return values
}

// Join writes the four limits as the kernel shows them.
func (IOMax) Join(values [4]string) string {
	var parts []string
	for i, known := range IOMaxFields {
		parts = append(parts, known.name+"="+values[i])
	}
	return strings.Join(parts, " ")
}

// Parse implements Format.
func (f IOMax) Parse(got string) string { return f.Join(f.Values(got)) }

// Same implements Format.
func (f IOMax) Same(want, got string) bool { return f.Values(want) == f.Values(got) }

// Loosens implements Format.
func (f IOMax) Loosens(from, to string) bool { return f.any(from, to, Number{None: "max"}.Loosens) }

// any says whether one of the four limits has what is asked.
func (f IOMax) any(from, to string, has func(from, to string) bool) bool {
	a, b := f.Values(from), f.Values(to)
	for i := range a {
		if has(a[i], b[i]) {
			return true
		}
	}
	return false
}

// Human implements Format.
func (f IOMax) Human(value string) string {
	var reads, writes []string
	for i, v := range f.Values(value) {
		if known := IOMaxFields[i]; v != "max" {
			text := Number{None: "max", Unit: known.Unit}.Human(v)
			if known.Write {
				writes = append(writes, "write "+text)
			} else {
				reads = append(reads, "read "+text)
			}
		}
	}
	if len(reads)+len(writes) == 0 {
		return unlimited
	}
	return strings.Join(append(reads, writes...), ", ")
}

// Amount implements Amounts.
func (f IOMax) Amount(value string, n int) (int64, bool) {
	amount, err := strconv.ParseInt(f.Values(value)[n], 10, 64)
	return amount, err == nil
}

// Least implements Amounts.
func (f IOMax) Least(a, b string) string {
	values := f.Values(a)
	for i, other := range f.Values(b) {
		values[i] = Number{None: "max"}.Least(values[i], other)
	}
	return f.Join(values)
}

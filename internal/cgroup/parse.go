package cgroup

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Parsers of the kernel's text. They are lenient: a line that they do not understand is left out,
// because newer kernels add lines. None of them fails.

// Line gives what stands after the first word of the line that begins with it: the value of one
// device in a per-device file, or of one counter in a flat file. "" when there is no such line.
func Line(text, key string) string {
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == key {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// parseNumber parses a single number; nil for "max" and whatever else is none. v1 counts some
// values to 2^64-1: those beyond int64 are its largest.
func parseNumber(text string) *int64 {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		return &n
	}
	if u, err := strconv.ParseUint(text, 10, 64); err == nil {
		return new(int64(min(u, 1<<63-1)))
	}
	return nil
}

// parseFlat parses "name number" lines: memory.stat, cpu.stat, memory.events, pids.events, ….
func parseFlat(text string) map[string]int64 {
	stat := make(map[string]int64)
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if n := parseNumber(value); found && n != nil {
			stat[name] = *n
		}
	}
	return stat
}

// parseBlkio parses v1's blkio.throttle.io_service_bytes and io_serviced ("8:0 Read 4096").
func parseBlkio(bytes, ops string) []IOUsage {
	devices := make(map[string]*IOUsage)
	each := func(text string, read, write func(*IOUsage) *int64) {
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) != 3 || !isDevice(f[0]) {
				continue // "Total 4096", or a device that said "Unknown"
			}
			n := parseNumber(f[2])
			if n == nil {
				continue
			}
			switch f[1] {
			case "Read":
				*read(device(devices, f[0])) = *n
			case "Write":
				*write(device(devices, f[0])) = *n
			}
		}
	}
	each(bytes, func(u *IOUsage) *int64 { return &u.ReadBytes }, func(u *IOUsage) *int64 { return &u.WrittenBytes })
	each(ops, func(u *IOUsage) *int64 { return &u.Reads }, func(u *IOUsage) *int64 { return &u.Writes })
	return sortedDevices(devices)
}

// parseIOStat parses v2's io.stat ("8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0").
func parseIOStat(text string) []IOUsage {
	devices := make(map[string]*IOUsage)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !isDevice(fields[0]) {
			continue
		}
		for _, field := range fields[1:] {
			name, value, _ := strings.Cut(field, "=")
			n := parseNumber(value)
			if n == nil {
				continue
			}
			u := device(devices, fields[0])
			switch name {
			case "rbytes":
				u.ReadBytes = *n
			case "wbytes":
				u.WrittenBytes = *n
			case "rios":
				u.Reads = *n
			case "wios":
				u.Writes = *n
			}
		}
	}
	return sortedDevices(devices)
}

func device(devices map[string]*IOUsage, number string) *IOUsage {
	u := devices[number]
	if u == nil {
		u = &IOUsage{Device: number}
		devices[number] = u
	}
	return u
}

// sortedDevices leaves out devices that did nothing: v1 lists every disk there ever was.
func sortedDevices(devices map[string]*IOUsage) []IOUsage {
	var out []IOUsage
	for _, u := range devices {
		if *u != (IOUsage{Device: u.Device}) {
			out = append(out, *u)
		}
	}
	slices.SortFunc(out, func(a, b IOUsage) int { return compareDevices(a.Device, b.Device) })
	return out
}

// isDevice says whether s is "major:minor".
func isDevice(s string) bool {
	major, minor, found := strings.Cut(s, ":")
	_, err1 := strconv.ParseUint(major, 10, 32)
	_, err2 := strconv.ParseUint(minor, 10, 32)
	return found && err1 == nil && err2 == nil
}

// compareDevices orders device numbers by value.
func compareDevices(a, b string) int {
	split := func(s string) (major, minor uint64) {
		x, y, _ := strings.Cut(s, ":")
		major, _ = strconv.ParseUint(x, 10, 32)
		minor, _ = strconv.ParseUint(y, 10, 32)
		return major, minor
	}
	aMajor, aMinor := split(a)
	bMajor, bMinor := split(b)
	return cmp.Or(cmp.Compare(aMajor, bMajor), cmp.Compare(aMinor, bMinor))
}

// ParsePressure parses a *.pressure file:
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=0
func ParsePressure(text string) Pressure {
	var p Pressure
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		var s Stall
		for _, field := range fields[1:] {
			name, value, _ := strings.Cut(field, "=")
			percent, err := strconv.ParseFloat(value, 64)
			if err != nil {
				continue
			}
			switch name {
			case "avg10":
				s.Avg10 = percent
			case "avg60":
				s.Avg60 = percent
			case "avg300":
				s.Avg300 = percent
			case "total":
				if n := parseNumber(value); n != nil {
					s.Total = *n
				}
			}
		}
		switch fields[0] {
		case "some":
			p.Some = &s
		case "full":
			p.Full = &s
		}
	}
	return p
}

// Devices gives the keys of a per-device file in the order of their numbers: the lines of
// "8:16 rbps=1048576 wbps=max" or of "8:16 1048576".
func Devices(text string) []string {
	keys := make(map[string]bool)
	for line := range strings.Lines(text) {
		if key, _, _ := strings.Cut(strings.TrimSpace(line), " "); isDevice(key) {
			keys[key] = true
		}
	}
	return slices.SortedFunc(maps.Keys(keys), compareDevices)
}

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

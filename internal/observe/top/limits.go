package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limit is one limit of a group, with what the group uses of it.
type Limit struct {
	Key     string `json:"key"`
	Device  string `json:"device,omitempty"`
	Asked   string `json:"asked"` // "-" for none
	Held    string `json:"held"`
	Used    string `json:"used"`              // "-" where the limit is of something else, or nothing is known
	Differs bool   `json:"differs,omitempty"` // asked and held are two numbers
	// Measured says that it is known how much of it is used: Part, where 1 is all, of Value, in base units.
	Measured bool    `json:"measured,omitempty"`
	Value    float64 `json:"value,omitempty"`
	Part     float64 `json:"part,omitempty"`
	// Bites says that the group is held back by it now, and How what was counted. Command would give the group half as
	// much again.
	Bites   bool   `json:"bites,omitempty"`
	How     string `json:"how,omitempty"`
	Command string `json:"command,omitempty"`
}

// knob is how a limit is held against what was sampled.
type knob struct {
	text func(float64) string // of values
	// set is how `bulkhead set` takes a value.
	set func(float64) string
	// used is what the group uses of it.
	used func(s *State, group, device string) (float64, bool)
	// bites says what was counted when the limit held the group back.
	bites func(s *State, group, device string, part float64) string
}

// near is the part of a limit on disks and interfaces from which on it counts as reached: the kernel does not count
// requests that it holds back.
const near = 0.9

var knobs = map[string]knob{
	"cpu.limit": {text: cores,
		set:  tenths,
		used: func(s *State, group, _ string) (float64, bool) { return s.sum(cpuTime, group, true) },
		bites: func(s *State, group, _ string, _ float64) string {
			if part, ok := s.throttled(group); ok && part > 0 {
				return "held back in " + percent(part) + " of the periods"
			}
			return ""
		}},
	"memory.max": {text: size, set: mebibytes, used: memoryUsed,
		bites: counted(limitHits, "reached %s times a second")},
	"memory.high": {text: size, set: mebibytes, used: memoryUsed,
		bites: counted(highHits, "above it, allocations slowed down %s times a second")},
	"tasks": {text: count, set: func(v float64) string { return strconv.FormatFloat(math.Ceil(v), 'f', 0, 64) },
		used:  func(s *State, group, _ string) (float64, bool) { return s.sum(threads, group, false) },
		bites: counted(forksRefused, "%s forks a second refused")},
	"io.read.bandwidth":   disk(ioBytes, "read", size, megabytes),
	"io.write.bandwidth":  disk(ioBytes, "write", size, megabytes),
	"io.read.iops":        disk(ioOps, "read", count, whole),
	"io.write.iops":       disk(ioOps, "write", count, whole),
	"network.egress.max":  network("egress"),
	"network.ingress.max": network("ingress"),
}

// tenths is a number of CPUs, rounded up: 0.3 for 0.2 × 1.5, which floating point has as a bit more than 0.3.
func tenths(v float64) string { return strconv.FormatFloat(math.Ceil(10*v-1e-6)/10, 'f', -1, 64) }

func mebibytes(v float64) string {
	return strconv.FormatFloat(math.Ceil(v/(1<<20)), 'f', 0, 64) + "MiB"
}

func megabytes(v float64) string { return strconv.FormatFloat(math.Ceil(v/1e6), 'f', 0, 64) + "MB/s" }

func whole(v float64) string { return strconv.FormatFloat(math.Ceil(v), 'f', 0, 64) }

func memoryUsed(s *State, group, _ string) (float64, bool) { return s.sum(charged, group, false) }

// counted says how often in a second a counter of the kernel grew.
func counted(metric, text string) func(*State, string, string, float64) string {
	return func(s *State, group, _ string, _ float64) string {
		if rate, ok := s.sum(metric, group, true); ok && rate > 0 {
			often := strconv.FormatFloat(rate, 'g', 2, 64)
			if rate >= 10 {
				often = count(rate)
			}
			return fmt.Sprintf(text, often)
		}
		return ""
	}
}

// reached says how much of a limit is used when that is nearly all.
func reached(_ *State, _, _ string, part float64) string {
	if part < near {
		return ""
	}
	return percent(part) + " of it is used"
}

func disk(metric, direction string, text, set func(float64) string) knob {
	return knob{text: text, set: set, bites: reached, used: func(s *State, group, device string) (float64, bool) {
		return s.sum(metric, group, true, device, direction)
	}}
}

// bits is bytes in a second as the policy has limits of networks, in bits.
func bits(v float64) string {
	v *= 8
	for _, u := range []struct {
		letter string
		bits   float64
	}{{"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}} {
		if v >= u.bits {
			digits := 1
			if v >= 100*u.bits {
				digits = 0
			}
			return strings.TrimSuffix(strconv.FormatFloat(v/u.bits, 'f', digits, 64), ".0") + u.letter
		}
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + "bit"
}

func network(direction string) knob {
	return knob{text: bits,
		set:  func(v float64) string { return strconv.FormatFloat(math.Ceil(8*v/1e6), 'f', 0, 64) + "Mbit/s" },
		used: func(s *State, group, _ string) (float64, bool) { return s.sum(netBytes, group, true, direction) },
		bites: func(s *State, group, device string, part float64) string {
			if rate, ok := s.sum(netDropped, group, true, device, direction); ok && rate > 0 {
				return count(math.Ceil(rate)) + " packets a second dropped"
			}
			return reached(s, group, device, part)
		}}
}

// Limits are the limits of a group, those that bite first.
func (s *State) Limits(group string) (all []Limit) {
	type values struct{ asked, held *float64 }
	of := map[string]*values{}
	var labels [][]string
	at := func(f *Figure) *values {
		key := strings.Join(f.Labels, "\x00")
		if of[key] == nil {
			of[key] = &values{}
			labels = append(labels, f.Labels)
		}
		return of[key]
	}
	for _, f := range s.Figures(limitAsked, group) {
		at(&f).asked = &f.Value
	}
	for _, f := range s.Figures(limitHeld, group) {
		at(&f).held = &f.Value
	}
	for _, l := range labels {
		v := of[strings.Join(l, "\x00")]
		all = append(all, s.limit(group, l[0], l[1], v.asked, v.held))
	}
	slices.SortStableFunc(all, func(a, b Limit) int { return first(b.Bites) - first(a.Bites) })
	return all
}

func first(is bool) int {
	if is {
		return 1
	}
	return 0
}

// limit is one limit; asked and held are nil where there is none, or no number.
func (s *State) limit(group, key, device string, asked, held *float64) Limit {
	l := Limit{Key: key, Device: device, Asked: "-", Held: "-", Used: "-"}
	k, measured := knobs[key]
	text := k.text
	if !measured {
		text = textOf(key)
	}
	if asked != nil {
		l.Asked = text(*asked)
	}
	if held == nil {
		return l
	}
	l.Held = text(*held)
	l.Differs = asked != nil && l.Asked != l.Held
	if !measured {
		return l
	}
	if used, ok := k.used(s, group, device); ok {
		l.Used = text(used)
		if *held > 0 {
			l.Measured, l.Value, l.Part = true, *held, used / *held
		}
	}
	if l.How = k.bites(s, group, device, l.Part); l.How != "" {
		l.Bites, l.Command = true, Command(group, l.Key, l.Device, k.set(1.5**held))
	}
	return l
}

// textOf is how a limit is shown that is held against nothing.
func textOf(key string) func(float64) string {
	switch {
	case key == "memory.swappiness":
	case strings.HasPrefix(key, "memory."):
		return size
	case strings.HasPrefix(key, "network."):
		return bits
	case key == "cpu.period", key == "cpu.burst", key == "cpu.rt":
		return func(v float64) string { return time.Duration(v * float64(time.Second)).String() }
	}
	return func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
}

// Name is the limit with what it is of.
func (l *Limit) Name() string {
	if l.Device == "" {
		return l.Key
	}
	return l.Key + " on " + l.Device
}

// Command changes a limit of a group for an hour. The device is as the kernel names it, "" for a limit of none.
func Command(group, key, device, value string) string {
	text := fmt.Sprintf("bulkhead set %s:%s=%s --for 1h", group, key, value)
	switch {
	case device == "":
	case strings.HasPrefix(key, "io.") && !strings.Contains(device, ":"):
		text += " --on /dev/" + strings.ReplaceAll(device, "!", "/") // as the kernel writes a slash in a name
	default:
		text += " --on " + device
	}
	return text
}

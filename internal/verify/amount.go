package verify

import (
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// Amount is a limit as numbers in base units: cores, bytes, bytes or operations per second, seconds, a weight, a count.
type Amount struct {
	Limit

	// Device is the kernel's name or number of the block device, the interface, or the page size that it is for.
	Device string
	// Asked is what the policy asks for; nil for no limit, and for what is no number, as a set of CPUs.
	Asked *float64
	// Held is what the kernel holds, as of the observation; nil for no limit, and where it cannot be told as a number.
	Held *float64
}

// Amounts gives the limits of a group as numbers, where they are some.
func (v *Snapshot) Amounts(name string) []Amount {
	var all []Amount
	for _, s := range v.settings(name) {
		all = append(all, v.amountOf(name, s))
	}
	return all
}

func (v *Snapshot) amountOf(group string, s policy.Setting) Amount {
	a := Amount{Limit: v.Limit(group, s), Device: s.On, Asked: knob.Number(s.Value)}
	if s.Dev != "" {
		a.Device = s.Dev
	}
	if d, known := v.Facts.Device(s.Dev); known {
		a.Device = d.Name
	}
	if a.OK {
		a.Held = a.Asked
	}
	if held, ok := v.held(group, s); ok && s.Key.OfNetwork() {
		rate := held.Max
		if strings.HasSuffix(string(s.Key), ".min") {
			rate = held.Min
		}
		a.Held = new(float64(rate.BytesPerSecond()))
	}
	for _, w := range v.wanted(group, s) {
		f, file := cgroup.FileOf(w.Target)
		got, read := v.Observed.Held(w.Target)
		if !file || !read || w.Row == nil {
			continue
		}
		if n, told := w.Row.NumberIn(s.Key, got, v.Observed.Dirs[f.Dir]); told {
			a.Held = n
			break // it is the group's own; more are of parts of it
		}
	}
	return a
}

package policy

import (
	"slices"

	"bulkhead/internal/linux/tunable"
)

// Tuning is a setting of the kernel that the whole host is to have.
type Tuning struct {
	Name  string // of a sysctl, "vm.swappiness", or a path below /sys
	Value string
	From  string // who asks, where it is not the policy
	Pos   Pos
}

// TuningValue is what it is to hold, as a Value.
type TuningValue string

// String gives the text.
func (v TuningValue) String() string { return string(v) }

// TuningKey is the key by which plans and conflicts name it.
func (t Tuning) TuningKey() Key { return Key("host.tune." + t.Name) }

// Tuned are the settings of the host with more beside them: where both have one, or one that excludes it, that of the
// policy counts.
func (h HostPart) Tuned(more []Tuning) []Tuning {
	all := slices.Clone(h.Tune)
	for _, t := range more {
		same := func(o Tuning) bool { return o.Name == t.Name || o.Name == tunable.Twin(t.Name) }
		if !slices.ContainsFunc(all, same) {
			all = append(all, t)
		}
	}
	return all
}

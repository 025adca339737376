package policy

import (
	"cmp"
	"fmt"
	"slices"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable"
)

// Tuning is a setting of the kernel that the whole host is to have.
type Tuning struct {
	Name  string // of a sysctl, "vm.swappiness", a path below /sys, or "disk vda/scheduler"
	Value string
	From  string // who asks, where it is not the policy
	Pos   Pos
	// Asked says that this change asks for it, and not one before.
	Asked bool
	// Lasting is the name over boots, and Disk the kernel's name of the disk, of a setting of one that was found.
	Lasting, Disk string
}

// Target is what is to hold it.
func (t Tuning) Target() change.Target { return tunable.Target(cmp.Or(t.Lasting, t.Name)) }

// Found looks up the disks that settings are of. Where two name the same target the first counts; where both are of the
// policy, with two values, that is a problem.
func Found(all []Tuning, find func(name string) (lasting, disk string)) (found []Tuning, problems Problems) {
	for _, t := range all {
		t.Lasting, t.Disk = find(t.Name)
		i := slices.IndexFunc(found, func(o Tuning) bool { return o.Target() == t.Target() })
		switch {
		case i < 0:
			found = append(found, t)
		case t.From == "" && found[i].From == "" && t.Value != found[i].Value:
			problems = append(problems, Problem{Pos: t.Pos, Also: []Pos{found[i].Pos}, Hint: "keep one of them",
				Msg: fmt.Sprintf("host.tune: %s and %s are one setting of %s", found[i].Name, t.Name, t.Disk)})
		}
	}
	return found, problems
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

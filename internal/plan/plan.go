// Package plan is the ordered steps from what is to what is wanted, what a plan is made from, and how it is shown to
// people. Package planner makes plans. All are plain values: no clock, no file, no root.
package plan

import (
	"fmt"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Broken says whether a limit is not, or not wholly, what was asked for.
func (n Note) Broken() bool { return n.NotEnforced || n.Partly }

// Refusal is a reason not to do it without --force (exit 5).
type Refusal struct {
	Group  string `json:"group"`
	Reason string `json:"reason"`
	Hint   string `json:"hint,omitempty"`
	Device string `json:"-"` // the interface that it is about
}

// Note is something a person should know: a limit that nothing holds here, a default, a reset.
type Note struct {
	Group string     `json:"group,omitempty"`
	Key   policy.Key `json:"key,omitempty"`
	Text  string     `json:"text"`
	PID   int        `json:"pid,omitempty"` // the process that stays where it is, when it is about one
	// Groups are those that share a note which has no group of its own; the text names them too.
	Groups []string `json:"groups,omitempty"`
	// NotEnforced marks a limit that was asked for and that this host does not hold.
	NotEnforced bool `json:"not_enforced,omitempty"`
	// Partly marks one that it holds, but for a part that nothing holds: buffered writes on cgroup v1.
	Partly bool `json:"partly_enforced,omitempty"`
	// Void marks what was asked for and has no effect whatever the host holds: the text says why.
	Void bool `json:"void,omitempty"`
	// Dev is the device when a void limit is the one on it alone: "8:16".
	Dev string `json:"device,omitempty"`
	// Harm warns of what can make a host with the policy worse than without one.
	Harm bool `json:"harm,omitempty"`
	// Fragile marks a limit that is in force and that somebody else takes away from time to time.
	Fragile bool `json:"fragile,omitempty"`
}

// About says whether a note concerns a limit of a group.
func (n Note) About(group string, key policy.Key) bool {
	return n.Key == key && (n.Group == group && len(n.Groups) == 0 || slices.Contains(n.Groups, group))
}

// Concerns says whether a note concerns a setting of a group: that one, or all that hold its processes together.
func (n Note) Concerns(group string, s policy.Setting) bool {
	ofAll := n.NotEnforced && group != layout.RootGroup && n.About(group, "")
	return n.About(group, s.Key) || ofAll && IsTotal(s)
}

// IsTotal says whether a setting that somebody asked for counts over all processes of its group together: it is neither
// of each process nor a protection, which goes by where a process is.
func IsTotal(s policy.Setting) bool {
	return !s.FromRole() && !slices.Contains([]policy.Key{policy.KeyOOMScoreAdj, policy.KeyMemoryMin,
		policy.KeyMemoryLow, policy.KeyCPUCPUs, policy.KeyMemoryNUMA}, s.Key)
}

// Share is what a group can count on.
type Share struct {
	Group      string  `json:"group"`
	Asked      string  `json:"asked,omitempty"`       // but for the limit: "weight 1000 from role", by Plan.Describe
	Limit      float64 `json:"limit_cores,omitempty"` // its own or the nearest ancestor's cap; 0 is none
	Guaranteed float64 `json:"guaranteed_cores"`      // when everybody wants everything
	Percent    float64 `json:"percent_of_host"`
	Against    string  `json:"against"` // the competitors it was computed over
}

// Plan is the ordered steps with what belongs to them.
type Plan struct {
	Steps    []Step    `json:"steps"`
	Refusals []Refusal `json:"refusals,omitempty"`
	Notes    []Note    `json:"notes,omitempty"`
	Shares   []Share   `json:"shares,omitempty"`
	// Want is every value that should be held when the plan is done: what verify and the agent compare.
	Want []Wanted `json:"-"`
	// Network is what each interface shall do when the plan is done, Slots the numbers of the groups, and Counted the
	// directories whose traffic is counted.
	Network []netshape.Wanted        `json:"network,omitempty"`
	Slots   map[string]netshape.Slot `json:"-"`
	Counted []string                 `json:"-"`
	// Directories are those in which programs of ours may be.
	Directories []string `json:"-"`
}

// Wanted is one value that a target should hold.
type Wanted struct {
	change.Target
	Group   string
	Value   string
	Setting policy.Setting
	Row     *knob.Row // of the table of limits; nil for a target that the table does not have
}

// File is FileOf what should hold the value.
func (w Wanted) File() cgroup.File { return FileOf(w.Target) }

// Human is a value for people. Beside are the files of its directory.
func (w Wanted) Human(value string, beside map[string]string) string {
	switch {
	case w.Kind == tunable.KindBootFile:
		return tunable.Human(value)
	case w.Row == nil:
		return value
	}
	return w.Row.HumanIn(value, beside)
}

// Count counts the steps by what they do, and under "" the processes that are moved.
func (p *Plan) Count() map[string]int {
	counts := map[string]int{"": len(p.Moved())}
	for _, s := range p.Steps {
		counts[flat.Op(s.Change)]++
	}
	return counts
}

// Moved lists the processes that are moved, each once: it takes a step in each hierarchy.
func (p *Plan) Moved() (pids []int) {
	for _, s := range p.Steps {
		if s.Moves() {
			pids = append(pids, s.PID().PID)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// Wants is what the plan wants of each target.
func (p *Plan) Wants() map[change.Target]Wanted {
	wants := make(map[change.Target]Wanted, len(p.Want))
	for _, w := range p.Want {
		wants[w.Target] = w
	}
	return wants
}

// FromAbove is who asks (policy.Setting.From) for a value that a group has because the group above it has it.
const FromAbove = "the group above"

// Refuse adds a refusal.
func (p *Plan) Refuse(group, hint, format string, args ...any) {
	p.Refusals = append(p.Refusals, Refusal{Group: group, Reason: fmt.Sprintf(format, args...), Hint: hint})
}

// Note adds a note.
func (p *Plan) Note(group string, key policy.Key, format string, args ...any) {
	p.Notes = append(p.Notes, Note{Group: group, Key: key, Text: fmt.Sprintf(format, args...)})
}

package verify

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limit is one limit: what was asked, what the kernel file says.
type Limit struct {
	Key   policy.Key `json:"key"`
	On    string     `json:"on,omitempty"`
	Asked string     `json:"asked"`
	// AskedAs is Asked in the unit of InForce, where a file is to hold it.
	AskedAs string `json:"asked_as,omitempty"`
	From    string `json:"from"`
	File    string `json:"file,omitempty"`
	InForce string `json:"in_force,omitempty"` // in the words of the policy
	OK      bool   `json:"ok"`
	// Default marks a role's default that this host does not hold: nobody asked for it, nothing is wrong.
	Default bool `json:"default_not_held,omitempty"`
	// Void marks one that has no effect, as Reason says; nothing on the host has to be mended.
	Void   bool   `json:"void,omitempty"`
	Reason string `json:"reason,omitempty"` // why not, or how far it reaches
}

// Fault says whether the host does not hold what it should.
func (l *Limit) Fault() bool { return !l.OK && !l.Default && !l.Void }

// Reading is one limit read back from the kernel.
type Reading struct {
	Group string `json:"group"` // "" is the root group, with what host.weight and host.reserve ask
	Limit
}

// KeyMembers stands for the membership of a group among what is verified: a limit holds nobody who is outside.
const KeyMembers policy.Key = "members"

// ReadBack compares the limits of groups, and the places of their members, with what was seen. With root, it begins
// with the limits of the root group.
func (v *Snapshot) ReadBack(groups []classify.Group, root bool) []Reading {
	var all []Reading
	if root {
		all = v.ofHost()
	}
	for _, g := range groups {
		for _, l := range v.Limits(g.Path) {
			if !l.Default {
				all = append(all, Reading{Group: g.Path, Limit: l})
			}
		}
		if l, any := v.members(g.Path); any {
			all = append(all, Reading{Group: g.Path, Limit: l})
		}
		for _, n := range v.Plan.Notes {
			if n.Void && n.About(g.Path, policy.KeyMatch) {
				l := Limit{Key: n.Key, Asked: "a process", From: "rules", Void: true, Reason: n.Text}
				all = append(all, Reading{Group: g.Path, Limit: l})
			}
		}
	}
	return all
}

// ofHost are the readings of what the root group and the host are to hold, and of what the plan says they do not.
func (v *Snapshot) ofHost() (all []Reading) {
	var wants policy.Settings
	for _, w := range v.Plan.Want {
		if w.Group == layout.RootGroup && len(wants.All(w.Setting.Key)) == 0 {
			wants = append(wants, w.Setting)
			all = append(all, Reading{Group: layout.RootGroup, Limit: v.Limit(layout.RootGroup, w.Setting)})
		}
	}
	for _, n := range v.Plan.Notes {
		if n.NotEnforced && n.About(layout.RootGroup, n.Key) && len(wants.All(n.Key)) == 0 {
			// What host.reserve keeps depends on who runs at the moment, and is no limit of anybody.
			all = append(all, Reading{Limit: Limit{Key: n.Key, Asked: "by the policy", From: "host", Reason: n.Text,
				Void: n.Key == policy.KeyCPULimit || n.Key == policy.KeyMemoryMax}})
		}
	}
	return all
}

// members says whether all members of a group are in its directories, and not kept in a unit outside of them.
func (v *Snapshot) members(group string) (l Limit, any bool) {
	all, outside := 0, []string(nil)
	for _, p := range v.Members {
		if p.Group != group {
			continue
		}
		all++
		held, keeper := layout.Held(v.Layout, &p.Process, group)
		if held {
			continue
		}
		who := fmt.Sprintf("process %d (%s)", p.Process.PID, p.Process.Comm)
		if keeper != "" {
			who += ", kept in " + keeper
		}
		outside = append(outside, who)
	}
	l = Limit{
		Key: KeyMembers, Asked: fmt.Sprintf("%d inside", all), InForce: fmt.Sprintf("%d inside", all-len(outside)),
		From: "rules", OK: len(outside) == 0,
	}
	if !l.OK {
		const most = 5
		l.Reason = "outside: " + strings.Join(outside[:min(most, len(outside))], ", ")
		if more := len(outside) - most; more > 0 {
			l.Reason += fmt.Sprintf(" and %d more", more)
		}
	}
	return l, all > 0
}

// Limits compares each limit of a group with what the kernel holds.
func (v *Snapshot) Limits(name string) []Limit {
	var limits []Limit
	for _, s := range v.settings(name) {
		limits = append(limits, v.Limit(name, s))
	}
	return limits
}

// settings are those of a group.
func (v *Snapshot) settings(name string) (all policy.Settings) {
	for _, g := range v.Groups {
		if g.Path == name {
			all = append(all, g.Settings...)
		}
	}
	return all
}

// Limit compares one limit of a group with what the kernel holds.
func (v *Snapshot) Limit(group string, s policy.Setting) Limit {
	if s.Key.OfNetwork() {
		return v.networkLimit(group, s)
	}
	l := Limit{Key: s.Key, On: v.on(s), Asked: asked(s), From: s.From}
	l.OK, l.InForce = true, "the kernel's own default" // unless a file is to hold something else
	wanted := v.wanted(group, s)
	if s.Key == policy.KeyIOWeight && s.Dev == "" && len(wanted) == 0 { // it names no disk, and none weighs by itself
		l.OK, l.InForce = false, ""
	}
	for _, w := range wanted {
		f, file := cgroup.FileOf(w.Target)
		beside, there := v.Observed.Dirs[f.Dir]
		got, _ := v.Observed.Held(w.Target)
		if name := cmp.Or(f.Name, w.Addr); l.File != name { // else it is the group's leaf, which has a part of it
			l.File, l.InForce, l.AskedAs = name, w.Human(got, beside), w.Human(w.Value, beside)
		}
		switch {
		case file && !there:
			l.OK, l.InForce, l.Reason = false, "", "the group has no directory yet"
		case got == "" || !v.Actuators.Same(w.Target, w.Value, got):
			l.OK, l.Reason = false, v.conflict(w)
		}
	}
	if s.Key == policy.KeyOOMScoreAdj {
		l.File = "/proc/PID/oom_score_adj"
		l.InForce, l.OK = v.scores(group, s)
	}
	if s.Lost != "" {
		l.OK, l.InForce, l.Reason = false, "as it was", s.Lost
		return l
	}
	v.annotate(&l, group, s)
	l.Default = !l.OK && l.File == "" && s.FromRole()
	return l
}

// on is the target as it was written; of a limit on every disk, the disk.
func (v *Snapshot) on(s policy.Setting) string {
	if d, known := v.Facts.Device(s.Dev); s.On == "" && known {
		return "/dev/" + d.Name
	}
	return cmp.Or(s.On, s.Dev)
}

// asked is what the policy asks for, in its words and in what they come to on this host.
func asked(s policy.Setting) string {
	if _, on, found := strings.Cut(s.Raw, ", on "); found && s.Parts > 1 && !s.Even() {
		return fmt.Sprintf("by use, of %s, on %s", s.Whole, on)
	}
	value := s.Value.String()
	if s.Raw == "" {
		return value
	}
	if size, ok := s.Value.(policy.Bytes); ok {
		value = size.Human()
	}
	return s.Raw + " = " + value
}

// annotate adds what the plan notes about a limit, on a device where it has one.
func (v *Snapshot) annotate(l *Limit, group string, s policy.Setting) {
	for _, n := range v.Plan.Notes {
		if !n.Concerns(group, s) || n.Void && n.Dev != "" && n.Dev != s.Dev {
			continue
		}
		if n.Void {
			l.OK, l.Void, l.Reason, l.AskedAs, l.InForce = false, true, n.Text, "", ""
			return
		}
		if n.Fragile && l.Reason == "" {
			l.Reason = n.Text // it holds now
		}
		if n.Key == "" && n.NotEnforced { // of all limits of the group: what each file holds is true
			l.OK, l.Reason = false, cmp.Or(l.Reason, n.Text)
		} else if l.File == "" || n.NotEnforced || n.Partly {
			l.Reason = n.Text
			if n.NotEnforced || l.File == "" {
				l.OK, l.InForce = false, ""
			}
		}
	}
}

// scores says which oom_score_adj the members of a group have, and whether it is the one asked for.
func (v *Snapshot) scores(group string, s policy.Setting) (inForce string, ok bool) {
	low, high, members := math.MaxInt, math.MinInt, 0
	for _, p := range v.Members {
		score, known := v.Observed.OOMScoreAdj[p.Process.ID]
		if p.Group == group && known {
			low, high, members = min(low, score), max(high, score), members+1
		}
	}
	switch {
	case members == 0:
		return "no process has it yet", true
	case low != high:
		return fmt.Sprintf("%d to %d", low, high), false
	}
	return strconv.Itoa(low), s.Value == policy.Value(policy.Count(low))
}

// wanted finds the values of a group that a setting decides: those made for it, else those it takes
// part in (cpu.period in the file of cpu.limit).
func (v *Snapshot) wanted(group string, s policy.Setting) []plan.Wanted {
	var own, shared []plan.Wanted
	for _, w := range v.Plan.Want {
		if w.Group != group || w.Setting.Dev != s.Dev || w.Row != nil && !slices.Contains(w.Row.Keys, s.Key) ||
			w.Row != nil && w.Row.PerSize && w.Setting.On != s.On {
			continue
		}
		if w.Setting.Key == s.Key {
			own = append(own, w)
		} else if w.Row != nil {
			shared = append(shared, w)
		}
	}
	if len(own) > 0 {
		return own
	}
	return shared
}

// conflict says who else wrote a value; "" when nothing is known.
func (v *Snapshot) conflict(w plan.Wanted) string {
	if v.Conflict == nil {
		return ""
	}
	return v.Conflict(w.Target)
}

package snapshot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/users"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
	"bulkhead/internal/state"
)

// expand gives the groups of the policy; a canary and the groups below it have what the policy asks that they go
// before.
func (r *Reader) expand(v *Snapshot, canary *state.Canary, by expander) ([]classify.Group, policy.Problems) {
	groups, problems := by(v.Policy, v.Instances)
	if canary == nil {
		return groups, problems
	}
	next, more, err := r.resolve(canary.Sources, v.Facts, nil)
	if err != nil {
		return groups, append(problems, asProblems(err)...)
	}
	problems = append(problems, more...)
	theirs, more := classify.Expand(next, v.Instances)
	problems = append(problems, more...)
	for i := range groups {
		for _, g := range theirs {
			if g.Path == groups[i].Path && (g.Path == canary.Group || strings.HasPrefix(g.Path, canary.Group+"/")) {
				groups[i].Settings = g.Settings
			}
		}
	}
	return groups, problems
}

// expander is classify.Expand, or one that remembers what came out.
type expander func(*policy.Policy, []engine.Instance) ([]classify.Group, policy.Problems)

// layAll lays over the settings of groups what holds beside the policy: windows, overrides, what was lifted.
func (r *Reader) layAll(v *Snapshot, groups []classify.Group) ([]classify.Group, policy.Problems) {
	problems := numberOwners(r.Host.Users, groups)
	v.Open = openAt(v.Policy, v.options.Skipped, v.options.At)
	groups, more := layWindows(groups, v.Open)
	problems = append(problems, more...)
	for _, o := range v.Overrides {
		more := layOver(groups, o, v.Facts, r.resolverOf(v))
		if len(more) > 0 && o.Owner != 0 {
			// What an owner has set stands in nobody else's way.
			if v.Unlaid == nil {
				v.Unlaid = map[int]plan.Note{}
			}
			text := fmt.Sprintf("override %d by %s is not in force: %s", o.ID, o.By, more[0].Msg)
			v.Unlaid[o.ID] = plan.Note{Group: o.Group, Key: o.Key, Text: text}
			continue
		}
		problems = append(problems, more...)
	}
	problems = append(problems, layTuned(groups, v.options.Tuned)...)
	return layLifted(groups, v.options.Lifted, v.Overrides), problems
}

// layTuned gives groups the limits that `tune apply` set beside the policy. Where the policy, a window or `set` has the
// same limit, that counts. That of a group that is not there now waits.
func layTuned(groups []classify.Group, tuned []state.Tuned) (problems policy.Problems) {
	for _, t := range tuned {
		if !t.IsLimit() {
			continue
		}
		group, s, err := parse.Assignment(t.Assignment(), t.On)
		if err != nil {
			problems = append(problems, asProblems(err)...)
			continue
		}
		s.From, s.Pos = "tune apply "+t.Rule, policy.Pos{}
		for i := range groups {
			if _, asked := groups[i].Settings.Get(s.Key, s.On); groups[i].Path == group && !asked {
				groups[i].Settings = groups[i].Settings.With(s)
			}
		}
	}
	return problems
}

// Without gives the groups as they would be without some of the overrides that are laid over the policy.
func (r *Reader) Without(s *Snapshot, left func(state.Override) bool) []classify.Group {
	v := *s
	v.Overrides, v.Unlaid = slices.DeleteFunc(slices.Clone(s.Overrides), left), nil
	groups, _ := r.expand(&v, v.options.Canary, classify.Expand) // what is wrong is wrong with the snapshot, too
	groups, _ = r.layAll(&v, groups)
	return groups
}

// layOver puts an override over the settings of its group. That of a group that is not there now waits.
func layOver(groups []classify.Group, o state.Override, f *host.Facts, r resolve.Resolver) policy.Problems {
	_, s, err := parse.Assignment(o.Text, o.On)
	if err != nil {
		return asProblems(err)
	}
	s.Layer, s.Split = layerOf(groups, o.Group, s.On)
	settings, problems := resolve.Setting(s, f, r)
	if len(problems) > 0 {
		return problems
	}
	for i := range groups {
		if groups[i].Path != o.Group {
			continue
		}
		if o.Owner != 0 && !MaySet(groups[i].Owner, s, f) {
			return policy.Problems{{Msg: "the policy lets no owner of the group set this any more"}}
		}
		if p := overlap(groups[i], settings); p != nil {
			return policy.Problems{*p}
		}
		groups[i].Settings = resolve.Under(groups[i].Settings, settings)
		for _, s := range settings {
			s.From = "override " + strconv.Itoa(o.ID)
			groups[i].Settings = groups[i].Settings.With(s)
		}
	}
	return nil
}

// overlap says what is wrong with an override that would replace limits which the policy has for something else.
func overlap(g classify.Group, settings policy.Settings) *policy.Problem {
	for _, s := range settings {
		if p := resolve.Overlaps(g.Path, g.Settings, s); p != nil {
			return p
		}
	}
	return nil
}

// layerOf is the layer of storage that a group's policy asks to limit on a target, and how devices share the limit.
// An override of it goes there too.
func layerOf(groups []classify.Group, group, on string) (policy.Layer, policy.Split) {
	for _, g := range groups {
		for _, s := range g.Settings {
			if g.Path == group && on != "" && s.On == on {
				return s.Layer, s.Split
			}
		}
	}
	return "", ""
}

// Remarks are what there is to know of the groups as they are, with what is laid over the policy, and of how the policy
// was fitted to the host.
func (s *Snapshot) Remarks() []policy.Note {
	_, notes := resolve.Check(s.Facts, s.Policy.Host, limitsOfGroups(s.Classified.Groups))
	for _, n := range s.Policy.Notes {
		if n.Key == policy.KeyCPUNUMA {
			notes = append(notes, n)
		}
	}
	return notes
}

// limitsOfGroups lists what the groups ask for, for policy.Check.
func limitsOfGroups(groups []classify.Group) []resolve.Limits {
	all := make([]resolve.Limits, len(groups))
	for i, g := range groups {
		all[i] = resolve.Limits{Group: g.Path, Parent: g.Parent, Settings: g.Settings, Model: g.Model}
	}
	return all
}

// numberOwners gives the owners of groups their numbers on this host.
func numberOwners(from *users.Names, groups []classify.Group) (problems policy.Problems) {
	number := func(name, what string, at policy.Pos, id func(string) (int, bool)) int {
		if name == "" {
			return 0
		}
		n, known := id(name)
		if !known {
			problems = append(problems, policy.Problem{
				Pos: at, Msg: fmt.Sprintf("owner: there is no %s %q on this host", what, name),
				Hint: "names are looked up in /etc/passwd and /etc/group; " +
					"write the number of one that only LDAP, SSSD or NIS knows",
			})
		}
		return n
	}
	for i := range groups {
		groups[i].Owner = slices.Clone(groups[i].Owner) // the policy's stay as they are
		for j := range groups[i].Owner {
			o := &groups[i].Owner[j]
			o.UID = number(o.User, "user", o.Pos, from.UserID)
			o.GID = number(o.UnixGroup, "Unix group", o.Pos, from.GroupID)
		}
	}
	return problems
}

// layWindows lays what open windows ask over the settings of their groups, the later schedule over the earlier one. A
// group that is not there now (its instance is down) waits.
func layWindows(groups []classify.Group, open []policy.Schedule) ([]classify.Group, policy.Problems) {
	var problems policy.Problems
	for _, s := range open {
		for _, set := range s.Set {
			i := slices.IndexFunc(groups, func(g classify.Group) bool { return g.Path == set.Group })
			if i < 0 {
				continue
			}
			if p := overlap(groups[i], set.Settings); p != nil {
				problems = append(problems, *p)
				continue
			}
			groups[i].Settings = set.Settings.Over(resolve.Under(groups[i].Settings, set.Settings))
		}
	}
	return groups, problems
}

// openAt gives the schedules whose windows are open at a time and count.
func openAt(p *policy.Policy, skipped []state.Skipped, at time.Time) []policy.Schedule {
	return slices.DeleteFunc(p.Open(at), func(s policy.Schedule) bool { return SkippedAt(skipped, s.Name, at) != nil })
}

// SkippedAt gives why a window does not count; nil: it does.
func SkippedAt(skipped []state.Skipped, schedule string, at time.Time) *state.Skipped {
	i := slices.IndexFunc(skipped, func(k state.Skipped) bool { return k.Schedule == schedule && at.Before(k.Until) })
	if i < 0 {
		return nil
	}
	return &skipped[i]
}

// layLifted takes the memory.high of groups away that were lifted. One that `set` asked for since then holds.
func layLifted(groups []classify.Group, lifted []state.Lifted, overrides []state.Override) []classify.Group {
	for _, l := range lifted {
		if slices.ContainsFunc(overrides,
			func(o state.Override) bool {
				return o.Group == l.Group && o.Key == policy.KeyMemoryHigh &&
					o.At.After(l.At)
			}) {
			continue
		}
		for i := range groups {
			if set, asked := groups[i].Settings.Get(policy.KeyMemoryHigh, ""); asked && groups[i].Path == l.Group {
				set.Value, set.Raw, set.From = policy.Unlimited{}, "", "lifted at "+l.At.Local().Format(time.DateTime)
				groups[i].Settings = groups[i].Settings.With(set)
			}
		}
	}
	return groups
}

// MaySet says whether any of these owners may set a limit to a value.
func MaySet(owners []policy.Owner, s policy.Setting, f *host.Facts) bool {
	value := s.Value
	if share, is := value.(policy.MemoryPercent); is {
		value = share.Of(policy.Bytes(f.MemTotal))
	}
	return slices.ContainsFunc(owners, func(o policy.Owner) bool {
		b, bounded := o.Bounds[s.Key]
		return o.Has(policy.MaySet) && (o.Bounds == nil || bounded && b.Allows(value))
	})
}

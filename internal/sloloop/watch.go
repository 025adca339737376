package sloloop

import (
	"context"
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// text is what the policy gives, for people.
func (c candidate) text() string {
	if !c.limited {
		return "no limit"
	}
	return amount(c.Key, c.Ceiling)
}

// Watch takes in a look at the host: what the policy promises, and what may be lowered for that. nil: nothing is
// governed.
func (l *Loops) Watch(ctx context.Context, v *transaction.View) {
	h := &host{}
	if v != nil && v.Policy != nil && slices.ContainsFunc(v.Classified.Groups, promised) {
		h = hostOf(v, l.o.Without(v))
	}
	l.take(ctx, h)
}

// take has loops for the targets that there are now.
func (l *Loops) take(ctx context.Context, h *host) {
	l.host = h
	for _, one := range l.all {
		one.gone, one.Mode = true, slo.Off
	}
	for _, t := range h.targets {
		one := l.all[t.group]
		if one == nil || one.target != t {
			was := one
			one = &loop{target: t, told: api.SLO{Group: t.group, Signal: t.slo.Signal, Target: t.slo.Value}}
			if was != nil { // another target: what is held stays until the steps give it back
				one.state.Held, one.path = was.state.Held, was.path
			}
			l.all[t.group] = one
		}
		one.Loop = slo.Loop{Mode: h.mode, Target: slo.Target{Signal: slo.Signal(t.slo.Signal), Value: t.slo.Value}}
		one.gone, one.told.Mode = false, string(h.mode)
	}
	l.ask(ctx)
}

func promised(g classify.Group) bool { return g.SLO != nil }

// hostOf finds targets and limits. groups are without what the loop has laid over the policy.
func hostOf(v *transaction.View, groups []classify.Group) *host {
	p := v.Policy.SLO
	h := &host{mode: slo.Advise}
	if p.Mode != "" {
		h.mode = slo.Mode(p.Mode)
	}
	for _, g := range groups {
		if g.SLO == nil || policy.Released(v.Released, g.Path) {
			continue
		}
		t := target{g.Path, *g.SLO}
		t.slo.Pos = policy.Pos{} // the same promise at another place is the same
		h.targets = append(h.targets, t)
	}
	if len(h.targets) == 0 {
		return h
	}
	var helpers []string
	databases := classify.Databases(groups)
	for _, g := range groups {
		if databases[g.Path] || !squeezable(p, &g) || policy.Released(v.Released, g.Path) {
			continue
		}
		h.knobs = append(h.knobs, knobsOf(v, p, &g)...)
		if g.Role == policy.RoleHelper {
			helpers = append(helpers, g.Path)
		}
	}
	h.directories = directories(v, helpers)
	return h
}

// squeezable says whether the policy lets a group be squeezed.
func squeezable(p policy.SLOPart, g *classify.Group) bool {
	if p.Squeeze == nil {
		return g.Role == policy.RoleBatch || g.Role == policy.RoleHelper
	}
	return slices.Contains(p.Squeeze, g.Path) || slices.Contains(p.Squeeze, g.Written)
}

// knobsOf are what of a group may be lowered: its weight and its limit of the CPU, and those of disks that the policy
// has. What a person has set an override for is left alone.
func knobsOf(v *transaction.View, p policy.SLOPart, g *classify.Group) (all []candidate) {
	cpu := candidate{}
	cpu.Knob, cpu.Ceiling = slo.Knob{Group: g.Path, Key: policy.KeyCPULimit}, float64(len(v.Facts.CPUs))
	if s, is := g.Settings.Get(policy.KeyCPUCPUs, ""); is {
		if ids, set := s.Value.(policy.IDs); set && len(ids.Set) > 0 {
			cpu.Ceiling = float64(len(ids.Set))
		}
	}
	s, _ := g.Settings.Get(policy.KeyCPULimit, "")
	cpu.limit(s.Value)
	all = append(all, cpu, weightOf(g))
	for _, key := range []policy.Key{policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS, policy.KeyIOWriteBandwidth,
		policy.KeyIOWriteIOPS} {
		all = append(all, onDisks(g, key)...)
	}
	within := p.Within[g.Path]
	if within == nil {
		within = p.Within[g.Written]
	}
	for i := range all {
		all[i].Role = g.Role
		all[i].bound(within[all[i].Key])
	}
	return slices.DeleteFunc(all, func(c candidate) bool {
		return c.Ceiling <= 0 || slices.ContainsFunc(v.Overrides, func(o state.Override) bool {
			same := o.Key == c.Key || c.Key == policy.KeyCPUWeight && o.Key == policy.KeyCPUIdle
			return !o.IsSLO() && o.Group == c.Group && same && o.On == c.On
		})
	})
}

// weightOf is the weight that the policy gives a group. That of an idle one has no effect.
func weightOf(g *classify.Group) (c candidate) {
	if idle, _ := g.Settings.Get(policy.KeyCPUIdle, ""); idle.Value != policy.Flag(true) {
		c.Knob = slo.Knob{Group: g.Path, Key: policy.KeyCPUWeight}
		s, _ := g.Settings.Get(policy.KeyCPUWeight, "")
		c.limit(s.Value)
	}
	return c
}

// onDisks are the limits of one kind that the policy has for a group, one for each target that it names.
func onDisks(g *classify.Group, key policy.Key) (all []candidate) {
	for _, s := range g.Settings.All(key) {
		if s.On == "" || s.Dev == "" {
			continue
		}
		at := slices.IndexFunc(all, func(c candidate) bool { return c.On == s.On })
		if at < 0 {
			at = len(all)
			all = append(all, candidate{})
			all[at].Knob = slo.Knob{Group: g.Path, Key: key, On: s.On}
			all[at].limit(s.Value)
			if s.Whole != nil {
				all[at].limit(s.Whole)
			}
		}
		all[at].devices = append(all[at].devices, s.Dev)
	}
	return all
}

// limit takes in a limit of the policy; nil and what is no number is none.
func (c *candidate) limit(v policy.Value) {
	if amount, is := number(v); is {
		c.Ceiling, c.limited = amount, true
	}
}

// bound takes in how far the policy lets the loop go. It never goes above what the policy gives.
func (c *candidate) bound(b policy.Bound) {
	if lowest, is := number(b.Lowest); is {
		c.Floor = lowest
	}
	if highest, is := number(b.Highest); is && highest < c.Ceiling {
		c.Ceiling = highest
	}
}

// number is a limit as a number in base units.
func number(v policy.Value) (float64, bool) {
	switch v := v.(type) {
	case policy.Cores:
		return v.Float(), true
	case policy.Rate:
		return float64(v), true
	case policy.IOPS:
		return float64(v), true
	case policy.Weight:
		return float64(v), true
	}
	return 0, false
}

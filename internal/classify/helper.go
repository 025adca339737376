package classify

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// help is one instance that a process serves, or may serve.
type help struct {
	instance *engine.Instance
	engine.Helper
}

// helperKind is what helper a process is by itself.
type helperKind struct {
	kind, tool string
	engines    []string
}

// noHelper is what most processes are.
var noHelper helperKind

// helperOf returns what helper a process is, whomever it serves; the kind is "" for none.
func (s *subject) helperOf() *helperKind {
	if s.helper != nil {
		return s.helper
	}
	s.helper = &noHelper
	if len(s.helps) > 0 {
		s.helper = &helperKind{kind: s.helps[0].Kind, tool: s.helps[0].Tool}
		for _, h := range s.helps {
			s.helper.engines = append(s.helper.engines, h.instance.Engine)
		}
	} else if kind, tool, engines, ok := recognise.HelperOf(s.p); ok {
		s.helper = &helperKind{kind, tool, engines}
	}
	return s.helper
}

// tryHelper tries the keys of an instance for a rule with `helper`: they are about the instance that is served. A
// helper that may serve several serves none of them for certain. A rule that asks for no more than an engine takes
// the helpers of that engine, attached or not.
func (c *compiled) tryHelper(s *subject) clause {
	h := s.helperOf()
	if h.kind != c.match.Helper {
		return clauseHelper
	}
	serves := func(fits func(*engine.Instance) bool) bool {
		return slices.ContainsFunc(s.helps, func(h help) bool { return h.Sure && fits(h.instance) })
	}
	switch {
	case c.server != nil && !serves(func(i *engine.Instance) bool { return i.Main == *c.server }):
		return clauseServer
	case c.instance && !serves(func(i *engine.Instance) bool { return i.Matches(c.match) }):
		if names(c.match) || !slices.Contains(h.engines, c.match.Engine) {
			return clauseInstance
		}
	}
	return holds
}

func (c *compiled) whyHelper(l *look, s *subject, failed clause) string {
	what := s.describeHelp()
	switch {
	case s.helperOf().kind == "":
		return "it is not a known helper program"
	case failed == clauseHelper:
		return fmt.Sprintf("%s, and no %q", what, c.match.Helper)
	case failed == clauseServer:
		return what + ", not of " + c.serverName(l)
	}
	return what + ", not of what the rule asks for"
}

// describeHelp says what helper a process is and whom it serves: "it is a backup helper (pg_dump) of postgresql
// 5432 (/pg): --port=5432".
func (s *subject) describeHelp() string {
	h := s.helperOf()
	if h.kind == "" {
		return "it is no helper"
	}
	what := fmt.Sprintf("it is a helper (%s, %s)", h.kind, h.tool)
	var sure []string
	for _, x := range s.helps {
		if x.Sure {
			sure = append(sure, x.instance.String())
		}
	}
	switch {
	case len(sure) > 0:
		return fmt.Sprintf("%s of %s: %s", what, strings.Join(sure, " and "), s.helps[0].How)
	case len(s.helps) > 0:
		return what + ": " + s.helps[0].How
	}
	return what + " of no instance here"
}

// Service says what a process is to the instances: the helper it is, whom it serves, what shows it, and its own way
// to go slower. "" for a process that is no helper.
func Service(in Input, pid int) string {
	l := newLook(in)
	s := l.byPID[pid]
	if s == nil || s.helperOf().kind == "" {
		return ""
	}
	text := s.describeHelp()
	if len(s.helps) == 0 {
		return text
	}
	switch rate := s.helps[0].Rate; {
	case rate.Given != "":
		text += "; it limits itself (" + rate.Given + ")"
	case rate.Option != "":
		text += "; its own limit would be " + rate.Option
	}
	return text
}

// rateNotes names the helpers that limit themselves in a group that limits their I/O as well: the lower of the two
// holds, and whoever raises the other one wonders.
func (c *classifier) rateNotes(groups []Group) (notes []policy.Note) {
	if !slices.ContainsFunc(c.look.in.Instances, func(i engine.Instance) bool { return len(i.Helpers) > 0 }) {
		return nil
	}
	byPath := make(map[string]*Group, len(groups))
	for i := range groups {
		byPath[groups[i].Path] = &groups[i]
	}
	for i := range c.placements {
		p := &c.placements[i]
		s := c.look.byPID[p.Process.PID]
		if len(s.helps) == 0 || s.helps[0].Rate.Given == "" {
			continue
		}
		h := s.helps[0]
		for g := byPath[p.Group]; g != nil; g = byPath[g.Parent] {
			limit, ok := bandwidth(g.Settings)
			if !ok {
				continue
			}
			n := policy.Note{Pos: limit.Pos, Group: p.Group, Text: fmt.Sprintf(
				"%s limits itself (%s) and %s of group %q limits it too: the lower one holds", h.Tool, h.Rate.Given,
				limit.Key, g.Path)}
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
	}
	return notes
}

// bandwidth returns a limit on disk traffic.
func bandwidth(settings policy.Settings) (policy.Setting, bool) {
	for _, s := range settings {
		if strings.HasPrefix(string(s.Key), "io.") && s.Key != policy.KeyIOWeight {
			return s, true
		}
	}
	return policy.Setting{}, false
}

// listenerClaim is a listener of several instances that a rule would place.
type listenerClaim struct {
	subject *subject
	rule    *Rule
}

// sharesListener says that a process is a listener of several instances: it is for checkListeners, which knows where
// their processes go.
func sharesListener(s *subject) bool {
	return len(s.helps) > 1 && s.helps[0].Kind == engine.HelperListener
}

// checkListeners places the listeners of several instances. What a listener starts is born in its group; in the group
// of one instance the sessions of all the others would be, so that is an error. A group of its own, and one that
// holds all that it serves, are not.
func (c *classifier) checkListeners(groups []Group) {
	if len(c.listeners) == 0 {
		return
	}
	for _, claim := range c.listeners {
		p, r := *claim.subject.p, claim.rule
		if level, inside, outside := c.divides(groups, claim); level != "" {
			c.problems = append(c.problems, policy.Problem{
				Pos: r.Match.Pos,
				Msg: fmt.Sprintf("group %q of %s would take the listener (process %d), which also starts the "+
					"sessions of %s: they would be born there",
					level, strings.Join(inside, ", "), p.PID, strings.Join(outside, ", ")),
				Hint: "leave the listener out (`except: [{helper: listener}]`) and match the sessions, or give it a " +
					"group of its own",
			})
			c.skips = append(c.skips, Skip{Process: p, Group: r.Group, Ambiguous: true,
				Reason: "it is a listener of several instances, and the group is for one of them"})
			continue
		}
		c.placements = append(c.placements, Placement{Process: p, Group: r.Group, By: ByRule, Rule: r.Text,
			Pos: r.Match.Pos, Score: r.compiled.score})
	}
	slices.SortStableFunc(c.placements, func(a, b Placement) int { return a.Process.PID - b.Process.PID })
	slices.SortStableFunc(c.skips, func(a, b Skip) int { return a.Process.PID - b.Process.PID })
}

// divides finds the group, the rule's own or one above it, that is for some of the instances of a listener and not for
// the others: its limits would reach the sessions of all of them. "" for none.
func (c *classifier) divides(groups []Group, claim listenerClaim) (level string, inside, outside []string) {
	for level = claim.rule.Group; level != ""; level = level[:max(strings.LastIndexByte(level, '/'), 0)] {
		inside, outside = nil, nil
		for _, h := range claim.subject.helps {
			if c.holds(groups, level, h.instance) {
				inside = append(inside, h.instance.Name())
			} else {
				outside = append(outside, h.instance.Name())
			}
		}
		if len(inside) > 0 && len(outside) > 0 {
			return level, inside, outside
		}
	}
	return "", nil, nil
}

// holds says whether a group is for an instance: it or one below it was made for the instance, names it in a rule, or
// takes some of its processes.
func (c *classifier) holds(groups []Group, group string, inst *engine.Instance) bool {
	within := func(other string) bool { return other == group || strings.HasPrefix(other, group+"/") }
	for i := range groups {
		if !within(groups[i].Path) {
			continue
		}
		for _, r := range groups[i].Rules {
			m := r.compiled
			if m.server != nil && *m.server == inst.Main || m.instance && names(m.match) && inst.Matches(m.match) {
				return true
			}
		}
	}
	members := make(map[procfs.ID]bool, len(inst.Members))
	for _, m := range inst.Members {
		members[m.ID] = true
	}
	return slices.ContainsFunc(c.placements, func(p Placement) bool {
		return within(p.Group) && members[p.Process.ID]
	})
}

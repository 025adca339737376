package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/observe"
)

// Change is something that happened between two states, as far as figures tell it.
type Change struct {
	At    time.Time `json:"at"`              // of the first state that has it
	Group string    `json:"group,omitempty"` // "" of the host
	Kind  string    `json:"kind"`            // apply, agent, guard, window, killed, override, limit, wrong or slo
	Text  string    `json:"text"`
}

const (
	revision = "bulkhead_agent_policy_revision"
	started  = "bulkhead_agent_start_time_seconds"
	onTrial  = "bulkhead_agent_trials"
	undone   = "bulkhead_agent_undone_total"
	windows  = "bulkhead_host_window_open"
	byPeople = "bulkhead_group_overrides"
)

// Changes are what happened between two states: another revision of the policy, an agent that was started, changes on
// trial, windows of schedules, processes that were killed for want of memory, overrides, limits that are asked for and
// such as ceased to be in force, and what databases are promised. What is not known of one of both is left out.
func Changes(before, now *State) (all []Change) {
	say := func(kind, group, format string, args ...any) {
		all = append(all, Change{now.At, group, kind, fmt.Sprintf(format, args...)})
	}
	// both gives a value in both states.
	both := func(metric, group string) (was, is float64, known bool) {
		was, there := before.sum(metric, group, false)
		is, known = now.sum(metric, group, false)
		return was, is, known && there
	}
	if was, is, known := both(started, ""); known && math.Abs(is-was) > 1 {
		say("agent", "", "the agent was started")
	}
	if was, is, known := both(revision, ""); known && was != is {
		if is == 0 {
			say("apply", "", "everything was released")
		} else {
			say("apply", "", "revision %.0f of the policy is in force", is)
		}
	}
	for _, text := range trials(before, now) {
		say("guard", "", "%s", text)
	}
	for _, text := range schedules(before, now) {
		say("window", "", "%s", text)
	}
	for _, g := range now.Groups() {
		if was, is, known := both(oomKills, g.Name); known && is > was {
			say("killed", g.Name, "processes killed for want of memory: %.0f", is-was)
		}
		was, is, known := both(notInForce, g.Name)
		if !known {
			continue // limits are not known of both
		}
		if was, is, known := both(byPeople, g.Name); known && was != is {
			say("override", g.Name, "overrides in force: %.0f → %.0f", was, is)
		}
		for _, text := range asked(before, now, g.Name) {
			say("limit", g.Name, "%s", text)
		}
		if is > was {
			say("wrong", g.Name, "limits not in force as asked: %.0f", is)
		}
		for _, text := range promises(before, now, g.Name) {
			say("slo", g.Name, "%s", text)
		}
	}
	return all
}

// trials says which changes on trial came, and what became of those before.
func trials(before, now *State) (texts []string) {
	undoneBefore, counted := before.sum(undone, "", false)
	undoneNow, known := now.sum(undone, "", false)
	lost := counted && known && undoneNow > undoneBefore
	if lost {
		texts = append(texts, "a change on trial was undone: `bulkhead history` says why")
	}
	for _, kind := range []struct{ label, begins, ends string }{
		{"guard", "the policy's guard watches a change", "the guard watches no change any more"},
		{"confirm", "a change waits to be confirmed", "no change waits to be confirmed any more"},
	} {
		was, there := before.sum(onTrial, "", false, kind.label)
		is, known := now.sum(onTrial, "", false, kind.label)
		switch {
		case !there || !known || was == is:
		case is > 0:
			texts = append(texts, kind.begins)
		case !lost:
			texts = append(texts, kind.ends)
		}
	}
	return texts
}

// schedules says which windows have opened and closed.
func schedules(before, now *State) (texts []string) {
	if before.Read(observe.Limits).IsZero() || now.Read(observe.Limits).IsZero() {
		return nil
	}
	open := func(s *State) (names []string) {
		for _, f := range s.Figures(windows, "") {
			names = append(names, f.Labels[0])
		}
		return names
	}
	was, is := open(before), open(now)
	for _, name := range is {
		if !slices.Contains(was, name) {
			texts = append(texts, "window "+name+" has opened")
		}
	}
	for _, name := range was {
		if !slices.Contains(is, name) {
			texts = append(texts, "window "+name+" has closed")
		}
	}
	return texts
}

// promises says how it goes with what a group's database is promised: whether that is missed, and what is held for it.
func promises(before, now *State, group string) (texts []string) {
	slackBefore, there := before.sum(sloSlack, group, false)
	slack, known := now.sum(sloSlack, group, false)
	if there && known && (slackBefore < 0) != (slack < 0) {
		text := "the target is kept again"
		if slack < 0 {
			text = "the target is missed"
		}
		for _, f := range now.Figures(sloSlack, group) {
			text = f.Labels[0] + ": " + text
		}
		texts = append(texts, text)
	}
	was, there := before.sum(sloHeld, group, false)
	is, known := now.sum(sloHeld, group, false)
	switch {
	case !there || !known || was == is:
	case is == 0:
		texts = append(texts, "no limit of others is lowered for it any more")
	default:
		texts = append(texts, fmt.Sprintf("limits of others lowered for it: %.0f → %.0f", was, is))
	}
	return texts
}

// asked says which limits of a group are asked for otherwise than before.
func asked(before, now *State, group string) (texts []string) {
	type two struct{ was, is string }
	all := map[string]*two{}
	var names []string
	for i, s := range []*State{before, now} {
		for _, f := range s.Figures(limitAsked, group) {
			l := s.limit(group, f.Labels[0], f.Labels[1], &f.Value, nil)
			if all[l.Name()] == nil {
				all[l.Name()] = &two{"none", "none"}
				names = append(names, l.Name())
			}
			if i == 0 {
				all[l.Name()].was = l.Asked
			} else {
				all[l.Name()].is = l.Asked
			}
		}
	}
	for _, name := range names {
		if t := all[name]; t.was != t.is {
			texts = append(texts, strings.Join([]string{name, t.was, "→", t.is}, " "))
		}
	}
	return texts
}

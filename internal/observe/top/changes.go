package top

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Change is something that happened between two states, as far as figures tell it.
type Change struct {
	At    time.Time `json:"at"`              // of the first state that has it
	Group string    `json:"group,omitempty"` // "" of the host
	Kind  string    `json:"kind"`            // apply, agent, killed, limit or wrong
	Text  string    `json:"text"`
}

const (
	revision = "bulkhead_agent_policy_revision"
	started  = "bulkhead_agent_start_time_seconds"
)

// Changes are what happened between two states: another revision of the policy, an agent that was started, processes
// that were killed for want of memory, limits that are asked for, and such as ceased to be in force. What is not known
// of one of both is left out.
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
	for _, g := range now.Groups() {
		if was, is, known := both(oomKills, g.Name); known && is > was {
			say("killed", g.Name, "processes killed for want of memory: %.0f", is-was)
		}
		was, is, known := both(notInForce, g.Name)
		if !known {
			continue // limits are not known of both
		}
		for _, text := range asked(before, now, g.Name) {
			say("limit", g.Name, "%s", text)
		}
		if is > was {
			say("wrong", g.Name, "limits not in force as asked: %.0f", is)
		}
	}
	return all
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

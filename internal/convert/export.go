package convert

import (
	"slices"

	"bulkhead/internal/policy/resolve"

	"bulkhead/internal/policy"
)

// Export is a policy in another format.
type Export struct {
	Files []policy.Source `json:"files"`
	// Left is what the format has no words for.
	Left []Remark `json:"left"`
}

// TopBlocks are the blocks of a policy beside its groups.
func TopBlocks(p *policy.Policy) (all []Raw) {
	if text := hostFlow(p.Host); text != "" {
		all = append(all, Raw{Key: "host", Text: text})
	}
	if text := agentFlow(p.Agent); text != "" {
		all = append(all, Raw{Key: "agent", Text: text})
	}
	if text := listOf(p.Schedules, scheduleFlow); text != "" {
		all = append(all, Raw{Key: "schedules", Text: text})
	}
	return all
}

// Schedules says that neither format has anything like a schedule.
func (r *Report) Schedules(p *policy.Policy) {
	for _, s := range p.Schedules {
		r.Leave(s.Pos, "", "schedule "+s.Name, "limits that change with the time have no form there")
	}
}

// WithRole are the settings of a group with those of its role.
func WithRole(g *policy.Group) policy.Settings {
	all := slices.Clone(g.Settings)
	for _, set := range resolve.RoleSettings(g) {
		if _, asked := g.Settings.Get(set.Key, ""); !asked && supported(set.Key, set.Value.String()) {
			all = all.With(set)
		}
	}
	return all
}

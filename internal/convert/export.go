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
	for _, block := range []Raw{
		{Key: "host", Text: hostFlow(p.Host)}, {Key: "agent", Text: agentFlow(p.Agent)},
		{Key: "schedules", Text: listOf(p.Schedules, scheduleFlow)}, {Key: "guard", Text: guardFlow(p.Guard)},
		{Key: "slo", Text: sloPartFlow(p.SLO)}, {Key: "snapshots", Text: snapshotsFlow(p)},
	} {
		if block.Text != "" {
			all = append(all, block)
		}
	}
	return all
}

// Beside says of what a policy has beside limits that neither format has anything like it. blocks are those beside its
// groups.
func (r *Report) Beside(p *policy.Policy, blocks []Raw) {
	has := func(key string) bool {
		return slices.ContainsFunc(blocks, func(b Raw) bool { return b.Key == key })
	}
	file := policy.Pos{}
	if len(p.Sources) > 0 {
		file.File = p.Sources[0].Path
	}
	for _, s := range p.Schedules {
		r.Leave(s.Pos, "", "schedule "+s.Name, "limits that change with the time have no form there")
	}
	if tune := p.Host.Tune; len(tune) > 0 {
		r.Leave(tune[0].Pos, "set them by hand: sysctl.d, udev rules, units, fstab, the kernel command line",
			"host.tune", "settings of the whole host have no form there")
	}
	secret := func(at policy.Pos, what, dsn string) {
		if withoutPassword(dsn) != dsn {
			r.Leave(at, "write it into the policy again after an import", what+": the password in dsn",
				"it is not carried along: everybody may read such files")
		}
	}
	if p.Guard != nil {
		r.Leave(p.Guard.Pos, "", "guard", "nothing there watches groups after a change, or takes it back")
		for _, one := range p.Guard.Groups {
			secret(one.Pos, "guard: group "+one.Group, one.DSN)
		}
	}
	if has("slo") {
		r.Leave(file, "", "slo", "nothing there lowers limits of groups while a database waits")
	}
	policy.EachGroup(p.Groups, func(g *policy.Group) {
		if g.SLO != nil {
			r.Leave(g.SLO.Pos, "", "group "+g.Path+": slo", "nothing there keeps what a database is promised")
			secret(g.SLO.Pos, "group "+g.Path+": slo", g.SLO.DSN)
		}
	})
	if has("snapshots") {
		r.Leave(file, "`zfs destroy` removes them by hand", "snapshots", "nothing there says which snapshots are kept")
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

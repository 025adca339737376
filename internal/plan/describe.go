package plan

import (
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// Describe fills in what steps and shares say for people. Want tells, which an agent's answer does not have: so it is
// done where the plan is made.
func (p *Plan) Describe() {
	for i := range p.Shares {
		p.Shares[i].Asked = p.askedCPU(p.Shares[i].Group)
	}
	if len(p.Steps) == 0 {
		return
	}
	beside, wants := p.beside(), p.Wants()
	for i := range p.Steps {
		s := &p.Steps[i]
		f := s.File()
		if row := knob.RowOf(f); row != nil {
			if s.NewAs = row.HumanIn(s.New, beside[f.Dir]); s.Old != "" {
				s.OldAs = row.HumanIn(s.Old, beside[f.Dir])
			}
		}
		w, ok := wants[s.Target]
		s.FromRole = ok && w.Value == s.New && w.Setting.FromRole()
	}
}

// beside gives what the files of each directory hold, as far as the plan knows and does not change them.
func (p *Plan) beside() map[cgroup.Dir]map[string]string {
	files := map[cgroup.Dir]map[string]string{}
	for _, w := range p.Want {
		f := w.File()
		if files[f.Dir] == nil {
			files[f.Dir] = map[string]string{}
		}
		if f.Key == "" {
			files[f.Dir][f.Name] = w.Value
		}
	}
	for _, s := range p.Steps {
		if f := s.File(); s.Old != "" {
			delete(files[f.Dir], f.Name)
		}
	}
	return files
}

// askedCPU is what a group asks of the CPU, but for the limit; "" for nothing.
func (p *Plan) askedCPU(group string) string {
	var parts []string
	idle := slices.ContainsFunc(p.Want, func(w Wanted) bool {
		return w.Group == group && w.Setting.Key == policy.KeyCPUIdle && w.Setting.Value == policy.Flag(true)
	})
	for _, key := range []policy.Key{policy.KeyCPUWeight, policy.KeyCPUIdle, policy.KeyCPUCPUs,
		policy.KeyCPUNUMA} {
		i := slices.IndexFunc(p.Want, func(w Wanted) bool {
			return w.Group == group && w.Setting.Key == key && w.Setting.From != FromAbove
		})
		if i < 0 || key == policy.KeyCPUWeight && idle {
			continue // idle overrules the weight
		}
		s := p.Want[i].Setting
		text := strings.TrimPrefix(string(key), "cpu.") + " " + s.Value.String()
		if key == policy.KeyCPUIdle {
			text = "only when idle"
			if !idle {
				continue
			}
		}
		if s.FromRole() {
			text += " from role"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

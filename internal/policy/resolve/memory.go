package resolve

import (
	"fmt"
	"strings"

	"bulkhead/internal/policy"
)

// checkModels holds what instances take by their models against the limits of their groups, and against the host where
// there is none.
func (r checks) checkModels(groups []Limits) {
	type held struct {
		policy.Setting
		group string // whose limit it is
	}
	most := map[string]held{} // by group, its own limit or the nearest above
	sums, inside := map[string]policy.Bytes{}, map[string][]string{}
	for _, g := range groups {
		limit, bounded := most[g.Parent]
		if s, ok := g.Settings.Get(policy.KeyMemoryMax, ""); ok {
			if _, limited := s.Value.(policy.Bytes); limited || !bounded {
				limit, bounded = held{s, g.Group}, limited
			}
		}
		if bounded {
			most[g.Group] = limit
		}
		if g.Model == nil {
			continue
		}
		r.checkMemoryModel(g, limit.Setting, bounded)
		if bounded {
			need, _, _ := g.Model.Need()
			sums[limit.group] += need
			inside[limit.group] = append(inside[limit.group], g.Group)
		}
	}
	for _, g := range groups {
		limit := most[g.Group]
		if b, _ := limit.Value.(policy.Bytes); len(inside[g.Group]) > 1 && sums[g.Group] > b {
			r.Fail(limit.Pos, fmt.Sprintf("raise memory.max to %s or more", upMiB(sums[g.Group])),
				"by their models %s take %s together, and %s of %s is less",
				strings.Join(inside[g.Group], " and "), sums[g.Group].Human(), sized(limit.Setting), g.Group)
		}
	}
}

// upMiB is a size in whole MiB that holds another.
func upMiB(b policy.Bytes) policy.Bytes { return (b + 1<<20 - 1) >> 20 << 20 }

func (r checks) checkMemoryModel(g Limits, limit policy.Setting, bounded bool) {
	need, huge, words := g.Model.Need()
	by := fmt.Sprintf("by its model %s takes %s (%s)", g.Group, need.Human(), words)
	if g.Model.Huge {
		by += fmt.Sprintf(" beside %s in huge pages", huge.Human())
	}
	most, _ := limit.Value.(policy.Bytes)
	switch {
	case bounded && need > most:
		at := limit.Pos
		if at.File == "" {
			at = g.Model.Pos
		}
		r.Fail(at, fmt.Sprintf("raise memory.max to %s or more, or have the engine take less", upMiB(need)),
			"%s, and %s is less: its processes would be killed", by, sized(limit))
		r.Also(g.Model.Pos)
	case bounded:
		r.note(g.Model.Pos, g.Group, "%s of the %s of %s: %d %%", by, most.Human(), limit.Key,
			int64(need)*100/max(int64(most), 1))
	case need > r.memory():
		r.Fail(g.Model.Pos, "have the engine take less", "%s, and the host has %s", by, r.memory().Human())
	default:
		r.note(g.Model.Pos, g.Group, "%s, and no memory.max holds it", by)
	}
	if high, ok := g.Settings.Get(policy.KeyMemoryHigh, ""); ok {
		if b, limited := high.Value.(policy.Bytes); limited && b < need {
			r.note(high.Pos, g.Group,
				"%s is less than the %s that the group takes by its model: it will be slowed down", sized(high),
				need.Human())
		}
	}
	r.checkHugeModel(g, huge)
}

// checkHugeModel holds the part in huge pages against the group's limit of them.
func (r checks) checkHugeModel(g Limits, huge policy.Bytes) {
	if !g.Model.Huge {
		return
	}
	var sum policy.Bytes
	var last policy.Setting
	for _, s := range g.Settings {
		b, limited := s.Value.(policy.Bytes)
		if s.Key != policy.KeyMemoryHuge {
			continue
		}
		if !limited {
			return
		}
		sum, last = sum+b, s
	}
	if last.Key != "" && sum < huge {
		r.Fail(last.Pos, "raise memory.huge, or take `huge` out of the model",
			"memory.huge of %s is %s, and its model puts %s into huge pages", g.Group, sum.Human(), huge.Human())
		r.Also(g.Model.Pos)
	}
}

// sized is a setting in words with a size that people read.
func sized(s policy.Setting) string {
	text := string(s.Key)
	if b, ok := s.Value.(policy.Bytes); ok {
		text += " " + b.Human()
	}
	if s.Raw != "" {
		text += " (" + s.Raw + ")"
	}
	return text
}

package notes

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/classify"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// Others says whom host.others gathers, and when they could take more than half of what a database counts on.
func (p *Writer) Others() {
	noteWeighedDown(p)
	if groupNamed(p, classify.Others) == nil {
		return
	}
	names := map[string]int{}
	var order []string
	count, sessions := 0, map[string]bool{}
	for _, pl := range p.in.Classified.Placements {
		if pl.By != classify.ByOthers {
			continue
		}
		count++
		sessions[pl.Group] = true
		if names[pl.Process.Comm]++; names[pl.Process.Comm] == 1 {
			order = append(order, pl.Process.Comm)
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return names[b] - names[a] })
	const most = 12
	var who []string
	for _, name := range order[:min(len(order), most)] {
		if n := names[name]; n > 1 {
			name = fmt.Sprintf("%s (%d)", name, n)
		}
		who = append(who, name)
	}
	if left := len(order) - most; left > 0 {
		who = append(who, fmt.Sprintf("and %d other programs", left))
	}
	if count > 0 {
		p.out.Note(classify.Others, "", "host.others gathers %s of %s that match no rule, "+
			"each session in a group of its own: %s",
			policy.Counted(count, "process"), policy.Counted(len(sessions), "session"), strings.Join(who, ", "))
	}
	weighOthers(p, p.out.Shares)
}

// weighOthers holds what all others together can take against each database.
func weighOthers(p *Writer, shares []plan.Share) {
	i := slices.IndexFunc(shares, func(s plan.Share) bool { return s.Group == classify.Others })
	if i < 0 {
		return
	}
	for _, s := range shares {
		g := groupNamed(p, s.Group)
		if g != nil && g.Role == policy.RoleDatabase && shares[i].Guaranteed > s.Guaranteed/2 {
			p.out.Note(s.Group, policy.KeyCPUWeight, "processes that match no rule may take %.2f cores beside "+
				"%.2f of this database: lower the weight of host.others, or make it idle",
				shares[i].Guaranteed, s.Guaranteed)
		}
	}
}

func groupNamed(p *Writer, path string) *classify.Group {
	i := slices.IndexFunc(p.in.Classified.Groups, func(g classify.Group) bool { return g.Path == path })
	if i < 0 {
		return nil
	}
	return &p.in.Classified.Groups[i]
}

// noteWeighedDown says which databases of the policy still run inside a slice that host.others weighs.
func noteWeighedDown(p *Writer) {
	for _, dir := range p.d.Layout.Dirs() {
		g, governed := p.d.Layout.Governed[dir]
		if !governed {
			continue
		}
		slice, _, _ := strings.Cut(strings.TrimPrefix(dir.Path, "/"), "/")
		of := groupNamed(p, g.Group)
		weighed := slices.ContainsFunc(p.in.Classified.Groups, func(o classify.Group) bool {
			return classify.IsOthers(o.Path) && o.Slice == slice
		})
		if weighed && of != nil && of.Role == policy.RoleDatabase {
			p.out.Note(g.Group, policy.KeyCPUWeight, "%s runs in %s, which host.others weighs, "+
				"and is weighed down with it: `adopt: next-start` and a restart bring it out", g.Unit, slice)
		}
	}
}

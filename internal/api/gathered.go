package api

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/classify"
	"bulkhead/internal/metrics"
)

// Gathered are the groups with all sessions of processes that match no rule as one.
func Gathered(all []GroupStatus) (groups []GroupStatus) {
	at, sessions := -1, 0
	add := func(sum **int64, n *int64) {
		if n != nil {
			*sum = new(metrics.Value(*sum) + *n)
		}
	}
	for _, g := range all {
		if !strings.HasPrefix(g.Group, classify.Others+"/") {
			groups = append(groups, g)
			continue
		}
		if sessions++; sessions == 1 {
			at, groups = len(groups), append(groups, g)
			continue
		}
		sum, u := &groups[at], &groups[at].Usage
		sum.Group = fmt.Sprintf("%s/* (%d sessions)", classify.Others, sessions)
		sum.Members, sum.Limits = slices.Concat(sum.Members, g.Members), slices.Concat(sum.Limits, g.Limits)
		sum.Share.Guaranteed += g.Share.Guaranteed
		add(&u.CPU.User, g.Usage.CPU.User)
		add(&u.CPU.System, g.Usage.CPU.System)
		add(&u.Memory.Current, g.Usage.Memory.Current)
		add(&u.Memory.Anonymous, g.Usage.Memory.Anonymous)
		add(&u.Memory.File, g.Usage.Memory.File)
		add(&u.Memory.Shared, g.Usage.Memory.Shared)
	}
	return groups
}

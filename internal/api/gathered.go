package api

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/classify"
)

// Gathered are the groups with all sessions of processes that match no rule as one.
func Gathered(all []GroupStatus) (groups []GroupStatus) {
	at, sessions := -1, 0
	for _, g := range all {
		if !strings.HasPrefix(g.Group, classify.Others+"/") {
			groups = append(groups, g)
			continue
		}
		if sessions++; sessions == 1 {
			at, groups = len(groups), append(groups, g)
			continue
		}
		sum := &groups[at]
		sum.Group = fmt.Sprintf("%s/* (%d sessions)", classify.Others, sessions)
		sum.Members, sum.Limits = slices.Concat(sum.Members, g.Members), slices.Concat(sum.Limits, g.Limits)
		sum.Share.Guaranteed += g.Share.Guaranteed
		sum.Usage.Add(&g.Usage)
	}
	return groups
}

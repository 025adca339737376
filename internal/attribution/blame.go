package attribution

import (
	"cmp"
	"slices"
	"strings"
)

// blame is how a wait is divided, in seconds of each second.
type blame struct {
	limit, own, outside, service float64
	others                       map[string]float64
}

// rows makes rows of what was blamed. What is blamed is at most what was waited, whatever was measured; the rest is
// unexplained.
func (b *blame) rows(waited float64) (all []Row, rest float64) {
	left := waited
	take := func(row Row) {
		row.Seconds = min(max(row.Seconds, 0), left)
		if row.Seconds > 0 {
			left -= row.Seconds
			all = append(all, row)
		}
	}
	take(Row{Who: OwnLimit, Seconds: b.limit})
	for name, s := range b.others {
		all = append(all, Row{Who: Other, Group: name, Seconds: max(s, 0)})
	}
	var sum float64
	for _, row := range all {
		if row.Who == Other {
			sum += row.Seconds
		}
	}
	if sum > left { // rounding
		for i := range all {
			if all[i].Who == Other {
				all[i].Seconds *= left / sum
			}
		}
		sum = left
	}
	left -= sum
	take(Row{Who: Outside, Seconds: b.outside})
	take(Row{Who: OwnLoad, Seconds: b.own})
	take(Row{Who: Service, Seconds: b.service})
	if left < 1e-9*waited { // rounding
		left = 0
	}
	return slices.DeleteFunc(all, func(row Row) bool { return row.Seconds <= 0 }), left
}

// resource is a resource whose wait is known, divided. describe says in words what a row did.
func resource(one Resource, b *blame, describe func(*Row)) Resource {
	rows, rest := b.rows(one.Waited)
	for i := range rows {
		rows[i].Grade = Estimated
		describe(&rows[i])
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(string(a.Who), string(b.Who)),
			strings.Compare(a.Group, b.Group))
	})
	one.Known = true
	one.Rows = append(rows, Row{Who: Unexplained, Seconds: rest})
	if one.Waited > 0 {
		for i := range one.Rows {
			one.Rows[i].Share = one.Rows[i].Seconds / one.Waited
		}
	}
	return one
}

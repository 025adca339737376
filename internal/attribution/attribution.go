// Package attribution says who is to blame for what a group waited for: other groups, its own load, its own limits,
// what runs outside all groups. What a disk takes for a request itself is a row, and nobody's blame.
//
// [WindowOf] takes what happened between two readings of the agent's collectors (or of its record) out of a state, and
// [Of] divides what one group waited for among rows. The sum of the rows of a resource is what was waited: what nobody
// can be blamed for is a row of its own, Unexplained, and is never spread over the others. Nothing here reads the
// kernel, has a clock, or keeps anything; all values may be shared between goroutines as long as nobody changes them.
//
// The kernel's files tell how long a group waited and what others used. They do not tell whom it waited for, so a part
// of another group is always [Estimated]; docs/suspects.md has the rules.
package attribution

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoGroup says that a window has no figures of a group.
var ErrNoGroup = errors.New("no such group")

// Of says who is to blame for what a group waited for.
func Of(w *Window, group string) (*Report, error) {
	at := slices.IndexFunc(w.Groups, func(g Group) bool { return g.Name == group })
	if at < 0 {
		return nil, fmt.Errorf("%w: %q", ErrNoGroup, group)
	}
	v := &w.Groups[at]
	r := &Report{Group: group, From: w.From, To: w.To, Suspects: []Suspect{}, Notes: notes(w, v)}
	r.Resources = []Resource{cpu(w, v), disk(w, v), memory(w, v), network(w, v)}
	for i := range r.Resources {
		if r.Resources[i].Rows == nil {
			r.Resources[i].Rows = []Row{}
		}
		w.nameOutside(v, &r.Resources[i])
	}
	w.blameRefaults(v, &r.Resources[1], &r.Resources[2])
	r.rank()
	r.judge()
	return r, nil
}

// rank orders who is blamed over all resources that the group waits for long enough. What a disk takes for a request
// itself nobody can take away.
func (r *Report) rank() {
	type key struct {
		who         Who
		group, name string
	}
	at := map[key]int{}
	for _, one := range r.Resources {
		if one.Part < Harm {
			continue
		}
		for _, row := range one.Rows {
			if row.Seconds <= 0 || row.Who == Service {
				continue
			}
			k := key{row.Who, row.Group, row.Name}
			i, known := at[k]
			if !known {
				i = len(r.Suspects)
				at[k] = i
				r.Suspects = append(r.Suspects, Suspect{Who: row.Who, Group: row.Group, Name: row.Name, Role: row.Role})
			}
			s := &r.Suspects[i]
			s.Part += one.Part * row.Share
			s.Resources = append(s.Resources, one.Name)
		}
	}
	slices.SortStableFunc(r.Suspects, func(a, b Suspect) int {
		return cmp.Or(cmp.Compare(b.Part, a.Part), strings.Compare(a.Group, b.Group),
			strings.Compare(a.Name, b.Name))
	})
}

// judge says in words what came out.
func (r *Report) judge() {
	known := 0
	most, what := 0.0, ""
	for _, one := range r.Resources {
		if !one.Known {
			continue
		}
		known++
		if one.Part >= most {
			most, what = one.Part, one.Title()
		}
	}
	switch {
	case known == 0:
		r.Verdict = "How long " + r.Group + " waits is not known."
		return
	case most < Harm:
		r.Nothing = true
		r.Verdict = fmt.Sprintf("Nothing to explain: %s waits for %s of its time at most.", r.Group, Percent(most))
		return
	case len(r.Suspects) == 0 || r.Suspects[0].Part < Named:
		r.Nothing = true
		r.Verdict = fmt.Sprintf("Nothing to explain: %s waits for %s of its time for %s, and nobody has %s of it "+
			"alone.", r.Group, Percent(most), what, Percent(Named))
		if part := r.service(); part >= Named {
			r.Verdict += fmt.Sprintf(" Disks take %s for its requests themselves.", Percent(part))
		}
		return
	}
	s := r.Suspects[0]
	of := r.parts(&s)
	switch s.Who {
	case Other:
		r.Verdict = fmt.Sprintf("%s is the first suspect: because of it %s waits for %s.", s.Group, r.Group, of)
	case OwnLoad:
		r.Verdict = fmt.Sprintf("%s waits most for itself: for %s.", r.Group, of)
	case OwnLimit:
		r.Verdict = fmt.Sprintf("A limit of its own holds %s back most: it waits for %s.", r.Group, of)
	case Outside:
		if s.Name != "" {
			r.Verdict = fmt.Sprintf("%s, which is outside all groups, is the first suspect: because of it %s waits "+
				"for %s.", s.Name, r.Group, of)
			return
		}
		r.Verdict = fmt.Sprintf("What runs outside all groups holds %s up most: it waits for %s.", r.Group, of)
	case Unexplained:
		r.Verdict = fmt.Sprintf("Most of what %s waits for nobody can be blamed for: %s.", r.Group, of)
	}
}

// service is the part of its time in which disks do the requests themselves that the group waits for.
func (r *Report) service() (part float64) {
	for _, one := range r.Resources {
		for _, row := range one.Rows {
			if row.Who == Service {
				part += one.Part * row.Share
			}
		}
	}
	return part
}

// parts says which part of its time a group waits for what because of a suspect: "CPUs 45 % of its time, disks 3.0 %".
func (r *Report) parts(s *Suspect) string {
	var texts []string
	for _, one := range r.Resources {
		for _, row := range one.Rows {
			if row.Who == s.Who && row.Group == s.Group && row.Name == s.Name &&
				slices.Contains(s.Resources, one.Name) {
				text := one.Title() + " " + Percent(one.Part*row.Share)
				if texts == nil {
					text += " of its time"
				}
				texts = append(texts, text)
			}
		}
	}
	return strings.Join(texts, ", ")
}

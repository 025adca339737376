package classify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
)

// Orphan is a database or a helper that is in no group.
type Orphan struct {
	PID int `json:"pid"`
	// Processes is how many processes of an instance are in no group, PID one of them.
	Processes int    `json:"processes"`
	What      string `json:"what"`
	Why       string `json:"why"`
}

// Orphans lists the instances of which processes are in no group, and the helpers that are in none, by pid.
// governed says whether a process is in one.
func Orphans(in Input, skips []Skip, governed func(procfs.ID) bool) []Orphan {
	l := newLook(in)
	reasons := make(map[procfs.ID]string, len(skips))
	for _, s := range skips {
		reasons[s.Process.ID] = fmt.Sprintf("a rule of %s matches, but %s", s.Group, s.Reason)
	}
	why := func(s *subject) string {
		if reason := l.protected(s); reason != "" {
			return reason
		}
		return cmp.Or(reasons[s.p.ID], "no rule matches")
	}
	var all []Orphan
	counted := make(map[*engine.Instance]int) // index in all
	for _, s := range l.subjects {
		if governed(s.p.ID) {
			continue
		}
		switch {
		case s.instance != nil:
			at, known := counted[s.instance]
			if !known {
				at = len(all)
				counted[s.instance] = at
				all = append(all, Orphan{PID: s.p.PID, Why: why(s)})
			}
			if o := &all[at]; s.p.ID == s.instance.Main {
				o.PID, o.Why = s.p.PID, why(s)
			}
			all[at].Processes++
		case s.helperOf().kind != "":
			what := strings.TrimPrefix(s.describeHelp(), "it is a ")
			all = append(all, Orphan{PID: s.p.PID, Processes: 1, What: what, Why: why(s)})
		}
	}
	for i, at := range counted {
		all[at].What = fmt.Sprintf("%s, %d of its %d processes", i, all[at].Processes, len(i.Members))
	}
	slices.SortFunc(all, func(a, b Orphan) int { return cmp.Compare(a.PID, b.PID) })
	return all
}

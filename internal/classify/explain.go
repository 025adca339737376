package classify

import "fmt"

// Explain tries every rule on one process, in the order of the groups. A pin that holds the process
// comes first, as an attempt of its own; a process that is never moved says so in that place too.
func Explain(groups []Group, in Input, pid int) ([]Attempt, error) {
	l := newLook(in)
	s := l.byPID[pid]
	if s == nil {
		return nil, fmt.Errorf("explain process %d: there is no such process", pid)
	}
	var attempts []Attempt
	if reason := l.protected(s); reason != "" {
		attempts = append(attempts, Attempt{Rule: Rule{Text: "never moved"}, Matched: true, Why: reason})
	}
	if group, from, ok := l.pinned(s, paths(groups)); ok {
		attempts = append(attempts, Attempt{Rule: Rule{Group: group, Text: "pin"}, Matched: true, Why: from})
	}
	for i := range groups {
		for _, r := range groups[i].Rules {
			failed := r.compiled.try(l, s)
			attempts = append(attempts, Attempt{
				Rule: r, Matched: failed == holds, Why: r.compiled.why(l, s, failed), Score: r.compiled.score,
			})
		}
	}
	return attempts, nil
}

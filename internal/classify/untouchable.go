package classify

// Protected says why the process is never moved, by a rule or by hand (design, safety 4); "" when it
// may be. A process that is not in the table may not: nothing is known of it.
func Protected(pid int, in Input) string {
	l := newLook(in)
	s := l.byPID[pid]
	if s == nil {
		return "it is not there"
	}
	return l.protected(s)
}

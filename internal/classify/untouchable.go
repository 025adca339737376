package classify

// Protected says why the process is never moved, by a rule or by hand (design, safety 4); "" when it
// may be. A process that is not in the table may not: nothing is known of it.
func Protected(pid int, in Input) string { return Protector(in)(pid) }

// Protector is Protected for many processes of one look.
func Protector(in Input) func(pid int) string {
	l := newLook(in)
	return func(pid int) string {
		s := l.byPID[pid]
		if s == nil {
			return "it is not there"
		}
		return l.protected(s)
	}
}

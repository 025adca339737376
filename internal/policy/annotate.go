package policy

// Annotate gives the problems found elsewhere (in groups made from the policy, on processes) their
// source line for the caret, and puts them all in file order.
func (ps Problems) Annotate(sources []Source) Problems {
	known := newLines(sources)
	for i := range ps {
		if ps[i].Source == "" {
			ps[i].Source = known.of(ps[i].Pos)
		}
	}
	return ps.inOrder(sources)
}

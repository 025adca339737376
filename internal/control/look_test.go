package control

import (
	"testing"
)

// Only what somebody else changed counts as put back: a new member's first score does not.
func TestOnlyWhatOthersChangedIsCounted(t *testing.T) {
	m := newMachine(t, "252.39")
	m.apply("groups: {jobs: {match: [{exe: backup}], oom_score_adj: 300}}\n")
	count := func(when string, want int) {
		t.Helper()
		if done, err := m.full(); err != nil || done.Repaired != want {
			t.Errorf("%s: %+v, %v; want %d values put back", when, done, err, want)
		}
	}
	count("nothing to do", 0)
	id := m.start("/usr/bin/backup all")
	count("a new member", 0)
	count("a member with its score", 0)
	m.must(m.Host.Proc.WriteOOMScoreAdj(id, 700))
	count("a score that somebody changed", 1)
	count("and put back", 0)
}

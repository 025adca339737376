package planner

import (
	"fmt"
	"strconv"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// scoreMembers sets oom_score_adj of the members of groups that ask for one, and gives it back to
// processes whose group asks for none any more.
func (m *members) scoreMembers() {
	for i := range m.table {
		proc := &m.table[i]
		placed, ok := m.placed[proc.ID]
		if proc.Exited() || ok && m.In.IsReleased(placed.group) {
			continue
		}
		setting, asked := m.scoreSetting(placed.group)
		now, known := m.Observed.OOMScoreAdj[proc.ID]
		if ok && asked {
			if want, isCount := setting.Value.(policy.Count); isCount && known && int(want) != now {
				m.score(proc, placed.group, now, int(want), plan.Reason(setting))
			}
			continue
		}
		if original, changed := m.originalScore(proc); changed && known && original != now {
			m.score(proc, placed.group, now, original, "oom_score_adj is no longer asked for")
		}
	}
}

// originalScore is the oom_score_adj that a process had before bulkhead: its own, or the one of its nearest
// ancestor that bulkhead has scored, as long as it still has the score which that one gave it by fork(2).
func (m *members) originalScore(proc *procfs.Process) (score int, changed bool) {
	if score, changed = m.Observed.Originals.OOMScoreAdj[proc.ID]; changed {
		return score, true
	}
	now, known := m.Observed.OOMScoreAdj[proc.ID]
	if !known {
		return 0, false
	}
	for parent := range m.ancestors(proc) {
		if score, changed := m.Observed.Originals.OOMScoreAdj[parent.ID]; changed {
			theirs, known := m.Observed.OOMScoreAdj[parent.ID]
			return score, known && theirs == now
		}
	}
	return 0, false
}

func (m *members) scoreSetting(group string) (policy.Setting, bool) {
	n := m.Desired.Forest.ByPath[group]
	if n == nil || group == layout.RootGroup {
		return policy.Setting{}, false
	}
	return n.Settings.Get(policy.KeyOOMScoreAdj, "")
}

// score plans one oom_score_adj. Without CAP_SYS_RESOURCE the kernel refuses a value below the lowest
// that a privileged process ever set, 0 for nearly all (proc(5)); that is said, and not tried.
func (m *members) score(proc *procfs.Process, group string, from, to int, why string) {
	if to < from && to < 0 && !m.In.Facts.SysResource {
		m.out.Notes = append(m.out.Notes, plan.Note{Group: group, Key: policy.KeyOOMScoreAdj, NotEnforced: true,
			Text: fmt.Sprintf("oom_score_adj %d of process %d (%s) stays %d: lowering it below 0 takes "+
				"CAP_SYS_RESOURCE", to, proc.PID, proc.Comm, from)})
		return
	}
	m.out.Steps = append(m.out.Steps, plan.Step{
		Change: change.Of(proc.ID.ScoreTarget(), strconv.Itoa(from), strconv.Itoa(to)), Group: group, Name: proc.Comm,
		Reason: why, Setting: policy.KeyOOMScoreAdj,
	})
}

package plan

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/systemd"
)

const stepIndent = 15 // of what is said about a step

// step prints one step, or several that belong together.
func (r *renderer) step(steps []int) {
	s := r.plan.Steps[steps[0]]
	title := fmt.Sprintf("%4d  %-7s  ", steps[0]+1, cmp.Or(map[Op]string{OpOOMScore: "score"}[s.Op], string(s.Op)))
	pad := strings.Repeat(" ", stepIndent)
	switch s.Op {
	case OpMove:
		r.line("%sprocess %d (%s)", title, s.PID.PID, s.Comm)
		for _, i := range steps {
			m := r.plan.Steps[i]
			r.line("%sto   %s", pad, path.Join(r.path(m.Dir), "cgroup.procs"))
			r.line("%sfrom %s", pad, r.path(cgroup.Dir{Hierarchy: m.Dir.Hierarchy, Path: m.Old}))
		}
	case OpOOMScore:
		r.line("%s/proc/%d/oom_score_adj (%s)", title, s.PID.PID, s.Comm)
		r.wrapped(stepIndent, cmp.Or(s.Old, "unknown")+" -> "+s.New)
	case OpWrite:
		if lines := ownerCommands(s, r.path(s.Dir)); lines != nil {
			r.line("%s%s", fmt.Sprintf("%4d  %-7s  ", steps[0]+1, "owner"), lines[0])
			for _, line := range lines[1:] {
				r.line("%s%s", pad, line)
			}
			break
		}
		where := path.Join(r.path(s.Dir), s.File)
		if s.File == cgroup.FavorDynmods {
			where = "mount option " + s.File + " of " + r.path(s.Dir)
		}
		if file, is := diskFile(s, r.device(s.Key)); is {
			where = file
		}
		r.line("%s%s", title, where)
		r.wrapped(stepIndent, r.change(s))
		if s.Unit != "" {
			r.wrapped(stepIndent, "by systemd: "+s.Unit+" "+assignments(s.Set))
		}
	case OpSet:
		r.line("%s%s %s", title, s.Target.Kind, s.Target.Addr)
		r.wrapped(stepIndent, cmp.Or(s.Old, "none")+" -> "+s.New)
	case OpDropIn:
		r.line("%s%s", title, s.Unit)
		r.wrapped(stepIndent, cmp.Or(s.Old, "none")+" -> "+cmp.Or(s.New, "none"))
	case OpKeep, OpRevert:
		r.line("%s%s", title, s.Unit)
	case OpNetwork:
		r.line("%s%s", title, s.New)
	default:
		for _, i := range steps {
			text := r.path(r.plan.Steps[i].Dir)
			if unit := r.plan.Steps[i].Unit; unit != "" {
				text += " (by systemd: " + unit + ")"
			}
			r.line("%4d  %-7s  %s", i+1, s.Op, text)
		}
	}
	r.about(steps)
}

// assignments are properties as a person would set them, "none" for a list that is emptied.
func assignments(set []systemd.Assignment) string {
	var parts []string
	for _, a := range set {
		a.Text = cmp.Or(strings.ReplaceAll(a.Text, "\n", ", "), "none")
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " ")
}

// change is old and new value in units for people, with what is really written where that differs.
func (r *renderer) change(s Step) string {
	row := r.rows[cgroup.Dir{Hierarchy: s.Dir.Hierarchy}.File(s.File)]
	if row == nil {
		return cmp.Or(s.Old, "none") + " -> " + s.New
	}
	files := r.filesBeside(s)
	from, to := "new", row.HumanIn(s.New, files)
	if s.Old != "" {
		from = row.HumanIn(s.Old, files)
	}
	if to != s.New {
		to += fmt.Sprintf(" (%q)", s.New)
	}
	text := from + " -> " + to
	if s.Key != "" {
		text = "device " + r.device(s.Key) + ": " + text
	}
	return text
}

// filesBeside gives what the other files of a step's directory hold, as far as the plan knows and does
// not change them.
func (r *renderer) filesBeside(s Step) map[string]string {
	files := make(map[string]string)
	for _, w := range r.plan.Want {
		if w.Dir == s.Dir && w.Key == "" {
			files[w.File] = w.Value
		}
	}
	for _, other := range r.plan.Steps {
		if other.Dir == s.Dir && other.Old != "" {
			delete(files, other.File)
		}
	}
	return files
}

// undoOf says how a step is taken back.
func undoOf(s Step) string {
	switch s.Op {
	case OpMakeDir, OpRemoveDir:
		if s.Unit != "" {
			return map[Op]string{OpMakeDir: "stop it", OpRemoveDir: "start it again"}[s.Op]
		}
		return s.Undo
	case OpWrite:
		return undoOfWrite(s)
	case OpSet:
		return fmt.Sprintf("write %q", s.Undo)
	case OpNetwork:
		_, undo, err := request.Parse(s.Change())
		if err != nil {
			return err.Error()
		}
		words := make([]string, len(undo))
		for i, u := range undo {
			words[i] = u.String()
		}
		return strings.Join(words, ", then ")
	case OpKeep:
		return "systemd forgets what is set from here on"
	case OpRevert:
		return "set it again"
	case OpDropIn:
		return cmp.Or(s.Undo, "take it away")
	case OpMove:
		return "move back"
	case OpOOMScore:
		if s.Undo == "" {
			return "none: the value before is not known"
		}
		return "write " + strings.TrimSpace(fmt.Sprintf("%q", s.Undo))
	}
	return s.Undo
}

// undoOfWrite says how a written value is taken back.
func undoOfWrite(s Step) string {
	switch {
	case len(s.Unset) > 0:
		return "set " + assignments(s.Unset)
	case s.Unit != "":
		return "goes with the unit"
	case s.Undo == "":
		return "goes with the directory"
	case s.File == cgroup.FavorDynmods:
		return "switch it " + s.Undo
	case ownerCommands(s, "") != nil:
		return "owner and mode of each file as they were"
	}
	return fmt.Sprintf("write %q", s.Undo)
}

// about prints reason, undo, risk and what cannot be undone.
func (r *renderer) about(steps []int) {
	s := r.plan.Steps[steps[0]]
	why := s.Reason
	if r.fromRole(s) {
		why += " (from role)"
	}
	r.wrapped(stepIndent, "reason: "+why)
	if s.Reclaim != nil && s.Risk != knob.RiskSlow { // once, at the limit itself
		r.wrapped(stepIndent, s.Reclaim.String())
	}
	r.wrapped(stepIndent, "undo: "+undoOf(s))
	if s.Risk != knob.RiskNone {
		r.wrapped(stepIndent, "risk: "+string(s.Risk))
	}
	told := ""
	for _, i := range steps {
		if final := r.plan.Steps[i].Final; final != "" && final != told {
			r.wrapped(stepIndent, "cannot be wholly undone: "+final)
			told = final
		}
	}
}

// fromRole says whether the value comes from a role's defaults.
func (r *renderer) fromRole(s Step) bool {
	return slices.ContainsFunc(r.plan.Want, func(w Wanted) bool {
		return w.Dir == s.Dir && w.File == s.File && w.Key == s.Key && w.Value == s.New && w.Setting.FromRole()
	})
}

// ownerCommands are the chown(1) and chmod(1) that a step comes to; nil for one that is about no owner.
func ownerCommands(s Step, dir string) []string {
	file, owned := cgroup.Owned(s.File)
	if !owned || s.Op != OpWrite {
		return nil
	}
	owner, mode, single := strings.Cut(s.New, " ")
	if !single || strings.Contains(s.New, ", ") {
		return []string{"owners and modes of " + path.Join(dir, file) + " as the kernel made them"}
	}
	where, but := path.Join(dir, file), ""
	if s.File == cgroup.OwnedRest {
		but = " but " + strings.Join(cgroup.MemberFiles(2), " and ")
		if s.Dir.Hierarchy != procfs.UnifiedID {
			but = " but " + cgroup.MemberFiles(1)[0]
		}
	}
	lines := []string{"chown " + owner + " " + where + but}
	if mode != "-" {
		line := "chmod " + mode + " " + where + but
		if but != "" {
			line += ", for each no more than its owner has"
		}
		lines = append(lines, line)
	}
	return lines
}

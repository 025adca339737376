package plan

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

const stepIndent = 15 // of what is said about a step

// step prints one step, or several that belong together.
func (r *renderer) step(steps []int) {
	s := r.plan.Steps[steps[0]]
	op := flat.Op(s.Change)
	line := func(i int, op, what string) { r.line("%4d  %-7s  %s", i+1, op, what) }
	first := func(what string) { line(steps[0], op, what) }
	pad := strings.Repeat(" ", stepIndent)
	switch _, file := cgroup.NamedFile(s.Target); {
	case s.Moves():
		first(fmt.Sprintf("process %d (%s)", s.PID().PID, s.Name))
		for _, i := range steps {
			m := r.plan.Steps[i]
			r.line("%sto   %s", pad, path.Join(r.path(m.Dir()), "cgroup.procs"))
			r.line("%sfrom %s", pad, r.path(cgroup.Dir{Hierarchy: m.Dir().Hierarchy, Path: m.Old}))
		}
	case s.Kind == cgroup.KindDir:
		for _, i := range steps {
			text := r.path(r.plan.Steps[i].Dir())
			if unit := r.plan.Steps[i].Unit; unit != "" {
				text += " (by systemd: " + unit + ")"
			}
			line(i, op, text)
		}
	case s.Kind == procfs.KindScore:
		r.line("%4d  score    /proc/%d/oom_score_adj (%s)", steps[0]+1, s.PID().PID, s.Name)
		r.wrapped(stepIndent, cmp.Or(s.Old, "unknown")+" -> "+s.New)
	case s.Kind == cgroup.KindOwner:
		lines := ownerCommands(s, r.path(s.Dir()))
		line(steps[0], "owner", lines[0])
		for _, line := range lines[1:] {
			r.line("%s%s", pad, line)
		}
	case file:
		first(r.where(s))
		r.wrapped(stepIndent, r.change(s))
		if s.Unit != "" {
			r.wrapped(stepIndent, "by systemd: "+s.Unit+" "+assignments(s.Do))
		}
	case s.Kind == unitfiles.KindOverrides:
		first(s.Addr)
	case s.Kind == request.Kind:
		first(s.New)
	default:
		what := string(s.Kind) + " " + s.Addr
		if s.Kind == unitfiles.KindDropIn {
			what = s.Addr
		}
		first(what)
		r.wrapped(stepIndent, cmp.Or(s.Old, "none")+" -> "+cmp.Or(s.New, "none"))
	}
	r.about(steps)
}

// where is the path of what a step writes.
func (r *renderer) where(s Step) string {
	f := s.File()
	switch s.Kind {
	case cgroup.KindOption:
		return "mount option " + f.Name + " of " + r.path(f.Dir)
	case blockdev.KindQueue:
		_, name, _ := strings.Cut(s.Addr, "/")
		return fmt.Sprintf("%s (%s)", blockdev.QueuePath(f.Key, name), r.device(f.Key))
	}
	return path.Join(r.path(f.Dir), f.Name)
}

// assignments are properties, as a change has them, as a person would set them: "none" for a list that is emptied.
func assignments(value string) string {
	set, err := systemd.Assignments(value)
	if err != nil {
		return err.Error()
	}
	var parts []string
	for _, a := range set {
		a.Text = cmp.Or(strings.ReplaceAll(a.Text, "\n", ", "), "none")
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " ")
}

// change is old and new value in units for people, with what is really written where that differs.
func (r *renderer) change(s Step) string {
	f := s.File()
	if s.NewAs == "" || r.options.Facts == nil {
		return cmp.Or(s.Old, "none") + " -> " + s.New
	}
	from, to := cmp.Or(s.OldAs, "new"), s.NewAs
	if to != s.New {
		to += fmt.Sprintf(" (%q)", s.New)
	}
	text := from + " -> " + to
	if f.Key != "" {
		text = "device " + r.device(f.Key) + ": " + text
	}
	return text
}

// undone says how what is no value to write is taken back, by what a step does.
var undone = map[string]string{
	"move": "move back", "mkdir": "rmdir", "rmdir": "mkdir",
	"keep": "systemd forgets what is set from here on", "revert": "set it again",
}

// undoOf says how a step is taken back.
func undoOf(s Step) string {
	_, file := cgroup.FileOf(s.Target)
	switch how := undone[flat.Op(s.Change)]; {
	case s.Makes() && s.Unit != "":
		return "stop it"
	case s.Removes() && s.Unit != "":
		return "start it again"
	case how != "":
		return how
	case s.Kind == request.Kind:
		return undoOfRequest(s)
	case s.Kind == unitfiles.KindDropIn:
		return cmp.Or(s.Undo, "take it away")
	case s.Kind == procfs.KindScore && s.Undo == "":
		return "none: the value before is not known"
	case s.Unit != "" && s.Undo != "":
		return "set " + assignments(s.Undo)
	case s.Unit != "":
		return "goes with the unit"
	case file && s.Undo == "":
		return "goes with the directory"
	case s.Kind == cgroup.KindOption:
		return "switch it " + s.Undo
	case s.Kind == cgroup.KindOwner:
		return "owner and mode of each file as they were"
	}
	return fmt.Sprintf("write %q", s.Undo)
}

func undoOfRequest(s Step) string {
	_, undo, err := request.Parse(s.Change)
	if err != nil {
		return err.Error()
	}
	words := make([]string, len(undo))
	for i, u := range undo {
		words[i] = u.String()
	}
	return strings.Join(words, ", then ")
}

// about prints reason, undo, risk and what cannot be undone.
func (r *renderer) about(steps []int) {
	s := r.plan.Steps[steps[0]]
	why := s.Reason
	if s.FromRole {
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

// ownerCommands are the chown(1) and chmod(1) that a change of an owner in a directory comes to.
func ownerCommands(s Step, dir string) []string {
	f := s.File()
	file, _ := cgroup.Owned(f.Name)
	owner, mode, single := strings.Cut(s.New, " ")
	if !single || strings.Contains(s.New, ", ") {
		return []string{"owners and modes of " + path.Join(dir, file) + " as the kernel made them"}
	}
	where, but := path.Join(dir, file), ""
	if f.Name == cgroup.OwnedRest {
		but = " but " + strings.Join(cgroup.MemberFiles(2), " and ")
		if f.Hierarchy != procfs.UnifiedID {
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

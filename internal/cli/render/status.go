package render

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/control"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
	"bulkhead/internal/verify"
)

// Status prints the state of the policy and of every group.
func Status(out io.Writer, st *control.Status) {
	Printf(out, "policy revision %d, applied %s by %s; load average %s\n", st.Revision,
		st.AppliedAt.Local().Format(time.DateTime), st.AppliedBy, st.Load)
	if ag := st.Agent; ag.Running {
		Printf(out, "agent: pid %d since %s, learns of new processes by %s, last look %s; %s "+
			"placed, %s put back\n",
			ag.PID, ag.Since.Local().Format(time.DateTime), ag.Source, ag.LastLook.Local().Format(time.TimeOnly),
			Count(int(ag.Moved), "process", "processes"), Count(int(ag.Repaired), "value", "values"))
		if p := ag.Placement; p != nil {
			Printf(out, "agent: of %s that it saw start and placed, half were in their groups within %s, 99 %% "+
				"within %s, the slowest after %s\n",
				Count(int(p.Count), "process", "processes"), p.Share(0.5), p.Share(0.99),
				p.Slowest.Round(time.Microsecond))
		}
		if ag.Lost > 0 {
			Printf(out, "agent: at least %s of %s the kernel could not deliver; each time every process was "+
				"looked at again\n", Count(int(ag.Lost), "process event", "process events"),
				strconv.FormatInt(ag.Events+ag.Lost, 10))
		}
		if ag.Error != "" {
			Println(out, "agent: THE LAST LOOK FAILED:", ag.Error)
		}
	} else {
		Println(out, "agent: NOT RUNNING; the limits stay in force, but new processes are not placed and "+
			"nothing ends on time")
	}
	if st.UnderWay != "" {
		Printf(out, "a change is under way (%s)\n", st.UnderWay)
	}
	if st.Pending != "" {
		Printf(out, "INTERRUPTED: %s; `bulkhead rollback` undoes it\n", st.Pending)
	}
	if t := st.Trial; t != nil {
		Println(out, trialText(t))
	}
	if st.Differs > 0 {
		Printf(out, "DIFFERS from the policy: %s away; `bulkhead plan --applied` shows them\n",
			Count(st.Differs, "step", "steps"))
	}
	for _, p := range st.Problems {
		Printf(out, "PROBLEM: %s\n", p)
	}
	printOver(out, st)
	for _, c := range st.Conflicts {
		Println(out, "CHANGED BY SOMEBODY ELSE:", c)
	}
	for _, l := range st.Lifted {
		Println(out, "LIFTED:", l)
	}
	for _, s := range st.Schedules {
		Println(out, scheduleText(s))
	}
	switch {
	case slices.Contains(st.Released, "everything"):
		Println(out, "RELEASED: nothing is governed until the next apply")
	case len(st.Released) > 0:
		Printf(out, "RELEASED until the next apply: %s\n", strings.Join(st.Released, ", "))
	}
	for _, g := range st.Groups {
		printGroup(out, g)
	}
	// What is said below the limits of a group is not said again.
	if rest := slices.DeleteFunc(onlyNotEnforced(st.Notes),
		func(n plan.Note) bool { return saidOf(st.Groups, n) }); len(rest) > 0 {
		Println(out)
		printNotes(out, rest)
	}
}

// printOver prints what is laid over the policy, and what is not although somebody has set it.
func printOver(out io.Writer, st *control.Status) {
	for _, o := range st.Overrides {
		Println(out, "in force over the policy:", o)
	}
	for _, o := range st.Unlaid {
		Println(out, "NOT IN FORCE:", o)
	}
}

// trialText says what waits to be confirmed.
func trialText(t *state.Trial) string {
	text := fmt.Sprintf("ON TRIAL: the %s of revision %d by %s", t.Verb, t.Revision, t.By)
	if !t.Confirm.IsZero() {
		text += fmt.Sprintf(" is undone at %s unless `bulkhead confirm` comes before",
			t.Confirm.Local().Format(time.DateTime))
	}
	switch {
	case t.Canary != "":
		text = fmt.Sprintf("CANARY: group %s follows the next policy; the rest is applied at %s, unless "+
			"this does it harm", t.Canary, t.Guard.Until.Local().Format(time.DateTime))
	case t.Guard != nil:
		if !t.Confirm.IsZero() {
			text += ", and"
		}
		text += fmt.Sprintf(" is undone when it does %s harm, watched until %s",
			strings.Join(slices.Sorted(maps.Keys(t.Guard.Groups)), ", "), t.Guard.Until.Local().Format(time.DateTime))
	}
	return text
}

// Orphans prints what looks like a database or a helper and is in no group.
func Orphans(out io.Writer, all []classify.Orphan) {
	if len(all) == 0 {
		Println(out, "every database and helper that bulkhead knows is in a group")
		return
	}
	w := newTable(out, "pid", "what", "in no group because")
	for _, o := range all {
		Printf(w, "%d\t%s\t%s\n", o.PID, o.What, o.Why)
	}
	w.flush()
}

// saidOf says whether a note is the reason of a limit that is listed.
func saidOf(groups []control.GroupStatus, n plan.Note) bool {
	return slices.ContainsFunc(groups, func(g control.GroupStatus) bool {
		return g.Group == n.Group && slices.ContainsFunc(g.Limits,
			func(l verify.Limit) bool { return l.Key == n.Key && l.Reason == n.Text })
	})
}

// scheduleText says a schedule in one line of status.
func scheduleText(s control.ScheduleStatus) string {
	switch {
	case s.Skipped != "":
		return fmt.Sprintf("SKIPPED: schedule %s, open until %s: %s", s.Name, moment(s.Next, time.Local), s.Skipped)
	case s.Open:
		return fmt.Sprintf("in force over the policy: schedule %s since %s until %s", s.Name,
			moment(s.Since, time.Local), moment(s.Next, time.Local))
	case s.Next.IsZero():
		return fmt.Sprintf("schedule %s: no window within years", s.Name)
	}
	return fmt.Sprintf("next: schedule %s from %s", s.Name, moment(s.Next, time.Local))
}

package render

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// Status prints the state of the policy and a line for each group. Where an earlier one is given, which was taken some
// time before, the CPU used is that since then.
func Status(out io.Writer, st, before *api.Status, since time.Duration) {
	printPolicy(out, st)
	printGroups(out, st, before, since)
	if n := len(onlyNotEnforced(st.Notes)); n > 0 {
		Printf(out, "%s on what this host does not hold: `bulkhead notes`\n", Count(n, "remark", "remarks"))
	}
}

// Healthy prints that nothing is wrong.
func Healthy(out io.Writer, st *api.Status) {
	Printf(out, "ok: revision %d, %s, every limit in force, agent running\n", st.Revision,
		Count(len(st.Groups), "group", "groups"))
}

// StatusOf prints all that is known of groups, and what is wrong with the policy, for which a limit may be missing.
func StatusOf(out io.Writer, st *api.Status) {
	for i, g := range st.Groups {
		if i > 0 {
			Println(out)
		}
		printGroup(out, g, st.ZFS.Of(g.Group))
	}
	printProblems(out, st)
}

// printEach prints a line for each, behind what it is.
func printEach[T any](out io.Writer, what string, all []T) {
	for _, one := range all {
		Println(out, what, one)
	}
}

func printProblems(out io.Writer, st *api.Status) {
	for _, p := range st.Problems {
		Printf(out, "PROBLEM: %s\n", p)
	}
}

// printPolicy prints what holds for all groups.
func printPolicy(out io.Writer, st *api.Status) {
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
				Count(int(p.Count), "process", "processes"), p.Share(0.5).Round(time.Microsecond),
				p.Share(0.99).Round(time.Microsecond),
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
	printProblems(out, st)
	printOver(out, st)
	printEach(out, "CHANGED BY SOMEBODY ELSE:", st.Conflicts)
	printEach(out, "LIFTED:", st.Lifted)
	for _, s := range st.SLO {
		Println(out, s.Text())
	}
	printEach(out, "ZFS:", st.ZFS.Lines())
	for _, s := range st.Schedules {
		Println(out, scheduleText(s))
	}
	for _, g := range st.Groups {
		if g.Frozen != "" {
			Println(out, frozenText(g))
		}
	}
	switch {
	case slices.Contains(st.Released, "everything"):
		Println(out, "RELEASED: nothing is governed until the next apply")
	case len(st.Released) > 0:
		Printf(out, "RELEASED until the next apply: %s\n", strings.Join(st.Released, ", "))
	}
}

// printGroups prints the table of groups: what each uses, what it can count on, and its limit.
func printGroups(out io.Writer, st, before *api.Status, since time.Duration) {
	Println(out)
	if len(st.Groups) == 0 {
		Println(out, "no group: nothing that runs here matches the policy")
		return
	}
	w := newTable(out, "", "", "cpu", "", "", "memory", "", "", "")
	_, _ = w.WriteString("GROUP\tPROCS\tUSED\tGUAR.\tLIMIT\tUSED\tGUAR.\tLIMIT\tSTATE\n")
	if before != nil {
		before = &api.Status{Groups: api.Gathered(before.Groups)}
	}
	for _, g := range api.Gathered(st.Groups) {
		Printf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Group, len(g.Members),
			cpuUsed(g, before, since), figure(g.Share.Guaranteed), figure(g.Share.Limit), memoryUsed(g),
			memoryLimit(g, policy.KeyMemoryMin, policy.KeyMemoryLow),
			memoryLimit(g, policy.KeyMemoryMax), groupState(g))
	}
	w.end()
	Println(out, "GUAR. is what a group gets when all want everything; CPU in cores, or the time used so far")
	Println(out, "`bulkhead status GROUP` shows each limit and process")
}

// figure is a number of cores, or that there is none.
func figure(cores float64) string {
	if cores == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", cores)
}

// cpuUsed is how many cores a group used since an earlier status, or the CPU time that it has used so far.
func cpuUsed(g api.GroupStatus, before *api.Status, since time.Duration) string {
	total := func(g api.GroupStatus) (time.Duration, bool) {
		c := g.Usage.CPU
		switch {
		case c.Total != nil:
			return time.Duration(*c.Total) * time.Microsecond, true
		case c.User == nil || c.System == nil:
			return 0, false
		}
		return time.Duration(*c.User+*c.System) * time.Microsecond, true
	}
	now, known := total(g)
	if !known {
		return "-"
	}
	if before != nil && since > 0 {
		for _, old := range before.Groups {
			if then, ok := total(old); ok && old.Group == g.Group && then <= now {
				return fmt.Sprintf("%.2f", float64(now-then)/float64(since))
			}
		}
	}
	switch {
	case now < time.Minute:
		return fmt.Sprintf("%.1fs", now.Seconds())
	case now < time.Hour:
		return fmt.Sprintf("%.1fm", now.Minutes())
	}
	return fmt.Sprintf("%.1fh", now.Hours())
}

// memoryUsed is what is charged to a group, or what its processes use where nothing is.
func memoryUsed(g api.GroupStatus) string {
	m := g.Usage.Memory
	switch {
	case m.Current != nil:
		return policy.Bytes(*m.Current).Human()
	case m.Anonymous == nil:
		return "-"
	}
	sum := *m.Anonymous
	for _, n := range []*int64{m.File, m.Shared} {
		if n != nil {
			sum += *n
		}
	}
	return policy.Bytes(sum).Human()
}

// memoryLimit is what the kernel holds of the first of the limits that it has.
func memoryLimit(g api.GroupStatus, keys ...policy.Key) string {
	for _, key := range keys {
		for _, l := range g.Limits {
			if l.Key == key && l.InForce != "" && !g.Released {
				return l.InForce
			}
		}
	}
	return "-"
}

// groupState says in a few words what is wrong with a group, or ok.
func groupState(g api.GroupStatus) string {
	if g.Released {
		return "RELEASED"
	}
	counts := map[string]int{}
	for _, l := range g.Limits {
		if !l.Default {
			counts[verdict(l)]++
		}
	}
	for _, m := range g.Members {
		switch {
		case m.Kept != "":
			counts["KEPT IN A UNIT"]++
		case !m.Placed:
			counts["NOT PLACED YET"]++
		}
	}
	var words []string
	switch {
	case g.Overdue:
		words = append(words, "FROZEN, OVERDUE")
	case g.Frozen != "":
		words = append(words, "FROZEN")
	}
	for _, word := range []string{"DIFFERS", "NOT ENFORCED", "NOT PLACED YET", "KEPT IN A UNIT"} {
		if n := counts[word]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, word))
		}
	}
	return cmp.Or(strings.Join(words, ", "), "ok")
}

// printOver prints what is laid over the policy, and what is not although somebody has set it.
func printOver(out io.Writer, st *api.Status) {
	if st.Tuned > 0 {
		Printf(out, "%s of the host kept: `bulkhead tune status` lists them\n", policy.Counted(st.Tuned, "setting"))
	}
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
		var when []string
		if groups := slices.Sorted(maps.Keys(t.Guard.Groups)); len(groups) > 0 {
			when = append(when, "it does "+strings.Join(groups, ", ")+" harm")
		}
		if len(t.Guard.Domains) > 0 {
			when = append(when, "SELinux denies "+strings.Join(t.Guard.Domains, ", ")+" something")
		}
		text += fmt.Sprintf(" is undone when %s, watched until %s", strings.Join(when, " or "),
			t.Guard.Until.Local().Format(time.DateTime))
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

// scheduleText says a schedule in one line of status.
func scheduleText(s api.ScheduleStatus) string {
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

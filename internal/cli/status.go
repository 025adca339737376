package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/classify"
	"bulkhead/internal/control"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

func (a *app) statusCmd() *cobra.Command {
	var watch, orphans bool
	var every time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "groups, members, limits asked and in force, usage",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for {
				st, err := a.status(cmd.Context())
				if err != nil {
					return err
				}
				switch {
				case a.json:
					err = a.printJSON(st)
				case orphans:
					a.printOrphans(st.Orphans)
				default:
					a.printStatus(st)
				}
				if err != nil || !watch {
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(every):
					fmt.Fprintf(a.out, "\n--- %s\n", time.Now().Format(time.DateTime))
				}
			}
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "again and again, until Ctrl-C")
	c.Flags().BoolVar(&orphans, "orphans", false, "only what looks like a database or a helper and is in no group")
	spanFlag(c, &every, "every", 2*time.Second, "how often, with --watch")
	return c
}

// status asks the agent, or looks itself when none runs.
func (a *app) status(ctx context.Context) (*control.Status, error) {
	running, err := a.agent(ctx)
	if err != nil {
		return nil, err
	}
	if running != nil {
		return running.Status(ctx)
	}
	c, err := a.open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Status()
}

func (a *app) printStatus(st *control.Status) {
	fmt.Fprintf(a.out, "policy revision %d, applied %s by %s; load average %s\n", st.Revision, st.AppliedAt.Local().Format(time.DateTime), st.AppliedBy, st.Load)
	if ag := st.Agent; ag.Running {
		fmt.Fprintf(a.out, "agent: pid %d since %s, learns of new processes by %s, last look %s; %s placed, %s put back\n",
			ag.PID, ag.Since.Local().Format(time.DateTime), ag.Source, ag.LastLook.Local().Format(time.TimeOnly),
			count(int(ag.Moved), "process", "processes"), count(int(ag.Repaired), "value", "values"))
		if p := ag.Placement; p != nil {
			fmt.Fprintf(a.out, "agent: of %s that it saw start and placed, half were in their groups within %s, 99 %% within %s, the slowest after %s\n",
				count(int(p.Count), "process", "processes"), p.Share(0.5), p.Share(0.99), p.Slowest.Round(time.Microsecond))
		}
		if ag.Lost > 0 {
			fmt.Fprintf(a.out, "agent: at least %s of %s the kernel could not deliver; each time every process was looked at again\n", count(int(ag.Lost), "process event", "process events"), strconv.FormatInt(ag.Events+ag.Lost, 10))
		}
		if ag.Error != "" {
			fmt.Fprintln(a.out, "agent: THE LAST LOOK FAILED:", ag.Error)
		}
	} else {
		fmt.Fprintln(a.out, "agent: NOT RUNNING; the limits stay in force, but new processes are not placed and nothing ends on time")
	}
	if st.UnderWay != "" {
		fmt.Fprintf(a.out, "a change is under way (%s)\n", st.UnderWay)
	}
	if st.Pending != "" {
		fmt.Fprintf(a.out, "INTERRUPTED: %s; `bulkhead rollback` undoes it\n", st.Pending)
	}
	if t := st.Trial; t != nil {
		fmt.Fprintln(a.out, trialText(t))
	}
	if st.Differs > 0 {
		fmt.Fprintf(a.out, "DIFFERS from the policy: %s away; `bulkhead plan --applied` shows them\n", count(st.Differs, "step", "steps"))
	}
	for _, p := range st.Problems {
		fmt.Fprintf(a.out, "PROBLEM: %s\n", p)
	}
	a.printOver(st)
	for _, c := range st.Conflicts {
		fmt.Fprintln(a.out, "CHANGED BY SOMEBODY ELSE:", c)
	}
	for _, l := range st.Lifted {
		fmt.Fprintln(a.out, "LIFTED:", l)
	}
	for _, s := range st.Schedules {
		fmt.Fprintln(a.out, scheduleText(s))
	}
	switch {
	case slices.Contains(st.Released, "everything"):
		fmt.Fprintln(a.out, "RELEASED: nothing is governed until the next apply")
	case len(st.Released) > 0:
		fmt.Fprintf(a.out, "RELEASED until the next apply: %s\n", strings.Join(st.Released, ", "))
	}
	for _, g := range st.Groups {
		a.printGroup(g)
	}
	// What is said below the limits of a group is not said again.
	if rest := slices.DeleteFunc(onlyNotEnforced(st.Notes), func(n plan.Note) bool { return saidOf(st.Groups, n) }); len(rest) > 0 {
		fmt.Fprintln(a.out)
		a.printNotes(rest)
	}
}

// printOver prints what is laid over the policy, and what is not although somebody has set it.
func (a *app) printOver(st *control.Status) {
	for _, o := range st.Overrides {
		fmt.Fprintln(a.out, "in force over the policy:", o)
	}
	for _, o := range st.Unlaid {
		fmt.Fprintln(a.out, "NOT IN FORCE:", o)
	}
}

// trialText says what waits to be confirmed.
func trialText(t *control.Trial) string {
	text := fmt.Sprintf("ON TRIAL: the %s of revision %d by %s", t.Verb, t.Revision, t.By)
	if !t.Confirm.IsZero() {
		text += fmt.Sprintf(" is undone at %s unless `bulkhead confirm` comes before", t.Confirm.Local().Format(time.DateTime))
	}
	switch {
	case t.Canary != "":
		text = fmt.Sprintf("CANARY: group %s follows the next policy; the rest is applied at %s, unless this does it harm", t.Canary, t.Guard.Until.Local().Format(time.DateTime))
	case t.Guard != nil:
		if !t.Confirm.IsZero() {
			text += ", and"
		}
		text += fmt.Sprintf(" is undone when it does %s harm, watched until %s", strings.Join(slices.Sorted(maps.Keys(t.Guard.Groups)), ", "), t.Guard.Until.Local().Format(time.DateTime))
	}
	return text
}

func (a *app) printOrphans(all []classify.Orphan) {
	if len(all) == 0 {
		fmt.Fprintln(a.out, "every database and helper that bulkhead knows is in a group")
		return
	}
	w := a.table("pid", "what", "in no group because")
	for _, o := range all {
		fmt.Fprintf(w, "%d\t%s\t%s\n", o.PID, o.What, o.Why)
	}
	flush(w)
}

// saidOf says whether a note is the reason of a limit that is listed.
func saidOf(groups []control.GroupStatus, n plan.Note) bool {
	return slices.ContainsFunc(groups, func(g control.GroupStatus) bool {
		return g.Group == n.Group && slices.ContainsFunc(g.Limits, func(l control.LimitStatus) bool { return l.Key == n.Key && l.Reason == n.Text })
	})
}

func (a *app) printGroup(g control.GroupStatus) {
	fmt.Fprintf(a.out, "\n%s", g.Group)
	for _, word := range []string{string(g.Role), g.Instance} {
		if word != "" {
			fmt.Fprintf(a.out, "  %s", word)
		}
	}
	switch {
	case g.Overdue:
		fmt.Fprintf(a.out, "  FROZEN, OVERDUE: it was to end at %s; `bulkhead thaw %s` ends it", g.Frozen, g.Group)
	case g.Frozen != "":
		fmt.Fprintf(a.out, "  FROZEN until %s or `bulkhead thaw`", g.Frozen)
	}
	if g.Released {
		fmt.Fprint(a.out, "  RELEASED")
	}
	fmt.Fprintln(a.out)
	if g.Released {
		fmt.Fprintln(a.out, "  its limits are lifted until the next apply")
	} else {
		a.printUsage(g)
		a.printTraffic(g.Traffic)
		a.printLimits(g.Limits)
	}
	if len(g.Members) == 0 {
		fmt.Fprintln(a.out, "  no process now")
		return
	}
	fmt.Fprintf(a.out, "  processes: %s\n", members(g.Members, !g.Released))
}

// printLimits prints what was asked and what is in force as a table, with what there is to say about a
// limit below it. It says whether there was any.
func (a *app) printLimits(all []control.LimitStatus) bool {
	all = slices.DeleteFunc(slices.Clone(all), func(l control.LimitStatus) bool { return l.Default })
	if len(all) == 0 {
		return false
	}
	w := a.table("  limit", "asked", "from", "in force", "file", "state")
	for _, l := range all {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", limitName(l), l.Asked, l.From, dash(l.InForce), dash(l.File), state(l))
	}
	_ = w.Flush()
	for _, l := range all {
		if l.Reason != "" {
			fmt.Fprintf(a.out, "    %s: %s\n", limitName(l), l.Reason)
		}
	}
	return true
}

func (a *app) printUsage(g control.GroupStatus) {
	u := g.Usage
	human := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return policy.Bytes(*n).Human()
	}
	fmt.Fprintf(a.out, "  cpu: user %s, system %s", seconds(u.CPU.User), seconds(u.CPU.System))
	if n := u.CPU.Periods; n != nil && *n > 0 {
		fmt.Fprintf(a.out, ", throttled in %d of %d periods for %s", *u.CPU.ThrottledPeriods, *n, seconds(u.CPU.Throttled))
	}
	fmt.Fprintf(a.out, "; guaranteed %.2f cores (%.0f %% of the host)", g.Share.Guaranteed, g.Share.Percent)
	if g.Share.Limit > 0 {
		fmt.Fprintf(a.out, ", at most %.2f", g.Share.Limit)
	}
	m := u.Memory
	fmt.Fprintf(a.out, "\n  memory: anonymous %s, file %s, shared %s, huge pages %s, swap %s", human(m.Anonymous), human(m.File), human(m.Shared), human(m.Huge), human(m.Swap))
	if g.MemorySource == "cgroup" {
		fmt.Fprintf(a.out, "; charged %s, peak %s", human(m.Current), human(m.Peak))
		if m.OOMKills != nil {
			fmt.Fprintf(a.out, ", OOM kills %d", *m.OOMKills)
		}
		if g.ChargedElsewhere > 1<<20 {
			fmt.Fprintf(a.out, "\n    %s more of its memory was charged before it came and stays charged there; memory limits do not see it", policy.Bytes(g.ChargedElsewhere).Human())
		}
	} else {
		fmt.Fprint(a.out, " (sums over the processes: no limit here needs the memory controller)")
	}
	fmt.Fprintf(a.out, "\n  tasks: %d, running now %d, in D state now %d", g.Tasks.Total, g.Tasks.Running, g.Tasks.Blocked)
	if g.Load != nil {
		fmt.Fprintf(a.out, "; load average %s", g.Load)
	}
	fmt.Fprintln(a.out)
	for _, io := range u.IO {
		if io.ReadBytes+io.WrittenBytes > 0 {
			fmt.Fprintf(a.out, "  disk %s: read %s in %d, written %s in %d\n", io.Device, human(&io.ReadBytes), io.Reads, human(&io.WrittenBytes), io.Writes)
		}
	}
}

// seconds prints microseconds of CPU time.
func seconds(micros *int64) string {
	if micros == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f s", float64(*micros)/1e6)
}

// members lists processes shortly: "mariadbd 4711 (mysql), …". Those of a released group need no place.
func members(all []control.Member, governed bool) string {
	const most = 12
	var words []string
	for i, m := range all {
		if i == most {
			words = append(words, fmt.Sprintf("and %d more", len(all)-most))
			break
		}
		word := fmt.Sprintf("%s %d (%s)", m.Comm, m.PID, m.User)
		if governed && !m.Placed {
			word += " NOT PLACED YET"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

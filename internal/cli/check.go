package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/control"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

func (a *app) checkCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "validate the policy against its schema and this host",
		Long:  "check validates the policy and holds it against this host. It never looks at live use, and changes nothing.",
		RunE: func(*cobra.Command, []string) error {
			sources, err := policy.Read(a.policy)
			if err != nil {
				return err
			}
			c, err := a.look()
			if err != nil {
				return err
			}
			defer c.Close()
			v, err := c.Check(sources)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(checked{Groups: len(v.Classified.Groups), Notes: list(v.Plan.Notes, same), Remarks: list(v.Policy.Notes, same)})
			}
			fmt.Fprintf(a.out, "%s: sound; %s on this host\n", a.policy, count(len(v.Classified.Groups), "group", "groups"))
			for _, n := range v.Policy.Notes {
				fmt.Fprintf(a.out, "note: %s: %s\n", n.Pos, n.Text)
			}
			a.printNotes(v.Plan.Notes)
			return nil
		},
	}
}

// checked is the JSON of check.
type checked struct {
	Groups  int           `json:"groups"`
	Notes   []plan.Note   `json:"notes"`
	Remarks []policy.Note `json:"remarks"`
}

// printNotes prints what a person should know, what is not enforced first.
func (a *app) printNotes(notes []plan.Note) {
	word := func(n plan.Note) string {
		switch {
		case n.NotEnforced:
			return "NOT ENFORCED HERE"
		case n.Partly:
			return "ENFORCED IN PART"
		}
		return "note"
	}
	for _, now := range []string{"NOT ENFORCED HERE", "ENFORCED IN PART", "note"} {
		for _, n := range notes {
			if word(n) == now {
				fmt.Fprintf(a.out, "%s: %s\n", now, noteText(n))
			}
		}
	}
}

func noteText(n plan.Note) string {
	text := n.Text
	if n.Key != "" {
		text = string(n.Key) + ": " + text
	}
	if n.Group != "" {
		text = n.Group + ": " + text
	}
	return text
}

func (a *app) planCmd() *cobra.Command {
	var exitCode, applied bool
	var at time.Time
	c := &cobra.Command{
		Use:   "plan",
		Short: "what apply would do, step by step",
		Long: `plan prints every step that apply would do: the exact file, the old and the new value, the reason and the
undo; limits that this host cannot hold; and each group's effective share of the host.`,
		RunE: func(*cobra.Command, []string) error {
			var sources []policy.Source
			if !applied {
				var err error
				if sources, err = policy.Read(a.policy); err != nil {
					return err
				}
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			defer c.Close()
			v, err := c.PlanFor(sources, at)
			if err != nil {
				return err
			}
			if a.json {
				v.Plan.Steps = list(v.Plan.Steps, same)
				err = a.printJSON(v.Plan)
			} else {
				fmt.Fprint(a.out, plan.Render(v.Plan, renderOptions(v.Facts, v.Policy.Host.Root)))
			}
			if err == nil && exitCode && len(v.Plan.Steps) > 0 {
				return exit{int(control.CodeChanges)}
			}
			return err
		},
	}
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 3 when there are changes")
	momentFlag(c, &at, "at", "plan for the windows that are open then, and the overrides that have not ended")
	c.Flags().BoolVar(&applied, "applied", false, "plan for the applied policy instead of the file: what differs on the host")
	return c
}

func renderOptions(f *host.Facts, root string) plan.RenderOptions {
	return plan.RenderOptions{Facts: f, Root: root}
}

// everyProblem gives the problems of a policy's text together with those of its sound part on this host.
func (a *app) everyProblem(sources []policy.Source, text error) error {
	c, err := a.look()
	if err != nil {
		return text
	}
	defer c.Close()
	if _, err := c.Check(sources); err != nil {
		return err
	}
	return text
}

func (a *app) applyCmd() *cobra.Command {
	var ch change
	var canary string
	var watched time.Duration
	c := &cobra.Command{
		Use:   "apply",
		Short: "put the policy in force, all or nothing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources, err := policy.Read(a.policy)
			if err != nil {
				return err
			}
			// A policy that cannot stand leaves no trace, not even a state directory.
			if _, err := policy.Parse(sources); err != nil {
				return a.everyProblem(sources, err)
			}
			q := ch.request("apply")
			q.Sources, q.Canary, q.CanaryFor = sources, canary, watched
			reply, byAgent, err := a.do(cmd.Context(), q)
			if err != nil {
				return err
			}
			if err := a.printReply(reply, q); err != nil {
				return err
			}
			if !byAgent && !ch.dryRun {
				fmt.Fprintln(a.err, "no agent is running: processes that start from now on are placed only when `bulkhead agent` runs or apply runs again")
			}
			return nil
		},
	}
	ch.flags(c)
	ch.onTrial(c)
	c.Flags().StringVar(&canary, "canary", "", "what it asks of this `group` first; the rest when that did it no harm")
	spanFlag(c, &watched, "canary-for", 0, "how long the canary is watched (a minute unless named)")
	ch.migration(c)
	return c
}

// printReply says what a changing verb did.
func (a *app) printReply(r *control.Reply, q control.Request) error {
	if a.json {
		r.Plan.Steps = list(r.Plan.Steps, same)
		return a.printJSON(r)
	}
	if r.Recovered != "" && r.Recovered != r.Text {
		fmt.Fprintln(a.out, r.Recovered)
	}
	if q.DryRun {
		if r.Text != "" {
			fmt.Fprintln(a.out, r.Text)
			return nil
		}
		c, err := a.open()
		if err != nil {
			return err
		}
		defer c.Close()
		f, err := c.Host.Facts()
		if err != nil {
			return err
		}
		fmt.Fprint(a.out, plan.Render(r.Plan, renderOptions(f, r.Root)))
		fmt.Fprintln(a.out, "dry run: nothing was changed")
		return nil
	}
	switch {
	case r.Text != "":
		fmt.Fprintln(a.out, r.Text)
	case len(r.Plan.Steps) > 0:
		fmt.Fprintln(a.out, summary(r))
	case r.Recorded:
		fmt.Fprintln(a.out, recorded(r, q))
	case r.Recovered != "":
	default:
		fmt.Fprintln(a.out, "nothing to do: the host already is as asked")
	}
	for _, p := range r.Problems {
		fmt.Fprintf(a.err, "warning: the applied policy has a problem now: %s\n", p)
	}
	for _, s := range r.Skipped {
		fmt.Fprintln(a.out, "skipped:", s)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(a.out, "note:", n)
	}
	a.printTrial(r, q)
	for _, o := range r.Overrides {
		fmt.Fprintln(a.out, "in force over the policy:", o)
	}
	a.printNotes(concerning(r.Plan.Notes, q))
	return nil
}

// printTrial says what may still undo the change.
func (a *app) printTrial(r *control.Reply, q control.Request) {
	if !r.Confirm.IsZero() {
		fmt.Fprintf(a.out, "on trial: undone at %s unless `bulkhead confirm` comes before; `bulkhead rollback` undoes it now\n", r.Confirm.Local().Format(time.DateTime))
	}
	switch {
	case r.Guarded.IsZero():
	case q.Canary != "":
		fmt.Fprintf(a.out, "canary: the rest of the policy is applied at %s, unless this does group %s harm\n", r.Guarded.Local().Format(time.DateTime), q.Canary)
	default:
		fmt.Fprintf(a.out, "guarded until %s: undone when it does one of the groups harm that the policy's guard watches\n", r.Guarded.Local().Format(time.DateTime))
	}
}

// recorded says what was written down with nothing to change on the host.
func recorded(r *control.Reply, q control.Request) string {
	switch {
	case q.Verb == "apply" || q.Verb == "rollback":
		return "recorded as " + revision(r) + "; nothing on the host differs"
	case q.Verb == "set" && len(onlyNotEnforced(concerning(r.Plan.Notes, q))) > 0:
		return "recorded; there is nothing to write"
	}
	return "recorded; nothing on the host differs"
}

// revision names the revision in force, and after a rollback the one that it repeats.
func revision(r *control.Reply) string {
	text := fmt.Sprintf("revision %d", r.Revision)
	if r.Like > 0 && r.Like != r.Revision {
		text += fmt.Sprintf(", which repeats revision %d", r.Like)
	}
	return text
}

// concerning keeps the notes that a verb has to do with: what is about a process or a directory, and of
// the limits that are not enforced, apply and rollback all, set those it names.
func concerning(notes []plan.Note, q control.Request) []plan.Note {
	return slices.DeleteFunc(slices.Clone(notes), func(n plan.Note) bool {
		switch {
		case n.Key == "":
			return false
		case !n.NotEnforced && !n.Partly:
			return true
		case q.Verb == "set":
			return !slices.ContainsFunc(q.Assign, func(text string) bool { return strings.HasPrefix(text, n.Group+":"+string(n.Key)) })
		}
		return q.Verb != "apply" && q.Verb != "rollback"
	})
}

func onlyNotEnforced(notes []plan.Note) []plan.Note {
	var hard []plan.Note
	for _, n := range notes {
		if n.NotEnforced {
			hard = append(hard, n)
		}
	}
	return hard
}

// summary counts what a plan did, in one line.
func summary(r *control.Reply) string {
	made, removed, values, network, moved := 0, 0, 0, 0, map[host.ProcID]bool{}
	for _, s := range r.Plan.Steps {
		switch s.Op {
		case plan.OpMakeDir:
			made++
		case plan.OpRemoveDir:
			removed++
		case plan.OpWrite, plan.OpOOMScore:
			values++
		case plan.OpNetwork:
			network++
		case plan.OpMove:
			moved[s.PID] = true
		}
	}
	var parts []string
	for _, part := range []struct {
		n         int
		one, many string
	}{
		{made, "directory made", "directories made"},
		{values, "value written", "values written"},
		{network, "change of the network", "changes of the network"},
		{len(moved), "process moved", "processes moved"},
		{removed, "directory removed", "directories removed"},
	} {
		if part.n > 0 {
			parts = append(parts, count(part.n, part.one, part.many))
		}
	}
	text := "done: " + strings.Join(parts, ", ")
	if r.Revision > 0 {
		text += "; " + revision(r)
	}
	return text
}

package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/classify"
	"bulkhead/internal/control"
	"bulkhead/internal/policy"
)

func (a *app) explainCmd() *cobra.Command {
	var o control.ExplainOptions
	cmd := &cobra.Command{
		Use:   "explain PID",
		Short: "why a process is where it is, and which limits reach it",
		Args:  exactly(1, "say which process: explain PID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[0])
			if err != nil || pid < 1 {
				return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("%q is not a process id", args[0])}
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			defer c.Close()
			e, err := c.Explain(cmd.Context(), pid, o)
			if err != nil {
				return err
			}
			if running, err := a.agent(cmd.Context()); err == nil && running != nil && e.Placed {
				e.When, _ = running.Placed(cmd.Context(), pid) // an older agent does not know
			}
			if a.json {
				return a.printJSON(explanationView(e))
			}
			a.printExplanation(e)
			return nil
		},
	}
	cmd.Flags().DurationVar(&o.Watch, "watch", time.Second, "how long to watch which limits hold it back now; 0 does not watch")
	cmd.Flags().BoolVar(&o.Exact, "exact", false, "find which group each of its pages is charged to; some seconds for 100 GiB")
	return cmd
}

func (a *app) printExplanation(e *control.Explanation) {
	fmt.Fprintf(a.out, "process %d (%s): ", e.Process.PID, e.Process.Comm)
	switch {
	case e.Group == "":
		fmt.Fprintf(a.out, "in no group: %s\n", e.Reason)
	case e.Placed:
		fmt.Fprintf(a.out, "in group %s, by the %s %s\n", e.Group, e.By, winner(e))
	default:
		fmt.Fprintf(a.out, "belongs to group %s, by the %s %s, and is not placed%s\n", e.Group, e.By, winner(e), unplaced(e))
	}
	if w := e.When; w != nil {
		fmt.Fprintf(a.out, "placed at %s, %s after its exec or change of user, %s\n", w.At.Local().Format(time.DateTime), w.Took.Round(time.Microsecond), w.How)
	}
	if e.Helper != "" {
		fmt.Fprintln(a.out, e.Helper)
	}
	a.printCharges(e)
	w := a.table("rule of group", "rule", "matches", "score", "why")
	for _, t := range e.Attempts {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", dash(t.Rule.Group), t.Rule.Text, yesNo(t.Matched), t.Score, t.Why)
	}
	flush(w)
	for _, level := range e.Levels {
		fmt.Fprintf(a.out, "limits of group %s\n", level.Group)
		if !a.printLimits(level.Limits) {
			fmt.Fprintln(a.out, "  none")
		}
	}
	a.printOutside(e.Sockets)
	if e.Watched == 0 {
		return
	}
	fmt.Fprintln(a.out)
	for _, b := range e.Biting {
		key := string(b.Key)
		if b.On != "" {
			key += " on " + b.On
		}
		fmt.Fprintf(a.out, "BITING: %s of group %s: %s (watched for %s)\n", key, b.Group, b.How, e.Watched)
	}
	if len(e.Biting) == 0 {
		fmt.Fprintf(a.out, "none of these limits held it back in the last %s\n", e.Watched)
	}
}

// printCharges says which groups hold the memory of a process, or what may be held elsewhere.
func (a *app) printCharges(e *control.Explanation) {
	if e.Charges == nil {
		if e.When != nil && e.When.Resident > 0 {
			fmt.Fprintf(a.out, "at most %s of its memory was charged before that and may stay charged where it was; --exact tells\n", policy.Bytes(e.When.Resident).Human())
		}
		fmt.Fprintln(a.out)
		return
	}
	fmt.Fprintln(a.out)
	w := a.table("memory", "charged to", "")
	for _, c := range e.Charges {
		what := "elsewhere: the limits of its group do not see it"
		switch {
		case c.Own:
			what = "where it is"
		case c.Dir == "":
			what = "no group"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", policy.Bytes(c.Bytes).Human(), dash(c.Dir), what)
	}
	flush(w)
}

// unplaced says why a member is not where it belongs.
func unplaced(e *control.Explanation) string {
	if e.Reason == "" {
		return " yet"
	}
	return ": " + e.Reason
}

// winner is the rule or the pin that decided: of those that match, the most specific one of the group.
func winner(e *control.Explanation) string {
	best, text := -1, ""
	for _, t := range e.Attempts {
		if !t.Matched || t.Rule.Group != e.Group || e.Group == "" {
			continue
		}
		if e.By == classify.ByPin {
			return t.Why
		}
		if t.Score > best {
			best, text = t.Score, t.Rule.Text
		}
	}
	return text
}

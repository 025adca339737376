package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"bulkhead/internal/classify"
	"bulkhead/internal/control"
)

func (a *app) explainCmd() *cobra.Command {
	return &cobra.Command{
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
			e, err := c.Explain(pid)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(explanationView(e))
			}
			a.printExplanation(e)
			return nil
		},
	}
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
	if e.Helper != "" {
		fmt.Fprintln(a.out, e.Helper)
	}
	fmt.Fprintln(a.out)
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

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"bulkhead/internal/bench"
	"bulkhead/internal/control"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// benchAllCmd runs every scenario of the library, one after the other.
func (a *app) benchAllCmd() *cobra.Command {
	var o bench.Options
	var out, document string
	c := &cobra.Command{
		Use:   "all",
		Short: "every scenario there is",
		Long: `all carries out every scenario of "bench list", one after the other. One that this machine is too small for, or that
needs what is not installed, is left out and named. It ends with exit code 1 if a scenario failed or its shape did not hold.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := scenario.Library()
			if err != nil {
				return err
			}
			var outcomes []proof.Outcome
			good := true
			for _, s := range all {
				result, err := a.runScenario(cmd.Context(), s, o, out)
				if cmd.Context().Err() != nil || errors.Is(err, bench.ErrInterrupted) {
					return err
				}
				outcome := proof.Outcome{Scenario: s.Name, Result: result}
				var required *control.Error
				switch {
				case errors.As(err, &required):
					outcome.LeftOut = required.Err.Error() + "; " + required.Hint
				case err != nil:
					outcome.Failed = err.Error()
				}
				good = good && (err == nil && result.Held || outcome.LeftOut != "")
				outcomes = append(outcomes, outcome)
			}
			if document != "" {
				if err := proof.WriteDocument(document, "bulkhead bench all", outcomes); err != nil {
					return err
				}
			}
			if a.json {
				err = a.printJSON(outcomes)
			} else {
				err = proof.WriteOutcomes(a.out, outcomes)
			}
			if err != nil {
				return fmt.Errorf("print the results: %w", err)
			}
			if !good {
				return exit{int(control.CodeFailed)}
			}
			return nil
		},
	}
	a.benchFlags(c, &o, &out)
	c.Flags().StringVar(&document, "document", "", "write the results as Markdown into this `file`, with pictures in a directory beside it")
	return c
}

// benchCompareCmd sets two results side by side.
func (a *app) benchCompareCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "compare A B",
		Short: "two results of one scenario beside each other",
		Long: `compare reads two results that "bench SCENARIO --out DIR" wrote (NAME.json), and says for every arm by how much B differs from
A, and whether that is more than the rounds of each differ among themselves.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			var results [2]*proof.Result
			for i, path := range args {
				r, err := proof.ReadFile(path)
				if err != nil {
					return &control.Error{Code: control.CodeUsage, Err: err, Hint: "`bulkhead bench SCENARIO --out DIR` writes such files"}
				}
				results[i] = r
			}
			c, err := proof.Compare(results[0], results[1])
			if err != nil {
				return &control.Error{Code: control.CodeUsage, Err: err, Hint: "compare two results of one scenario"}
			}
			if a.json {
				return a.printJSON(c)
			}
			return c.WriteText(a.out)
		},
	}
}

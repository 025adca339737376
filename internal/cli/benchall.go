package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"bulkhead/internal/api"
	"bulkhead/internal/bench"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// benchAllCmd runs every scenario of the library, one after the other.
func benchAllCmd(to *output) *cobra.Command {
	var o bench.Options
	var out, document string
	c := &cobra.Command{
		Use:   "all",
		Short: "every scenario there is",
		Long: `all carries out every scenario of "bench list", one after the other. One that this machine is too
small for, or that needs what is not installed, is left out and named. It ends with exit code 1 if a scenario
failed, if its shape did not hold, or if none ran.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := scenario.Library()
			if err != nil {
				return err
			}
			outcomes, err := runScenarios(cmd.Context(), to, all, o, out)
			if err != nil {
				return err
			}
			good, ran := tally(outcomes)
			if document != "" && ran {
				if err := proof.WriteDocument(document, said(cmd), commit(), outcomes); err != nil {
					return err
				}
			}
			if to.json {
				err = to.printJSON(outcomes)
			} else {
				err = proof.WriteOutcomes(to.text, outcomes)
			}
			if err != nil {
				return fmt.Errorf("print the results: %w", err)
			}
			if !good || !ran {
				return exit{int(api.CodeFailed)}
			}
			return nil
		},
	}
	benchFlags(c, &o, &out)
	c.Flags().StringVar(&document, "document", "",
		"write the results as Markdown into this `file`, with pictures in a directory beside it")
	return c
}

// runScenarios runs several, whatever becomes of each; an interruption ends them, and what lets none of them run.
func runScenarios(ctx context.Context, to *output, all []*scenario.Scenario, o bench.Options,
	out string) (outcomes []proof.Outcome, err error) {
	for _, sc := range all {
		result, err := runScenario(ctx, to, sc, o, out)
		if ctx.Err() != nil || errors.Is(err, process.ErrInterrupted) {
			return nil, cmp.Or(err, context.Cause(ctx))
		}
		var required *process.RequirementError
		began := func(o proof.Outcome) bool { return o.LeftOut == "" }
		if errors.As(err, &required) && required.Reach == process.EveryScenario && !slices.ContainsFunc(outcomes,
			began) {
			return nil, err
		}
		outcomes = append(outcomes, outcomeOf(sc.Name, result, err))
	}
	return outcomes, nil
}

// tally says whether all that ran held and nothing failed, and whether any ran.
func tally(outcomes []proof.Outcome) (good, ran bool) {
	good = true
	for _, o := range outcomes {
		good = good && (o.LeftOut != "" || o.Result != nil && o.Result.Held)
		ran = ran || o.Result != nil
	}
	return good, ran
}

// outcomeOf is what became of a scenario. Only one that the machine cannot run is left out; what went wrong with
// another is a failure.
func outcomeOf(name string, result *proof.Result, err error) proof.Outcome {
	outcome := proof.Outcome{Scenario: name}
	var required *process.RequirementError
	var hinted *api.Error
	switch {
	case err == nil:
		outcome.Result = result
	case errors.As(err, &required) && required.Reach == process.ThisScenario:
		outcome.LeftOut = required.Error() + "; " + required.Hint
	case errors.As(err, &hinted) && hinted.Hint != "":
		outcome.Failed = hinted.Err.Error() + "; " + hinted.Hint
	default:
		outcome.Failed = err.Error()
	}
	return outcome
}

// said is the command as it was given, without where its files go.
func said(cmd *cobra.Command) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "rounds", "seconds":
			words = append(words, "--"+f.Name+" "+f.Value.String())
		case "smoke":
			words = append(words, "--smoke")
		}
	})
	return strings.Join(words, " ")
}

// benchCompareCmd sets two results side by side.
func benchCompareCmd(to *output) *cobra.Command {
	return &cobra.Command{
		Use:   "compare A B",
		Short: "two results of one scenario beside each other",
		Long: `compare reads two results that "bench SCENARIO --out DIR" wrote (NAME.json), and says for every arm by
how much B differs from A, and whether that is more than the rounds of each differ among themselves.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			var results [2]*proof.Result
			for i, path := range args {
				r, err := proof.ReadFile(path)
				if err != nil {
					return &api.Error{Code: api.CodeUsage, Err: err,
						Hint: "`bulkhead bench SCENARIO --out DIR` writes such files"}
				}
				results[i] = r
			}
			c, err := proof.Compare(results[0], results[1])
			if err != nil {
				return &api.Error{Code: api.CodeUsage, Err: err, Hint: "compare two results of one scenario"}
			}
			if to.json {
				return to.printJSON(c)
			}
			return c.WriteText(to.text)
		},
	}
}

package proofs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/bench"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// all runs every scenario of the library, one after the other.
func (s Session) all() *cobra.Command {
	var o bench.Options
	var out, document string
	var only []string
	c := &cobra.Command{
		Use:   "all",
		Short: "every scenario there is",
		Long: `all carries out every scenario of "bench list", one after the other, or those of --only. One that this
machine is too small for, or that needs what is not installed, is left out and named. It ends with exit code 1 if a
scenario failed, if its shape did not hold, or if none ran.

--document keeps each result beside the document, and writes the document anew from all that are kept there: a proof
can be made in several sittings, and one scenario measured again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Smoke && document != "" {
				return usage.Errorf(cmd, "figures of --smoke say too little for a --document")
			}
			all, err := chosen(only)
			if err != nil {
				return err
			}
			outcomes, err := s.runAll(cmd.Context(), all, o, out, document)
			if err != nil {
				return err
			}
			err = s.print(outcomes, func(w io.Writer) error { return proof.WriteOutcomes(w, outcomes) })
			if err != nil {
				return err
			}
			if good, ran := tally(outcomes); !good || !ran {
				return s.Failed
			}
			return nil
		},
	}
	benchFlags(c, &o, &out)
	c.Flags().StringSliceVar(&only, "only", nil, "these `scenarios` alone, with commas between them")
	c.Flags().StringVar(&document, "document", "",
		"put the results into this Markdown `file`, with what it is made of in a directory beside it")
	return c
}

// runAll runs several, whatever becomes of each; an interruption ends them, and what lets none of them run. The
// document has what was measured until then.
func (s Session) runAll(ctx context.Context, all []*scenario.Scenario, o bench.Options, out, document string,
) (outcomes []proof.Outcome, err error) {
	for _, sc := range all {
		result, err := s.run(ctx, sc, o, out)
		if ctx.Err() != nil || errors.Is(err, process.ErrInterrupted) {
			return nil, cmp.Or(err, context.Cause(ctx))
		}
		var required *process.RequirementError
		began := func(o proof.Outcome) bool { return o.LeftOut == "" }
		if errors.As(err, &required) && required.Reach == process.EveryScenario && !slices.ContainsFunc(outcomes,
			began) {
			return nil, err
		}
		outcome := outcomeOf(sc.Name, result, err)
		outcomes = append(outcomes, outcome)
		if document != "" {
			if err := put(document, outcome); err != nil {
				return nil, err
			}
		}
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

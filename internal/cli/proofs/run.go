package proofs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bulkhead/internal/api"
	"bulkhead/internal/bench"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/policy"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// Session is where the verb answers.
type Session struct {
	Out    io.Writer // for people
	Text   io.Writer // for text whose lines mean something
	Stderr io.Writer // what happens meanwhile
	Print  func(v any, text func()) error
	Commit string // that this program was built from; "" is not known
	Failed error  // everything was said already, and it did not go well
}

// print answers with a value as JSON, or with what write writes.
func (s Session) print(v any, write func(io.Writer) error) (err error) {
	if jerr := s.Print(v, func() { err = write(s.Text) }); jerr != nil {
		err = jerr
	}
	if err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

func benchFlags(c *cobra.Command, o *bench.Options, out *string) {
	flags := c.Flags()
	flags.IntVar(&o.Rounds, "rounds", 0, "interleaved rounds of all arms (default: what the scenario says)")
	flags.IntVar(&o.Seconds, "seconds", 0, "length of one arm (default: what the scenario says)")
	flags.BoolVar(&o.Smoke, "smoke", false, "one short round, to see that everything works")
	flags.StringVar(&o.Release, "engine", "", "use this `release`: mysql@9.7, postgresql@18, valkey@9")
	flags.StringVar(&o.Dir, "dir", "", "make the work directory in this `directory` (default /var/tmp)")
	flags.StringVar(out, "out", "", "write the result as JSON, as a page and as pictures into this `directory`")
}

// findScenario finds a scenario or says what is wrong with its file: exit code 2.
func findScenario(name string) (*scenario.Scenario, error) {
	sc, err := scenario.Find(name)
	var problems policy.Problems
	switch {
	case errors.As(err, &problems):
		return nil, &api.Error{Code: api.CodeUsage,
			Err: fmt.Errorf("read scenario %q: it has errors\n%w", name, err)}
	case err != nil:
		return nil, &api.Error{Code: api.CodeUsage, Err: err,
			Hint: "`bulkhead bench list` names the scenarios there are; a path holds a slash or ends in .yaml"}
	}
	return sc, nil
}

// run runs one scenario and writes its files.
func (s Session) run(ctx context.Context, sc *scenario.Scenario, o bench.Options, out string) (*proof.Result, error) {
	o.Progress, o.Terminal = s.Stderr, term.IsTerminal(int(os.Stderr.Fd()))
	result, err := bench.Run(ctx, sc, o)
	var required *process.RequirementError
	if errors.As(err, &required) {
		return nil, &api.Error{Code: api.CodeFailed, Err: err, Hint: required.Hint}
	}
	if err != nil {
		return nil, err
	}
	if result.Commit = s.Commit; out != "" {
		err = result.WriteFiles(out)
	}
	return result, err
}

// chosen are the scenarios of these names, or all.
func chosen(only []string) ([]*scenario.Scenario, error) {
	if len(only) == 0 {
		all, err := scenario.Library()
		return slices.DeleteFunc(all, func(s *scenario.Scenario) bool { return s.Long }), err
	}
	all := make([]*scenario.Scenario, len(only))
	for i, name := range only {
		sc, err := findScenario(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		all[i] = sc
	}
	return all, nil
}

// put puts outcomes into a document.
func put(document string, all ...proof.Outcome) error {
	for _, o := range all {
		if err := proof.Keep(document, o); err != nil {
			return err
		}
	}
	texts, err := bench.Texts()
	if err != nil {
		return err
	}
	return proof.WriteDocument(document, texts)
}

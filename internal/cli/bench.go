package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bulkhead/internal/api"
	"bulkhead/internal/bench"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/policy"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

func benchCmd(to *output) *cobra.Command {
	var o bench.Options
	var out string
	c := &cobra.Command{
		Use:   "bench SCENARIO",
		Short: "proofs on real databases",
		Long: `bench carries out a scenario: it loads a real, throw-away database, sets neighbours on it, and
measures what a policy does about them. SCENARIO is a name of "bench list" or the path of a file. It uses a state
directory, a socket and groups of its own, and takes all of it away again; Ctrl-C ends it at any time and leaves
nothing behind. It ends with exit code 1 if the figures do not have the shape that the scenario wants.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			sc, err := findScenario(args[0])
			if err != nil {
				return err
			}
			result, err := runScenario(cmd.Context(), to, sc, o, out)
			if err != nil {
				return err
			}
			return printProof(to, result)
		},
	}
	benchFlags(c, &o, &out)
	c.Flags().StringToStringVar(&o.DSN, "dsn", nil,
		"load this existing database in place of one of the scenario's, as `NAME=URL`; @FILE in place of the URL "+
			"reads it from a file of mode 0600, so that ps does not show the password")
	c.AddCommand(benchListCmd(to), benchAllCmd(to), benchCompareCmd(to), benchHogCmd(), benchForwardCmd())
	for _, sub := range c.Commands() {
		usage.Wrap(sub)
	}
	return c
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
	switch problems := (policy.Problems{}); {
	case errors.As(err, &problems):
		return nil, &api.Error{Code: api.CodeUsage,
			Err: fmt.Errorf("read scenario %q: it has errors\n%w", name, err)}
	case err != nil:
		return nil, &api.Error{Code: api.CodeUsage, Err: err,
			Hint: "`bulkhead bench list` names the scenarios there are; a path holds a slash or ends in .yaml"}
	}
	return sc, nil
}

// runScenario runs one scenario and writes its files.
func runScenario(ctx context.Context, to *output, sc *scenario.Scenario, o bench.Options,
	out string) (*proof.Result, error) {
	o.Progress, o.Terminal = to.stderr, term.IsTerminal(int(os.Stderr.Fd()))
	result, err := bench.Run(ctx, sc, o)
	var required *process.RequirementError
	if errors.As(err, &required) {
		return nil, &api.Error{Code: api.CodeFailed, Err: err, Hint: required.Hint}
	}
	if err == nil && out != "" {
		err = result.WriteFiles(out)
	}
	return result, err
}

// printProof answers with the result; a shape that does not hold is exit code 1.
func printProof(to *output, result *proof.Result) error {
	print := func() error { return result.WriteText(to.text) }
	if to.json {
		print = func() error { return to.printJSON(result) }
	}
	if err := print(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	if !result.Held {
		return exit{int(api.CodeFailed)}
	}
	return nil
}

func benchListCmd(to *output) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "the scenarios there are",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := scenario.Library()
			if err != nil {
				return err
			}
			scenarios := make([]render.ScenarioView, len(all))
			for i, sc := range all {
				scenarios[i] = render.ScenarioView{
					Name: sc.Name, Title: sc.Title, Document: sc.Document,
					Takes: bench.Estimate(sc, bench.Options{}), Needs: bench.PackagesOf(sc),
				}
			}
			return to.print(scenarios, func() { render.Scenarios(to.out, scenarios) })
		},
	}
}

// benchForwardCmd stands between redis-benchmark and a Redis with a password.
func benchForwardCmd() *cobra.Command {
	var f load.Forwarding
	c := &cobra.Command{
		Use:    "forward -- CMD…",
		Short:  "log in to a Redis for the connections of a command",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return load.Forward(cmd.Context(), f, args) },
	}
	flags := c.Flags()
	flags.StringVar(&f.Network, "network", "tcp", "how to reach the server")
	flags.StringVar(&f.Address, "address", "", "where the server is")
	flags.StringVar(&f.Account, "account", "", "the file with the account")
	flags.StringVar(&f.Socket, "socket", "", "where the command connects to")
	return c
}

// benchHogCmd is a neighbour that the scenarios start.
func benchHogCmd() *cobra.Command {
	var o neighbour.HogOptions
	c := &cobra.Command{
		Use:    "hog " + strings.Join(neighbour.HogKinds(), "|"),
		Short:  "take all of one resource, within bounds, for a while",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return neighbour.Hog(cmd.Context(), args[0], o) },
	}
	flags := c.Flags()
	flags.DurationVar(&o.For, "for", 10*time.Second, "end after this long")
	flags.IntVar(&o.Programs, "programs", 0, "child programs that do it, each in a session of its own")
	flags.Int64Var(&o.Bytes, "bytes", 0, "memory to allocate, or size of the file to write")
	flags.Int64Var(&o.Rate, "rate", 0, "most bytes a second to write")
	flags.StringVar(&o.File, "file", "", "the existing file to overwrite")
	flags.StringVar(&o.Dir, "dir", "", "where to write a new file")
	flags.BoolVar(&o.Buffered, "buffered", false, "write through the page cache")
	flags.BoolVar(&o.Shared, "shared", false, "child programs share one session")
	flags.Int64Var(&o.Block, "block", 0, "bytes per write")
	flags.BoolVar(&o.Random, "random", false, "write blocks in no order")
	return c
}

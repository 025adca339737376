package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bulkhead/internal/bench"
	"bulkhead/internal/control"
)

func (a *app) benchCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "proofs on real databases",
		Long: `bench loads a real, throw-away database, sets neighbours on it, and measures what a policy does about
them. It uses a state directory, a socket and groups of its own, and takes all of it away again.`,
	}
	c.AddCommand(a.benchListCmd(), a.benchDemoCmd(), a.benchHogCmd())
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
	return c
}

func (a *app) benchListCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "the scenarios there are",
		RunE: func(*cobra.Command, []string) error {
			scenarios := bench.List()
			if a.json {
				return a.printJSON(scenarios)
			}
			for _, s := range scenarios {
				fmt.Fprintf(a.out, "%-8s %s; about %.0f minutes; needs %s\n", s.Name, s.Summary, s.Takes.Minutes(), strings.Join(s.Needs, ", "))
			}
			return nil
		},
	}
}

func (a *app) benchDemoCmd() *cobra.Command {
	var o bench.DemoOptions
	c := &cobra.Command{
		Use:   "demo",
		Short: "a MariaDB alone, beside hogs, and beside the same hogs under a policy",
		Long: `demo starts a throw-away MariaDB under sysbench and measures it alone; beside CPU, memory and disk hogs;
beside the same hogs with a policy applied; and both again with hogs that match no rule. It ends with exit
code 1 if the policy did not protect the database. Ctrl-C ends it at any time and leaves nothing behind.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Progress, o.Terminal = a.stderr, term.IsTerminal(int(os.Stderr.Fd()))
			result, err := bench.Demo(cmd.Context(), o)
			var required *bench.RequirementError
			if errors.As(err, &required) {
				return &control.Error{Code: control.CodeFailed, Err: err, Hint: required.Hint}
			}
			if err != nil {
				return err
			}
			return a.printDemo(result)
		},
	}
	flags := c.Flags()
	flags.IntVar(&o.Rounds, "rounds", 0, "interleaved rounds of all phases (default 7)")
	flags.IntVar(&o.Seconds, "seconds", 0, "length of one phase (default 6)")
	flags.BoolVar(&o.Smoke, "smoke", false, "one short round, to see that everything works")
	flags.StringVar(&o.Dir, "dir", "", "make the work directory in this `directory` (default /var/tmp)")
	return c
}

// printDemo answers with the result; a database that was not protected is exit code 1.
func (a *app) printDemo(result bench.DemoResult) error {
	print := func() error { return result.WriteText(a.out) }
	if a.json {
		print = func() error { return a.printJSON(result) }
	}
	if err := print(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	if !result.Held {
		return exit{int(control.CodeFailed)}
	}
	return nil
}

// benchHogCmd is a neighbour that the scenarios start.
func (a *app) benchHogCmd() *cobra.Command {
	var o bench.HogOptions
	c := &cobra.Command{
		Use:    "hog " + strings.Join(bench.HogKinds(), "|"),
		Short:  "take all of one resource, within bounds, for a while",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return bench.Hog(cmd.Context(), args[0], o) },
	}
	flags := c.Flags()
	flags.DurationVar(&o.For, "for", 10*time.Second, "end after this long")
	flags.IntVar(&o.Programs, "programs", 0, "child programs that do it, each in a session of its own")
	flags.Int64Var(&o.Bytes, "bytes", 0, "memory to allocate, or size of the file to write")
	flags.Int64Var(&o.Rate, "rate", 0, "most bytes a second to write")
	flags.StringVar(&o.File, "file", "", "the existing file to overwrite")
	flags.StringVar(&o.Dir, "dir", "", "where to write a new file")
	flags.BoolVar(&o.Buffered, "buffered", false, "write through the page cache")
	return c
}

// Package proofs is the verb bench of the command line: scenarios are carried out, and their results printed, compared
// and put into a document. Command gives it.
package proofs

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/bench"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/pagesize"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/host"
	"bulkhead/internal/scenario"
)

// Command gives the verb.
func Command(s Session) *cobra.Command {
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
			result, err := s.run(cmd.Context(), sc, o, out)
			if err != nil {
				return err
			}
			if err := s.print(result, result.WriteText); err != nil {
				return err
			}
			if !result.Held {
				return s.Failed
			}
			return nil
		},
	}
	benchFlags(c, &o, &out)
	c.Flags().StringToStringVar(&o.DSN, "dsn", nil,
		"load this existing database in place of one of the scenario's, as `NAME=URL`; @FILE in place of the URL "+
			"reads it from a file of mode 0600, so that ps does not show the password")
	c.AddCommand(s.list(), s.all(), s.document(), s.compare(), hog(), forward(), exporter(), guard())
	for _, sub := range c.Commands() {
		usage.Wrap(sub)
	}
	return c
}

func (s Session) list() *cobra.Command {
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
			return s.Print(scenarios, func() { render.Scenarios(s.Out, scenarios) })
		},
	}
}

// forward stands between redis-benchmark and a Redis with a password.
func forward() *cobra.Command {
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

// exporter is a neighbour that the scenarios start.
func exporter() *cobra.Command {
	var o neighbour.ExporterOptions
	c := &cobra.Command{
		Use:    "exporter -- PROGRAM [ARGUMENT]...",
		Short:  "start an exporter and scrape it again and again, for a while",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return neighbour.Scrape(cmd.Context(), o, args) },
	}
	flags := c.Flags()
	flags.DurationVar(&o.For, "for", 10*time.Second, "end after this long")
	flags.DurationVar(&o.Every, "every", time.Second, "time between two scrapes")
	flags.StringVar(&o.URL, "url", "", "where it answers")
	flags.StringVar(&o.DSN, "dsn", "", "how it logs in to its database")
	return c
}

// guard makes page sizes as they were when a proof is killed.
func guard() *cobra.Command {
	return &cobra.Command{
		Use:    "guard DIR",
		Short:  "make page sizes as they were when a proof is killed",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return pagesize.Guard(cmd.Context(), host.New("/"), args[0], cmd.OutOrStdout())
		},
	}
}

// hog is a neighbour that the scenarios start.
func hog() *cobra.Command {
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

// Package advice is the verb `advise`: what of a host does not suit the databases on it. It shares nothing, and is used
// by one goroutine.
package advice

import (
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/gather"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/transaction"
)

// adviceDir holds the rules of the site.
var adviceDir = "/etc/bulkhead/advise.d"

// CommandLine is what the verb needs of the program that it is a part of.
type CommandLine struct {
	Look  func() (*transaction.Controller, error) // the host, as it is; the verb closes it
	Print func(answer any, text func()) error     // answer as JSON where that is asked for, else text
	Out   func() io.Writer                        // for people
}

// Command is the verb.
func Command(line CommandLine) *cobra.Command {
	var o advise.Options
	var quiet bool
	c := &cobra.Command{
		Use:   "advise",
		Short: "what of this host does not suit the databases on it, with evidence",
		Long: "advise holds rules against this host and its databases. Each finding has what was read and where, " +
			"what it means here, and what would put it right. It changes nothing. A rule that lacks a fact is " +
			"undecided, and no finding. Rules of the site are read from " + adviceDir + ".",
		Example: `  bulkhead advise                         what there is to put right, worst first
  bulkhead advise --severity high         of these the worst
  bulkhead advise --instance mysql3306    what concerns one instance
  bulkhead advise --explain-quiet         the rules that are kept, too, with what was read
  bulkhead advise show MEM-12             why, and when the advice is wrong`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Severity != "" && !slices.Contains(rule.Severities, o.Severity) {
				return usage.Errorf(cmd, "%q is no severity: critical, high, medium, low and info are", o.Severity)
			}
			rules, err := rule.With(adviceDir)
			if err != nil {
				return err
			}
			c, err := line.Look()
			if err != nil {
				return err
			}
			defer c.Close()
			facts := gather.Facts(cmd.Context(), c.Host)
			names := []string{}
			for _, i := range facts.Instances {
				names = append(names, i.Name)
			}
			if o.Instance != "" && !slices.Contains(names, o.Instance) {
				return usage.Errorf(cmd, "no instance %q runs here: %s", o.Instance, listOr(names, "none does"))
			}
			o.Today = time.Now().Format(time.DateOnly)
			rep := advise.Run(rules, facts, o)
			return line.Print(rep, func() { printReport(line.Out(), rep, quiet) })
		},
	}
	c.Flags().StringVar(&o.Instance, "instance", "", "only what concerns this instance, by its name in `discover`")
	c.Flags().StringVar(&o.Severity, "severity", "", "only from this on: critical, high, medium, low or info")
	c.Flags().BoolVar(&quiet, "explain-quiet", false, "list the rules that are kept, too, with what was read")
	c.AddCommand(listCommand(line), showCommand(line))
	return c
}

func listCommand(line CommandLine) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "the rules, by name",
		Args:  usage.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			rules, err := rule.With(adviceDir)
			if err != nil {
				return err
			}
			return line.Print(listed(rules), func() { printRules(line.Out(), rules) })
		},
	}
}

func showCommand(line CommandLine) *cobra.Command {
	return &cobra.Command{
		Use:   "show RULE",
		Short: "one rule: what it reads and wants, why, and when it is wrong",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage.Errorf(cmd, "name one rule: bulkhead advise show MEM-12")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, err := rule.With(adviceDir)
			if err != nil {
				return err
			}
			r, known := rules.Find(args[0])
			if !known {
				return usage.Errorf(cmd, "there is no rule %q; `bulkhead advise list` lists them", args[0])
			}
			return line.Print(described(r), func() { printRule(line.Out(), r) })
		},
	}
}

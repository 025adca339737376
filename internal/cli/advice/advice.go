// Package advice is the verb advise of the command line: what of the host does not suit its databases, and the rules by
// which it is found.
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

// siteRules holds the rules of the site.
const siteRules = "/etc/bulkhead/advise.d"

// answer prints a value as JSON, or text for people.
type answer func(v any, text func()) error

// Command gives the verb. It writes to out, looks at the host through look, and answers with print.
func Command(out io.Writer, look func() (*transaction.Controller, error), print func(v any, text func()) error,
) *cobra.Command {
	var o advise.Options
	var quiet bool
	c := &cobra.Command{
		Use:   "advise",
		Short: "what of this host does not suit the databases on it, with evidence",
		Long: "advise holds rules against this host and its databases. Each finding has what was read and where, " +
			"what it means here, and what would put it right. It changes nothing. A rule that lacks a fact is " +
			"undecided, and no finding. Rules of the site are read from " + siteRules + ".",
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
			rules, err := rule.With(siteRules)
			if err != nil {
				return err
			}
			c, err := look()
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
			return print(rep, func() { printReport(out, rep, quiet) })
		},
	}
	c.Flags().StringVar(&o.Instance, "instance", "", "only what concerns this instance, by its name in `discover`")
	c.Flags().StringVar(&o.Severity, "severity", "", "only from this on: critical, high, medium, low or info")
	c.Flags().BoolVar(&quiet, "explain-quiet", false, "list the rules that are kept, too, with what was read")
	c.AddCommand(listCmd(out, print), showCmd(out, print))
	return c
}

func listCmd(out io.Writer, print answer) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "the rules, by name",
		Args:  usage.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			rules, err := rule.With(siteRules)
			if err != nil {
				return err
			}
			return print(listOf(rules), func() { printRules(out, rules) })
		},
	}
}

func showCmd(out io.Writer, print answer) *cobra.Command {
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
			rules, err := rule.With(siteRules)
			if err != nil {
				return err
			}
			r, known := rules.Find(args[0])
			if !known {
				return usage.Errorf(cmd, "there is no rule %q; `bulkhead advise list` lists them", args[0])
			}
			return print(ruleOf(r), func() { printRule(out, ruleOf(r)) })
		},
	}
}

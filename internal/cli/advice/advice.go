// Package advice is the verb advise of the command line: what of the host does not suit its databases, and the rules by
// which it is found.
package advice

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/policy/parse"
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
	var dsn []string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "advise",
		Short: "what of this host does not suit the databases on it, with evidence",
		Long: "advise holds rules against this host and its databases. Each finding has what was read and where, " +
			"what it means here, and what would put it right. It changes nothing. A rule that lacks a fact is " +
			"undecided, and no finding. Rules of the site are read from " + siteRules + ". Servers are asked for " +
			"their settings where --dsn or a `guard` of the applied policy says how to log in; of others the option " +
			"files and arguments are read.",
		Example: `  bulkhead advise                         what there is to put right, worst first
  bulkhead advise --severity high         of these the worst
  bulkhead advise --instance mysql3306    what concerns one instance
  bulkhead advise --explain-quiet         the rules that are kept, too, with what was read
  bulkhead advise --dsn mysql3306=@/root/mysql.dsn    ask that server for its settings in force
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
			logins, err := usage.Logins(cmd, dsn)
			if err != nil {
				return err
			}
			facts := factsOf(cmd, c, logins, wait)
			names := []string{}
			for _, i := range facts.Instances {
				names = append(names, i.Name)
			}
			if o.Instance != "" && !slices.Contains(names, o.Instance) {
				return usage.NoInstance(cmd, names, o.Instance)
			}
			o.Today = time.Now().Format(time.DateOnly)
			rep := advise.Run(rules, facts, o)
			return print(rep, func() { printReport(out, rep, quiet) })
		},
	}
	c.Flags().StringVar(&o.Instance, "instance", "", "only what concerns this instance, by its name in `discover`")
	c.Flags().StringVar(&o.Severity, "severity", "", "only from this on: critical, high, medium, low or info")
	c.Flags().BoolVar(&quiet, "explain-quiet", false, "list the rules that are kept, too, with what was read")
	c.Flags().StringArrayVar(&dsn, "dsn", nil, usage.LoginsHelp)
	waitFlag(c, &wait)
	c.AddCommand(listCmd(out, print), showCmd(out, print))
	return c
}

// waitFlag is that of how long reading may take.
func waitFlag(c *cobra.Command, wait *time.Duration) {
	usage.SpanFlag(c, wait, "wait", gather.AreaTime, "how long each part of the host (disks, mounts, servers, …) "+
		"may take to be read")
}

// factsOf reads what advice is given from, and what tune sets; each part of it within a time.
func factsOf(cmd *cobra.Command, c *transaction.Controller, logins map[string]*dblogin.Login,
	wait time.Duration) *fact.Set {
	known, err := guarded(c)
	if err != nil {
		render.Printf(cmd.ErrOrStderr(), "the applied policy cannot be read, and asks no server: %v\n", err)
	}
	return gather.Facts(cmd.Context(), c.Host, gather.Options{Logins: logins, Known: known, Units: unitsOf(c),
		Wait: min(max(wait, time.Second), time.Hour)})
}

// unitsOf asks systemd, which is connected to when the first question comes. Whether it runs is looked at once.
func unitsOf(c *transaction.Controller) gather.Units {
	look := sync.OnceValues(c.Host.Facts)
	return func(ctx context.Context, unit string, names ...string) (map[string]any, error) {
		facts, err := look()
		if err != nil {
			return nil, err
		}
		m, err := c.Manager(ctx, facts)
		if err == nil && m == nil {
			err = errors.New("systemd does not run here")
		}
		if err != nil {
			return nil, err
		}
		return m.Properties(ctx, unit, names...)
	}
}

// guarded are the data source names of the guards of the applied policy.
func guarded(c *transaction.Controller) ([]*dblogin.Login, error) {
	if c.Store == nil { // not root
		return nil, nil
	}
	_, docs, err := c.Recorded()
	if err != nil || docs.Applied == nil {
		return nil, err
	}
	p, err := parse.Policy(docs.Applied.Sources)
	if err != nil || p.Guard == nil {
		return nil, err
	}
	var all []*dblogin.Login
	for _, g := range p.Guard.Groups {
		if l, err := dblogin.Parse(g.DSN); err == nil { // without one there is nothing to ask
			all = append(all, l)
		}
	}
	return all, nil
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
		ValidArgsFunction: completeRules(1),
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

// completeRules offers rules, those of the site among them, with their titles: for so many words, -1 for any number.
func completeRules(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, given []string, word string) (offered []string, _ cobra.ShellCompDirective) {
		rules, err := rule.With(siteRules)
		if err != nil || most >= 0 && len(given) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, r := range listOf(rules) {
			if strings.HasPrefix(strings.ToUpper(r.ID), strings.ToUpper(word)) && !slices.Contains(given, r.ID) {
				offered = append(offered, cobra.CompletionWithDesc(r.ID, r.Title))
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

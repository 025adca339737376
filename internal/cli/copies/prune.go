package copies

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/retention"
	"bulkhead/internal/transaction"
)

// prune is the verb with its flags.
type prune struct {
	changing
	keep     int
	older    age
	byPolicy bool
}

func (s Session) pruneCmd() *cobra.Command {
	var f prune
	c := &cobra.Command{
		Use:   "prune [INSTANCE[@PATTERN]]",
		Short: "remove old snapshots of databases, by number and age",
		Long: `prune removes snapshots that bulkhead made: those behind the newest --keep of each instance that are also
older than --older. With one of the two flags that one alone decides; without both only what a killed snapshot or prune
left behind goes. Never removed are the newest snapshot of an instance, one with clones, one that zfs hold keeps, and
what bulkhead did not make. With a pattern (* and ? as in a shell) others are neither removed nor counted.

--retain goes by the part snapshots of the policy in force, which has a rule for each instance: of one without a rule
nothing is removed.`,
		Example: `  bulkhead zfs prune --keep 7 --older 14d --dry-run
  bulkhead zfs prune 'mysql3306@nightly-*' --keep 30
  bulkhead zfs prune --retain      for cron, or a timer of systemd`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.keep < 0 {
				return usage.Errorf(cmd, "--keep is a number of snapshots")
			}
			if f.byPolicy && (f.keep != 0 || f.older != 0) {
				return usage.Errorf(cmd, "--retain has --keep and --older from the policy")
			}
			r := dbsnapshot.Rule{Keep: f.keep, Older: time.Duration(f.older)}
			if len(args) == 1 {
				r.Instance, r.Pattern, _ = strings.Cut(args[0], "@")
				if _, err := path.Match(r.Pattern, ""); err != nil {
					return usage.Errorf(cmd, "%q is no pattern", r.Pattern)
				}
			}
			return s.prune(cmd.Context(), f, r, strings.Join(args, " "))
		},
	}
	f.flags(c)
	c.Flags().IntVar(&f.keep, "keep", 0, "how many of each instance stay, the newest")
	c.Flags().Var(&f.older, "older", "only those older than this `age`: 36h, 30d")
	c.Flags().BoolVar(&f.byPolicy, "retain", false, "go by the part snapshots of the policy in force")
	return c
}

func (s Session) prune(ctx context.Context, f prune, r dbsnapshot.Rule, what string) error {
	w, err := s.begin()
	if err != nil {
		return err
	}
	defer w.Close()
	of := func(string) dbsnapshot.Rule { return r }
	if f.byPolicy {
		rules, err := w.retention(ctx)
		if err != nil {
			return err
		}
		of = ruled(rules, r)
	}
	var verdicts []dbsnapshot.Verdict
	if f.dryRun {
		verdicts, _, err = w.retain(ctx, of, true)
	} else {
		err = w.whileAlone(ctx, "zfs prune", func() error {
			var removed []string
			var failed error
			verdicts, removed, failed = w.retain(ctx, of, false)
			if len(removed) > 0 {
				w.note(ctx, "zfs prune", what, f.reason, "removed "+strings.Join(removed, ", "))
			}
			return failed
		})
	}
	if verdicts == nil {
		return err
	}
	return errors.Join(s.Print(verdicts, func() { s.printVerdicts(verdicts, f.dryRun) }), err)
}

// retain removes what rules let go, or only says so.
func (w *work) retain(ctx context.Context, of func(instance string) dbsnapshot.Rule, dry bool) (
	verdicts []dbsnapshot.Verdict, removed []string, failed error) {
	sets, err := dbsnapshot.List(ctx, w.tools)
	if err != nil {
		return nil, nil, err
	}
	verdicts = dbsnapshot.Retain(sets, of, time.Now())
	for i, v := range verdicts {
		if !v.Remove || dry {
			continue
		}
		if err := dbsnapshot.Remove(ctx, w.tools, v.Set); err != nil {
			verdicts[i].Remove, verdicts[i].Why = false, err.Error()
			failed = errors.Join(failed, err)
			continue
		}
		removed = append(removed, v.Set.String())
	}
	return verdicts, removed, failed
}

// ruled gives the rule of each instance of those in a policy. Instance and pattern are of one that was asked for.
func ruled(rules retention.Rules, asked dbsnapshot.Rule) func(instance string) dbsnapshot.Rule {
	return func(instance string) dbsnapshot.Rule {
		r, _ := rules.Of(instance) // without one nothing goes
		return dbsnapshot.Rule{Instance: asked.Instance, Pattern: asked.Pattern, Keep: r.Keep, Older: r.Older}
	}
}

// retention gives the rules of the policy in force.
func (w *work) retention(ctx context.Context) (retention.Rules, error) {
	_, docs, err := w.Membership(ctx)
	if err != nil {
		return nil, err
	}
	if docs.Applied == nil {
		return nil, transaction.NotApplied()
	}
	rules := parse.Snapshots(docs.Applied.Sources)
	if len(rules) == 0 {
		return nil, api.Errorf(api.CodeRefused, "write `snapshots: {\"*\": {keep: 7, older: 14d}}` into the policy "+
			"and apply it", "the policy in force says nothing of snapshots")
	}
	return rules, nil
}

// retains is the rule for the snapshots of an instance, which has to have one where --retain was given; nil else.
func (w *work) retains(ctx context.Context, f snapshot, instance string) (*dbsnapshot.Rule, error) {
	if !f.retain {
		return nil, nil //nolint:nilnil // nothing is removed
	}
	rules, err := w.retention(ctx)
	if err != nil {
		return nil, err
	}
	r, has := rules.Of(instance)
	if !has {
		return nil, api.Errorf(api.CodeRefused, "write `"+instance+": {keep: 7}` below `snapshots:`, and apply "+
			"the policy", "the policy in force has no rule for snapshots of %s", instance)
	}
	return &dbsnapshot.Rule{Instance: instance, Keep: r.Keep, Older: r.Older}, nil
}

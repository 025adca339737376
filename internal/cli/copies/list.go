package copies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/policy"
)

// listing is what list prints.
type listing struct {
	Snapshots []dbsnapshot.Set `json:"snapshots"`
}

func (s Session) listCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list [INSTANCE]",
		Short: "snapshots of databases: age, what each holds, where the database stood",
		Long: `list shows the snapshots that bulkhead made. FREES is what goes free when this one snapshot is removed:
what no other snapshot and not the database itself has any more (USED of zfs list). Blocks that two snapshots share are
in neither's figure, so that removing both frees more than the sum. REACHES is all that it gives access to (REFER of zfs
list), most of which the database has as well.`,
		Example: `  bulkhead zfs list
  bulkhead zfs list mysql3306 --json | jq -r '.snapshots[0].position.gtid'`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := s.begin()
			if err != nil {
				return err
			}
			defer w.Close()
			var v listing
			if v.Snapshots, err = dbsnapshot.List(cmd.Context(), w.tools); err != nil {
				return err
			}
			if len(args) == 1 {
				v.Snapshots = slices.DeleteFunc(v.Snapshots, func(t dbsnapshot.Set) bool {
					return t.Instance != args[0]
				})
			}
			return s.Print(v, func() { s.printList(v) })
		},
	}
}

func (s Session) printList(v listing) {
	if len(v.Snapshots) == 0 {
		render.Println(s.Out, "There is no snapshot. `bulkhead zfs snapshot INSTANCE NAME` makes one.")
		return
	}
	rows := [][]string{{"SNAPSHOT", "AGE", "FREES", "REACHES", "LOCK", "HELD", "POSITION", "CLONES"}}
	for _, t := range v.Snapshots {
		held := "-"
		if t.Lock != "" {
			held = strconv.FormatInt(t.HeldMS, 10) + " ms"
		}
		position := cmp.Or(t.Position.String(), "not known")
		if !t.Complete {
			position = "NOT COMPLETE: " + t.Trouble
		}
		rows = append(rows, []string{t.String(), ago(time.Since(t.Created)), policy.Bytes(t.Used).Human(),
			policy.Bytes(t.Refers).Human(), cmp.Or(t.Lock, "none"), held, position,
			cmp.Or(strings.Join(t.Clones, ", "), "-")})
	}
	render.Table(s.Out, rows)
	render.Println(s.Out, "FREES: what removing this one alone would give back. Blocks that two snapshots share are "+
		"in neither figure.")
}

// prune is the verb with its flags.
type prune struct {
	changing
	keep  int
	older age
}

func (s Session) pruneCmd() *cobra.Command {
	var f prune
	c := &cobra.Command{
		Use:   "prune [INSTANCE[@PATTERN]]",
		Short: "remove old snapshots of databases, by number and age",
		Long: `prune removes snapshots that bulkhead made: those behind the newest --keep of each instance that are also
older than --older. With one of the two flags that one alone decides; without both only what a killed snapshot or prune
left behind goes. Never removed are the newest snapshot of an instance, one with clones, one that zfs hold keeps, and
what bulkhead did not make. With a pattern (* and ? as in a shell) others are neither removed nor counted.`,
		Example: `  bulkhead zfs prune --keep 7 --older 14d --dry-run
  bulkhead zfs prune 'mysql3306@nightly-*' --keep 30`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.keep < 0 {
				return usage.Errorf(cmd, "--keep is a number of snapshots")
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
	return c
}

func (s Session) prune(ctx context.Context, f prune, r dbsnapshot.Rule, what string) error {
	w, err := s.begin()
	if err != nil {
		return err
	}
	defer w.Close()
	var verdicts []dbsnapshot.Verdict
	removed := []string{}
	work := func() error {
		sets, err := dbsnapshot.List(ctx, w.tools)
		if err != nil {
			return err
		}
		verdicts = dbsnapshot.Retain(sets, r, time.Now())
		var failed error
		for i, v := range verdicts {
			if !v.Remove || f.dryRun {
				continue
			}
			if err := dbsnapshot.Remove(ctx, w.tools, v.Set); err != nil {
				verdicts[i].Remove, verdicts[i].Why = false, err.Error()
				failed = errors.Join(failed, err)
				continue
			}
			removed = append(removed, v.Set.String())
		}
		return failed
	}
	if f.dryRun {
		err = work()
	} else {
		err = w.whileAlone(ctx, "zfs prune", work)
	}
	if len(removed) > 0 {
		w.note(ctx, "zfs prune", what, f.reason, "removed "+strings.Join(removed, ", "))
	}
	if verdicts == nil {
		return err
	}
	return errors.Join(s.Print(verdicts, func() { s.printVerdicts(verdicts, f.dryRun) }), err)
}

func (s Session) printVerdicts(verdicts []dbsnapshot.Verdict, dry bool) {
	rows := [][]string{{"SNAPSHOT", "AGE", "FREES", "", "WHY"}}
	for _, v := range verdicts {
		what := "stays"
		switch {
		case v.Remove && dry:
			what = "would go"
		case v.Remove:
			what = "removed"
		}
		rows = append(rows, []string{v.Set.String(), ago(time.Since(v.Set.Created)), policy.Bytes(v.Set.Used).Human(),
			what, v.Why})
	}
	if len(rows) == 1 {
		render.Println(s.Out, "There is no snapshot that this is about.")
		return
	}
	render.Table(s.Out, rows)
}

// age is a flag that takes a length of time, in days too.
type age time.Duration

func (a *age) String() string {
	if *a == 0 {
		return ""
	}
	return time.Duration(*a).String()
}

// Type is the word for it in the usage.
func (*age) Type() string { return "age" }

// Set takes "36h" and "30d".
func (a *age) Set(text string) error {
	if days, is := strings.CutSuffix(text, "d"); is {
		n, err := strconv.Atoi(days)
		if err != nil || n < 1 || n > 36500 {
			return fmt.Errorf("%q is no number of days", days)
		}
		*a = age(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("write an age such as 36h or 30d")
	}
	*a = age(d)
	return nil
}

package copies

import (
	"cmp"
	"errors"
	"fmt"
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
	Copies    []copyState      `json:"copies"`
}

func (s Session) listCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list [INSTANCE]",
		Short: "snapshots of databases: age, what each holds, where the database stood; and copies",
		Long: `list shows the snapshots that bulkhead made. FREES is what goes free when this one snapshot is removed:
what no other snapshot and not the database itself has any more (USED of zfs list). Blocks that two snapshots share are
in neither's figure, so that removing both frees more than the sum. REACHES is all that it gives access to (REFER of zfs
list), most of which the database has as well.

Behind them it shows the copies of zfs clone, and whether the server of each runs.`,
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
			instance := strings.Join(args, "")
			v.Copies = w.copies(cmd.Context(), instance)
			if len(args) == 1 {
				v.Snapshots = slices.DeleteFunc(v.Snapshots, func(t dbsnapshot.Set) bool {
					return t.Instance != instance
				})
			}
			return s.Print(v, func() {
				s.printList(v)
				s.printCopies(v.Copies)
			})
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

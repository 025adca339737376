// Package slosim is the verb `slo simulate` of the command line: how the loop that keeps what databases are promised
// does on a model, beside other rules.
package slosim

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/slo"
	"bulkhead/internal/slomodel"
)

// Session is what the verb shares with the others.
type Session struct {
	Out   io.Writer
	Print func(v any, text func()) error
	// Reach says what a file has, or this host's record where it is "", and Segments gives segments of it.
	Reach    func(ctx context.Context, file string) (record.Reach, error)
	Segments func(ctx context.Context, file string, from, to time.Time) (io.ReadCloser, error)
	// Between says from when to when two flags and a file mean.
	Between func(from, to, file string, reach record.Reach) (time.Time, time.Time, error)
	// FileFlag adds the flag that names a file.
	FileFlag func(c *cobra.Command, p *string)
}

// steps is how long a load that is made up lasts.
const steps = 4 * time.Hour

// model says what the figures are worth.
const model = "The closed loop is a model, not your host: one queue for all CPUs, no disks, no memory, no locks. " +
	"Compare the rules with each other; a host does otherwise."

// options are the flags.
type options struct {
	file, from, to string
	cpus           int
	step           time.Duration
	seed           uint64
}

// Command gives the verb.
func Command(s Session) *cobra.Command {
	c := &cobra.Command{
		Use:   "slo",
		Short: "how the loop that keeps what databases are promised does on a model",
		Long: `slo is about "slo:" of the policy, by which the agent lowers groups beside a database only as far as the
database's target takes. "bulkhead status" says how that goes.`,
		Example: `  bulkhead slo simulate`,
	}
	c.AddCommand(simulateCmd(s))
	return c
}

func simulateCmd(s Session) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "simulate [INSTANCE]",
		Short: "the loop beside other rules: windows missed, work of the batch, changes",
		Long: `simulate runs the loop's own step function on the load of an instance as the agent recorded it (--from,
--to, --file: the last hour by default), or without INSTANCE on a load that is made up: four hours that change in steps
from 20 % to 80 % of the CPUs, beside a batch that takes all it gets. It changes nothing.

What is in the record does not answer to what the loop does. So the load is taken from the record, and how the instance
answers from a model: one queue for all CPUs, set so that it fits what was recorded; how well it fits is said. The
figures compare rules with each other, and foretell no host. Only CPU limits of groups of role batch and helper are
simulated. docs/slo.md has the model.

Beside the loop there are: no policy; the best static limit, found by search; the rule of koordlet (best effort gets
65 % of the CPUs less what others use); the rules of Heracles; and the best limit of each moment, which nobody knows
beforehand. A window has 5 s and is missed when its worst second is.`,
		Example: `  bulkhead slo simulate                        a load that is made up
  bulkhead slo simulate --cpus 2 --step 10m
  bulkhead slo simulate mysql3306 --from 02:00 --to 06:00
  bulkhead slo simulate mysql3306 --file incident --json`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			v, err := o.view(ctx, s, cmd, args)
			if err != nil {
				return err
			}
			return s.Print(v, func() { v.print(s.Out) })
		},
	}
	c.Flags().StringVar(&o.from, "from", "", "of INSTANCE: from what `time` on: 02:10, 2026-11-20 02:10, or 90m for "+
		"90 minutes before the end (default an hour before it, of a --file all)")
	c.Flags().StringVar(&o.to, "to", "", "of INSTANCE: until what `time` (default what there is)")
	c.Flags().IntVar(&o.cpus, "cpus", 8, "without INSTANCE: how many `CPUs` the host has")
	usage.SpanFlag(c, &o.step, "step", 10*time.Minute, "without INSTANCE: how long each step of the load lasts")
	c.Flags().Uint64Var(&o.seed, "seed", 1, "`number` from which all chance comes: the same one gives the same figures")
	s.FileFlag(c, &o.file)
	return c
}

// view is what the verb says.
type view struct {
	Model  string     `json:"model"`
	Group  string     `json:"group,omitempty"` // none: the load is made up
	From   *time.Time `json:"from,omitempty"`
	To     *time.Time `json:"to,omitempty"`
	CPUs   float64    `json:"cpus"`
	Signal slo.Signal `json:"signal"`
	Target float64    `json:"target"`
	// Recorded are windows as they were recorded. Fit is within which part of what the model says half of them are.
	Recorded *slomodel.Missed `json:"recorded,omitempty"`
	Fit      *float64         `json:"fit,omitempty"`
	// Said is what the loop says in mode advise on the values as they were recorded.
	Said  []said            `json:"said,omitempty"`
	Rules []slomodel.Result `json:"rules"`
	Kept  bool              `json:"bounds_kept"` // by the loop
	// decided says that there are windows by which that is told.
	decided bool

	load string // what is simulated, for people
}

// said is one thing that the loop says.
type said struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// check says what is wrong with the flags.
func (o *options) check(cmd *cobra.Command, args []string) error {
	recordFlags := o.file != "" || o.from != "" || o.to != ""
	made := cmd.Flags().Changed("cpus") || cmd.Flags().Changed("step")
	switch {
	case len(args) == 0 && recordFlags:
		return usage.Errorf(cmd, "--file, --from and --to are of a record: say of which INSTANCE")
	case len(args) == 1 && made:
		return usage.Errorf(cmd, "--cpus and --step are for a load that is made up: leave them out with an "+
			"INSTANCE")
	case o.cpus < 1 || o.cpus > 4096:
		return usage.Errorf(cmd, "--cpus is from 1 to 4096")
	case o.step < window || o.step > steps || o.step%window != 0:
		return usage.Errorf(cmd, "--step is from %s to %s, in whole 5 s", long(window), long(steps))
	}
	return nil
}

func (o *options) view(ctx context.Context, s Session, cmd *cobra.Command, args []string) (*view, error) {
	if err := o.check(cmd, args); err != nil {
		return nil, err
	}
	v := &view{Model: model}
	var d *slomodel.Day
	if len(args) == 0 {
		d = slomodel.Steps(float64(o.cpus), int(steps/window), int(o.step/window), o.seed)
		v.load = fmt.Sprintf("a load that is made up: %s in steps of %s", long(steps), long(o.step))
	} else {
		r, err := o.recorded(ctx, s, cmd, args[0])
		if err != nil {
			return nil, err
		}
		d = r.day
		v.recorded(r)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.Seed = o.seed
	v.CPUs, v.Signal, v.Target, v.Rules = d.CPUs, d.Target.Signal, d.Target.Value, d.Compare()
	for _, r := range v.Rules {
		if r.Rule == "loop" {
			v.decided = r.After10.Windows > 0
			v.Kept = v.decided && r.After10.Part() <= slomodel.MissedBound && r.OfBest >= slomodel.WorkBound
		}
	}
	return v, nil
}

// recorded reads the record.
func (o *options) recorded(ctx context.Context, s Session, cmd *cobra.Command, group string) (*recorded, error) {
	reach, err := s.Reach(ctx, o.file)
	if err != nil {
		return nil, err
	}
	from, to, err := s.Between(o.from, o.to, o.file, reach)
	if err != nil {
		return nil, usage.Errorf(cmd, "%w", err)
	}
	if from.Before(reach.From) {
		from = reach.From
	}
	if to.After(reach.To) {
		to = reach.To
	}
	switch {
	case reach.Ticks == 0 || to.Sub(from) < window:
		return nil, &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("nothing is recorded of that time"),
			Hint: "`bulkhead record` says from when to when there is something"}
	case to.Sub(from) > longest:
		return nil, usage.Errorf(cmd, "at most %s are simulated: name a later --from", long(longest))
	}
	segments, err := s.Segments(ctx, o.file, from.Add(-record.Before), to)
	if err != nil {
		return nil, err
	}
	defer segments.Close()
	r, err := read(ctx, segments, group, from, to)
	if err == nil {
		err = r.check()
	}
	return r, err
}

// long is a length of time in the largest unit that says it.
func long(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// recorded takes in what the record says of itself.
func (v *view) recorded(r *recorded) {
	from, to := r.from, r.end()
	v.Group, v.From, v.To, v.Recorded = r.group, &from, &to, &slomodel.Missed{}
	v.load = fmt.Sprintf("%s as it was recorded from %s to %s", r.group, moment(from), moment(to))
	for w, value := range r.values {
		if r.day.Known[w] && value > 0 {
			v.Recorded.Windows++
			if r.day.Target.Slack(value) < 0 {
				v.Recorded.Missed++
			}
		}
	}
	off, _ := r.day.Fit(r.values)
	v.Fit = &off
	for _, one := range r.day.Suggestions(r.values) {
		v.Said = append(v.Said, said{from.Add(time.Duration(one.Window) * window), text(one.Action)})
	}
}

// text is what the loop says.
func text(a slo.Action) string {
	switch a.Verb {
	case slo.Suggest:
		return fmt.Sprintf("would lower %s:%s to %.2f: %s", a.Knob.Group, a.Knob.Key, a.Value, a.Reason)
	case slo.Nobody:
		return "nothing: " + a.Reason
	}
	return string(a.Verb) + ": " + a.Reason
}

// mostSaid is how many lines of what the loop says are shown.
const mostSaid = 10

func (v *view) print(out io.Writer) {
	of := api.SLO{Signal: string(v.Signal)}
	render.Printf(out, "%s\n\n%s\n", v.Model, v.load)
	render.Printf(out, "%g CPUs, target: %s %s\n", v.CPUs, v.Signal, of.Amount(v.Target))
	if v.Recorded != nil {
		render.Printf(out, "recorded: %d of %s missed; half of the values are within %.0f %% of what the model says\n",
			v.Recorded.Missed, render.Count(v.Recorded.Windows, "window", "windows"), 100**v.Fit)
		if *v.Fit > poorFit {
			render.Println(out, "That is a poor fit: what the instance waits for is hardly the CPUs. Do not go by the "+
				"table.")
		}
		render.Println(out, "\nOn these values, which do not answer to it, the loop in mode advise says:")
		for i, one := range v.Said {
			if i == mostSaid {
				render.Printf(out, "  and %d more (--json has all)\n", len(v.Said)-i)
				break
			}
			render.Printf(out, "  %s  %s\n", moment(one.At), one.Text)
		}
		if len(v.Said) == 0 {
			render.Println(out, "  nothing: the target was kept")
		}
	}
	render.Println(out)
	rows := [][]string{{"RULE", "MISSED", "10 s AFTER A STEP", "20 s AFTER", "WORK OF THE BATCH", "OF BEST STATIC",
		"CHANGES"}}
	for _, r := range v.Rules {
		name := r.Rule
		if r.Limit > 0 {
			name += fmt.Sprintf(" (%.2f)", r.Limit)
		}
		rows = append(rows, []string{name, part(r.All), part(r.After10), part(r.After20),
			fmt.Sprintf("%.0f core s", r.Work), percent(r.OfBest), fmt.Sprint(r.Changes)})
	}
	render.Table(out, rows)
	if !v.decided {
		render.Printf(out, "Whether the loop keeps its bounds is not decided: no window begins 10 s after a step or "+
			"later, so the best static limit is by all windows.\n")
		return
	}
	kept := "keeps"
	if !v.Kept {
		kept = "does not keep"
	}
	render.Printf(out, "The loop %s its bounds here: at most %s of windows missed 10 s after a step, at least %s of "+
		"the work under the best static limit.\n", kept, percent(slomodel.MissedBound), percent(slomodel.WorkBound))
}

// poorFit is from when on the model says little of a record.
const poorFit = 0.5

func part(m slomodel.Missed) string {
	if m.Windows == 0 {
		return "-"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*m.Part()), ".0") + " %"
}

func percent(p float64) string { return fmt.Sprintf("%.0f %%", 100*p) }

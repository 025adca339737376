package observing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/attribution"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/closelook"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/sampling"
	"bulkhead/internal/transaction"
)

// How long suspects looks: now by default, of the record by default, and at least and at most.
const (
	lookFor, recordFor   = 10 * time.Second, 90 * time.Second
	leastLook, mostWatch = time.Second, 2 * time.Minute
)

// suspects is the verb that says who is to blame for what a group waits for.
func (s Session) suspects() *cobra.Command {
	var file, at string
	var span time.Duration
	var noBPF bool
	var prove proveOptions
	c := &cobra.Command{
		Use:   "suspects INSTANCE",
		Short: "what an instance waits for, and who is to blame for it",
		Long: `suspects says how long an instance (or any group) waited for CPUs, disks, memory and the network, and
divides that among other groups, its own load, its own limits, what runs outside all groups, what a disk itself takes
for its requests, and what nobody can be blamed for; together that is what was waited. Each row says whether it was
counted or estimated, what the suspect did, and the command that would hold it. Where little was waited, there is
nothing to explain.

It counts for a time from now on, without the agent, which takes root; with --at it reads the agent's record instead,
which knows nothing of connections, nor who it is that runs outside all groups. Who ran while threads waited for a
CPU, and whose requests disks had while theirs waited, is counted by BPF programs. These are loaded for that time, where
the kernel has BTF (5.5 and later, for disks 5.11); --no-bpf does without. Of memory and interfaces, and without BPF
of CPUs and disks, what other groups have is estimated from what they used. Locks inside a server are not seen.
docs/suspects.md has the rules.

With --prove it makes an experiment, which changes the host for at most 40 s: at random times the group is held to a
tenth of the CPU time that it uses, or of what it does on the disk that the instance waits for. Measured with and
without are the instance's waiting, what it does on that disk, and what its database does where the policy has its dsn
(guard or slo). It says beforehand what it will hold. Each hold is a change on trial that ends by
itself within 10 s, whatever becomes of this command. It never holds memory, CPU sets or a database.`,
		Example: `  bulkhead suspects mysql3306                  for 10 s from now on
  bulkhead suspects mysql3306 --for 1m --json
  bulkhead suspects mysql3306 --at 02:10       the 90 s before, from the record
  bulkhead suspects mysql3306 --at 02:10 --file incident
  bulkhead suspects mysql3306 --prove reports  an experiment of 40 s at most`,
		Args: usage.Exactly(1, "say of which instance: suspects INSTANCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := prove.check(cmd); err != nil {
				return err
			}
			if noBPF && (at != "" || prove.group != "") {
				return usage.Errorf(cmd, "--no-bpf is for counting now, without --at and --prove")
			}
			if file != "" && at == "" {
				return usage.Errorf(cmd, "--file is a record: say the time with --at")
			}
			if !cmd.Flags().Changed("for") && at != "" {
				span = recordFor
			}
			if span < leastLook || span > mostWatch {
				return usage.Errorf(cmd, "--for is from %s to %s", leastLook, mostWatch)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			if prove.group != "" {
				return s.prove(ctx, cmd, args[0], prove)
			}
			parts := attribution.Parts
			if noBPF {
				parts = attribution.WithoutBPF
			}
			w, err := s.window(ctx, cmd, file, at, span, parts)
			if err != nil {
				return err
			}
			r, err := reportOf(cmd, w, args[0])
			if err != nil {
				return err
			}
			return s.Print(r, func() { s.printReport(r) })
		},
	}
	c.Flags().StringVar(&at, "at", "", "read what was recorded until this `time`: 02:10, 2026-11-20 02:10, 90m for 90 "+
		"minutes ago")
	c.Flags().DurationVar(&span, "for", lookFor, "look for this long; with --at 90s")
	c.Flags().BoolVar(&noBPF, "no-bpf", false, "load no BPF programs: what others have is estimated from files of the "+
		"kernel")
	fileFlag(c, &file)
	prove.flags(c)
	return c
}

// window is what happened from now on, or until a time in the record.
func (s Session) window(ctx context.Context, cmd *cobra.Command, file, at string, span time.Duration,
	parts []observe.Part) (*attribution.Window, error) {
	if at == "" {
		return s.watch(ctx, span, parts)
	}
	before, after, err := s.recorded(ctx, cmd, file, at, span, nil)
	if err != nil {
		return nil, err
	}
	return attribution.Between(before, after), nil
}

// watch counts for a time.
func (s Session) watch(ctx context.Context, span time.Duration, parts []observe.Part) (*attribution.Window, error) {
	c, err := s.Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	v, _, err := c.Current(ctx, transaction.ViewOptions{})
	if err != nil {
		return nil, err
	}
	tasks := reconcile.TasksOf(v)
	look := closelook.Begin(c.Host, v.Tree, tasks)
	before, after, err := sampling.Twice(ctx, c.Host, sampling.Of(v, tasks, 0), parts, span)
	w := &attribution.Window{}
	if err == nil {
		w = attribution.Between(before, after)
	}
	look.End(w)
	return w, err
}

// recorded reads what was known at a time and a span before it; each, where it is not nil, takes every tick until that
// time, from some minutes before the span on.
func (s Session) recorded(ctx context.Context, cmd *cobra.Command, file, at string, span time.Duration,
	each func(t record.Tick, begin time.Time)) (before, after record.Tick, err error) {
	from, err := s.source(ctx, file)
	if err != nil {
		return before, after, err
	}
	last := time.Now()
	if file != "" {
		reach, err := from.reach(ctx)
		if err != nil {
			return before, after, err
		}
		last = reach.To
	}
	end, err := usage.Past(at, last)
	if err != nil {
		return before, after, usage.Errorf(cmd, "--at: %v", err)
	}
	if end.Nanosecond() == 0 { // of that second, as it is shown
		end = end.Add(time.Second - time.Millisecond)
	}
	begin := end.Add(-span)
	segments, err := from.segments(ctx, begin.Add(-record.Before), end)
	if err != nil {
		return before, after, err
	}
	defer segments.Close()
	err = record.Walk(segments, begin.Add(-record.Before), end, func(t record.Tick) error {
		if each != nil {
			each(t, begin)
		}
		if !t.At.After(begin) {
			before = before.With(t)
		}
		after = after.With(t)
		return ctx.Err()
	})
	if err != nil && !errors.Is(err, record.ErrDamaged) {
		return before, after, err
	}
	if before.At.IsZero() || !after.At.After(begin) {
		err = fmt.Errorf("too little is recorded between %s and %s", moment(begin), moment(end))
		return before, after, &api.Error{Code: api.CodeFailed, Err: err,
			Hint: "`bulkhead record` says from when to when there is something"}
	}
	return before, after, nil
}

// leastShown is the part of a wait below which a row is left out of the text.
const leastShown = 0.005

func (s Session) printReport(r *attribution.Report) {
	render.Printf(s.Out, "%s, from %s to %s\n\n%s\n", r.Group, moment(r.From), moment(r.To), r.Verdict)
	var commands []string
	table := false // it ends with an empty line
	gap := func() {
		if !table {
			render.Println(s.Out)
		}
		table = false
	}
	for _, one := range r.Resources {
		gap()
		switch {
		case !one.Known:
			render.Printf(s.Out, "%s: how long it waits is not known: %s\n", one.Title(), one.Source)
			continue
		case one.Part < attribution.Harm:
			render.Printf(s.Out, "%s: it waits for %s of its time, which is not worth an explanation\n",
				one.Title(), attribution.Percent(one.Part))
			continue
		}
		render.Printf(s.Out, "%s: %.2f s waited in each second, %s of its time\n%s from %s\n", one.Title(),
			one.Waited, attribution.Percent(one.Part), one.Grade, one.Source)
		rows := [][]string{{"SHARE", "SECONDS", "WHO", "GRADE", "WHAT IT DID"}}
		for i := range one.Rows {
			row := &one.Rows[i]
			if row.Share < leastShown && row.Who != attribution.Unexplained {
				continue
			}
			rows = append(rows, []string{attribution.Percent(row.Share), fmt.Sprintf("%.3f", row.Seconds), who(row),
				string(row.Grade), row.Did})
			if row.Command != "" && !r.Nothing && row.Share*one.Part >= attribution.Harm {
				commands = append(commands, row.Command)
			}
		}
		render.Table(s.Out, rows)
		table = true
	}
	if len(commands) > 0 {
		gap()
		render.Println(s.Out, "What would hold them, or ease a limit of its own, for an hour:")
		for _, c := range commands {
			render.Println(s.Text, "  "+c)
		}
	}
	for _, n := range r.Notes {
		render.Printf(s.Out, "note: %s\n", n)
	}
}

// who is whom a row blames, with what it is for.
func who(row *attribution.Row) string {
	switch {
	case row.Name != "":
		return row.Name + ", outside"
	case row.Who != attribution.Other:
		return string(row.Who)
	}
	var of []string
	for _, word := range []string{row.Role, row.Engine} {
		if word != "" {
			of = append(of, word)
		}
	}
	if of == nil {
		return row.Group
	}
	return row.Group + " (" + strings.Join(of, ", ") + ")"
}

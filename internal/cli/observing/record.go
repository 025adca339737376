package observing

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/policy"
)

// record is the verb that says what the record has.
func (s Session) record() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "record",
		Short: "how far back the agent's record of what groups use reaches",
		Long: `record says what the agent has kept of what it samples: from when to when, with which gaps, in how many
bytes, and for how long the bytes that it may have last. The agent always records. It keeps 256 MiB and 30 days at most,
or what agent: {record: {size: …, age: …}} of the policy says. When the bytes are used up, what is older than two days
is thinned to a reading a minute, and then the oldest goes first. "bulkhead dump" gives it to other programs and other
people.`,
		Example: `  bulkhead record
  bulkhead record --file incident     what is in a file that somebody sent`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := s.reach(cmd.Context(), file)
			if err != nil {
				return err
			}
			return s.Print(at, func() { printReach(s.Out, at) })
		},
	}
	fileFlag(c, &file)
	return c
}

// reach asks the agent, which knows what goes wrong, and where none answers looks itself.
func (s Session) reach(ctx context.Context, file string) (record.Reach, error) {
	if file == "" {
		if running, err := s.Agent(ctx); err == nil && running != nil {
			return source{agent: running}.reach(ctx)
		}
	}
	from, err := s.source(ctx, file)
	if err != nil {
		return record.Reach{}, err
	}
	return from.reach(ctx)
}

func printReach(out io.Writer, r record.Reach) {
	switch {
	case r.Off:
		render.Println(out, "the policy keeps no record: agent: {record: {size: 0}}")
	case r.Ticks == 0 && r.Error == "":
		render.Println(out, "nothing is recorded yet")
	}
	if r.Ticks > 0 {
		render.Printf(out, "from        %s\nto          %s\n", moment(r.From), moment(r.To))
		if !r.Whole.IsZero() {
			render.Printf(out, "whole       from %s on; before that one reading a minute is left\n", moment(r.Whole))
		}
		render.Printf(out, "samples     %d, with %d figures\n", r.Ticks, r.Figures)
		each := ""
		if r.Figures > 0 {
			each = fmt.Sprintf(", %.2f bytes a figure", float64(r.Bytes)/float64(r.Figures))
		}
		render.Printf(out, "size        %s%s\n", policy.Bytes(r.Bytes).Human(), each)
	}
	if r.Most > 0 && !r.Off {
		lasts := ""
		if d := r.Lasts(); d > 0 {
			lasts = ", which last for at least " + days(d)
		}
		render.Printf(out, "kept        %s and %s at most%s\n", policy.Bytes(r.Most).Human(), days(r.Age), lasts)
	}
	for _, g := range r.Gaps {
		render.Printf(out, "no record   from %s to %s\n", moment(g.From), moment(g.To))
	}
	if r.Damaged > 0 {
		render.Printf(out, "damaged     %s that cannot be read; a dump goes without\n",
			render.Count(r.Damaged, "part", "parts"))
	}
	if r.Error != "" {
		render.Printf(out, "not written since %s: %s\n", moment(r.Since), r.Error)
	}
	if r.Lost > 0 {
		render.Printf(out, "%s lost since the agent started\n", render.Count(int(r.Lost), "sample was", "samples were"))
	}
}

// moment is a time as the host's clock shows it.
func moment(t time.Time) string { return t.Local().Format(time.DateTime) }

// days is a length of time in the largest unit that says enough.
func days(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return render.Count(int(d/(24*time.Hour)), "day", "days")
	case d >= 2*time.Hour:
		return render.Count(int(d/time.Hour), "hour", "hours")
	}
	return render.Count(int(d/time.Minute), "minute", "minutes")
}

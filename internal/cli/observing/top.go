package observing

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/cli/dashboard"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
)

// top is the verb that shows the groups as they are, or as they were.
func (s Session) top() *cobra.Command {
	var file, at string
	var o dashboard.Options
	c := &cobra.Command{
		Use:   "top",
		Short: "what groups use and wait for, now or at a time in the past",
		Long: `top shows the groups as a tree: CPU with its trend, waiting, what the CPU limit held back, memory, disks,
network, threads; in a wide window more. It follows the agent, which reads every second while somebody watches. With
--at it shows what was recorded then, and the arrow keys go back and on in time, as they do from now. w says why the
chosen group waits, and who else uses the same; l which of its limits bite, and the command that would change them; ?
lists all keys. Without a terminal it prints the table once.`,
		Example: `  bulkhead top                      now; ? lists the keys
  bulkhead top --at 02:10           as it was last night; left and right go in time
  bulkhead top --file incident.bulkhead --at "2026-11-20 02:10"
  bulkhead top --sort cpu --filter mysql | cat`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.View.Sort == "name" {
				o.View.Sort = ""
			} else if !slices.Contains(columns(), o.View.Sort) {
				return usage.Errorf(cmd, "--sort is name or one of %s", strings.Join(columns(), ", "))
			}
			if err := s.sources(cmd.Context(), &o, file); err != nil {
				return err
			}
			if at != "" {
				last := o.At // of a file; else zero
				if last.IsZero() {
					last = time.Now()
				}
				var err error
				if o.At, err = usage.Past(at, last); err != nil {
					return usage.Errorf(cmd, "--at: %v", err)
				}
				if o.At.Nanosecond() == 0 { // of that second, as the screen shows times
					o.At = o.At.Add(time.Second - time.Millisecond)
				}
			}
			o.ASCII = !utf8Locale()
			in, out := os.Stdin, os.Stdout
			dumb := os.Getenv("TERM") == "dumb"
			if !*s.JSON && !dumb && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd())) {
				return dashboard.Run(cmd.Context(), in, out, o)
			}
			once, err := dashboard.Take(cmd.Context(), o)
			if err != nil {
				return err
			}
			return s.Print(once, func() {
				for line := range strings.SplitSeq(once.Text(), "\n") {
					render.Println(s.Text, line)
				}
			})
		},
	}
	c.Flags().StringVar(&at, "at", "", "show what was recorded at this `time`: 02:10, 2026-11-20 02:10, 90m for 90 "+
		"minutes ago")
	c.Flags().StringVar(&o.View.Sort, "sort", "name", "sort by this `column`, largest first: "+
		strings.Join(columns(), ", "))
	_ = c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(append(columns(), "name"),
		cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&o.View.Filter, "filter", "", "only groups with this `word` in their name, role or engine")
	fileFlag(c, &file)
	return c
}

func columns() (names []string) {
	for i := range top.Columns {
		names = append(names, top.Columns[i].Name)
	}
	return names
}

// sources says where what is shown comes from: the agent that runs and its record, from now on, or a file, at its end.
func (s Session) sources(ctx context.Context, o *dashboard.Options, file string) error {
	var running *client.Client
	var err error
	if file == "" {
		if running, err = s.Agent(ctx); err != nil {
			return err
		}
	}
	from, err := s.source(ctx, file)
	if err != nil && running == nil {
		return err
	}
	o.Of, _ = os.Hostname()
	if file != "" {
		o.Of = filepath.Base(file)
	}
	if running != nil {
		o.Live = func(ctx context.Context, after time.Time) (*observe.Sample, error) {
			sample, err := running.NewerSample(ctx, after)
			if lost := (*url.Error)(nil); errors.As(err, &lost) {
				err = fmt.Errorf("the agent does not answer: %w", lost.Err)
			}
			return sample, err
		}
	}
	if file != "" {
		reach, err := from.reach(ctx)
		if err != nil {
			return err
		}
		o.At = reach.To
	}
	o.Reach = from.reach
	missing := err
	o.Load = func(ctx context.Context, begin, end time.Time) (ticks []record.Tick, err error) {
		if missing != nil {
			return nil, missing
		}
		segments, err := from.segments(ctx, begin, end)
		if err != nil {
			return nil, err
		}
		defer segments.Close()
		err = record.Walk(segments, begin, end, func(t record.Tick) error {
			ticks = append(ticks, t)
			return ctx.Err()
		})
		return ticks, err
	}
	return nil
}

// utf8Locale says whether the terminal takes more than ASCII, by the first of these that is set (locale(7)).
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := os.Getenv(name); value != "" {
			value = strings.ToLower(value)
			return strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
		}
	}
	return false
}

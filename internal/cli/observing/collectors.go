package observing

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// collectors is the verb that shows and switches collectors.
func (s Session) collectors() *cobra.Command {
	c := &cobra.Command{
		Use:   "collectors",
		Short: "what the agent reads for metrics, and how often; switched while it runs",
		Long: `collectors shows what the agent samples: each collector reads one kind of figures on its own clock.
They are switched while the agent runs: what is switched is in effect at once, no other collector misses a reading, and
the agent keeps it over its restarts. With --for a switch ends by itself. A name that is not known changes nothing. hr,
mr and lr stand for all collectors that read every 5, 10 and 60 seconds, but blame.

blame, which has BPF programs count whom groups wait for, is off until it is asked for by its name, as a database with
very many switches may lose more than a hundredth of its work to it (docs/suspects.md has figures). Live suspects
count by themselves and need it not. Where it is on and nothing counts, the reason is said here.

A reading that takes longer than its time limit holds up no other: its collector is skipped until it has ended, and
says so here. One that uses more CPU than its budget three times in a row reads half as often; switch it off and on
again to have it as before.`,
		Example: `  bulkhead collectors                          all, with what they cost
  bulkhead collectors enable blame --for 1h
  bulkhead collectors disable network filesystem
  bulkhead collectors set diskstats,meminfo,netdev,vmstat
  bulkhead collectors reset                    all but blame on, for good`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			running, err := s.running(cmd.Context())
			if err != nil {
				return err
			}
			all, err := running.Collectors(cmd.Context())
			if err != nil {
				return err
			}
			return s.show(all, time.Now())
		},
	}
	c.AddCommand(
		s.change(collect.Enable, "enable NAME…", "switch collectors on",
			"  bulkhead collectors enable memory_stat --for 30m"),
		s.change(collect.Disable, "disable NAME…", "switch collectors off",
			"  bulkhead collectors disable network filesystem"),
		s.change(collect.Set, "set NAME,NAME…", "switch exactly these on, and all others off",
			"  bulkhead collectors set diskstats,meminfo,netdev,vmstat"),
		s.change(collect.Reset, "reset", "switch all but blame on, for good", "  bulkhead collectors reset"))
	return c
}

// change is a verb below collectors.
func (s Session) change(verb collect.Verb, use, short, example string) *cobra.Command {
	var span time.Duration
	c := &cobra.Command{
		Use: use, Short: short, Example: example,
		Args: usage.AtLeast(1, "name collectors; `bulkhead collectors` lists them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change := collect.Change{Verb: verb, For: span}
			for _, arg := range args {
				for name := range strings.SplitSeq(arg, ",") {
					change.Names = append(change.Names, strings.TrimSpace(name))
				}
			}
			if cmd.Flags().Changed("for") && span < time.Second {
				return usage.Errorf(cmd, "--for is at least a second")
			}
			running, err := s.running(cmd.Context())
			if err != nil {
				return err
			}
			all, err := running.SwitchCollectors(cmd.Context(), change)
			if err != nil {
				return err
			}
			return s.show(all, time.Now())
		},
	}
	if verb == collect.Reset {
		c.Args = usage.NoArguments
		return c
	}
	usage.SpanFlag(c, &span, "for", 0, "for how long; without it for good")
	for _, p := range observe.Parts {
		c.ValidArgs = append(c.ValidArgs, string(p))
	}
	return c
}

// show answers with what collectors do.
func (s Session) show(all []observe.Reading, now time.Time) error {
	return s.Print(all, func() {
		rows := [][]string{{"COLLECTOR", "STATE", "EVERY", "LAST", "TOOK", "CPU", "WHAT IT READS"}}
		for _, c := range all {
			last, took, used := "-", "-", "-"
			if c.Age > 0 && c.On {
				last, took, used = c.Age.Round(100*time.Millisecond).String()+" ago", short(c.Took), short(c.Used)
			}
			rows = append(rows, []string{string(c.Name), switched(c, now), c.Every.String(), last, took, used, c.Help})
		}
		render.Table(s.Out, rows)
		for _, c := range all {
			for _, text := range remarks(c) {
				render.Println(s.Out, string(c.Name)+": "+text)
			}
		}
	})
}

// switched says how a collector is switched, and until when: with the day, when that is not today.
func switched(c observe.Reading, now time.Time) string {
	text := "off"
	if c.On {
		text = "on"
	}
	if c.Until != nil {
		form := time.TimeOnly
		if until := c.Until.Local(); until.Format(time.DateOnly) != now.Local().Format(time.DateOnly) {
			form = time.DateTime
		}
		text += " until " + c.Until.Local().Format(form)
	}
	return text
}

// remarks say what is wrong with a collector.
func remarks(c observe.Reading) (all []string) {
	if !c.On {
		return nil
	}
	if c.Waiting > 0 {
		all = append(all, fmt.Sprintf("a reading has been under way for %s; until it ends, the next ones are skipped",
			c.Waiting.Round(time.Second)))
	}
	if c.Skipped > 0 {
		all = append(all, fmt.Sprintf("%s skipped because the one before had not ended",
			render.Count(int(c.Skipped), "reading was", "readings were")))
	}
	if c.Slower > 1 {
		all = append(all, fmt.Sprintf("it uses more CPU than its budget, and reads %d times less often than it should",
			c.Slower))
	}
	if c.Error != "" {
		all = append(all, "the last reading failed: "+c.Error)
	}
	if c.Remark != "" {
		all = append(all, c.Remark)
	}
	return all
}

// short is a length of time without digits that mean nothing.
func short(d time.Duration) string {
	if d >= 10*time.Millisecond {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

package advice

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/advise/proved"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/api"
	"bulkhead/internal/bench"
	"bulkhead/internal/cli/advice/prove"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/screen"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/host"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// benchFlags say how `tune apply --bench` measures.
type benchFlags struct {
	scenario, instance, dir string
	rounds, seconds         int
}

// usual is the scenario without a name: one load that commits, so that CPU, memory and disk all count.
const usual = "commits"

func (b *benchFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&b.scenario, "bench", "", "measure it first, by this `scenario` of \"bench list\"")
	flags.Lookup("bench").NoOptDefVal = usual
	flags.StringVar(&b.instance, "instance", "", "with --bench: measure this instance under its load; needs its --dsn")
	flags.IntVar(&b.rounds, "rounds", proved.Enough, "with --bench: pairs of measurements without and with the change")
	flags.IntVar(&b.seconds, "seconds", 10, "with --bench: length of one measurement")
	flags.StringVar(&b.dir, "dir", "", "with --bench: a `directory` for the throw-away database (default /var/tmp)")
}

// measured is how settings are kept: at once, or after they were measured. The name of a scenario that stands behind
// --bench with a blank is no rule.
func (s Session) measured(cmd *cobra.Command, args []string, b benchFlags, dsn []string) (rules []string,
	change func(*cobra.Command, api.Request) error, err error) {
	if !cmd.Flags().Changed("bench") {
		for _, name := range []string{"instance", "rounds", "seconds", "dir"} {
			if cmd.Flags().Changed(name) {
				return nil, nil, usage.Errorf(cmd, "--%s says how to measure: give --bench, too", name)
			}
		}
		return args, s.Change, nil
	}
	if b.rounds < 1 || b.seconds < 1 {
		return nil, nil, usage.Errorf(cmd, "--rounds and --seconds count from 1")
	}
	if b.instance != "" {
		if b.dir != "" || b.scenario != usual {
			return nil, nil, usage.Errorf(cmd, "--instance is measured under its own load: it takes no scenario and "+
				"no --dir")
		}
		logins, err := usage.Logins(cmd, dsn)
		if err != nil {
			return nil, nil, err
		}
		if logins[b.instance] == nil {
			return nil, nil, usage.Errorf(cmd, "%s is asked how much it does: say how to log in, --dsn %s=@FILE",
				b.instance, b.instance)
		}
		i := prove.Instance{Name: b.instance, Login: logins[b.instance], Seconds: b.seconds, Progress: s.Progress,
			Terminal: screen.Terminal(s.Progress),
			Has:      func(file string) bool { return settings.HasAtOnce(host.New("/"), b.instance, file) }}
		return args, s.proving(i, i.Estimate(b.rounds), b), nil
	}
	args = slices.Clone(args)
	if at := slices.IndexFunc(args, isScenario); at >= 0 && b.scenario == usual {
		b.scenario = args[at]
		args = slices.Delete(args, at, at+1)
	}
	sc, err := scenario.Find(b.scenario)
	if err != nil {
		return nil, nil, usage.Errorf(cmd, "--bench: %v; `bulkhead bench list` names the scenarios there are", err)
	}
	t := prove.ThrowAway{Scenario: sc, Options: bench.Options{Rounds: b.rounds, Seconds: b.seconds, Dir: b.dir,
		Progress: s.Progress, Terminal: screen.Terminal(s.Progress)}}
	return args, s.proving(t, t.Estimate(b.rounds), b), nil
}

// proving is a change that is measured before it is kept.
func (s Session) proving(from prove.Source, about time.Duration, b benchFlags) func(*cobra.Command,
	api.Request) error {
	return func(cmd *cobra.Command, q api.Request) error {
		would := "Ctrl-C takes the change back"
		if q.DryRun {
			would = "with --dry-run none of it is done"
		}
		render.Printf(cmd.ErrOrStderr(), "to be measured in %s without and with the change, %d times %d s, about "+
			"%s in all; %s\n", proof.Plural(b.rounds, "round"), 2*b.rounds+1, b.seconds, proof.Clock(about), would)
		if q.DryRun {
			return s.Change(cmd, q)
		}
		do := func(ctx context.Context, q api.Request) (*api.Reply, error) {
			r, _, err := s.Do(ctx, q)
			return r, err
		}
		r, err := prove.Run(cmd.Context(), do, from, q, b.rounds, b.seconds)
		if err != nil {
			return err
		}
		if r.Reply != nil {
			r.Reply.Plan.Steps = render.OrEmpty(r.Reply.Plan.Steps)
		}
		err = s.Print(r, func() {
			r.Print(s.Out)
			if r.Reply != nil {
				err = s.Reply(r.Reply, q)
			}
		})
		if err == nil && !r.Kept {
			return api.Errorf(api.CodeFailed, "`bulkhead advise show RULE` says when the advice is wrong",
				"worse beyond the noise: the change was taken back")
		}
		return err
	}
}

// isScenario says whether a word is a scenario and no rule.
func isScenario(word string) bool {
	if rules, err := rule.With(siteRules); err == nil {
		if _, known := rules.Find(word); known {
			return false
		}
	}
	_, err := scenario.Find(word)
	return err == nil
}

// Package unit is the verb `unit`: what systemd's bulkhead.service must allow for the policy file. Command gives it.
package unit

import (
	"context"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"bulkhead/internal/agent"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/revisions"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd/sandbox"
	"bulkhead/internal/systemd/sandbox/confined"
	"bulkhead/internal/transaction"
)

// Session is how the verb reads the policy file and the state directory, and where it answers.
type Session struct {
	Out    io.Writer
	Parsed func() (*policy.Policy, error)
	Open   func() (*transaction.Controller, error)
	Print  func(any, func()) error
}

// Command gives the verb.
func Command(s Session) *cobra.Command {
	var printed, write, applied bool
	var to int
	c := &cobra.Command{
		Use:   "unit",
		Short: "what bulkhead.service must allow for the policy",
		Long: `unit says what the policy file asks for and the packaged bulkhead.service forbids the agent. --print
gives a drop-in that allows it, and no more; nothing when the packaged unit will do. --write puts that into
` + File + `, for the policy file and the policy in force together, or
takes the file away. It counts when systemd has read it and the agent was started anew. On a host without systemd
nothing is forbidden, and nothing is written.`,
		Example: `  bulkhead unit
  bulkhead unit --write && systemctl daemon-reload && systemctl restart bulkhead
  bulkhead unit --write --applied   what the policy in force needs, and no more`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !write {
				if applied || to > 0 {
					return usage.Errorf(cmd, "--applied and --to are for --write")
				}
				p, err := s.Parsed()
				if err != nil {
					return err
				}
				return s.say(sandbox.Needs(p), printed)
			}
			if printed || to < 0 {
				return usage.Errorf(cmd, "--print and --write are two things to do, and a revision counts from 1")
			}
			return s.write(applied, to)
		},
	}
	c.Flags().BoolVar(&printed, "print", false, "print the drop-in")
	c.Flags().BoolVar(&write, "write", false, "keep the drop-in up to date")
	c.Flags().BoolVar(&applied, "applied", false, "with --write: for the policy in force, without the file")
	c.Flags().IntVar(&to, "to", 0, "with --write: for this `revision`, too, before a rollback to it")
	return c
}

func (s Session) say(needs []sandbox.Need, printed bool) error {
	if printed {
		_, err := io.WriteString(s.Out, sandbox.DropIn(needs))
		return err
	}
	return s.Print(render.OrEmpty(needs), func() {
		if len(needs) == 0 {
			render.Println(s.Out, "bulkhead.service as packaged allows all that the policy asks for")
			return
		}
		for _, n := range needs {
			render.Printf(s.Out, "%s: %s\n", n.For, n.Because)
		}
		render.Println(s.Out, "`bulkhead unit --print` prints a drop-in that allows it, --write keeps it")
	})
}

// write brings the drop-in up to date.
func (s Session) write(applied bool, to int) error {
	var all []*policy.Policy
	if !applied {
		p, err := s.Parsed()
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	c, err := s.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	d, err := state.Load(c.Store, state.DocApplied, state.DocTrial, state.DocBefore, state.DocCanary)
	if err != nil {
		return err
	}
	if d.Applied != nil {
		all = append(all, parsed(d.Applied.Sources)...)
	}
	if d.Trial != nil && d.Trial.ID != "" && d.Before.Applied != nil { // it may be undone
		all = append(all, parsed(d.Before.Applied.Sources)...)
	}
	if d.Canary != nil {
		all = append(all, parsed(d.Canary.Sources)...)
	}
	if to > 0 {
		if d.Applied == nil {
			return transaction.NotApplied()
		}
		entries, err := c.Store.History()
		if err != nil {
			return err
		}
		sources, err := revisions.Sources(c.Store, d, entries, to)
		if err != nil {
			return err
		}
		all = append(all, parsed(sources)...)
	}
	r, err := update(c.Root, sandbox.Of(all...))
	if err != nil {
		return err
	}
	return s.Print(r, func() {
		switch {
		case r.NoSystemd:
			render.Println(s.Out, "there is no systemd here: nothing is forbidden, and nothing is written")
		case !r.Changed && len(r.Needs) == 0:
			render.Println(s.Out, "bulkhead.service as packaged allows all that is needed")
		case !r.Changed:
			render.Printf(s.Out, "%s is up to date\n", File)
		case len(r.Needs) == 0:
			render.Printf(s.Out, "%s is taken away: bulkhead.service as packaged allows all that is needed\n", File)
		default:
			for _, n := range r.Needs {
				render.Printf(s.Out, "%s: %s\n", n.For, n.Because)
			}
			render.Printf(s.Out, "%s is written\n", File)
		}
		if r.Changed {
			render.Println(s.Out, "it counts after: systemctl daemon-reload && systemctl restart bulkhead")
		}
	})
}

// parsed is a policy that was applied; none where a later version no longer takes it.
func parsed(sources []policy.Source) []*policy.Policy {
	p, err := parse.Policy(sources)
	if len(sources) == 0 || err != nil {
		return nil
	}
	return []*policy.Policy{p}
}

// Refusals are what the unit of a running agent forbids it of a policy, for a plan: none where no agent runs, or
// outside of systemd, or the agent is of a version that cannot tell. File is the policy's.
func Refusals(ctx context.Context, running *agent.Client, sources []policy.Source, file string) []plan.Refusal {
	if running == nil {
		return nil
	}
	needs := sandbox.Of(parsed(sources)...)
	unit, forbidden, err := running.Forbidden(ctx, sandbox.Settings(needs))
	if err != nil || len(forbidden) == 0 {
		return nil
	}
	if file == transaction.DefaultPolicy {
		file = ""
	}
	return confined.Refusals(unit, forbidden, needs, file, 0)
}

// Wider says that the drop-in allows more than a policy in force needs; "" when it does not.
func Wider(root string, sources []policy.Source) string {
	have, err := read(root)
	if err != nil || have == "" {
		return ""
	}
	need := sandbox.Settings(sandbox.Of(parsed(sources)...))
	for _, line := range settings(have) {
		if !slices.Contains(need, line) {
			return File + " allows more than this policy needs: `bulkhead unit --write && systemctl daemon-reload && " +
				"systemctl restart bulkhead` takes it away"
		}
	}
	return ""
}

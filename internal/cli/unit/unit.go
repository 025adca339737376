// Package unit is the verb `unit`: what systemd's bulkhead.service must allow for the policy file. Command gives it.
package unit

import (
	"context"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/policy"
	"bulkhead/internal/revisions"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd/sandbox"
	"bulkhead/internal/systemd/sandbox/confined"
	"bulkhead/internal/transaction"
)

// session is how the verb reads the policy file and the state directory, and where it answers.
type session struct {
	out    io.Writer
	parsed func() (*policy.Policy, error)
	open   func() (*transaction.Controller, error)
	print  func(any, func()) error
}

// Command gives the verb. It prints to out, or with --json by print, reads the policy by parsed, and opens the state
// directory by open.
func Command(out io.Writer, parsed func() (*policy.Policy, error), open func() (*transaction.Controller, error),
	print func(any, func()) error) *cobra.Command {
	s := session{out, parsed, open, print}
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
  bulkhead unit --write
  systemctl daemon-reload && systemctl restart bulkhead
  bulkhead unit --write --applied   what the policy in force needs, and no more`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !write {
				if applied || to > 0 {
					return usage.Errorf(cmd, "--applied and --to are for --write")
				}
				p, err := s.parsed()
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

func (s session) say(needs []sandbox.Need, printed bool) error {
	if printed {
		_, err := io.WriteString(s.out, sandbox.DropIn(needs))
		return err
	}
	return s.print(render.OrEmpty(needs), func() {
		if len(needs) == 0 {
			render.Println(s.out, "bulkhead.service as packaged allows all that the policy asks for")
			return
		}
		for _, n := range needs {
			render.Printf(s.out, "%s: %s\n", n.For, n.Because)
		}
		render.Println(s.out, "`bulkhead unit --print` prints a drop-in that allows it, --write keeps it")
	})
}

// write brings the drop-in up to date.
func (s session) write(applied bool, to int) error {
	var all []*policy.Policy
	if !applied {
		p, err := s.parsed()
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	c, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close()
	recorded, err := recorded(c, to)
	if err != nil {
		return err
	}
	r, err := update(c.Root, sandbox.Of(append(all, recorded...)...))
	if err != nil {
		return err
	}
	return s.print(r, func() { s.tell(r) })
}

// tell says what was done.
func (s session) tell(r result) {
	switch {
	case r.NoSystemd:
		render.Println(s.out, "there is no systemd here: nothing is forbidden, and nothing is written")
	case !r.Changed && len(r.Needs) == 0:
		render.Println(s.out, "bulkhead.service as packaged allows all that is needed")
	case !r.Changed:
		render.Printf(s.out, "%s is up to date\n", File)
	case len(r.Needs) == 0:
		render.Printf(s.out, "%s is taken away: bulkhead.service as packaged allows all that is needed\n", File)
	default:
		for _, n := range r.Needs {
			render.Printf(s.out, "%s: %s\n", n.For, n.Because)
		}
		render.Printf(s.out, "%s is written\n", File)
	}
	if r.Changed {
		render.Println(s.out, "it counts after: systemctl daemon-reload && systemctl restart bulkhead")
	}
}

// recorded are the policies that the agent may have to act on: the one in force and what overrides it, those that a
// change on trial ends in, and a revision, 0 for none.
func recorded(c *transaction.Controller, to int) ([]*policy.Policy, error) {
	d, err := state.Load(c.Store, state.DocApplied, state.DocTrial, state.DocBefore, state.DocCanary,
		state.DocOverrides)
	if err != nil {
		return nil, err
	}
	var all [][]policy.Source
	if d.Applied != nil {
		all = append(all, d.Applied.Sources)
	}
	if d.Trial != nil && d.Trial.ID != "" && d.Before.Applied != nil {
		all = append(all, d.Before.Applied.Sources)
	}
	if d.Canary != nil {
		all = append(all, d.Canary.Sources)
	}
	if to > 0 && d.Applied == nil {
		return nil, transaction.NotApplied()
	} else if to > 0 {
		entries, err := c.Store.History()
		if err != nil {
			return nil, err
		}
		sources, err := revisions.Sources(c.Store, d, entries, to)
		if err != nil {
			return nil, err
		}
		all = append(all, sources)
	}
	policies := confined.Parsed(all...)
	for _, o := range d.Overrides {
		policies = append(policies, confined.Overridden(o.Text, o.On))
	}
	return policies, nil
}

// Refuse has a plan of a view refused for what the unit of a running agent forbids it. Nothing is where no agent runs,
// or outside of systemd, or the agent is of a version that cannot tell. File is the policy's.
func Refuse(ctx context.Context, dial func(context.Context) (*client.Client, error), v *transaction.View, file string) {
	running, err := dial(ctx)
	if err != nil || running == nil {
		return
	}
	needs := sandbox.Of(confined.Parsed(v.Policy.Sources)...)
	unit, forbidden, err := running.Forbidden(ctx, sandbox.Settings(needs))
	if err != nil || len(forbidden) == 0 {
		return
	}
	if file == transaction.DefaultPolicy {
		file = ""
	}
	v.Plan.Refusals = append(confined.Refusals(unit, forbidden, needs, file, 0), v.Plan.Refusals...)
}

// Wider says that the drop-in allows more than a policy in force needs; "" when it does not.
func Wider(root string, sources []policy.Source) string {
	have, err := read(root)
	if err != nil || have == "" {
		return ""
	}
	need := sandbox.Settings(sandbox.Of(confined.Parsed(sources)...))
	for _, line := range settings(have) {
		if !slices.Contains(need, line) {
			return File + " allows more than this policy needs: `bulkhead unit --write && systemctl daemon-reload && " +
				"systemctl restart bulkhead` takes it away"
		}
	}
	return ""
}

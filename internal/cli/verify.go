package cli

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/inspect"
	"bulkhead/internal/verify"
)

// verifyFlags are the flags of verify.
type verifyFlags struct {
	probe, dryRun, inside, destructive bool
	peer, listen                       string
	span                               time.Duration
}

func verifyCmd(s *session) *cobra.Command {
	var o verifyFlags
	c := &cobra.Command{
		Use:   "verify [GROUP…]",
		Short: "read every limit back from the kernel, or measure what it enforces",
		Long: `verify reads every limit back from the kernel and compares. It starts nothing.

With --probe it measures: it says for how long, with how much and on which device, and then starts loads of its own
for a few seconds each, in directories beside those of the group that hold the same limits, so that the group's own
processes keep their budget. --inside puts them into the group itself. --dry-run says what would be done, and does
nothing.

Exit code 4: a limit is not enforced; 7: everything is released; 8: a change was interrupted; 9: every limit is in
force, but new processes are not placed, as no agent is running.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.listen != "" && (o.probe || len(args) > 0):
				return &api.Error{Code: api.CodeUsage,
					Err: errors.New("--listen is all that it does: it goes without --probe and groups")}
			case o.listen != "":
				return listen(cmd.Context(), s.out, o.listen)
			case o.probe:
				return measure(cmd.Context(), s, args, o)
			case o.dryRun || o.inside || o.destructive || o.peer != "":
				return &api.Error{Code: api.CodeUsage,
					Err: errors.New("--dry-run, --inside, --destructive and --peer go with --probe")}
			}
			c, err := s.open()
			if err != nil {
				return err
			}
			defer c.Close()
			all, err := inspect.Verify(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			st, err := readStatus(cmd.Context(), s)
			if err != nil {
				return err
			}
			err = answerVerified(&s.output, all)
			return cmp.Or(st.InForce(), err, st.Placing())
		},
	}
	f := c.Flags()
	f.BoolVar(&o.probe, "probe", false, "measure what the kernel enforces")
	f.BoolVar(&o.dryRun, "dry-run", false, "with --probe: say what would be measured, do nothing")
	f.BoolVar(&o.inside, "inside", false, "with --probe: share the group's own budget; limits on interfaces need it")
	f.BoolVar(&o.destructive, "destructive", false,
		"with --probe: go over limits on memory, until the kernel kills the load")
	f.StringVar(&o.peer, "peer", "", "with --probe: `ADDRESS:PORT` of a `verify --listen` elsewhere, for "+
		"limits on interfaces")
	f.DurationVar(&o.span, "span", 2*time.Second, "with --probe: how long each measurement takes")
	f.StringVar(&o.listen, "listen", "", "be the peer of a probe elsewhere on `ADDRESS:PORT`, until interrupted")
	return c
}

// answerVerified answers with the limits that were read back; one that is not in force is exit code 4.
func answerVerified(o *output, all []verify.Reading) error {
	bad := slices.ContainsFunc(all, func(v verify.Reading) bool { return v.Fault() })
	return o.verdict(render.OrEmpty(all), bad, func() { render.Verified(o.out, all) })
}

// answerProbed answers with what was measured; a limit that is not enforced is exit code 4.
func answerProbed(o *output, all []verify.Result) error {
	bad := slices.ContainsFunc(all, func(r verify.Result) bool { return r.Verdict.Fault() })
	return o.verdict(render.OrEmpty(all), bad, func() { render.Probed(o.out, all) })
}

// verdict answers, and gives the exit code for limits that are not enforced.
func (o *output) verdict(v any, bad bool, text func()) error {
	if err := o.print(v, text); err != nil {
		return err
	}
	if bad {
		return exit{int(api.CodeVerify)}
	}
	return nil
}

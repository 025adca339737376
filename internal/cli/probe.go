package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/control"
	"bulkhead/internal/inspect"
	"bulkhead/internal/probe"
	"bulkhead/internal/verify"
)

// errDryRun ends a probe before its first load.
var errDryRun = errors.New("dry run")

// measure measures what the limits of groups enforce.
func measure(ctx context.Context, s *session, groups []string, o verifyFlags) error {
	if err := needRoot("verify --probe"); err != nil {
		return err
	}
	running, err := s.agent(ctx)
	if err != nil {
		return err
	}
	c, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close()
	all, err := inspect.Probe(ctx, c, verify.Options{
		Groups: groups, Inside: o.inside, Destructive: o.destructive, Peer: o.peer, Span: o.span, Agent: running != nil,
		Begin: func(pl verify.Plan) error {
			if o.dryRun && s.json {
				pl.Loads, pl.Left = render.OrEmpty(pl.Loads), render.OrEmpty(pl.Left)
				if err := s.printJSON(pl); err != nil {
					return err
				}
				return errDryRun
			}
			if o.dryRun {
				render.ProbePlan(s.out, pl, true)
				return errDryRun
			}
			render.ProbePlan(s.err, pl, false)
			return nil
		},
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	if err != nil {
		return err
	}
	return answerProbed(&s.output, all)
}

// listen is the peer of probes elsewhere.
func listen(ctx context.Context, out io.Writer, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %q: %w", address, err)
	}
	render.Printf(out, "serving probes on %s; anybody who reaches it may send here\n", l.Addr())
	return probe.Sink(ctx, l)
}

// probeLoadCmd is for the program itself: a probe starts it.
func probeLoadCmd(s *session) *cobra.Command {
	var group string
	c := &cobra.Command{
		Use: "probe-load", Short: "be a load of verify --probe", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Who started it ends it.
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
			if group != "" {
				c, err := s.open()
				if err != nil {
					return err
				}
				err = control.Enter(cmd.Context(), c, control.Entry{Group: group, By: who(), Command: "probe"})
				if err := errors.Join(err, c.Close()); err != nil {
					return fmt.Errorf("enter group %s: %w", strings.TrimSpace(group), err)
				}
			}
			return probe.Serve(context.WithoutCancel(cmd.Context()), s.in, s.stdout)
		},
	}
	c.Flags().StringVar(&group, "enter", "", "enter this group first, as run does")
	return c
}

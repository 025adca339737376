package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/freeze"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

func freezeCmd(s *session) *cobra.Command {
	var ch change
	var until time.Duration
	c := &cobra.Command{
		Use:   "freeze GROUP… --for 10m",
		Short: "stop a group's processes, always with an end",
		Long: `freeze stops every process of a group until the time given is over or thaw is called. The agent ends it;
without one this command stays in the foreground and ends it itself, also on Ctrl-C. When whoever is to end it was
killed, a process of its own does, some seconds later.`,
		Args: usage.AtLeast(1, "say which group: freeze GROUP --for 10m"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("freeze")
			q.Groups, q.For = args, until
			// Asked for before anybody stands still, so that it ends the freeze and not this command alone.
			hup := hangUp()
			defer signal.Stop(hup)
			if err := outside(cmd.Context(), s, args); err != nil {
				return err
			}
			reply, byAgent, err := s.do(cmd.Context(), q)
			if err != nil {
				return err
			}
			said := s.printReply(reply, q)
			if byAgent || ch.dryRun {
				return said
			}
			return errors.Join(said, holdFreeze(cmd.Context(), s, hup, reply.Frozen))
		},
	}
	ch.flags(c)
	usage.SpanFlag(c, &until, "for", 0, "how long (required)")
	return c
}

// hangUp gives SIGHUP, unless it is ignored, as nohup(1) has it.
func hangUp() chan os.Signal {
	hup := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(hup, syscall.SIGHUP)
	}
	return hup
}

// outside refuses to have this command itself stopped by the agent, which looks only at itself. Whatever else is
// wrong is for the verb to say.
func outside(ctx context.Context, s *session, groups []string) error {
	if euid() != 0 {
		return nil
	}
	c, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		return nil
	}
	defer c.Close()
	if err := freeze.Outside(ctx, c, groups); api.CodeOf(err) == api.CodeRefused {
		return err
	}
	return nil
}

// holdFreeze waits for the end of freezes that no agent would end, for a Ctrl-C, which ends ctx, or for the
// terminal to go, and ends them.
func holdFreeze(ctx context.Context, s *session, hup <-chan os.Signal, own []state.Freeze) error {
	render.Println(s.err, "no agent is running: waiting here to end the freeze; Ctrl-C ends it now")
	select {
	case <-ctx.Done():
	case <-hup:
	case <-time.After(time.Until(own[0].Ends)):
	}
	c, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close()
	c.LockWait = time.Minute // groups stand still: rather wait for another change than leave them so
	text, err := freeze.End(context.WithoutCancel(ctx), c, own, who())
	if err != nil {
		return err
	}
	render.Println(s.err, text)
	return nil
}

func thawCmd(s *session) *cobra.Command {
	var ch change
	c := &cobra.Command{
		Use:   "thaw GROUP…",
		Short: "let a frozen group run again",
		Args:  usage.AtLeast(1, "say which group: thaw GROUP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("thaw")
			q.Groups = args
			return s.change(cmd, q)
		},
	}
	ch.flags(c)
	return c
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/control"
	"bulkhead/internal/policy"
)

func (a *app) setCmd() *cobra.Command {
	var ch change
	var on string
	var until time.Duration
	c := &cobra.Command{
		Use:   "set GROUP:KEY=VALUE…",
		Short: "change limits now, over the policy, as one change",
		Example: `  bulkhead set mysql3306:cpu.limit=4 reports:cpu.limit=1 --for 2h --reason "month end"
  bulkhead set reports:io.read.bandwidth=20MB/s --on /var/lib/mysql`,
		Args: atLeast(1, "say which limit: set GROUP:KEY=VALUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("set")
			q.Assign, q.On, q.For = args, on, until
			return a.change(cmd, q)
		},
	}
	ch.flags(c)
	ch.onTrial(c)
	ch.migration(c)
	c.Flags().StringVar(&on, "on", "", "the `device or path` of an io limit, the page size of memory.huge")
	spanFlag(c, &until, "for", 0, "end by itself after this time")
	return c
}

func (a *app) unsetCmd() *cobra.Command {
	var ch change
	var on string
	c := &cobra.Command{
		Use:   "unset GROUP:KEY…",
		Short: "take overrides away; the policy holds again",
		Args:  atLeast(1, "say which limit: unset GROUP:KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("unset")
			q.Assign, q.On = args, on
			return a.change(cmd, q)
		},
	}
	ch.flags(c)
	ch.onTrial(c)
	c.Flags().StringVar(&on, "on", "", "the `device or path` of an io limit")
	return c
}

// change has a verb done and prints what it did.
func (a *app) change(cmd *cobra.Command, q control.Request) error {
	reply, _, err := a.do(cmd.Context(), q)
	if err != nil {
		return err
	}
	return a.printReply(reply, q)
}

func (a *app) moveCmd() *cobra.Command {
	var ch change
	var tree, back bool
	var until time.Duration
	c := &cobra.Command{
		Use:   "move GROUP PID… | move --back PID…",
		Short: "place running processes by hand, held against the rules",
		Args:  atLeast(1, "say which processes: move GROUP PID…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("move")
			q.Tree, q.For = tree, until
			if back {
				q.Verb = "move-back"
			} else {
				if len(args) < 2 {
					return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("say which processes: move GROUP PID…")}
				}
				q.Group, args = args[0], args[1:]
			}
			for _, arg := range args {
				pid, err := strconv.Atoi(arg)
				if err != nil || pid < 1 {
					return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("%q is not a process id", arg)}
				}
				q.PIDs = append(q.PIDs, pid)
			}
			return a.change(cmd, q)
		},
	}
	ch.flags(c)
	c.Flags().BoolVar(&tree, "tree", false, "with all descendants")
	c.Flags().BoolVar(&back, "back", false, "let processes go that were placed by hand")
	spanFlag(c, &until, "for", 0, "let them go by itself after this time (needs the agent)")
	return c
}

func (a *app) freezeCmd() *cobra.Command {
	var ch change
	var until time.Duration
	c := &cobra.Command{
		Use:   "freeze GROUP… --for 10m",
		Short: "stop a group's processes, always with an end",
		Long: `freeze stops every process of a group until the time given is over or thaw is called. The agent ends it;
without one this command stays in the foreground and ends it itself, also on Ctrl-C.`,
		Args: atLeast(1, "say which group: freeze GROUP --for 10m"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("freeze")
			q.Groups, q.For = args, until
			// Asked for before anybody stands still, so that it ends the freeze and not this command alone.
			hup := hangUp()
			defer signal.Stop(hup)
			if err := a.outside(args); err != nil {
				return err
			}
			reply, byAgent, err := a.do(cmd.Context(), q)
			if err != nil {
				return err
			}
			said := a.printReply(reply, q)
			if byAgent || ch.dryRun {
				return said
			}
			return errors.Join(said, a.holdFreeze(cmd.Context(), hup, reply.Held()))
		},
	}
	ch.flags(c)
	spanFlag(c, &until, "for", 0, "how long (required)")
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
func (a *app) outside(groups []string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	c, err := control.Open(control.Options{State: a.state})
	if err != nil {
		return nil
	}
	defer c.Close()
	if err := c.Outside(groups); control.CodeOf(err) == control.CodeRefused {
		return err
	}
	return nil
}

// holdFreeze waits for the end of freezes that no agent would end, for a Ctrl-C, which ends ctx, or for the
// terminal to go, and ends them.
func (a *app) holdFreeze(ctx context.Context, hup <-chan os.Signal, own []control.Freeze) error {
	fmt.Fprintln(a.err, "no agent is running: waiting here to end the freeze; Ctrl-C ends it now")
	select {
	case <-ctx.Done():
	case <-hup:
	case <-time.After(time.Until(own[0].Ends)):
	}
	c, err := a.open()
	if err != nil {
		return err
	}
	defer c.Close()
	c.LockWait = time.Minute // groups stand still: rather wait for another change than leave them so
	text, err := c.EndFreezes(context.WithoutCancel(ctx), own, who())
	if err != nil {
		return err
	}
	fmt.Fprintln(a.err, text)
	return nil
}

func (a *app) confirmCmd() *cobra.Command {
	var ch change
	c := &cobra.Command{
		Use:   "confirm",
		Short: "keep the change that waits for it",
		Long: `confirm keeps what apply, set, unset or rollback did with --confirm-within. Without it the change is undone when
that time is over, by a process of its own: this command, its terminal and the agent may all be gone by then.`,
		Example: `  bulkhead apply --confirm-within 5m
  bulkhead confirm`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.change(cmd, ch.request("confirm")) },
	}
	c.Flags().StringVar(&ch.reason, "reason", "", "why, for the history")
	c.Flags().BoolVar(&ch.dryRun, "dry-run", false, "say what would be kept, do nothing")
	return c
}

func (a *app) thawCmd() *cobra.Command {
	var ch change
	c := &cobra.Command{
		Use:   "thaw GROUP…",
		Short: "let a frozen group run again",
		Args:  atLeast(1, "say which group: thaw GROUP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("thaw")
			q.Groups = args
			return a.change(cmd, q)
		},
	}
	ch.flags(c)
	return c
}

func (a *app) releaseCmd() *cobra.Command {
	var ch change
	var all bool
	c := &cobra.Command{
		Use:   "release GROUP… | release --all",
		Short: "the emergency exit: lift limits, in a safe order",
		Long: `release lifts the limits of groups, in an order that is safe for what runs in them. It works with the agent
dead and with the policy broken. A released group stays lifted, over restarts and reboots, until apply.
release --all gives the host back: processes go to where they came from, every directory of bulkhead goes.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := ch.request("release")
			q.Groups, q.All = args, all
			// Needed only when no root group is recorded; whatever is wrong with it must not stand in the way.
			q.Sources, _ = policy.Read(a.policy)
			return a.change(cmd, q)
		},
	}
	ch.flags(c)
	c.Flags().BoolVar(&all, "all", false, "everything")
	return c
}

func (a *app) rollbackCmd() *cobra.Command {
	var ch change
	var to int
	c := &cobra.Command{
		Use:   "rollback",
		Short: "undo an interrupted change, or go back to an earlier revision",
		Long: `rollback undoes a change that was interrupted (a crash, kill -9), and nothing else then. When there is none
it goes back to the revision before the one in force; but not when the last change was undone already, as the
agent or the next changing verb does it with an interrupted one, nor after a release: then say --to N.
Overrides stay; history lists the revisions.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("to") && to < 1 {
				return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("no revision %d: they count from 1", to)}
			}
			q := ch.request("rollback")
			q.To = to
			return a.change(cmd, q)
		},
	}
	ch.flags(c)
	ch.onTrial(c)
	c.Flags().IntVar(&to, "to", 0, "the `revision` to go back to; without it the one before")
	return c
}

package cli

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/confirm"
	"bulkhead/internal/control"
	"bulkhead/internal/freeze"
	"bulkhead/internal/sloloop"
	"bulkhead/internal/transaction"
	"bulkhead/internal/watchdog"
)

// watchdogCmd is for the program itself: whoever changes interfaces starts it.
func watchdogCmd(s *session) *cobra.Command {
	var trial, frozen string
	squeezed := false
	c := &cobra.Command{
		Use: "watchdog", Short: "take a change back whose maker is gone", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Whatever ends the one that makes the change must not end this.
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
			// Whoever starts this has made the state directory: one that is not there is another one.
			if _, err := os.Stat(s.state); err != nil {
				watchdog.Refuse(s.stdout, err)
				return err
			}
			if trial != "" {
				return outlive(cmd.Context(), s, func(ctx context.Context, c *transaction.Controller) error {
					return confirm.NewSupervisor(c, trial, control.ApplyRest(c)).Run(ctx)
				})
			}
			if frozen != "" {
				return outlive(cmd.Context(), s, func(ctx context.Context, c *transaction.Controller) error {
					return freeze.Outlast(ctx, c, frozen)
				})
			}
			if squeezed {
				return watchdog.Watch(context.WithoutCancel(cmd.Context()), s.in, s.stdout,
					func(ctx context.Context, _ watchdog.Order, why string, _ int) error {
						c, err := s.open()
						if err != nil {
							return err
						}
						defer c.Close()
						return sloloop.GiveBack(ctx, c, why)
					})
			}
			return watchdog.Watch(context.WithoutCancel(cmd.Context()), s.in, s.stdout,
				func(ctx context.Context, o watchdog.Order, why string, stuck int) error {
					log := s.logger(slog.LevelWarn)
					c, err := transaction.Open(transaction.Options{State: s.state, Log: log})
					if err != nil { // what it was told is enough
						log.Error("open the state directory", "err", err)
						if c, err = transaction.Open(transaction.Options{NoState: true, Log: log}); err != nil {
							return err
						}
					}
					defer c.Close()
					return confirm.TakeBack(ctx, c, o, why, stuck)
				})
		},
	}
	c.Flags().BoolVar(&squeezed, "squeezed", false,
		"give back what the agent has lowered for databases, once it is gone")
	c.Flags().StringVar(&trial, "trial", "", "the `id` of a change that somebody has to confirm")
	c.Flags().StringVar(&frozen, freeze.WatchdogFlag[2:], "", "the `id` of freezes that somebody has to end")
	return c
}

// outlive tends to something once its maker has left it, until that is over.
func outlive(ctx context.Context, s *session, tend func(context.Context, *transaction.Controller) error) error {
	c, err := s.open()
	if err != nil {
		watchdog.Refuse(s.stdout, err)
		return err
	}
	defer c.Close()
	c.LockWait = time.Minute // late is better than never
	return watchdog.Outlive(context.WithoutCancel(ctx), s.in, s.stdout,
		func(ctx context.Context) error { return tend(ctx, c) })
}

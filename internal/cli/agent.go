package cli

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"bulkhead/internal/agent"
	"bulkhead/internal/cli/observing"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/systemd/sandbox/confined"
	"bulkhead/internal/transaction"
)

func agentCmd(s *session) *cobra.Command {
	var o agent.Options
	readyFD := 0
	c := &cobra.Command{
		Use:   "agent",
		Short: "keep the host true to the applied policy",
		Long: `agent runs in the foreground: it places new processes, re-asserts limits, and ends overrides and
freezes on time. It enforces the applied policy only, never an unapplied edit. When it stops, every limit stays in
force.

It tells systemd when everything is in force, and others by --ready-fd: a line is written there, and it is closed.`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := needRoot("agent"); err != nil {
				return err
			}
			log := s.logger(slog.LevelInfo)
			options := transaction.Options{State: s.state, Log: log, Watchdog: s.watchdogArgs()}
			atSteps(&options)
			c, err := transaction.Open(options)
			if err != nil {
				return err
			}
			defer func() {
				// The lock of what still goes on ends with the process, and not before.
				if !errors.Is(err, agent.ErrUnfinished) {
					_ = c.Close()
				}
			}()
			for _, w := range c.Warnings() {
				log.Warn("state directory", "warning", w)
			}
			o.Socket, o.Log, c.Unit = s.socket, log, confined.Own()
			if o.Ready, err = readyOn(cmd, readyFD); err != nil {
				return err
			}
			agent.Tune(log)
			return agent.New(c, o).Run(cmd.Context())
		},
	}
	usage.SpanFlag(c, &o.Every, "every", time.Second, "time between two looks for new processes")
	usage.SpanFlag(c, &o.Full, "full", 30*time.Second, "time between two looks at everything, limits too")
	c.Flags().IntVar(&readyFD, "ready-fd", 0, "a file `descriptor` to tell that everything is in force (3 or more)")
	return c
}

// observing gives what the verbs that show samples of the agent need of the session.
func (s *session) observing() observing.Session {
	return observing.Session{Agent: s.agent, Open: s.open, Do: s.do, Who: who, Print: s.print, JSON: &s.json,
		Out: s.out, Text: s.text, Err: s.err, Stdout: s.stdout, Socket: &s.socket, State: &s.state, Version: Version,
		Log: func() *slog.Logger { return s.logger(slog.LevelInfo) }}
}

// readyOn gives what tells on an inherited descriptor that the agent is ready, as s6 and others want it; nil for none.
func readyOn(cmd *cobra.Command, fd int) (func(), error) {
	if !cmd.Flags().Changed("ready-fd") {
		return nil, nil
	}
	// Every descriptor that was not inherited has the flag.
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if fd < 3 || err != nil || flags&unix.FD_CLOEXEC != 0 {
		return nil, usage.Errorf(cmd, "--ready-fd %d: nobody gave such a descriptor", fd)
	}
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "readiness")
	return func() {
		_, _ = f.WriteString("\n") // whoever waits there no longer does not matter
		_ = f.Close()
	}, nil
}

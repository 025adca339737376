package cli

import (
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/agent"
	"bulkhead/internal/control"
)

func (a *app) agentCmd() *cobra.Command {
	var o agent.Options
	c := &cobra.Command{
		Use:   "agent",
		Short: "keep the host true to the applied policy",
		Long: `agent runs in the foreground: it places new processes, re-asserts limits, and ends overrides and freezes on
time. It enforces the applied policy only, never an unapplied edit. When it stops, every limit stays in force.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("agent"); err != nil {
				return err
			}
			log := a.logger(slog.LevelInfo)
			c, err := control.Open(control.Options{State: a.state, Log: log})
			if err != nil {
				return err
			}
			defer c.Close()
			for _, w := range c.Warnings() {
				log.Warn("state directory", "warning", w)
			}
			o.Socket, o.Log = a.socket, log
			return agent.New(c, o).Run(cmd.Context())
		},
	}
	spanFlag(c, &o.Every, "every", time.Second, "time between two looks for new processes")
	spanFlag(c, &o.Full, "full", 30*time.Second, "time between two looks at everything, limits too")
	return c
}

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"context"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/inspect"
	"bulkhead/internal/transaction"
)

func discoverCmd(s *session) *cobra.Command {
	var asPolicy bool
	var measure string
	c := &cobra.Command{
		Use:       "discover [disks]",
		Short:     "the databases here, and what this kernel can hold; disks: what their files lie on",
		ValidArgs: []string{"disks"},
		Args:      discoverArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case asPolicy && len(args) > 0:
				return usage.Errorf(cmd, "--as-policy prints a whole policy: leave disks out")
			case measure != "" && len(args) == 0:
				return usage.Errorf(cmd, "--measure is for disks: bulkhead discover disks --measure %s", measure)
			}
			c, err := s.look()
			if err != nil {
				return err
			}
			defer c.Close()
			switch {
			case measure != "":
				return measureDisks(cmd.Context(), s, c, measure)
			case len(args) > 0:
				return discoverDisks(s, c)
			}
			d, err := inspect.Discover(c)
			switch {
			case err != nil:
				return err
			case asPolicy:
				_, err = io.WriteString(s.text, engine.Starter(d.Instances, len(d.Facts.CPUs), d.Facts.MemTotal,
					inspect.Held(c.Host.Proc)))
				return err
			}
			return s.print(render.DiscoveryView(d), func() { render.Discovery(s.out, d) })
		},
	}
	c.Flags().StringVar(&measure, "measure", "",
		"measure what the disks below this path, or this device, can do, in 8 seconds and 2 GiB at most")
	c.Flags().BoolVar(&asPolicy, "as-policy", false, "print a policy to start from, with limits as comments")
	return c
}

// discoverArgs takes nothing or the one thing that can be looked at alone.
func discoverArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 && args[0] != "disks" {
		return fmt.Errorf("%q is nothing that discover knows; disks is", args[0])
	}
	return usage.NoArguments(nil, args[min(1, len(args)):])
}

func discoverDisks(s *session, c *transaction.Controller) error {
	d, err := disks.Find(c.Host)
	if err != nil {
		return err
	}
	return s.print(render.DisksView(d), func() { render.Disks(s.out, d) })
}

// measureDisks measures what the disks below a path can do, and says it as a policy would.
func measureDisks(ctx context.Context, s *session, c *transaction.Controller, target string) error {
	m, err := disks.Measure(ctx, c.Host, target, func(what string) error {
		render.Printf(s.err, "measuring with %s; what uses the disks will feel it\n", what)
		return nil
	})
	if err != nil {
		return err
	}
	return s.print(m, func() { render.Measured(s.out, m, target) })
}

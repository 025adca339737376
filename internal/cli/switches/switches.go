// Package switches is the verb switches of the command line: how often CPUs switch between threads, and how often they
// can.
package switches

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/dbstat"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/switches"
	"bulkhead/internal/transaction"
)

// The least and the most that may be measured.
const (
	leastFor = 100 * time.Millisecond
	mostFor  = time.Hour
)

// Command gives the verb. It writes to out, looks at the host through look, and answers with print.
func Command(out io.Writer, look func() (*transaction.Controller, error), print func(v any, text func()) error,
) *cobra.Command {
	var dsn []string
	var span time.Duration
	var measure bool
	c := &cobra.Command{
		Use:   "switches [INSTANCE]",
		Short: "context switches: of CPUs, groups, databases, processes, for each query",
		Long: `switches counts for a time how often the CPUs switch between threads: in all, on each CPU, and voluntary
and involuntary ones by control group, database and process, with threads that end meanwhile. With INSTANCE it shows the
processes of one, and with --dsn how many switches each query took, by the server's own count. For it the status of each
thread of the host is read twice. Nothing is changed.

--measure-maximum measures how often these CPUs can switch at most, and keeps that in the state directory: seven numbers
of threads, a second each, in a process of the policy SCHED_IDLE, which lets all others go first. It never runs unless
asked for. Later calls compare with it, and say when kernel, CPU or mitigations are others.`,
		Example: `  bulkhead switches                   for 10 s, all
  bulkhead switches mysql3306 --for 1m --dsn mysql3306=@/root/mysql.dsn
                                      one database, with switches for each query
  bulkhead switches --measure-maximum
                                      how often these CPUs can switch`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			logins, err := usage.Logins(cmd, dsn)
			if err != nil {
				return err
			}
			if span < leastFor || span > mostFor {
				return usage.Errorf(cmd, "--for is from %s to %s", leastFor, mostFor)
			}
			if measure && (len(args) > 0 || len(dsn) > 0 || cmd.Flags().Changed("for")) {
				return usage.Errorf(cmd, "--measure-maximum goes alone")
			}
			c, err := look()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			if measure {
				return measureMaximum(ctx, c, out, print)
			}
			if err := running(cmd, c.Host, args, logins); err != nil {
				return err
			}
			v := &view{}
			if v.Report, v.Maximum, err = count(ctx, c, span, logins); err != nil {
				return err
			}
			v.Warnings = v.Report.Warnings(v.Maximum)
			v.Verdicts = map[string]string{}
			for _, q := range v.Report.Queries {
				v.Verdicts[q.Instance] = q.Verdict(logins[q.Instance].Engine)
			}
			if len(args) == 0 {
				return print(v, func() { printAll(out, v) })
			}
			v.only(args[0])
			return print(v, func() { printInstance(out, v, args[0]) })
		},
	}
	c.Flags().StringArrayVar(&dsn, "dsn", nil, usage.LoginsHelp)
	c.Flags().DurationVar(&span, "for", 10*time.Second, "count for this long")
	c.Flags().BoolVar(&measure, "measure-maximum", false, "measure how often the CPUs can switch, in about 10 s")
	return c
}

// running says which of the instances that are named does not run: nobody is to wait an hour to be told.
func running(cmd *cobra.Command, h *host.Host, args []string, logins map[string]*dblogin.Login) error {
	all, err := recognise.OfHost(h)
	if err != nil {
		return err
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name())
	}
	for name := range logins {
		if !slices.Contains(names, name) {
			return usage.Errorf(cmd, "--dsn is for %s, but no such instance runs here: %s", name,
				render.ListOr(names, "none does"))
		}
	}
	if len(args) > 0 && !slices.Contains(names, args[0]) {
		return usage.NoInstance(cmd, names, args[0])
	}
	return nil
}

// count measures, and reads the maximum that was kept.
func count(ctx context.Context, c *transaction.Controller, span time.Duration, logins map[string]*dblogin.Login,
) (*switches.Report, *switches.Maximum, error) {
	sources := map[string]*dbstat.Source{}
	for name, l := range logins {
		s, err := dbstat.Of(l)
		if err != nil {
			return nil, nil, err
		}
		defer s.Close()
		sources[name] = s
	}
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, nil, err
	}
	r, err := switches.Measure(ctx, c.Host, facts, span, sources)
	if errors.Is(err, fs.ErrPermission) {
		err = &api.Error{Code: api.CodeFailed, Err: err, Hint: "only root may read it: run it with sudo"}
	}
	if err != nil || c.Store == nil {
		return r, nil, err
	}
	max, err := switches.Kept(c.Store.Dir(), switches.MachineOf(c.Host, facts))
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
	}
	return r, max, nil
}

func measureMaximum(ctx context.Context, c *transaction.Controller, out io.Writer,
	print func(v any, text func()) error) error {
	if c.Store == nil {
		return &api.Error{Code: api.CodeFailed,
			Err:  errors.New("the maximum is kept in the state directory, which is root's"),
			Hint: "run it with sudo"}
	}
	facts, err := c.Host.Facts()
	if err != nil {
		return err
	}
	max, err := switches.Sweep(ctx, c.Host, facts, c.Probe, switches.SweepStep)
	if err != nil {
		return err
	}
	if err := max.Keep(c.Store.Dir()); err != nil {
		return err
	}
	return print(max, func() { printMaximum(out, max) })
}

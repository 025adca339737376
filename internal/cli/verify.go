package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/control"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
)

// verifyFlags are the flags of verify.
type verifyFlags struct {
	probe, dryRun, inside, destructive bool
	peer, listen                       string
	span                               time.Duration
}

func (a *app) verifyCmd() *cobra.Command {
	var o verifyFlags
	c := &cobra.Command{
		Use:   "verify [GROUP…]",
		Short: "read every limit back from the kernel, or measure what it enforces",
		Long: `verify reads every limit back from the kernel and compares. It starts nothing.

With --probe it measures: it says for how long, with how much and on which device, and then starts loads of its own for a few seconds
each, in directories beside those of the group that hold the same limits, so that the group's own processes keep their budget. --inside
puts them into the group itself. --dry-run says what would be done, and does nothing.

Exit code 4: a limit is not enforced.`,
		Example: `  bulkhead verify
  bulkhead verify --probe --dry-run mysql3306
  bulkhead verify --probe mysql3306
  bulkhead verify --probe --inside --peer 192.0.2.7:5201 reports`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.listen != "" && (o.probe || len(args) > 0):
				return &control.Error{Code: control.CodeUsage, Err: errors.New("--listen is all that it does: it goes without --probe and groups")}
			case o.listen != "":
				return a.listen(cmd.Context(), o.listen)
			case o.probe:
				return a.probe(cmd.Context(), args, o)
			case o.dryRun || o.inside || o.destructive || o.peer != "":
				return &control.Error{Code: control.CodeUsage, Err: errors.New("--dry-run, --inside, --destructive and --peer go with --probe")}
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			defer c.Close()
			all, err := c.Verify(args)
			if err != nil {
				return err
			}
			return a.printVerified(all)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.probe, "probe", false, "measure what the kernel enforces")
	f.BoolVar(&o.dryRun, "dry-run", false, "with --probe: say what would be measured, do nothing")
	f.BoolVar(&o.inside, "inside", false, "with --probe: share the group's own budget; limits on interfaces need it")
	f.BoolVar(&o.destructive, "destructive", false, "with --probe: go over limits on memory, until the kernel kills the load")
	f.StringVar(&o.peer, "peer", "", "with --probe: `ADDRESS:PORT` of a `verify --listen` elsewhere, for limits on interfaces")
	f.DurationVar(&o.span, "span", 2*time.Second, "with --probe: how long each measurement takes")
	f.StringVar(&o.listen, "listen", "", "be the peer of a probe elsewhere on `ADDRESS:PORT`, until interrupted")
	return c
}

// groupName is a group for people; the root group has no name of its own among the groups.
func groupName(group string) string {
	return cmp.Or(group, "(root group)")
}

// limitName is a limit with the device it is for.
func limitName(l control.LimitStatus) string { return keyName(l.Key, l.On) }

func keyName(key policy.Key, on string) string {
	if on == "" {
		return string(key)
	}
	return string(key) + " on " + on
}

// state is the verdict on a limit in one or two words.
func state(l control.LimitStatus) string {
	switch {
	case l.OK:
		return "ok"
	case l.InForce != "":
		return "DIFFERS"
	}
	return "NOT ENFORCED"
}

func (a *app) printVerified(all []control.Verification) error {
	bad := 0
	for _, v := range all {
		if !v.OK {
			bad++
		}
	}
	if a.json {
		if err := a.printJSON(list(all, same)); err != nil {
			return err
		}
	} else {
		w := a.table("group", "limit", "asked", "in force", "file", "verdict")
		for _, v := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", groupName(v.Group), limitName(v.LimitStatus), v.Asked, dash(v.InForce), dash(v.File), state(v.LimitStatus))
		}
		flush(w)
		for _, v := range all {
			if v.Reason != "" {
				fmt.Fprintf(a.out, "%s %s: %s\n", groupName(v.Group), limitName(v.LimitStatus), v.Reason)
			}
		}
		fmt.Fprintf(a.out, "%s read back, %d not enforced\n", count(len(all), "limit", "limits"), bad)
	}
	if bad > 0 {
		return exit{int(control.CodeVerify)}
	}
	return nil
}

// errDryRun ends a probe before its first load.
var errDryRun = errors.New("dry run")

// probe measures.
func (a *app) probe(ctx context.Context, groups []string, o verifyFlags) error {
	if err := needRoot("verify --probe"); err != nil {
		return err
	}
	running, err := a.agent(ctx)
	if err != nil {
		return err
	}
	c, err := a.open()
	if err != nil {
		return err
	}
	defer c.Close()
	all, err := c.Probe(ctx, control.ProbeOptions{
		Groups: groups, Inside: o.inside, Destructive: o.destructive, Peer: o.peer, Span: o.span, Agent: running != nil,
		Begin: func(pl control.ProbePlan) error {
			if o.dryRun && a.json {
				pl.Loads, pl.Left = list(pl.Loads, same), list(pl.Left, same)
				if err := a.printJSON(pl); err != nil {
					return err
				}
				return errDryRun
			}
			if a.sayProbe(pl, o); o.dryRun {
				return errDryRun
			}
			return nil
		},
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	if err != nil {
		return err
	}
	return a.printProbed(all)
}

// sayProbe says what will be measured: on stdout when that is all, else on stderr.
func (a *app) sayProbe(pl control.ProbePlan, o verifyFlags) {
	out := a.err
	if o.dryRun {
		out = a.out
	}
	fmt.Fprintf(out, "%s, about %s in all; at most %s read, written and sent\n",
		count(len(pl.Loads), "measurement", "measurements"), pl.Takes.Round(time.Second/10), policy.Bytes(pl.Bytes).Human())
	for _, l := range pl.Loads {
		on := ""
		if l.Device != "" {
			on = " (" + l.Device + ")"
		}
		fmt.Fprintf(out, "  %s %s%s, %s the group: %s, for %s\n", l.Group, keyName(l.Key, l.On), on, l.Where, l.What, l.Takes.Round(time.Second/10))
	}
	for _, l := range pl.Left {
		fmt.Fprintf(out, "  %s %s is only read back: %s\n", groupName(l.Group), keyName(l.Key, l.On), l.Why)
	}
	if o.dryRun {
		fmt.Fprintln(out, "dry run: nothing was started")
	}
}

func (a *app) printProbed(all []control.Probed) error {
	faults, measured := 0, 0
	for _, r := range all {
		if r.Verdict.Fault() {
			faults++
		}
		if r.How != "read back" && r.Verdict != probe.NotMeasured {
			measured++
		}
	}
	if a.json {
		if err := a.printJSON(list(all, same)); err != nil {
			return err
		}
	} else {
		w := a.table("group", "limit", "how", "asked", "measured", "difference", "verdict")
		for _, r := range all {
			difference := math.NaN()
			if r.Difference != nil {
				difference = *r.Difference
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", groupName(r.Group), keyName(r.Key, r.On), r.How, r.Asked, dash(r.Measured), probe.Percent(difference), r.Verdict)
		}
		flush(w)
		for _, r := range all {
			if r.Reason != "" {
				fmt.Fprintf(a.out, "%s %s, %s: %s\n", groupName(r.Group), keyName(r.Key, r.On), r.How, r.Reason)
			}
		}
		fmt.Fprintf(a.out, "%s, %d not enforced\n", count(measured, "limit measured", "limits measured"), faults)
	}
	if faults > 0 {
		return exit{int(control.CodeVerify)}
	}
	return nil
}

// listen is the peer of probes elsewhere.
func (a *app) listen(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %q: %w", address, err)
	}
	fmt.Fprintf(a.out, "serving probes on %s; anybody who reaches it may send here\n", l.Addr())
	return probe.Sink(ctx, l)
}

// probeArgs are the arguments that make this program a load of a probe.
func (a *app) probeArgs() []string { return []string{"--state", a.state, "probe-load"} }

// probeLoadCmd is for the program itself: a probe starts it.
func (a *app) probeLoadCmd() *cobra.Command {
	var group string
	c := &cobra.Command{
		Use: "probe-load", Short: "be a load of verify --probe", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Who started it ends it.
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
			if group != "" {
				c, err := a.open()
				if err != nil {
					return err
				}
				err = c.Enter(control.Entry{Group: group, By: who(), Command: "probe"})
				if err := errors.Join(err, c.Close()); err != nil {
					return fmt.Errorf("enter group %s: %w", strings.TrimSpace(group), err)
				}
			}
			return probe.Serve(context.WithoutCancel(cmd.Context()), a.in, a.stdout)
		},
	}
	c.Flags().StringVar(&group, "enter", "", "enter this group first, as run does")
	return c
}

package selinux

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/remedy"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Session is what the verbs that change the host need of the command line.
type Session struct {
	Out   io.Writer
	Open  func() (*transaction.Controller, error) // the state directory too
	Print func(v any, text func()) error
	// Flags gives a verb the flags of changes, and then the request that they make.
	Flags func(c *cobra.Command) (request func(verb string) api.Request)
	// Change has a request done and prints what was done.
	Change func(cmd *cobra.Command, q api.Request) error
}

// Changes are the verbs plan, apply and rollback.
func Changes(s Session) []*cobra.Command { return []*cobra.Command{s.plan(), s.apply(), s.rollback()} }

// from says which denials a plan is made of.
type from struct {
	since   time.Time
	take    []string
	domains []string
}

func (f *from) flags(c *cobra.Command) {
	usage.MomentFlag(c, &f.since, "since", "only denials from this `time` on")
	c.Flags().StringArrayVar(&f.take, "take-port", nil, "take this `port`, as tcp/4444, from the type that has it: "+
		"a server of that kind on this host loses it")
	c.Flags().StringArrayVar(&f.domains, "domain", nil, "set what denials of this `domain` need, too, as rsync_t: "+
		"domains of the databases of this host are known without")
}

// whole sees that no change stands half done, by which denials would be judged: one that was interrupted is undone
// where something is to be changed, and said otherwise.
func whole(ctx context.Context, c *transaction.Controller, undo bool) error {
	txn, pending := c.Store.Pending()
	switch {
	case !pending:
		return nil
	case !undo:
		return api.Errorf(api.CodeFailed, "wait for its end; one that was interrupted is undone by `bulkhead rollback`",
			"%s has begun and not ended: a plan would take the half of it for all", txn.Verb)
	}
	lock, err := c.Lock(ctx, "selinux apply", "")
	if err != nil {
		return err
	}
	defer lock.Release()
	return c.Recover(ctx, &transaction.Outcome{})
}

// remedies reads denials and plans. Undo has a change undone before that was interrupted.
func (s Session) remedies(cmd *cobra.Command, args []string, f *from, undo bool) (*remedy.Plan, error) {
	for _, port := range f.take {
		if err := sepolicy.Check("port "+port, "any_t"); err != nil {
			return nil, usage.Errorf(cmd, "--take-port: %v", err)
		}
	}
	c, err := s.Open()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := whole(cmd.Context(), c, undo); err != nil {
		return nil, err
	}
	log := &avc.Log{}
	if len(args) == 0 {
		_, err = readAudit(c.Host.Root, log, time.Now())
	} else {
		err = readNamed(cmd.InOrStdin(), args[0], log, time.Now())
	}
	if err != nil {
		return nil, err
	}
	log.Since(f.since)
	loaded.Resolve(c.Host.Root, log.Denials)
	for _, lost := range log.Lost {
		render.Printf(cmd.ErrOrStderr(), "warning: %s\n", lost)
	}
	host := loaded.Of(c.Host.Root)
	if host.Ask.Policy == nil || host.Ask.Files == nil {
		return nil, api.Errorf(api.CodeFailed, "run it as root on the host that wrote the log; `bulkhead selinux "+
			"explain --elsewhere FILE` says what can be said without", "a plan needs what is not here: %s",
			strings.Join(host.Missing, "; "))
	}
	docs, err := state.Load(c.Store, state.DocTuned)
	if err != nil {
		return nil, err
	}
	ours := func(name string) bool {
		return slices.ContainsFunc(docs.Tuned, func(t state.Tuned) bool { return t.Name == name })
	}
	instances, err := recognise.OfHost(c.Host)
	if err != nil {
		return nil, err
	}
	o := remedy.Options{Take: f.take,
		Domains: append(loaded.Domains(c.Host.Root, host.Ask, instances, log.Denials), f.domains...)}
	local := loaded.Local{Root: c.Host.Root, Found: host, Ours: ours, Files: c.Labels}
	return remedy.Of(cmd.Context(), verdict.Judge(log, host.Ask), local, o), nil
}

func (s Session) plan() *cobra.Command {
	var f from
	c := &cobra.Command{
		Use:   "plan [FILE]",
		Short: "the labels, ports, booleans and rules that put denials right",
		Long: `plan makes settings of what explain says of denials on this host: a label for a directory that a database
has to itself, the label that a file should have, the type of a port, a boolean, and a module for each domain with
the rules that are needed and no others. What it leaves to you stands below, with the reason: a script to change, a rule
that would allow too much, a port of another service, a directory that is not one database's alone, a domain that is no
database's, a path or a type that it cannot tell. Nothing is changed.

FILE is a log of this host; apply takes auditd's own logs alone.`,
		Example: `  bulkhead selinux plan                           the audit log of this host
  bulkhead selinux plan --since "2026-11-25 08:00"
  bulkhead selinux plan --take-port tcp/4444      a port of Kerberos, where no Kerberos runs`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := s.remedies(cmd, args, &f, false)
			if err != nil {
				return err
			}
			return s.Print(p, func() { printPlan(s.Out, p) })
		},
	}
	f.flags(c)
	return c
}

func printPlan(out io.Writer, p *remedy.Plan) {
	for _, set := range p.Settings {
		render.Printf(out, "set     %s = %s\n", set.Name, sepolicy.Human(set.Value))
		render.Printf(out, "  for   %s\n", render.Count(set.Denials, "denial", "denials"))
		for _, why := range set.Why[:min(most, len(set.Why))] {
			render.Printf(out, "  why   %s\n", why)
		}
	}
	if len(p.Left) > 0 {
		render.Println(out, "LEFT TO YOU")
	}
	for _, l := range p.Left {
		render.Printf(out, "%s  %s, %s\n", l.Verdict, strings.TrimSuffix(l.What, ";"),
			render.Count(l.Denials, "denial", "denials"))
		render.Printf(out, "  why   %s\n", l.Why)
		for _, do := range l.Do {
			if do != l.What {
				render.Printf(out, "  do    %s\n", do)
			}
		}
	}
	switch {
	case len(p.Settings) > 0:
		render.Println(out, "`bulkhead selinux apply` sets it, `bulkhead selinux rollback` takes all of it back")
	case len(p.Left) == 0:
		render.Println(out, "nothing to do: nothing was denied that is not allowed by now")
	default:
		render.Println(out, "nothing that can be set; `bulkhead selinux explain` says more")
	}
}

func (s Session) apply() *cobra.Command {
	var f from
	c := &cobra.Command{
		Use:   "apply",
		Short: "set what plan says, as one change that can be taken back",
		Long: `apply sets what plan says of the logs of auditd, by semanage and semodule, as one change: all of it or
none. It reads no other log, as any user may write into those. What was there before is recorded first, the label of
each file too. Labels are changed below the directories that plan names, and nowhere else; rules of others stay. SELinux
is never switched off. Compiling the policy takes some seconds for each setting.`,
		Example: `  bulkhead selinux apply --dry-run
  bulkhead selinux apply --confirm-within 10m     undone by itself unless confirmed`,
		Args: usage.NoArguments,
	}
	request := s.Flags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		q := request("tune apply")
		p, err := s.remedies(cmd, nil, &f, !q.DryRun)
		if err != nil {
			return err
		}
		for _, set := range p.Settings {
			q.Tune = append(q.Tune, state.Tuned{Rule: state.RuleSELinux, Name: set.Name, Value: set.Value})
		}
		if len(p.Left) > 0 {
			render.Printf(cmd.ErrOrStderr(), "note: %s left to you: `bulkhead selinux plan` lists them\n",
				render.Count(len(p.Left), "rule is", "rules are"))
		}
		if len(q.Tune) == 0 {
			r := api.Reply{Text: "nothing to do: `bulkhead selinux plan` has nothing that can be set"}
			r.Plan.Steps = render.OrEmpty(r.Plan.Steps)
			return s.Print(r, func() { render.Println(s.Out, r.Text) })
		}
		return s.Change(cmd, q)
	}
	f.flags(c)
	return c
}

func (s Session) rollback() *cobra.Command {
	c := &cobra.Command{
		Use:   "rollback",
		Short: "take back all that selinux apply has set",
		Long: `rollback takes back what selinux apply has set: lines and modules that it added go, what it changed and
the label of each file is as it was before. What somebody else has changed since stays, and is said. A database that
needs it is denied again from then on: stop it first. "bulkhead tune status" lists what is set.`,
		Example: `  bulkhead selinux rollback --dry-run`,
		Args:    usage.NoArguments,
	}
	request := s.Flags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		q := request("tune rollback")
		q.Rules = []string{state.RuleSELinux}
		return s.Change(cmd, q)
	}
	return c
}

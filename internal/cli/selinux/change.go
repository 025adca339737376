package selinux

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/confinement"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/remedy"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// from says which denials a plan is made of.
type from struct {
	since   time.Time
	take    []string
	domains []string
	only    []string
	check   bool
}

func (f *from) flags(c *cobra.Command) {
	usage.MomentFlag(c, &f.since, "since", "only denials from this `time` on")
	c.Flags().StringArrayVar(&f.take, "take-port", nil, "take this `port`, as tcp/4444, from the type that has it: "+
		"a server of that kind on this host loses it")
	c.Flags().StringArrayVar(&f.domains, "domain", nil, "set what denials of this `domain` need, too, as rsync_t: "+
		"domains of the databases of this host are known without")
	c.Flags().StringArrayVar(&f.only, "only", nil, "of what is planned this `setting` alone, as \"port tcp/23306\"; "+
		"may be given again")
	c.Flags().BoolVar(&f.check, "check", false, "also what settings of databases that run name and the policy would "+
		"deny, as selinux check finds it: the kernel logs a permissive denial once, and so the first of several ports")
}

// made is a plan with what it was made of.
type made struct {
	*remedy.Plan
	found  loaded.Host
	log    *avc.Log
	read   []string // names of the logs
	report *verdict.Report
	tuned  []state.Tuned // what is set by now
	live   bool          // this host, and not a captured one
}

// remedies reads denials and plans. Change has a change undone before that was interrupted, and needs a policy.
func (s Session) remedies(cmd *cobra.Command, args []string, f *from, change bool) (*made, error) {
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
	if err := whole(cmd.Context(), c, change); err != nil {
		return nil, err
	}
	m := &made{found: loaded.Of(c.Host.Root), log: &avc.Log{}, live: c.Host.Root.Live()}
	if m.found.State == loaded.NoPolicy && !change {
		m.report = verdict.Judge(m.log, m.found.Ask)
		m.Plan = &remedy.Plan{Settings: []remedy.Setting{}, Left: []remedy.Left{}, Note: noSELinux}
		return m, nil
	}
	if len(args) == 0 {
		m.read, err = readAudit(c.Host.Root, m.log, time.Now())
	} else {
		m.read, err = args[:1], readNamed(cmd.InOrStdin(), args[0], m.log, time.Now())
	}
	if err != nil {
		return nil, err
	}
	m.log.Since(f.since)
	loaded.Resolve(c.Host.Root, m.log.Denials)
	for _, lost := range m.log.Lost {
		render.Printf(cmd.ErrOrStderr(), "warning: %s\n", lost)
	}
	if m.found.Ask.Policy == nil || m.found.Ask.Files == nil {
		return nil, api.Errorf(api.CodeFailed, "run it as root on the host that wrote the log; `bulkhead selinux "+
			"explain --elsewhere FILE` says what can be said without", "a plan needs what is not here: %s",
			strings.Join(m.found.Missing, "; "))
	}
	docs, err := state.Load(c.Store, state.DocTuned)
	if err != nil {
		return nil, err
	}
	m.tuned = docs.Tuned
	instances, err := recognise.OfHost(c.Host)
	if err != nil {
		return nil, err
	}
	o := remedy.Options{Take: f.take,
		Domains: append(loaded.Domains(c.Host.Root, m.found.Ask, instances, m.log.Denials), f.domains...)}
	local := loaded.Local{Root: c.Host.Root, Found: m.found, Ours: m.ours, Files: c.Labels, Instances: instances,
		Proc: c.Host.Proc}
	m.report = verdict.Judge(m.log, m.found.Ask)
	judged := *m.report
	if f.check {
		named, err := checked(cmd, c, instances)
		if err != nil {
			return nil, err
		}
		judged.Verdicts = slices.Concat(judged.Verdicts, named)
	}
	m.Plan = remedy.Of(cmd.Context(), &judged, local, o)
	if len(f.only) == 0 {
		return m, nil
	}
	if unknown := m.Only(f.only); len(unknown) > 0 {
		return nil, usage.Errorf(cmd, "--only: nothing is planned of %s; `bulkhead selinux plan` lists what is",
			strings.Join(unknown, ", "))
	}
	return m, nil
}

// checked are verdicts of what settings of databases name, as check finds it.
func checked(cmd *cobra.Command, c *transaction.Controller, instances []engine.Instance) ([]verdict.Verdict, error) {
	named, err := confinement.Of(cmd.Context(), c.Host, instances, confinement.Options{})
	if err != nil {
		return nil, err
	}
	for _, why := range unchecked(named) {
		render.Printf(cmd.ErrOrStderr(), "warning: --check: %s\n", why)
	}
	return remedy.Named(named.Findings), nil
}

// unchecked says what --check could not look at: a plan without that is not a plan in which nothing is needed.
func unchecked(r *confinement.Report) (all []string) {
	if len(r.Instances) == 0 {
		all = append(all, "no database runs, so that no settings were looked at")
	}
	for _, i := range r.Instances {
		all = append(all, i.NotAsked...)
		if i.SELinux != nil {
			all = append(all, i.SELinux.Undecided...)
		}
	}
	return all
}

// ours says whether bulkhead has made a setting.
func (m *made) ours(name string) bool {
	return slices.ContainsFunc(m.tuned, func(t state.Tuned) bool { return t.Name == name })
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

In permissive mode the kernel logs an access once, so that of several ports or directories of one type the log has the
first alone. --check adds those that settings of running databases name: leave them running for it.

FILE is a log of this host; apply takes auditd's own logs alone.`,
		Example: `  bulkhead selinux plan                           the audit log of this host
  bulkhead selinux plan --since "2026-11-25 08:00"
  bulkhead selinux plan --take-port tcp/4444      a port of Kerberos, where no Kerberos runs`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := s.remedies(cmd, args, &f, false)
			if err != nil {
				return err
			}
			return s.Print(m.Plan, func() { printPlan(s.Out, m.Plan) })
		},
	}
	f.flags(c)
	return c
}

// basis says what something is planned for.
func basis(denials int) string {
	if denials == 0 {
		return "what settings name"
	}
	return render.Count(denials, "denial", "denials")
}

func printPlan(out io.Writer, p *remedy.Plan) {
	for _, set := range p.Settings {
		render.Printf(out, "set     %s = %s\n", set.Name, sepolicy.Human(set.Value))
		render.Printf(out, "  for   %s\n", basis(set.Denials))
		for _, why := range set.Why[:min(most, len(set.Why))] {
			render.Printf(out, "  why   %s\n", why)
		}
		if len(set.InUse) > 0 {
			render.Printf(out, "  used  by %s: stop it first, and start it again afterwards\n",
				strings.Join(set.InUse, ", "))
		}
	}
	if len(p.Left) > 0 {
		render.Println(out, "LEFT TO YOU")
	}
	for _, l := range p.Left {
		render.Printf(out, "%s  %s, %s\n", l.Verdict, strings.TrimSuffix(l.What, ";"), basis(l.Denials))
		render.Printf(out, "  why   %s\n", l.Why)
		for _, do := range l.Do {
			if do != l.What {
				render.Printf(out, "  do    %s\n", do)
			}
		}
	}
	switch {
	case p.Note != "":
		render.Println(out, p.Note)
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
	var watch time.Duration
	c := &cobra.Command{
		Use:   "apply",
		Short: "set what plan says, as one change that can be taken back",
		Long: `apply sets what plan says of the logs of auditd, by semanage and semodule, as one change: all of it or
none. It reads no other log, as any user may write into those. What was there before is recorded first, the label of
each file too. Labels are changed below the directories that plan names, and nowhere else; rules of others stay. SELinux
is never switched off. Compiling the policy takes some seconds for each setting.

With --watch, domains that "selinux soak begin" has made permissive are enforced afterwards, as a second change. A
process of its own then reads the log of auditd for that time: when SELinux denies such a domain anything, or nobody
takes the records of audit any more, all of these domains become permissive again, and the history says why. What was
set before stays. Another change made meanwhile ends the watch.`,
		Example: `  bulkhead selinux apply --dry-run
  bulkhead selinux apply --confirm-within 10m     undone by itself unless confirmed
  bulkhead selinux apply --only "port tcp/23306"
  bulkhead selinux apply --watch 1h               enforced, and watched for an hour`,
		Args: usage.NoArguments,
	}
	request := s.Flags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		q := request("tune apply")
		if watch > 0 && q.ConfirmWithin > 0 {
			return usage.Errorf(cmd, "--watch: what becomes enforced is watched, and does not wait to be confirmed")
		}
		m, err := s.remedies(cmd, nil, &f, !q.DryRun)
		if err != nil {
			return err
		}
		if watch > 0 {
			if err := m.watchable(); err != nil {
				return err
			}
		}
		for _, set := range m.Settings {
			q.Tune = append(q.Tune, state.Tuned{Rule: state.RuleSELinux, Name: set.Name, Value: set.Value})
			if len(set.InUse) > 0 {
				render.Printf(cmd.ErrOrStderr(), "warning: %s uses files whose labels change (%s)\n",
					strings.Join(set.InUse, ", "), set.Name)
			}
		}
		if len(m.Left) > 0 {
			render.Printf(cmd.ErrOrStderr(), "note: %s left to you: `bulkhead selinux plan` lists them\n",
				render.Count(len(m.Left), "rule is", "rules are"))
		}
		switch {
		case len(q.Tune) > 0:
			err = s.Change(cmd, q)
		case watch == 0:
			r := api.Reply{Text: cmp.Or(m.Note, "nothing to do: `bulkhead selinux plan` has nothing that can be set")}
			r.Plan.Steps = render.OrEmpty(r.Plan.Steps)
			return s.Print(r, func() { render.Println(s.Out, r.Text) })
		}
		if err != nil || watch == 0 {
			return err
		}
		q = request("tune rollback")
		q.Rules, q.Enforce, q.EnforceFor = []string{state.RuleSELinux}, permissive(m.tuned), watch
		return s.Change(cmd, q)
	}
	f.flags(c)
	usage.SpanFlag(c, &watch, "watch", 0, "enforce the domains that bulkhead has made permissive, and make them "+
		"permissive again when one is denied something in this time")
	return c
}

// watchable says why nothing can be enforced and watched.
func (m *made) watchable() error {
	switch {
	case len(permissive(m.tuned)) == 0:
		return api.Errorf(api.CodeRefused, "`bulkhead selinux soak begin` makes a domain permissive",
			"nothing can be enforced: bulkhead has made no domain permissive")
	case m.found.State != loaded.Enforcing:
		return api.Errorf(api.CodeRefused, "`bulkhead selinux check` says what there is",
			"nothing can be enforced: SELinux of this host is %s, and denies nothing at all", m.found.State)
	case !m.live:
		return nil
	}
	if status, err := audit.Of(); err == nil && (status.PID == 0 || status.Enabled == 0) {
		return api.Errorf(api.CodeRefused, "start auditd, and switch auditing on (auditctl -e 1)",
			"nobody would see a denial: nobody takes the records of audit")
	}
	return nil
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

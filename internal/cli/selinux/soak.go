package selinux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/policydb"
	"bulkhead/internal/selinux/soak"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

func (s Session) soak() *cobra.Command {
	c := &cobra.Command{
		Use:   "soak",
		Short: "what a database is denied in each case, with its domain permissive",
		Long: `soak makes the domain of a database permissive, and never the whole host: what SELinux would deny it is
logged and happens all the same. You go through the cases in which a database needs more than usual, mark the begin of
each with a checkpoint, and see what was denied in which case, by which program, and what puts it right. It survives
reboots, until it is ended.`,
		Example: `  bulkhead selinux soak begin mysql3306
  bulkhead selinux soak checkpoint stop-start
  bulkhead selinux soak status
  bulkhead selinux soak end`,
	}
	c.AddCommand(s.soakBegin(), s.soakCheckpoint(), s.soakStatus(), s.soakEnd())
	return c
}

// noSoak is said where none has begun.
func noSoak() error {
	return api.Errorf(api.CodeFailed, "`bulkhead selinux soak begin` makes a database's domain permissive",
		"no soak has begun")
}

// recorded opens the state and gives the soak.
func (s Session) recorded() (*transaction.Controller, *state.Documents, error) {
	c, err := s.Open()
	if err != nil {
		return nil, nil, err
	}
	docs, err := state.Load(c.Store, state.DocSoak, state.DocTuned)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, docs, nil
}

// record changes what is recorded of the soak, by the lock: somebody else may have changed it since it was read.
func (s Session) record(ctx context.Context, do func(*state.Documents) error) error {
	c, err := s.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	lock, err := c.Lock(ctx, "selinux soak", "")
	if err != nil {
		return err
	}
	defer lock.Release()
	docs, err := state.Load(c.Store, state.DocSoak, state.DocTuned)
	if err == nil {
		err = do(docs)
	}
	if err != nil {
		return err
	}
	return state.Save(c.Store, state.DocSoak, docs.Soak)
}

// mark writes a record into the log of audit, and has the kernel log again what it has logged before; what does not
// work is a note.
func (s Session) mark(text string) (notes []string, err error) {
	c, err := s.Open()
	if err != nil || !c.Host.Root.Live() {
		return nil, err
	}
	defer c.Close()
	if err := audit.Mark("bulkhead selinux soak " + text); err != nil {
		notes = append(notes, fmt.Sprintf("the log of audit has no mark: %v", err))
	}
	if err := (sepolicy.Host{Root: c.Host.Root, Dir: "/"}).Forget(); err != nil {
		notes = append(notes, fmt.Sprintf("what was denied before is not logged again in this case: %v", err))
	}
	return notes, nil
}

// begun is what a soak's verbs say they did.
type begun struct {
	state.Soak
	Notes []string `json:"notes"`
	Text  string   `json:"text"`
}

func (s Session) say(soak state.Soak, notes []string, format string, args ...any) error {
	b := begun{Soak: soak, Notes: render.OrEmpty(notes), Text: fmt.Sprintf(format, args...)}
	b.Checkpoints, b.Domains = render.OrEmpty(b.Checkpoints), render.OrEmpty(b.Domains)
	return s.Print(b, func() {
		render.Println(s.Out, b.Text)
		for _, n := range b.Notes {
			render.Printf(s.Out, "note: %s\n", n)
		}
	})
}

func (s Session) soakBegin() *cobra.Command {
	var domains []string
	var reason string
	c := &cobra.Command{
		Use:   "begin [INSTANCE]",
		Short: "make the domain of a database, or those of all, permissive",
		Long: `begin makes the domain in which a database runs permissive, by a module of the policy as "semanage
permissive -a" does: other programs in this domain, other instances too, are not held back either. Without INSTANCE it
is the domains of all databases of this host; --domain adds one, as that of a helper of SST. The log of audit gets a
mark. A domain that somebody else has made permissive is watched as well, and stays so at the end.`,
		Example: `  bulkhead selinux soak begin mysql3306 --reason "before enforcing"
  bulkhead selinux soak begin --domain mysqld_t --domain rsync_t`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			now, was, tune, notes, err := s.prepare(cmd, args, domains)
			if err != nil {
				return err
			}
			// Recorded first: of a domain that is permissive one must know why.
			now.By, now.Reason = s.Who(), reason
			err = s.record(cmd.Context(), func(docs *state.Documents) error {
				if !docs.Soak.At.Equal(was.At) {
					return hasBegun(docs.Soak)
				}
				docs.Soak = now
				return nil
			})
			if err != nil {
				return err
			}
			if len(tune) > 0 {
				reply, err := s.Do(cmd.Context(), api.Request{Verb: "tune apply", Reason: reason, Tune: tune})
				if err != nil {
					return errors.Join(err, s.notBegun(cmd.Context(), now, was))
				}
				notes = append(notes, reply.Notes...)
			}
			more, err := s.mark("begin " + strings.Join(now.Domains, " "))
			if err != nil {
				return err
			}
			return s.say(now, append(notes, more...), "%s permissive now, until `bulkhead selinux soak end`; "+
				"`bulkhead selinux soak status` lists the cases to go through", listed(now.Domains))
		},
	}
	c.Flags().StringArrayVar(&domains, "domain", nil, "make this `domain` permissive, too")
	c.Flags().StringVar(&reason, "reason", "", "why, for the history")
	return c
}

// hasBegun is said of a soak that is not over.
func hasBegun(soak state.Soak) error {
	return api.Errorf(api.CodeFailed, "`bulkhead selinux soak end` ends it", "a soak has begun %s",
		soak.At.Local().Format(time.DateTime))
}

// notBegun records what was before a soak that could not begin, unless its domains were made permissive all the same,
// as when the answer was lost.
func (s Session) notBegun(ctx context.Context, now, was state.Soak) error {
	return s.record(context.WithoutCancel(ctx), func(docs *state.Documents) error {
		ours := permissive(docs.Tuned)
		if docs.Soak.At.Equal(now.At) && !slices.ContainsFunc(now.Domains, func(d string) bool {
			return slices.Contains(ours, d)
		}) {
			docs.Soak = was
		}
		return nil
	})
}

// prepare says what a soak would be, in place of which one, and by which settings.
func (s Session) prepare(cmd *cobra.Command, args, domains []string) (now, was state.Soak, tune []state.Tuned,
	notes []string, err error) {
	c, docs, err := s.recorded()
	if err != nil {
		return now, was, nil, nil, err
	}
	was = docs.Soak
	defer c.Close()
	if err := whole(cmd.Context(), c, true); err != nil {
		return now, was, nil, nil, err
	}
	found := loaded.Of(c.Host.Root)
	p, is := found.Ask.Policy.(*policydb.Policy)
	if !is {
		return now, was, nil, nil, api.Errorf(api.CodeFailed, "`bulkhead selinux check` says what there is",
			"no domain can be made permissive: %s", strings.Join(found.Missing, "; "))
	}
	if _, err := readAudit(c.Host.Root, &avc.Log{}, c.Now()); err != nil {
		return now, was, nil, nil, err
	}
	are, ours := p.Permissive(), permissive(docs.Tuned)
	if !was.At.IsZero() && slices.ContainsFunc(was.Domains, func(d string) bool { return slices.Contains(are, d) }) {
		return now, was, nil, nil, hasBegun(was)
	}
	now = state.Soak{At: c.Now(), Checkpoints: []state.Checkpoint{}}
	now.Audit, notes = s.audited(c)
	if now.Domains, err = soaked(cmd, c, found, args, domains); err != nil {
		return now, was, nil, nil, err
	}
	for _, d := range now.Domains {
		switch {
		case !p.Has(d):
			return now, was, nil, nil, usage.Errorf(cmd, "the loaded policy has no type %s", d)
		case slices.Contains(are, d) && !slices.Contains(ours, d):
			now.Theirs = append(now.Theirs, d)
		default:
			tune = append(tune, state.Tuned{Rule: state.RuleSELinux, Name: sepolicy.PermissiveName(d),
				Value: sepolicy.Permissive(d)})
		}
	}
	if len(now.Theirs) > 0 {
		notes = append(notes, strings.Join(now.Theirs, ", ")+": permissive before, by somebody else, and stays so "+
			"at the end")
	}
	if found.State != loaded.Enforcing {
		notes = append(notes, "the whole host is "+found.State+": domains beside these are not held back either")
	}
	return now, was, tune, notes, nil
}

// listed names domains as the subject of a sentence.
func listed(domains []string) string {
	if len(domains) == 1 {
		return domains[0] + " is"
	}
	return strings.Join(domains, ", ") + " are"
}

// soaked are the domains that are asked for: those of databases, and others that are named.
func soaked(cmd *cobra.Command, c *transaction.Controller, found loaded.Host, args, more []string) ([]string, error) {
	all, err := recognise.OfHost(c.Host)
	if err != nil {
		return nil, err
	}
	if len(args) == 1 {
		names := []string{}
		for _, i := range all {
			names = append(names, i.Name())
		}
		if err := usage.Instances(cmd, names, args[0], nil); err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(i engine.Instance) bool { return i.Name() != args[0] })
	} else if len(more) > 0 {
		all = nil
	}
	asked := withAll(loaded.Domains(c.Host.Root, found.Ask, all, nil), more)
	if len(asked) == 0 {
		return nil, api.Errorf(api.CodeFailed, "start it, or name its domain: --domain mysqld_t",
			"no database runs here in a domain of its own")
	}
	return asked, nil
}

func (s Session) soakCheckpoint() *cobra.Command {
	return &cobra.Command{
		Use:   "checkpoint NAME",
		Short: "mark where a case begins",
		Long: `checkpoint marks in the log of audit, and for the report, that a case begins: what is denied from now on
belongs to it, until the next checkpoint. "soak status" names the cases, and how to force each; other names are taken,
too. The kernel logs a permissive denial once for as long as it remembers it: a checkpoint makes it forget, so that each
case has all of its own.`,
		Example: `  bulkhead selinux soak checkpoint sst-joiner`,
		Args:    usage.Exactly(1, "name the case: `bulkhead selinux soak status` lists them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !soak.Valid(args[0]) {
				return usage.Errorf(cmd, "%q: a checkpoint's name has small letters, digits, - _ and .", args[0])
			}
			c, docs, err := s.recorded()
			if err != nil {
				return err
			}
			begins := state.Checkpoint{Name: args[0], At: c.Now()} // before the kernel forgets
			var notes []string
			begins.Audit, notes = s.audited(c)
			c.Close()
			begun := docs.Soak.At
			if begun.IsZero() {
				return noSoak()
			}
			more, err := s.mark("checkpoint " + args[0])
			if err != nil {
				return err
			}
			notes = append(notes, more...)
			var now state.Soak
			err = s.record(cmd.Context(), func(docs *state.Documents) error {
				switch {
				case docs.Soak.At.IsZero():
					return noSoak()
				case !docs.Soak.At.Equal(begun):
					return api.Errorf(api.CodeFailed, "give the same command again", "another soak has begun meanwhile")
				}
				docs.Soak.Checkpoints = append(docs.Soak.Checkpoints, begins)
				slices.SortStableFunc(docs.Soak.Checkpoints, func(a, b state.Checkpoint) int { // of two at once
					return a.At.Compare(b.At)
				})
				now = docs.Soak
				return nil
			})
			if err != nil {
				return err
			}
			return s.say(now, notes, "%s begins; what is denied from now on belongs to it", args[0])
		},
	}
}

func (s Session) soakStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "what is permissive, what was denied so far, and which cases are left",
		Long: `status says which domains are permissive, by bulkhead or by somebody else, what was denied at each
checkpoint so far, and which cases are left with how to force each. Nothing is changed.`,
		Example: `  bulkhead selinux soak status --json | jq '.cases_left[].name'`,
		Args:    usage.NoArguments,
		RunE: func(_ *cobra.Command, _ []string) error {
			c, docs, err := s.recorded()
			if err != nil {
				return err
			}
			defer c.Close()
			v := s.viewSoak(c, docs)
			return s.Print(v, func() { printSoak(s.Out, v) })
		},
	}
}

func (s Session) soakEnd() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "end",
		Short: "enforce the domains again, and say what was denied at which checkpoint",
		Long: `end takes back that domains are permissive, all of those that bulkhead has made so, and prints what was
denied at which checkpoint, by which program, and what puts it right. What is not put right by then is denied from now
on: "bulkhead selinux apply --watch 1h" before it sets what is needed and makes a domain permissive again by itself when
something is denied.`,
		Example: `  bulkhead selinux soak end --json > soak.json`,
		Args:    usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, docs, err := s.before(cmd)
			if err != nil {
				return err
			}
			ours := permissive(docs.Tuned)
			if len(docs.Soak.Theirs) < len(docs.Soak.Domains) || len(ours) > 0 {
				reply, err := s.Do(cmd.Context(), api.Request{Verb: "tune rollback", Reason: reason,
					Rules: []string{state.RuleSELinux}, Enforce: withAll(docs.Soak.Domains, ours)})
				if err != nil {
					return err
				}
				v.Notes = append(v.Notes, reply.Notes...)
			}
			err = s.record(cmd.Context(), func(docs *state.Documents) error {
				if docs.Soak.At.Equal(v.Soak.At) {
					docs.Soak = state.Soak{}
				}
				return nil
			})
			if err != nil {
				return err
			}
			notes, err := s.mark("end")
			if err != nil {
				return err
			}
			c, docs, err := s.recorded()
			if err != nil {
				return err
			}
			defer c.Close()
			v.Ended, v.Notes = true, append(v.Notes, notes...)
			v.permissive(loaded.Of(c.Host.Root), permissive(docs.Tuned))
			return s.Print(v, func() { printSoak(s.Out, v) })
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the history")
	return c
}

// before looks at a soak that is to be ended. Where none is recorded it is what bulkhead has made permissive.
func (s Session) before(cmd *cobra.Command) (*soakView, *state.Documents, error) {
	c, docs, err := s.recorded()
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	if err := whole(cmd.Context(), c, true); err != nil {
		return nil, nil, err
	}
	v := s.viewSoak(c, docs)
	if !v.Open {
		if v.Soak.Domains = permissive(docs.Tuned); len(v.Soak.Domains) == 0 {
			return nil, nil, noSoak()
		}
	}
	return v, docs, nil
}

// withAll is a list with what of another it does not have.
func withAll(list, more []string) []string {
	all := slices.Clone(list)
	for _, one := range more {
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}

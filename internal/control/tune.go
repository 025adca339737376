package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/revisions"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// tune puts settings of the kernel in force beside the policy, all of them or none. A host without a policy gets one of
// no groups.
func tune(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	_, s, err := c.Recorded()
	if err != nil {
		return err
	}
	all := slices.Clone(s.Tuned)
	for _, t := range r.Tune {
		if err := checkTuned(t); err != nil {
			return api.Errorf(api.CodeUsage, "", "%s: %w", t.Rule, err)
		}
		if !t.IsLimit() {
			t.Name = lasting(c, t.Name)
		}
		if err := ofOnePool(c, t, all); err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(o state.Tuned) bool {
			return o.Name == t.Name || o.Name == tunable.Twin(t.Name)
		})
		t.At, t.By, t.Reason, t.Asked = c.Now(), r.By, r.Reason, true
		all = append(all, t)
	}
	return settle(ctx, c, r, reply, s, all)
}

// checkTuned says what is wrong with a setting, or with a limit of a group, of which there is that of huge pages alone.
func checkTuned(t state.Tuned) error {
	if !t.IsLimit() {
		return tunable.Check(t.Name, t.Value)
	}
	_, s, err := parse.Assignment(t.Assignment(), t.On)
	if err == nil && s.Key != policy.KeyMemoryHuge {
		err = fmt.Errorf("%s is no limit that tune sets; `bulkhead set` does", s.Key)
	}
	return err
}

// ofOnePool refuses to set a pool of huge pages of a node beside that of all nodes, or the other way round: each would
// be put right to the harm of the other, and what they were before cannot be told.
func ofOnePool(c *transaction.Controller, t state.Tuned, all []state.Tuned) error {
	target := tunable.Target(t.Name)
	if t.IsLimit() || !tunable.IsPool(target) {
		return nil
	}
	facts, err := c.Host.Facts()
	if err != nil {
		return err
	}
	for _, o := range all {
		if tunable.PoolsOverlap(target, tunable.Target(o.Name), facts.HugePage) {
			return api.Errorf(api.CodeRefused, "`bulkhead tune rollback "+o.Rule+"` gives it back first",
				"%s: %s is set, of whose pages those of %s are a part, or the other way round", t.Rule, o.Name, t.Name)
		}
	}
	return nil
}

// untune gives settings their old values back.
func untune(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	_, s, err := c.Recorded()
	if err != nil {
		return err
	}
	for _, rule := range r.Rules {
		if rule == state.RuleSELinux {
			continue // its verb names nothing else
		}
		if !slices.ContainsFunc(s.Tuned, func(t state.Tuned) bool { return strings.EqualFold(t.Rule, rule) }) {
			return api.Errorf(api.CodeUsage, "`bulkhead tune status` lists what it did",
				"`tune apply` did nothing by %s", rule)
		}
	}
	defer func() {
		if len(r.Rules) == 0 && len(r.Enforce) == 0 && slices.ContainsFunc(s.Tuned, func(t state.Tuned) bool {
			return t.Rule == state.RuleSELinux
		}) {
			reply.Notes = append(reply.Notes, "settings of SELinux stay, as a database may need them: `bulkhead "+
				"selinux rollback` takes them back")
		}
	}()
	left := slices.DeleteFunc(slices.Clone(s.Tuned), func(t state.Tuned) bool {
		if len(r.Enforce) > 0 {
			return t.Rule == state.RuleSELinux && slices.Contains(r.Enforce, sepolicy.PermissiveIn(t.Name))
		}
		return len(r.Rules) == 0 && t.Rule != state.RuleSELinux || slices.ContainsFunc(r.Rules, func(rule string) bool {
			return strings.EqualFold(t.Rule, rule)
		})
	})
	if len(left) == len(s.Tuned) {
		if len(r.Enforce) > 0 {
			reply.Text = "nothing to do: bulkhead has not made " + strings.Join(r.Enforce, ", ") + " permissive"
			return nil
		}
		verb := "tune apply"
		if slices.Equal(r.Rules, []string{state.RuleSELinux}) {
			verb = "selinux apply"
		}
		reply.Text = "nothing to do: `" + verb + "` has nothing in force"
		return nil
	}
	return settle(ctx, c, r, reply, s, left)
}

// noGroups is the policy of a host on which the kernel is tuned and nothing else is asked for.
var noGroups = []policy.Source{{Path: "tune", Text: "version: 1\n"}}

// settle puts a list of settings in force and records it.
func settle(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome,
	s *state.Documents, all []state.Tuned) error {
	docs := map[string]any{state.DocTuned: all}
	sources := noGroups
	if s.Applied != nil {
		sources, reply.Revision = s.Applied.Sources, s.Applied.Revision
	} else {
		revision, err := revisions.Next(c.Store, s, false)
		if err != nil {
			return err
		}
		reply.Revision = revision
		docs[state.DocApplied] = state.Applied{Revision: revision, Sources: sources, At: time.Now(), By: r.By,
			Reason: r.Reason, Flat: true}
		docs[journal.VersionName(revision)] = sources
	}
	if s.Released[""] {
		if !slices.Equal(sources, noGroups) { // whoever tunes a host without groups ends its release
			return api.Errorf(api.CodeFailed, "`bulkhead apply` governs it again", "this host was released")
		}
		s.Released = map[string]bool{}
		docs[state.DocReleased] = s.Released
	}
	l := transaction.OptionsOver(s, sources)
	l.Tuned, l.Shares, l.Lenient = all, true, true
	v, err := c.View(ctx, l)
	if err != nil {
		return err
	}
	reply.Problems = v.Problems
	defer func() { reply.Notes = append(reply.Notes, byPolicy(c, r.Tune, v.Tune)...) }() // run begins them anew
	run := func() error { return c.RunOthers(ctx, v, r, reply.Revision, reply, nil) }
	if r.DryRun {
		return run()
	}
	watch := confirm.GuardOf(v)
	if r.EnforceFor > 0 {
		watch = confirm.WatchDenials(watch, r.Enforce, r.EnforceFor, c.Now())
	}
	return confirm.CommitWatched(ctx, c, v, r, reply, s, docs, watch, run)
}

// lasting is the name of a setting: where a disk has a lasting one, that one.
func lasting(c *transaction.Controller, name string) string {
	name, _ = tunable.Host{Root: c.Host.Root}.Find(tunable.Canonical(name))
	return name
}

// byPolicy notes which settings do not come into force because the policy names them, or one that excludes them.
func byPolicy(c *transaction.Controller, asked []state.Tuned, counts []policy.Tuning) (notes []string) {
	for _, t := range asked {
		if t.IsLimit() {
			continue
		}
		name := lasting(c, t.Name)
		for _, o := range counts {
			same := o.Target() == tunable.Target(name) && o.Value != t.Value
			if o.From == "" && (same || o.Name == tunable.Twin(name)) {
				notes = append(notes, fmt.Sprintf("%s: host.tune of the policy says %s = %s, which counts", t.Rule,
					o.Name, o.Value))
			}
		}
	}
	return notes
}

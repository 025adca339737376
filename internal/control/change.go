// Package control has the verbs that change a host: apply, set, unset, release, rollback, move, freeze, thaw, confirm
// (Do), and run (Enter). The command line calls it directly when no agent runs, the agent for what comes over its
// socket, so both do the same thing. Each verb is one transaction (internal/transaction).
package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/access"
	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/freeze"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/release"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Do does a changing verb.
func Do(ctx context.Context, c *transaction.Controller, r api.Request) (*api.Reply, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	lock, err := c.Lock(ctx, r.Verb, r.By)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	reply := &transaction.Outcome{}
	if r.DryRun {
		return &reply.Reply, carry(ctx, c, r, reply)
	}
	if r.Verb == "apply" || r.Verb == "release" {
		inspect.SweepBeforeChange(c, r.Verb)
		if err := state.Mend(c.Store, c.Log); err != nil {
			if r.Verb != "release" {
				return &reply.Reply, api.Errorf(api.CodeFailed, "move it away to go on without it", "%w", err)
			}
			c.Log.Warn("releasing with what can be read", "err", err)
		}
	}
	if r.Verb != "rollback" {
		if err := c.Recover(ctx, reply); err != nil && !transaction.ReleaseAnyway(c, r, err) {
			return &reply.Reply, err
		}
	}
	if done, err := confirm.Settle(ctx, c, r, reply); done || err != nil {
		return &reply.Reply, err
	}
	// thaw and release wake whom they name themselves.
	if r.Verb != "rollback" && r.Verb != "thaw" && r.Verb != "release" {
		if err := freeze.ThawDueLocked(ctx, c, time.Now()); err != nil {
			c.Log.Warn("a freeze that is over could not be ended", "err", err)
		}
	}
	over := overdue(c)
	err = carry(ctx, c, r, reply)
	if err == nil {
		tellEnded(c, r, reply, over)
	}
	return &reply.Reply, err
}

// carry does a verb that is due.
func carry(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	switch r.Verb {
	case "apply":
		return applyPolicy(ctx, c, r, reply)
	case "set":
		return set(ctx, c, r, reply)
	case "unset":
		return unset(ctx, c, r, reply)
	case "release":
		return release.Release(ctx, c, r, reply)
	case "rollback":
		return rollback(ctx, c, r, reply)
	case "move":
		return move(ctx, c, r, reply)
	case "move-back":
		return moveBack(ctx, c, r, reply)
	case "freeze":
		return freeze.Freeze(ctx, c, r, reply)
	case "thaw":
		return freeze.Thaw(ctx, c, r, reply)
	case "tune apply":
		return tune(ctx, c, r, reply)
	case "tune rollback":
		return untune(ctx, c, r, reply)
	}
	return confirm.Keep(ctx, c, r, reply)
}

// set lays overrides over the policy, all of them or none.
func set(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	v, s, err := c.Membership(ctx)
	if err != nil {
		return err
	}
	now := c.Now()
	overrides := slices.Clone(s.Overrides)
	var replaced []string
	for _, text := range r.Assign {
		group, setting, err := parse.Assignment(text, r.On)
		if err != nil {
			return err
		}
		if !v.HasGroup(group) {
			return transaction.NoGroup(v, group)
		}
		if err := errors.Join(transaction.RefuseReleased(s, group),
			access.May(r.Caller, v.Snapshot, group, policy.MaySet)); err != nil {
			return err
		}
		if err := errors.Join(access.MaySet(r.Caller, v.Snapshot, group, setting),
			access.MayReplace(r.Caller, overrides, group, setting.Key)); err != nil {
			return err
		}
		o := state.Override{
			Group: group, Key: setting.Key, On: r.On, Text: text, At: now, By: r.By, Reason: r.Reason,
			Owner: r.Caller.OwnerID(),
		}
		if r.For > 0 {
			o.Ends = now.Add(r.For)
		}
		if i := slices.IndexFunc(overrides, o.SameLimit); i >= 0 {
			replaced = append(replaced, fmt.Sprintf("%s, set by %s, is replaced", overrides[i].Describe(),
				overrides[i].By))
			overrides = slices.Delete(overrides, i, i+1)
		}
		overrides = append(overrides, o)
	}
	if err := refuseToSet(c, r); err != nil {
		return err
	}
	err = lay(ctx, c, r, reply, s, overrides, v)
	reply.Notes = append(reply.Notes, replaced...) // the run begins them anew
	return err
}

// unset takes overrides away.
func unset(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	_, s, err := c.Recorded()
	if err != nil {
		return err
	}
	overrides := slices.Clone(s.Overrides)
	for _, text := range r.Assign {
		group, key, err := parse.Target(text)
		if err != nil {
			return err
		}
		if err := mayUnset(ctx, c, r, overrides, group, key); err != nil {
			return err
		}
		target := state.Override{Group: group, Key: key, On: r.On}
		kept := slices.DeleteFunc(slices.Clone(overrides), target.SameLimit)
		if len(kept) == len(overrides) {
			return api.Errorf(api.CodeUsage, "`bulkhead status` lists the overrides in force",
				"no override is set for %s", text)
		}
		overrides = kept
	}
	return lay(ctx, c, r, reply, s, overrides, nil)
}

// lay puts a new list of overrides in force and records it. It goes by the facts and processes of seen, when the caller
// has looked already.
func lay(
	ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome, s *state.Documents,
	overrides []state.Override, seen *transaction.View,
) error {
	if s.Applied == nil {
		return transaction.NotApplied()
	}
	given, err := state.Load(c.Store, state.DocNumbers)
	if err != nil {
		return api.Errorf(api.CodeFailed, "`bulkhead apply` puts it aside and goes on without", "%w", err)
	}
	s.Numbers = given.Numbers
	numbers := s.Number(overrides)
	l := transaction.OptionsOver(s, s.Applied.Sources)
	l.Overrides, l.Shares, l.Lenient = overrides, true, true
	l.AskNodes = r.Verb == "set" && !r.Migrate
	l.GoBy(seen)
	v, err := c.View(ctx, l)
	if err != nil {
		return err
	}
	reply.Problems = v.Problems
	reply.Revision = s.Applied.Revision
	reply.Overrides = v.InForce(overrides)
	if r.DryRun {
		return c.Run(ctx, v, r, reply.Revision, reply)
	}
	var own []string
	for _, text := range r.Assign {
		group, _, _ := strings.Cut(text, ":")
		own = append(own, group)
	}
	return confirm.Commit(ctx, c, v, r, reply, s,
		map[string]any{state.DocOverrides: overrides, state.DocNumbers: numbers},
		func() error {
			return c.RunOthers(ctx, v, r, reply.Revision, reply, nil, own...)
		})
}

// mayUnset refuses an owner to take away what is set for a group of others, or what root has set.
func mayUnset(
	ctx context.Context, c *transaction.Controller, r api.Request, overrides []state.Override, group string,
	key policy.Key,
) error {
	if r.Caller == nil {
		return nil
	}
	v, _, err := c.Membership(ctx)
	if err != nil {
		return err
	}
	if err := access.May(r.Caller, v.Snapshot, group, policy.MaySet); err != nil {
		return err
	}
	return access.SetByRoot(overrides, group, key)
}

// applyPolicy puts a policy in force.
func applyPolicy(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	if r.Canary != "" {
		return applyCanary(ctx, c, r, reply)
	}
	return applySources(ctx, c, r, reply, r.Sources)
}

package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/revisions"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd/sandbox"
	"bulkhead/internal/systemd/sandbox/confined"
	"bulkhead/internal/transaction"
)

// applySources puts sources in force as a new revision; the same policy again changes nothing.
func applySources(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome,
	sources []policy.Source) error {
	facts, s, err := c.Recorded()
	if err != nil {
		return err
	}
	if err := refuseForbidden(c, r, s, sources); err != nil {
		return err
	}
	// A group that was released is governed again by apply; freezes and overrides stay.
	l := transaction.OptionsOver(s, sources)
	l.Released, l.Lifted, l.Skipped, l.Conflicts, l.Facts, l.Shares, l.Canary, l.Root = nil, nil, nil, nil, facts, true,
		nil, ""
	l.Live = r.Verb == "apply" // in a hurry to go back nobody waits for a look at use
	l.AskNodes = r.Verb == "apply" && !r.Migrate
	v, err := c.View(ctx, l)
	if err != nil {
		return err
	}
	same := s.Applied != nil && s.Applied.Root() == "" && slices.Equal(s.Applied.Sources, sources) &&
		len(s.Released)+len(s.Lifted)+len(s.Skipped) == 0
	revision, err := revisions.Next(c.Store, s, same)
	if err != nil {
		return err
	}
	reply.Revision, reply.Like = revision, r.To
	reply.Overrides = v.InForce(s.Overrides)
	run := func() error {
		err := c.Run(ctx, v, r, revision, reply)
		if err == nil && !r.DryRun {
			forgive(c, s)
		}
		return err
	}
	if r.DryRun || same {
		err := run()
		if same && r.ConfirmWithin > 0 {
			reply.Notes = append(reply.Notes, "nothing waits to be confirmed: this policy is in force already")
		}
		return err
	}
	// The sources are kept under their number together with the rest: one that is there was in force.
	docs := map[string]any{
		state.DocApplied: state.Applied{Revision: revision, Sources: sources, At: time.Now(), By: r.By,
			Reason: r.Reason, Like: r.To, Flat: true},
		state.DocReleased:             map[string]bool{},
		state.DocSkipped:              []state.Skipped{},
		state.DocWindows:              policy.ScheduleNames(v.Open),
		journal.VersionName(revision): sources,
	}
	if s.Canary != nil {
		docs[state.DocCanary] = state.Canary{}
	}
	if err = confirm.Commit(ctx, c, v, r, reply, s, docs, run); err == nil {
		if err := revisions.Retain(c.Store, v.Policy.Host.History); err != nil {
			reply.Notes = append(reply.Notes, err.Error())
		}
	}
	return err
}

// refuseForbidden refuses what the agent's unit forbids. It comes before anything else: a look at the host by the
// policy may need it, as the header of a disk of ASM.
func refuseForbidden(c *transaction.Controller, r api.Request, s *state.Documents, sources []policy.Source) error {
	return transaction.Refused(plan.Plan{Refusals: forbidden(c, r, s, sources)}, r.Force)
}

// forbidden are the refusals of what the agent's unit does not let it do for a policy, nor for the one in force, whose
// parts may have to be taken back. Nobody is kept from undoing a change.
func forbidden(c *transaction.Controller, r api.Request, s *state.Documents, sources []policy.Source) []plan.Refusal {
	if c.Unit == nil || r.Verb != "apply" && r.Verb != "rollback" {
		return nil
	}
	all := [][]policy.Source{sources}
	if s.Applied != nil {
		all = append(all, s.Applied.Sources)
	}
	file := ""
	if r.Verb == "apply" && len(sources) > 0 && sources[0].Path != transaction.DefaultPolicy {
		file = sources[0].Path
	}
	needs := sandbox.Of(confined.Parsed(all...)...)
	lacks := c.Unit.Forbidden(sandbox.Settings(needs))
	return confined.Refusals(c.Unit.Name, lacks, needs, file, r.To)
}

// refuseToSet refuses overrides that the agent's unit forbids.
func refuseToSet(c *transaction.Controller, r api.Request) error {
	if c.Unit == nil {
		return nil
	}
	var asked []*policy.Policy
	for _, text := range r.Assign {
		asked = append(asked, confined.Overridden(text, r.On))
	}
	needs := sandbox.Of(asked...)
	list := confined.Refusals(c.Unit.Name, c.Unit.Forbidden(sandbox.Settings(needs)), needs, "", 0)
	if len(list) > 0 {
		list[len(list)-1].Hint = "the unit is made for what the policy file asks for: write the limit there, then " +
			"`bulkhead unit --write && systemctl daemon-reload && systemctl restart " +
			strings.TrimSuffix(c.Unit.Name, ".service") + "`, and `bulkhead apply`. With --force the kernel refuses it"
	}
	return transaction.Refused(plan.Plan{Refusals: list}, r.Force)
}

// Confined are the refusals that the policy in force would meet: the agent goes on with what it may do.
func Confined(c *transaction.Controller) []plan.Refusal {
	_, s, err := c.Recorded()
	if err != nil || s.Applied == nil {
		return nil
	}
	return forbidden(c, api.Request{Verb: "apply"}, s, nil)
}

// forgive forgets what others changed: an apply has put it right.
func forgive(c *transaction.Controller, s *state.Documents) {
	if len(s.Conflicts) == 0 {
		return
	}
	if err := c.Store.Save(state.DocConflicts, []state.Conflict{}); err != nil {
		c.Log.Warn("what others changed could not be forgotten", "err", err)
	}
}

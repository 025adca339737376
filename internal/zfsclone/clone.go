// Package zfsclone makes a copy of a database from its snapshot on ZFS, with a server of its own in a group of its own,
// makes it anew from another snapshot, and removes it.
//
//	plan, err := zfsclone.Make(request)              // refuses what cannot be
//	rec, err := maker.Clone(ctx, plan)               // or ends what a killed call began
//	rec, err := maker.Refresh(ctx, "dev1", plan)     // all that was written in the copy is lost
//	err := maker.Drop(ctx, "dev1")
//
// A copy holds nothing that counts until it is ready. So there is no way back to keep: a call that was killed is ended
// by one that takes away what it left, which carries the mark of the copy, and begins again. The origin is only read.
package zfsclone

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"bulkhead/internal/api"
)

// Clone makes a copy. One that an earlier call began is made by the plan given now.
func (m *Maker) Clone(ctx context.Context, plan *Plan) (*Record, error) {
	rec, err := m.Load(plan.Name)
	if err != nil {
		return nil, err
	}
	fresh := rec == nil
	switch {
	case fresh:
		rec = &Record{Version: recordVersion, ID: rand.Text(), Begun: time.Now()}
	case rec.Phase != Making || rec.Refreshed:
		return nil, refuse(after(rec), "the copy %s is there: it is %s", plan.Name, rec.Phase)
	default:
		if err := same(rec, plan); err != nil {
			return nil, err
		}
		if err := m.clear(ctx, rec); err != nil { // by the old plan, which has the old places
			return nil, err
		}
	}
	rec.Phase, rec.Plan = Making, plan
	if fresh {
		if err := m.free(ctx, plan); err != nil {
			return nil, err
		}
	}
	if err := m.save(rec); err != nil {
		return nil, err
	}
	m.at("begun")
	failed := m.build(ctx, rec)
	if failed == nil {
		return rec, nil
	}
	m.say("taking it back: %v", failed)
	if err := m.Drop(context.WithoutCancel(ctx), plan.Name); err != nil {
		return nil, api.Errorf(api.CodeFailed, "`bulkhead zfs drop "+plan.Name+"` tries that again",
			"make the copy %s: %w, and what is there of it could not be removed: %w", plan.Name, failed, err)
	}
	return nil, api.Errorf(api.CodeOf(failed), api.HintOf(failed), "make the copy %s: %w; nothing of it is left",
		plan.Name, failed)
}

// after says what goes on from a record.
func after(rec *Record) string {
	name := rec.Plan.Name
	if rec.Phase == Dropping {
		return "`bulkhead zfs drop " + name + "` ends that"
	}
	return "`bulkhead zfs refresh " + name + "` makes it anew, `drop` removes it"
}

// same says why a record cannot go on with another plan: what the first call made would be left behind.
func same(rec *Record, plan *Plan) error {
	was := rec.Plan
	if was.Base != plan.Base || was.Sets[0].Name != plan.Sets[0].Name || was.Group != plan.Group ||
		was.Class != plan.Class {
		return refuse("`bulkhead zfs drop "+was.Name+"` removes what is there", "the copy %s was begun in %s as %s, "+
			"in the group %s", was.Name, was.Dir(), was.Sets[0].Name, was.Group)
	}
	return nil
}

// Refresh makes a copy anew. The plan has its name, place and group.
func (m *Maker) Refresh(ctx context.Context, name string, plan *Plan) (*Record, error) {
	rec, err := m.Known(name)
	if err != nil {
		return nil, err
	}
	if rec.Phase == Dropping {
		return nil, refuse(after(rec), "the copy %s is %s", name, rec.Phase)
	}
	if err := same(rec, plan); err != nil {
		return nil, err
	}
	if err := m.independent(ctx, rec); err != nil {
		return nil, err
	}
	old := rec.Plan
	rec.Phase, rec.Refreshed = Making, true
	if err := m.save(rec); err != nil {
		return nil, err
	}
	m.at("begun")
	if err := m.clear(ctx, rec); err != nil { // by the old plan, which has the old places
		return nil, m.undone(name, err)
	}
	rec.Plan = plan
	if err := m.save(rec); err != nil {
		return nil, err
	}
	m.at("written down the new plan in place of " + old.Snapshot)
	if err := m.build(ctx, rec); err != nil {
		return nil, m.undone(name, err)
	}
	return rec, nil
}

func (m *Maker) undone(name string, err error) error {
	return api.Errorf(api.CodeOf(err), "`bulkhead zfs refresh "+name+"` tries that again, `drop` removes it; "+
		"the snapshot is untouched", "make the copy %s anew: %w", name, err)
}

// Known gives the record of a copy that has to be there.
func (m *Maker) Known(name string) (*Record, error) {
	rec, err := m.Load(name)
	if err == nil && rec == nil {
		err = api.Errorf(api.CodeFailed, fmt.Sprintf("there are these copies: %v", m.Names()),
			"there is no copy %q", name)
	}
	return rec, err
}

// build makes a copy from nothing: what an earlier call left goes first.
func (m *Maker) build(ctx context.Context, rec *Record) error {
	p := rec.Plan
	if err := m.clear(ctx, rec); err != nil {
		return err
	}
	if p.Class != "" {
		m.say("making the group %s from the class %s", p.Group, p.Class)
		if err := m.Group(ctx, p, true); err != nil {
			return err
		}
		m.at("made the group")
	}
	alone := m.Alone
	if alone == nil {
		alone = func(_ context.Context, do func() error) error { return do() }
	}
	if err := alone(ctx, func() error { return m.makeSets(ctx, rec) }); err != nil {
		return err
	}
	if err := m.prepare(ctx, p); err != nil {
		return err
	}
	m.say("starting %s in the group %s", p.Program, p.Group)
	server := m.Server(p)
	err := server.Start(ctx)
	if err == nil {
		m.at("started")
		err = server.Answers(ctx)
	}
	if err != nil {
		return fmt.Errorf("start it: %w%s", err, logged(p))
	}
	m.at("answered")
	if err := m.settle(p); err != nil {
		return err
	}
	for _, s := range p.Sets[1:] { // from now on it is mounted when the host starts
		if err := m.ZFS.Set(ctx, map[string]string{"canmount": "on"}, s.Name); err != nil {
			return err
		}
		m.at("set canmount of " + s.Name)
	}
	rec.Phase, rec.Refreshed = Ready, false
	return m.save(rec)
}

// Drop removes a copy: server, data sets, directories and group. It refuses, before anything is stopped, where somebody
// else's things depend on it.
func (m *Maker) Drop(ctx context.Context, name string) error {
	rec, err := m.Known(name)
	if err != nil {
		return err
	}
	if err := m.independent(ctx, rec); err != nil {
		return err
	}
	rec.Phase = Dropping
	if err := m.save(rec); err != nil {
		return err
	}
	m.at("begun")
	if err := m.clear(ctx, rec); err != nil {
		return api.Errorf(api.CodeOf(err), "`bulkhead zfs drop "+name+"` again goes on", "drop %s: %w", name, err)
	}
	if rec.Plan.Class != "" {
		m.say("removing the group %s", rec.Plan.Group)
		if err := m.Group(ctx, rec.Plan, false); err != nil {
			return errors.Join(fmt.Errorf("remove the group %s", rec.Plan.Group), err)
		}
		m.at("removed the group")
	}
	return m.remove(name)
}

package zfsclone

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/zfs"
)

// Start starts the server of a copy on its data sets, which are mounted first where they are not, as after a boot at
// which nothing mounts. One that runs already is left alone, and started is false then.
func (m *Maker) Start(ctx context.Context, name string) (started bool, err error) {
	rec, err := m.Known(name)
	if err != nil {
		return false, err
	}
	p := rec.Plan
	if rec.Phase != Ready {
		return false, refuse(after(rec), "the copy %s is %s, and not whole", name, rec.Phase)
	}
	server := m.Server(p)
	running, err := server.Running(ctx)
	if err != nil || running {
		return false, err
	}
	if err := m.mountAll(ctx, rec); err != nil {
		return false, err
	}
	m.say("starting %s in the group %s", p.Program, p.Group)
	if err = server.Start(ctx); err == nil {
		err = server.Answers(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("start the server of %s: %w%s", name, err, logged(p))
	}
	return true, nil
}

// mountAll mounts what is not mounted of a copy's data sets.
func (m *Maker) mountAll(ctx context.Context, rec *Record) error {
	list, err := m.there(ctx, rec.Plan)
	if err != nil {
		pool, _, _ := strings.Cut(rec.Plan.Sets[0].Name, "/")
		return api.Errorf(api.CodeFailed, "nothing was changed; where `zpool list` does not show the pool "+pool+
			", `zpool import "+pool+"` brings it back with what was written in the copy",
			"look at the data sets of the copy %s: %w", rec.Plan.Name, err)
	}
	for _, s := range rec.Plan.Sets[1:] {
		at := slices.IndexFunc(list, func(d zfs.Dataset) bool { return d.Name == s.Name })
		switch {
		case at < 0 || !ours(rec, list[at]) || list[at].Get("mountpoint") != s.Point:
			return refuse("`bulkhead zfs refresh "+rec.Plan.Name+"` makes it anew", "the data set %s of the copy %s "+
				"is gone, or has another place", s.Name, rec.Plan.Name)
		case list[at].Get("mounted") == "yes":
			continue
		}
		m.say("mounting %s", s.Name)
		if err := m.ZFS.Mount(ctx, s.Name); err != nil {
			return err
		}
	}
	return nil
}

// Package zfsdata reads what ZFS holds of a host's databases: pools, the datasets below each instance's directories
// with their properties, and the cache. It gives them as they are and as facts for rules.
package zfsdata

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/disks"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/zfs"
)

// Watched are the properties that are shown and held against rules.
var Watched = []string{"recordsize", "compression", "atime", "xattr", "primarycache", "logbias", "sync"}

// Read reads all of it within a time. Tools without paths are those of the host. Nothing is asked where the module is
// not loaded. The error is that of finding the databases.
func Read(ctx context.Context, h *host.Host, tools zfs.Tools, limit time.Duration) (*Layout, error) {
	l := &Layout{Pools: []zfs.Pool{}, Places: []Place{}, Trouble: []string{}, Uses: map[string]Use{},
		points: map[string]string{}}
	if _, err := h.Root.ReadText(zfs.ArcstatsFile); err != nil {
		return l, nil
	}
	l.trouble(l.module(h))
	d, err := disks.Find(h)
	if err != nil {
		return l, err
	}
	l.place(d)
	if tools.ZFS == "" {
		if !h.Root.Live() {
			l.trouble(fmt.Errorf("the host is a copy, where zfs(8) cannot be asked"))
			return l, nil
		}
		if tools, err = zfs.Find(h.Root); err != nil {
			l.trouble(err)
			return l, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tools.Limit = limit
	l.trouble(l.properties(ctx, tools))
	pools, err := tools.Pools(ctx)
	l.Pools = append(l.Pools, pools...)
	l.trouble(err)
	l.trouble(l.use(ctx, h, tools, d.Storage))
	return l, nil
}

func (l *Layout) trouble(err error) {
	if err != nil {
		l.Trouble = append(l.Trouble, err.Error())
	}
}

func (l *Layout) module(h *host.Host) error {
	version, err := zfs.Version(h.Root)
	if err != nil {
		return err
	}
	l.Module = cmp.Or(version, "of an unknown version")
	c, err := zfs.ReadCache(h.Root)
	if err != nil {
		return fmt.Errorf("read the cache of ZFS: %w", err)
	}
	l.Cache = &c
	return nil
}

// place finds the dataset of each kind of files.
func (l *Layout) place(d *disks.Disks) {
	for _, m := range d.Storage.Mounts() {
		if m.Type == "zfs" {
			l.points[m.Point] = m.Source
		}
	}
	for _, db := range d.Databases {
		for _, f := range db.Files {
			if f.Place.Layer == nil {
				continue
			}
			p := Place{Instance: db.Instance.Name(), Kind: f.Kind, Path: f.Path, Filesystem: f.Place.Layer.Type,
				pool: poolOf(f.Place.Layer)}
			if p.Filesystem == "zfs" {
				p.Dataset = cmp.Or(l.points[f.Place.Layer.Point], f.Place.Layer.Source)
			}
			l.Places = append(l.Places, p)
		}
	}
}

func (l *Layout) properties(ctx context.Context, tools zfs.Tools) error {
	var names []string
	for _, p := range l.Places {
		if p.Dataset != "" {
			names = append(names, p.Dataset)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nil
	}
	sets, err := tools.Datasets(ctx, names...)
	if err != nil {
		return err
	}
	for i := range l.Places {
		at := slices.IndexFunc(sets, func(d zfs.Dataset) bool { return d.Name == l.Places[i].Dataset })
		if at < 0 {
			continue
		}
		l.Places[i].Expendable = expendable(sets[at])
		l.Places[i].Properties = map[string]zfs.Property{}
		for _, name := range Watched {
			if v, has := sets[at].Properties[name]; has {
				l.Places[i].Properties[name] = v
			}
		}
	}
	return nil
}

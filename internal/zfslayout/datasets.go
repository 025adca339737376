package zfslayout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/zfs"
)

// dataset gives a data set of the move; nil where there is none of that name. One of the name that somebody else made
// is an error.
func (m *Mover) dataset(ctx context.Context, rec *Record, name string) (*zfs.Dataset, error) {
	pool := rec.Plan.Pool.Name
	has, err := m.ZFS.HasPool(ctx, pool)
	if err != nil {
		return nil, err
	}
	if !has {
		if len(rec.Plan.Pool.Create) > 0 && !rec.PoolMade {
			return nil, nil //nolint:nilnil // nor the pool
		}
		return nil, api.Errorf(api.CodeFailed, "`zpool import "+pool+"`", "the pool %s is not there", pool)
	}
	all, err := m.ZFS.Below(ctx, []string{"mounted", "mountpoint", "canmount", Owner}, pool)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(d zfs.Dataset) bool { return d.Name == name })
	if at < 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	if all[at].Properties[Owner] != (zfs.Property{Value: rec.ID, Source: "local"}) {
		return nil, fmt.Errorf("the data set %s was made by somebody else meanwhile", name)
	}
	return &all[at], nil
}

// makePool makes the pool, unless this move did so already.
func (m *Mover) makePool(ctx context.Context, rec *Record) error {
	pool := rec.Plan.Pool
	if len(pool.Create) == 0 {
		return nil
	}
	has, err := m.ZFS.HasPool(ctx, pool.Name)
	if err == nil && has {
		_, err = m.dataset(ctx, rec, pool.Name)
	} else if err == nil {
		m.say("making the pool %s", pool.Name)
		err = m.ZFS.CreatePool(ctx, slices.Concat([]string{"-O", Owner + "=" + rec.ID}, pool.Create))
	}
	if err != nil || rec.PoolMade {
		return err
	}
	m.at("made the pool")
	rec.PoolMade = true
	return m.save(rec)
}

// makeSets makes the data sets, mounted nowhere yet.
func (m *Mover) makeSets(ctx context.Context, rec *Record) error {
	for _, s := range rec.Plan.Sets {
		there, err := m.dataset(ctx, rec, s.Name)
		if err != nil {
			return err
		}
		if there != nil {
			continue
		}
		properties := map[string]string{Owner: rec.ID}
		for _, p := range s.Properties {
			if p.From == "" {
				properties[p.Name] = p.Value
			}
		}
		if s.Kind != "" {
			properties["canmount"], properties["mountpoint"] = "noauto", m.elsewhere(rec, s)
		}
		m.say("making %s", s.Name)
		if err := m.ZFS.Create(ctx, properties, s.Name); err != nil {
			return err
		}
		m.at("made " + s.Name)
	}
	return nil
}

// elsewhere is where a data set is mounted that is not in its place: only root gets there.
func (m *Mover) elsewhere(rec *Record, s Set) string {
	return filepath.Join(m.Mounts(rec.Plan.Instance), path.Base(s.Name))
}

// reach gives the directory where a data set can be reached, wherever that is, and mounts it if need be.
func (m *Mover) reach(ctx context.Context, rec *Record, s Set) (string, error) {
	d, err := m.dataset(ctx, rec, s.Name)
	if err == nil && d == nil {
		err = fmt.Errorf("the data set %s is gone", s.Name)
	}
	if err != nil {
		return "", err
	}
	if d.Get("mounted") == "yes" {
		return d.Get("mountpoint"), m.MountTable.onlyAt(s.Name, d.Get("mountpoint"))
	}
	return m.elsewhere(rec, s), m.mountAt(ctx, rec, s, m.elsewhere(rec, s), "noauto")
}

// mountAt mounts a data set at a directory, and nowhere else. It changes nothing that is so already.
func (m *Mover) mountAt(ctx context.Context, rec *Record, s Set, point, canmount string) error {
	d, err := m.dataset(ctx, rec, s.Name)
	if err == nil && d == nil {
		err = fmt.Errorf("the data set %s is gone", s.Name)
	}
	if err != nil {
		return err
	}
	mounted := d.Get("mounted") == "yes"
	if mounted && d.Get("mountpoint") != point {
		if err := m.ZFS.Unmount(ctx, s.Name); err != nil {
			return err
		}
		mounted = false
	}
	if !mounted {
		if err := m.mount(ctx, d, point); err != nil {
			return err
		}
	}
	if d, err = m.dataset(ctx, rec, s.Name); err != nil {
		return err
	}
	if d == nil || d.Get("mounted") != "yes" || d.Get("mountpoint") != point {
		return fmt.Errorf("%s is not mounted at %s, though zfs(8) said so", s.Name, point)
	}
	if err := m.MountTable.onlyAt(s.Name, point); err != nil {
		return err
	}
	if d.Get("canmount") != canmount {
		return m.ZFS.Set(ctx, map[string]string{"canmount": canmount}, s.Name)
	}
	return nil
}

// mount mounts a data set that is mounted nowhere at an empty directory.
func (m *Mover) mount(ctx context.Context, d *zfs.Dataset, point string) error {
	if err := errors.Join(m.MountTable.onlyAt(d.Name, ""), bare(point)); err != nil {
		return err
	}
	if d.Get("canmount") != "noauto" { // else the new point would have it mounted there at once
		if err := m.ZFS.Set(ctx, map[string]string{"canmount": "noauto"}, d.Name); err != nil {
			return err
		}
	}
	if err := m.ZFS.Set(ctx, map[string]string{"mountpoint": point}, d.Name); err != nil {
		return err
	}
	return m.ZFS.Mount(ctx, d.Name)
}

// takeOff unmounts a data set that is in its place, for good.
func (m *Mover) takeOff(ctx context.Context, rec *Record, s Set) error {
	d, err := m.dataset(ctx, rec, s.Name)
	if err != nil || d == nil {
		return err
	}
	if d.Get("mounted") == "yes" {
		if err := m.ZFS.Unmount(ctx, s.Name); err != nil {
			return err
		}
	}
	if err := m.MountTable.onlyAt(s.Name, ""); err != nil {
		return err
	}
	if d.Get("canmount") == "noauto" && d.Get("mountpoint") == m.elsewhere(rec, s) {
		return nil
	}
	if err := m.ZFS.Set(ctx, map[string]string{"canmount": "noauto"}, s.Name); err != nil {
		return err
	}
	return m.ZFS.Set(ctx, map[string]string{"mountpoint": m.elsewhere(rec, s)}, s.Name)
}

// destroySets removes the data sets that the move made, those above others last. One that has snapshots, clones or
// others below stays, and is told of.
func (m *Mover) destroySets(ctx context.Context, rec *Record) (stayed []string, err error) {
	for _, s := range slices.Backward(rec.Plan.Sets) {
		there, one := m.dataset(ctx, rec, s.Name)
		if one != nil || there == nil {
			err = errors.Join(err, one)
			continue
		}
		snapshots, one := m.ZFS.SnapshotsWith(ctx, []string{"creation"}, s.Name)
		if one != nil {
			return stayed, one
		}
		if holds, one := (checks{m, rec}).holds(ctx, s); one != nil {
			return stayed, one
		} else if holds || len(snapshots) > 0 || s.Kind == "" && len(stayed) > 0 {
			stayed = append(stayed, s.Name)
			continue
		}
		if one := m.ZFS.DestroyFilesystem(ctx, s.Name, Owner, rec.ID); one != nil {
			stayed = append(stayed, s.Name)
			m.warn("%v", one)
		}
		m.at("destroyed " + s.Name)
	}
	m.clear(rec)
	return stayed, err
}

// clear removes the directories of data sets that were not in their place, as far as they are empty.
func (m *Mover) clear(rec *Record) {
	for _, s := range rec.Plan.Sets {
		if s.Kind != "" {
			_ = os.Remove(m.elsewhere(rec, s))
		}
	}
	_ = os.Remove(m.Mounts(rec.Plan.Instance))
}

package zfsclone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/zfs"
)

// there are the data sets of a copy's name that exist, those above others first, with what else is below them.
func (m *Maker) there(ctx context.Context, p *Plan) ([]zfs.Dataset, error) {
	top := p.Sets[0].Name
	pool, _, _ := strings.Cut(top, "/")
	all, err := m.ZFS.Below(ctx, []string{"mounted", "mountpoint", Owner}, pool)
	all = slices.DeleteFunc(all, func(d zfs.Dataset) bool { return !mountinfo.Within(d.Name, top) })
	slices.SortFunc(all, func(a, b zfs.Dataset) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// ours says whether a data set was made for a copy.
func ours(rec *Record, d zfs.Dataset) bool {
	return d.Properties[Owner] == (zfs.Property{Value: rec.ID, Source: "local"})
}

// free sees that the places of a copy that is new are not somebody else's.
func (m *Maker) free(ctx context.Context, p *Plan) error {
	list, err := m.there(ctx, p)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		return refuse("take another name", "the data set %s is there already", list[0].Name)
	}
	if entries, err := os.ReadDir(p.Dir()); err == nil && len(entries) > 0 {
		return refuse("take another name, or look at what that is", "%s is not empty", p.Dir())
	}
	return nil
}

// independent says what would be lost with a copy, or keep it from being removed, before anything is stopped.
func (m *Maker) independent(ctx context.Context, rec *Record) error {
	list, err := m.there(ctx, rec.Plan)
	if err != nil {
		return err
	}
	var names []string
	for _, d := range list {
		if !ours(rec, d) {
			return refuse("look at what it is; `zfs destroy` or `zfs rename` gets it out of the way",
				"the data set %s was not made for the copy %s, and nothing was changed", d.Name, rec.Plan.Name)
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		return nil
	}
	snapshots, err := m.ZFS.SnapshotsWith(ctx, []string{"clones"}, names...)
	if err != nil || len(snapshots) == 0 {
		return err
	}
	s := snapshots[0]
	if clones := s.Clones(); len(clones) > 0 {
		return refuse("remove what was cloned from it first, or promote it (zfs-promote(8))",
			"%q depend on %s, and nothing was changed", clones, s.Name)
	}
	return refuse("destroy it first where nobody needs it", "there is a snapshot of the copy, %s, and nothing was "+
		"changed", s.Name)
}

// makeSets makes the data sets and mounts them. Their properties are set anew, and only then something can read them.
func (m *Maker) makeSets(ctx context.Context, rec *Record) error {
	p := rec.Plan
	if err := ownDirectory(p.Base); err != nil {
		return err
	}
	if err := ownDirectory(p.Dir()); err != nil {
		return err
	}
	m.at("made " + p.Dir())
	for i, s := range p.Sets {
		m.say("making %s", s.Name)
		properties := maps.Clone(s.Properties)
		properties[Owner] = rec.ID
		if i == 0 {
			if err := m.ZFS.Create(ctx, properties, s.Name); err != nil {
				return err
			}
			m.at("made " + s.Name)
			continue
		}
		if err := m.ZFS.Clone(ctx, properties, s.Origin, s.Name); err != nil {
			return err
		}
		m.at("made " + s.Name)
		if err := m.ZFS.Mount(ctx, s.Name); err != nil {
			return err
		}
		m.at("mounted " + s.Name)
	}
	list, err := m.there(ctx, p)
	if err != nil {
		return err
	}
	for _, s := range p.Sets[1:] {
		at := slices.IndexFunc(list, func(d zfs.Dataset) bool { return d.Name == s.Name })
		if at < 0 || list[at].Get("mounted") != "yes" || list[at].Get("mountpoint") != s.Point {
			return fmt.Errorf("%s is not mounted at %s, though zfs(8) said so", s.Name, s.Point)
		}
	}
	return nil
}

// ownDirectory makes a directory that only root may write to, and that others get through, whatever the umask.
func ownDirectory(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { //nolint:gosec // as it says
			return err
		}
		info, err = os.Lstat(dir)
	}
	if err == nil && (!info.IsDir() || info.Mode().Perm()&0o022 != 0) {
		err = refuse("give it to root, mode 0755", "others than root may write to %s, or it is no directory", dir)
	}
	return err
}

// clear takes away all that there is of a copy, but its group and its record: server, mounts, data sets, directories.
func (m *Maker) clear(ctx context.Context, rec *Record) error {
	p := rec.Plan
	list, err := m.there(ctx, p)
	if err != nil {
		return err
	}
	for _, d := range list {
		if !ours(rec, d) {
			return refuse("take another name", "the data set %s was made by somebody else", d.Name)
		}
	}
	if len(list) > 0 {
		server := m.Server(p)
		running, err := server.Running(ctx)
		if err == nil && running {
			m.say("stopping the server of %s", p.Name)
			err = server.Stop(ctx)
		}
		if err != nil {
			return fmt.Errorf("stop the server of %s: %w", p.Name, err)
		}
		m.at("stopped")
	}
	// The deepest mount goes first, then the data sets below others.
	deepest := slices.SortedStableFunc(slices.Values(list), func(a, b zfs.Dataset) int {
		return len(b.Get("mountpoint")) - len(a.Get("mountpoint"))
	})
	for _, d := range deepest {
		if d.Get("mounted") != "yes" {
			continue
		}
		if err := m.patiently(ctx, d, func() error { return m.ZFS.Unmount(ctx, d.Name) }); err != nil {
			return err
		}
		m.at("unmounted " + d.Name)
	}
	for _, d := range slices.Backward(list) {
		m.say("destroying %s", d.Name)
		if err := m.patiently(ctx, d, func() error {
			return m.ZFS.DestroyFilesystem(ctx, d.Name, Owner, rec.ID)
		}); err != nil {
			return err
		}
		m.at("destroyed " + d.Name)
	}
	return m.takeAway(p)
}

// patiently tries again what is busy, and then says who keeps it so.
func (m *Maker) patiently(ctx context.Context, d zfs.Dataset, do func() error) error {
	patience := m.Patience
	if patience == 0 {
		patience = 10 * time.Second
	}
	for end := time.Now().Add(patience); ; {
		err := do()
		if err == nil || !strings.Contains(err.Error(), "busy") {
			return err
		}
		if time.Now().After(end) {
			holders, _ := m.Holders(ctx, []string{d.Get("mountpoint")})
			return refuse("end what uses it, and call the same again", "%s is in use by %v: %w", d.Name, holders, err)
		}
		timer := time.NewTimer(200 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// takeAway removes the directories of a copy. Nothing is removed below a mount, and of the data sets' directories only
// empty ones.
func (m *Maker) takeAway(p *Plan) error {
	mounts, err := m.Mounts()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if mountinfo.Within(mount.Point, p.Dir()) {
			return refuse("unmount it", "%s of %s is mounted at %s", mount.Root, mount.Source, mount.Point)
		}
	}
	if err := os.RemoveAll(p.Run()); err != nil {
		return err
	}
	m.at("removed " + p.Run())
	for _, s := range slices.Backward(p.Sets) {
		if s.Point == "" || filepath.Dir(s.Point) != p.Dir() {
			continue // one that was mounted in another went with it
		}
		if err := gone(s.Point); err != nil {
			return err
		}
	}
	for _, name := range append(p.files(), p.StartLog()) {
		if err := gone(name); err != nil {
			return err
		}
	}
	return gone(p.Dir())
}

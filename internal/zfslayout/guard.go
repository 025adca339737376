package zfslayout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/treecopy"
	"bulkhead/internal/policy"
)

// keep notes which directories the move is about, so that no other one is ever taken for one of them.
func keep(p *Plan) (map[string]string, error) {
	kept := map[string]string{}
	for _, s := range p.Sets {
		if s.From == "" {
			continue
		}
		id, err := treecopy.Identity(s.From)
		if err != nil {
			return nil, err
		}
		kept[s.From] = id
	}
	return kept, nil
}

// old gives the directory that has the files of a set that were there before the move: where it always was, or aside.
// It is an error that it is at neither place.
func (r *Record) old(s Set) (string, error) {
	for _, dir := range []string{s.From + Suffix, s.From} {
		id, err := treecopy.Identity(dir)
		if err == nil && id == r.Kept[s.From] {
			return dir, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", api.Errorf(api.CodeRefused, "mount what it lies on, or give it its name again",
		"the directory %s of before the move is neither there nor at %s%s (%s)", s.From, s.From, Suffix,
		r.Kept[s.From])
}

// whole sees that the old directories are there.
func (r *Record) whole() error {
	for _, s := range r.Plan.filled() {
		if _, err := r.old(s); err != nil {
			return err
		}
	}
	return nil
}

// source is where the old files of a set are now.
func (r *Record) source(s Set) (treecopy.Tree, error) {
	dir, err := r.old(s)
	return treecopy.Tree{Dir: dir, Only: s.Only, Except: s.Except}, err
}

func there(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// MountTable reads what this process sees mounted.
type MountTable func() (mountinfo.Mounts, error)

// unmounted sees that nothing is mounted at or below a directory.
func (read MountTable) unmounted(dir string) error {
	mounts, err := read()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if mountinfo.Within(mount.Point, dir) {
			return api.Errorf(api.CodeRefused, "unmount it, and look at what it is", "%s of %s is mounted at %s",
				mount.Root, mount.Source, mount.Point)
		}
	}
	return nil
}

// onlyAt sees that a data set is mounted at a directory, whole, and nowhere else; "" is nowhere.
func (read MountTable) onlyAt(name, point string) error {
	mounts, err := read()
	if err != nil {
		return err
	}
	at := false
	for _, mount := range mounts {
		if mount.Type != "zfs" || mount.Source != name {
			continue
		}
		if mount.Point != point || mount.Root != "/" || !mounts.Visible(mount) || at {
			return api.Errorf(api.CodeRefused, "unmount it there", "%s of %s is also mounted at %s, or something is "+
				"mounted over it", mount.Root, name, mount.Point)
		}
		at = true
	}
	if !at && point != "" {
		return api.Errorf(api.CodeRefused, "`zfs mount "+name+"`", "%s is not mounted at %s", name, point)
	}
	return nil
}

// checks are what is seen of a move before something is stopped or removed.
type checks struct {
	*Mover
	rec *Record
}

// ready sees, before anything is stopped, that all that is in the data sets can be copied back.
func (m checks) ready(ctx context.Context) error {
	rec := m.rec
	for _, s := range rec.Plan.filled() {
		if rec.Phase == Applied { // later ones may be elsewhere, and nothing may be moved before it is sure
			if err := m.MountTable.onlyAt(s.Name, s.Point); err != nil {
				return err
			}
		}
		dir, err := rec.old(s)
		if err == nil {
			err = m.MountTable.unmounted(dir)
		}
		if err != nil {
			return err
		}
	}
	if err := m.fits(ctx); err != nil {
		return err
	}
	return m.room(ctx)
}

// fits sees that the files are still parted among the data sets as the plan has it: a redo log that is not where the
// plan has it would be left behind, and another one be taken for it.
func (m checks) fits(ctx context.Context) error {
	rec := m.rec
	moved := func(format string, args ...any) error {
		return api.Errorf(api.CodeRefused, "the data stays on ZFS, and nothing was changed now. Stop the server in "+
			"order and have it write where the plan has it, or copy its files back yourself; --lose-new-data goes "+
			"back to what was there before the move", format, args...)
	}
	for _, o := range rec.Originals {
		if is, err := o.present(); err != nil || !is {
			return errors.Join(err, moved("%s has no line %q any more: where the redo log is cannot be told", o.File,
				o.Edit.New))
		}
	}
	for _, s := range rec.Plan.filled() {
		at, err := m.reach(ctx, rec, s)
		if err != nil {
			return err
		}
		others, own, err := foreign(at, s.Only)
		switch {
		case err != nil:
			return err
		case len(s.Only) > 0 && own == 0:
			return moved("there is no %s in %s: the server writes it elsewhere", s.Only, s.Name)
		case len(s.Only) > 0 && len(others) > 0:
			return moved("%q in %s was not there at the move, and would not be copied back", others, s.Name)
		}
		for _, pattern := range s.Except {
			for _, name := range matching(at, pattern) {
				if !linked(rec, at, name) {
					return moved("%s is in the data set %s: the server writes it there, and not where the plan has it",
						path.Base(name), s.Name)
				}
			}
		}
	}
	return nil
}

// linked says whether a name in the data is the symbolic link that the move made there.
func linked(rec *Record, dir, name string) bool {
	return slices.ContainsFunc(rec.Plan.Sets, func(o Set) bool {
		target, err := os.Readlink(name)
		return o.Link != "" && name == filepath.Join(dir, o.Link) && err == nil &&
			target == filepath.Join(o.Point, o.Link)
	})
}

// matching gives the names directly in a directory that match a pattern.
func matching(dir, pattern string) (names []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if is, _ := path.Match(pattern, e.Name()); is {
			names = append(names, filepath.Join(dir, e.Name()))
		}
	}
	return names
}

// foreign gives the names in a directory that no pattern matches, and counts those that one does.
func foreign(dir string, patterns []string) (others []string, own int, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if slices.ContainsFunc(patterns, func(p string) bool { is, _ := path.Match(p, e.Name()); return is }) {
			own++
		} else {
			others = append(others, e.Name())
		}
	}
	return others, own, err
}

// room sees that what the data sets have more than the old directories has room on each file system of those.
func (m checks) room(ctx context.Context) error {
	rec := m.rec
	mounts, err := m.MountTable()
	if err != nil {
		return err
	}
	more, dirs := map[string]int64{}, map[string]string{} // by the file system
	for _, s := range rec.Plan.filled() {
		at, err := m.reach(ctx, rec, s)
		if err != nil {
			return err
		}
		old, err := rec.source(s)
		if err != nil {
			return err
		}
		now, err := treecopy.Measure(ctx, old.In(at))
		if err != nil {
			return err
		}
		was, err := treecopy.Measure(ctx, old)
		if err != nil {
			return err
		}
		on, _ := mounts.Of(old.Dir)
		more[on.Dev] += now.Bytes - was.Bytes
		dirs[on.Dev] = old.Dir
	}
	free := m.free
	if free == nil {
		free = treecopy.Free
	}
	for on, need := range more {
		has, err := free(dirs[on])
		if err != nil {
			return err
		}
		if need > 0 && has < need+need/10 {
			return api.Errorf(api.CodeRefused, "make room there; --lose-new-data goes back to what was there when "+
				"it was moved",
				"%s has %s free, and the data has grown by %s since", dirs[on], policy.Bytes(has).Human(),
				policy.Bytes(need).Human())
		}
	}
	return nil
}

// unused says who has files of the instance open.
func (m checks) unused(ctx context.Context) error {
	dirs := []string{}
	for _, s := range m.rec.Plan.Sets {
		if s.Point != "" {
			dirs = append(dirs, s.Point)
		}
		if s.Aside != "" {
			dirs = append(dirs, s.Aside)
		}
	}
	holders, err := m.Holders(ctx, dirs)
	if err == nil && len(holders) > 0 {
		err = api.Errorf(api.CodeRefused, "stop them first", "files of %s are open: %v", m.rec.Plan.Instance, holders)
	}
	return err
}

// holds says whether there is something in a data set that never belongs to what is copied back out of it.
func (m checks) holds(ctx context.Context, s Set) (bool, error) {
	if len(s.Only) == 0 {
		return false, nil
	}
	at, err := m.reach(ctx, m.rec, s)
	if err != nil {
		return false, err
	}
	others, _, err := foreign(at, s.Only)
	return len(others) > 0, errors.Join(err, m.takeOff(ctx, m.rec, s))
}

// idle sees that the directory aside is the one that the move put there, that nothing is mounted in it, and that nobody
// has files of it open.
func (m checks) idle(ctx context.Context, s Set) error {
	rec := m.rec
	id, err := treecopy.Identity(s.Aside)
	if err == nil && id != rec.Kept[s.From] {
		err = api.Errorf(api.CodeRefused, "look at what it is, and move it elsewhere",
			"%s is not the directory that was kept under that name: it is %s, and not %s", s.Aside, id,
			rec.Kept[s.From])
	}
	if err == nil {
		err = m.MountTable.unmounted(s.Aside)
	}
	if err != nil {
		return err
	}
	holders, err := m.Holders(ctx, []string{s.Aside})
	if err == nil && len(holders) > 0 {
		err = api.Errorf(api.CodeRefused, "see what they do there: a server that runs on the old files has newer "+
			"data in them", "files in %s are open: %v", s.Aside, holders)
	}
	return err
}

// empty makes the directory that a data set is to be mounted at, or sees that it is empty. While nothing is mounted no
// process can make a file in it, not even one of root, such as the steps before the start of a service that make a new
// database where there is none. It says where that cannot be had.
func empty(dir string) (open, err error) {
	if err := os.Mkdir(dir, 0); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := treecopy.Immutable(dir, true); err != nil {
		open = fmt.Errorf("%w: until the data set is mounted there, a start of the service by somebody else may make "+
			"files in it", err)
	}
	return open, bare(dir)
}

// bare sees that there is nothing in a directory, which a mount would hide.
func bare(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(names) > 0 {
		err = api.Errorf(api.CodeRefused, "look at what that is, and move it elsewhere",
			"%s is not empty (%s): something has written there while nothing was mounted", dir, names[0].Name())
	}
	return err
}

// takeAway removes the directory where a data set was mounted.
func takeAway(dir string) error {
	err := treecopy.Immutable(dir, false)
	if one := bare(dir); one != nil {
		return one
	}
	if one := os.Remove(dir); one != nil {
		return fmt.Errorf("take %s away, where the data set was mounted: %w", dir, errors.Join(one, err))
	}
	return nil
}

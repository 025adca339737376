package zfslayout

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/atomicfile"
	"bulkhead/internal/linux/treecopy"
)

// Apply moves an instance by a plan, or ends what an earlier call began, by the plan of that one. What fails is taken
// back.
func (m *Mover) Apply(ctx context.Context, instance string, plan *Plan) (*Record, error) {
	rec, err := m.Load(instance)
	if err != nil {
		return nil, err
	}
	if rec == nil {
		kept, err := keep(plan)
		if err != nil {
			return nil, err
		}
		rec = &Record{Version: recordVersion, ID: rand.Text(), Plan: plan, Phase: Applying, Begun: time.Now(),
			Kept: kept, Originals: []Original{}}
		if err := m.save(rec); err != nil {
			return nil, err
		}
		m.at("begun")
	}
	if rec.Phase != Applying {
		return rec, api.Errorf(api.CodeRefused, after[rec.Phase], "the move of %s is not to be begun: it is %s",
			instance, rec.Phase)
	}
	ran := rec.Newer // before this call
	if err := m.forward(ctx, rec); err != nil {
		return rec, m.takeBack(ctx, rec, ran, err)
	}
	return rec, nil
}

// takeBack takes a move back that failed. One that the server has run on already stays where it is, since what failed
// may pass, and so does one whose data cannot be copied back.
func (m *Mover) takeBack(ctx context.Context, rec *Record, ran bool, failed error) error {
	ctx, instance := context.WithoutCancel(ctx), rec.Plan.Instance
	stays := func(why error) error {
		return api.Errorf(api.CodeFailed, "`bulkhead zfs apply "+instance+"` goes on, `bulkhead zfs rollback "+instance+
			"` takes it back", "move %s: %w; nothing was taken back: %w", instance, failed, why)
	}
	if ran {
		return stays(errors.New("the data sets may hold newer data"))
	}
	if rec.Newer {
		if err := (checks{m, rec}).ready(ctx); err != nil {
			return stays(err)
		}
	}
	m.warn("%v; taking it back", failed)
	if err := m.back(ctx, rec, false); err != nil {
		return api.Errorf(api.CodeFailed, "`bulkhead zfs rollback "+instance+"` tries that again",
			"move %s: %w, and it could not be taken back: %w", instance, failed, err)
	}
	return api.Errorf(api.CodeOf(failed), "the server runs where it was; a note names what stayed",
		"move %s: %w", instance, failed)
}

// after says what goes on from a phase.
var after = map[Phase]string{
	Applied:   "`bulkhead zfs finish` removes the old directories, `rollback` goes back to them",
	Back:      "`bulkhead zfs rollback` ends that",
	Finishing: "`bulkhead zfs finish` ends that",
}

// forward goes the way to the end. What is done already is seen, and not done again.
func (m *Mover) forward(ctx context.Context, rec *Record) error {
	if err := m.makePool(ctx, rec); err != nil {
		return err
	}
	m.at("pool")
	if err := m.makeSets(ctx, rec); err != nil {
		return err
	}
	if !rec.Newer {
		if err := m.stop(ctx, rec); err != nil {
			return err
		}
		m.at("stopped")
		if err := m.copyAll(ctx, rec); err != nil {
			return err
		}
	}
	for _, s := range slices.Backward(rec.Plan.filled()) { // the data comes last: before that no server can start
		if s.Point == rec.Plan.DataDir && !rec.Newer {
			rec.Newer = true
			if err := m.save(rec); err != nil {
				return err
			}
			m.at("written down that data may be newer")
		}
		m.say("mounting %s at %s", s.Name, s.Point)
		if err := m.mountAt(ctx, rec, s, s.Point, "on"); err != nil {
			return err
		}
		m.at("mounted " + s.Name)
	}
	if err := m.start(ctx, rec); err != nil {
		return err
	}
	if err := effective(rec); err != nil {
		return err
	}
	m.at("started")
	rec.Phase = Applied
	return m.save(rec)
}

// stop stops the server, and sees that nobody has its files open.
func (m *Mover) stop(ctx context.Context, rec *Record) error {
	m.say("stopping %s", rec.Plan.Instance)
	if _, err := m.Holders(ctx, nil); err != nil { // what could not be asked later is no reason to stop it now
		return err
	}
	for _, e := range rec.Plan.Edits[len(rec.Originals):] { // and so with what could not be edited
		if err := Editable(e, rec.Plan.DataDir); err != nil {
			return fmt.Errorf("edit %s: %w", e.File, err)
		}
	}
	running, err := m.Server.Running(ctx)
	if err == nil && running {
		err = m.Server.Stop(ctx)
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", rec.Plan.Instance, err)
	}
	return (checks{m, rec}).unused(ctx)
}

// start starts the server if it does not run, and waits until it answers. One that ends meanwhile, since it was told to
// and took long, is started again.
func (m *Mover) start(ctx context.Context, rec *Record) error {
	m.say("starting %s", rec.Plan.Instance)
	running, err := m.Server.Running(ctx)
	if err == nil && running {
		m.at("seen running")
		failed := m.Server.Answers(ctx)
		if failed == nil {
			return nil
		}
		if running, err = m.Server.Running(ctx); err == nil && running {
			err = failed
		}
	}
	if err == nil {
		err = m.Server.Start(ctx)
	}
	if err == nil {
		m.at("start asked for")
		err = m.Server.Answers(ctx)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", rec.Plan.Instance, err)
	}
	return nil
}

// effective sees that the server did not make a redo log in the data directory again.
func effective(rec *Record) error {
	for _, s := range rec.Plan.Sets {
		for _, pattern := range s.Only {
			if s.Link != "" {
				continue // the link has that name
			}
			if made, _ := filepath.Glob(filepath.Join(rec.Plan.DataDir, pattern)); len(made) > 0 {
				return fmt.Errorf("the server writes %s again: what was written into its option file has no effect",
					made[0])
			}
		}
	}
	return nil
}

// copyAll copies all files, compares them, and gets the old directories and option files out of the way. Nothing may
// change meanwhile.
func (m *Mover) copyAll(ctx context.Context, rec *Record) error {
	stamps := map[string]string{}
	for _, s := range rec.Plan.filled() {
		stamp, err := m.copySet(ctx, rec, s)
		if err != nil {
			return err
		}
		stamps[s.Name] = stamp
		m.at("copied " + s.Name)
	}
	for _, s := range rec.Plan.Sets { // the data comes first: after that no server can start
		if s.Point == "" {
			continue
		}
		if err := m.setAside(rec, s); err != nil {
			return err
		}
	}
	for _, s := range rec.Plan.filled() {
		from, err := rec.source(s)
		if err != nil {
			return err
		}
		now, err := treecopy.Stamp(ctx, from)
		if err == nil && now != stamps[s.Name] {
			err = fmt.Errorf("files in %s were written to while they were copied", s.From)
		}
		if err != nil {
			return err
		}
	}
	if err := (checks{m, rec}).unused(ctx); err != nil {
		return err
	}
	return m.editAll(rec)
}

// setAside gives a directory the name that it is kept under, and makes the one that a data set is mounted at.
func (m *Mover) setAside(rec *Record, s Set) error {
	dir, err := rec.old(s)
	if err != nil {
		return err
	}
	if dir == s.Point {
		m.say("renaming %s to %s", s.Point, s.Aside)
		if err := rename(s.Point, s.Aside); err != nil {
			return err
		}
		m.at("renamed " + s.Point)
	}
	if m.MountTable.onlyAt(s.Name, s.Point) == nil { // an earlier call came as far as that
		return nil
	}
	if err := m.MountTable.unmounted(s.Point); err != nil {
		return err
	}
	open, err := empty(s.Point)
	if err != nil {
		return err
	}
	if open != nil {
		m.warn("%v", open)
	}
	m.at("made " + s.Point)
	return nil
}

// copySet copies the files of one data set and compares them. The stamp is of the files as they were compared.
func (m *Mover) copySet(ctx context.Context, rec *Record, s Set) (stamp string, err error) {
	from, err := rec.source(s)
	if err != nil {
		return "", err
	}
	target, err := m.reach(ctx, rec, s)
	if err != nil {
		return "", err
	}
	m.at("reached " + s.Name)
	m.say("copying %s%s to %s", s.From, only(s), s.Name)
	if stamp, err = m.copied(ctx, from, from.In(target)); err != nil {
		return "", err
	}
	if len(s.Only) > 0 {
		if err := treecopy.Like(from.Dir, target); err != nil {
			return "", err
		}
	}
	for _, o := range rec.Plan.Sets {
		if o.Link == "" || s.Point != rec.Plan.DataDir {
			continue
		}
		link := filepath.Join(target, o.Link)
		if there(link) {
			continue
		}
		if err := errors.Join(os.Symlink(filepath.Join(o.Point, o.Link), link), owned(from.Dir, link)); err != nil {
			return "", err
		}
	}
	return stamp, nil
}

// owned gives a link the owner of a directory.
func owned(dir, link string) error {
	uid, gid, err := treecopy.Owner(dir)
	if err != nil {
		return err
	}
	return os.Lchown(link, uid, gid)
}

// copied makes a tree equal to another one and compares both. Where that finds what the times of files did not tell,
// all is copied anew. The stamp is of the first one, before it was compared.
func (m *Mover) copied(ctx context.Context, from, to treecopy.Tree) (stamp string, err error) {
	for _, all := range []bool{false, true} {
		if err := treecopy.Sync(ctx, from, to, all); err != nil {
			return "", err
		}
		if stamp, err = treecopy.Stamp(ctx, from); err != nil {
			return "", err
		}
		m.say("comparing %s with its copy", from.Dir)
		size, err := treecopy.Compare(ctx, from, to)
		switch {
		case err == nil:
			m.say("%d files, %d bytes are equal", size.Files, size.Bytes)
			return stamp, nil
		case !errors.Is(err, treecopy.ErrDiffers) || all:
			return "", err
		}
	}
	return "", nil
}

// rename renames a directory, and puts that on the disk.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(to))
}

// editAll makes the edits of option files, each written down first.
func (m *Mover) editAll(rec *Record) error {
	for _, e := range rec.Plan.Edits {
		at := slices.IndexFunc(rec.Originals, func(o Original) bool { return o.Edit == e })
		if at < 0 {
			o, err := original(e, rec.Plan.DataDir)
			if err != nil {
				return err
			}
			at, rec.Originals = len(rec.Originals), append(rec.Originals, o)
			if err := m.save(rec); err != nil {
				return err
			}
			m.at("written down what " + e.File + " was")
		}
		m.say("editing %s", e.File)
		if err := rec.Originals[at].write(); err != nil {
			return fmt.Errorf("edit %s: %w", e.File, err)
		}
		m.at("edited " + e.File)
	}
	return nil
}

// Package dbsnapshot takes snapshots of all files of a database at one moment on ZFS, under a lock of the server or
// without one, and knows what each of them holds.
//
//	layout, err := dbsnapshot.Find(storage, files, nil)      // refuses what one snapshot cannot hold
//	taken, err := dbsnapshot.Take(ctx, tools, session, layout, "monday")
//	sets, err := dbsnapshot.List(ctx, tools)
//	verdicts := dbsnapshot.Retain(sets, dbsnapshot.Rule{Keep: 7}, time.Now())
//
// What is known of a snapshot stands in its own user properties, "bulkhead:…". Nothing else is kept, so nothing is lost
// with a state directory. A snapshot that was not confirmed, since its maker was killed, is marked so. Callers see to
// it that one of them changes snapshots at a time.
package dbsnapshot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
)

// Layout is where an instance keeps its files on ZFS, and what another server on a copy of them has to know.
type Layout struct {
	Instance string    `json:"instance"`
	Engine   string    `json:"engine"`
	Flavor   string    `json:"flavor,omitempty"`
	Version  string    `json:"version,omitempty"`
	Program  string    `json:"program,omitempty"` // of the server, as the kernel names it
	User     string    `json:"user,omitempty"`
	DataDir  string    `json:"datadir"` // every symbolic link followed
	Datasets []Dataset `json:"datasets"`
	// Outside are data files that the server names elsewhere than in its data directory.
	Outside  []string          `json:"outside,omitempty"`
	Settings map[string]string `json:"settings,omitempty"`
}

// Dataset is one file system of it.
type Dataset struct {
	Name  string `json:"name"`
	Point string `json:"point"` // where the server sees it mounted; "" where it sees a part of it
}

// Pool is the pool of all of them.
func (l Layout) Pool() string {
	pool, _, _ := strings.Cut(l.Datasets[0].Name, "/")
	return pool
}

// names are the snapshots of a name.
func (l Layout) names(snapshot string) []string {
	var names []string
	for _, d := range l.Datasets {
		names = append(names, d.Name+"@"+snapshot)
	}
	return names
}

// Find finds the datasets that hold an instance's files, with data files that the server itself names besides. It
// refuses what one call of ZFS cannot hold at one moment: files that are on no ZFS, or in two pools.
func Find(storage *blockdev.Storage, db disks.DatabaseFiles, outside []string) (Layout, error) {
	l := Layout{Instance: db.Instance.Name(), Engine: db.Instance.Engine, Flavor: db.Instance.Flavor,
		Version: db.Instance.Version, User: db.Instance.User, Outside: outside}
	if db.Trouble != "" {
		return l, refuse("find the files of "+l.Instance+": "+db.Trouble,
			"only root sees all of them: run it with sudo")
	}
	files := slices.Clone(db.Files)
	for _, name := range outside {
		f := disks.PlacedFiles{Files: datafiles.Files{Kind: datafiles.Tablespace, Path: name, How: "the server"}}
		place, err := storage.Place(db.Instance.Main.PID, name)
		if f.Place = place; err != nil {
			f.Trouble = err.Error()
		}
		files = append(files, f)
	}
	temporary := map[string]bool{}
	for _, f := range files {
		if f.Kind == datafiles.Temp {
			temporary[cmp.Or(f.Place.Real, f.Path)] = true
		}
	}
	mounts, err := storage.MountsOf(db.Instance.Main.PID)
	if err != nil {
		return l, api.Errorf(api.CodeFailed, "is it still running?", "read the mounts of %s: %w", l.Instance, err)
	}
	for _, f := range files {
		internal := f.Kind == datafiles.Tablespace && f.Open > 0 && temporary[f.Path] // tables of running statements
		if f.Kind == datafiles.Temp || internal || f.Trouble == "not there" {
			continue // what no recovery reads
		}
		if err := l.add(mounts, f, temporary); err != nil {
			return l, err
		}
	}
	if l.DataDir == "" || len(l.Datasets) == 0 {
		return l, refuse("no data directory of "+l.Instance+" was found", "`bulkhead discover disks` shows what was")
	}
	for _, d := range l.Datasets {
		if pool, _, _ := strings.Cut(d.Name, "/"); pool != l.Pool() {
			return l, refuse(fmt.Sprintf("files of %s are in two pools, %s and %s: no snapshot holds both at one "+
				"moment", l.Instance, l.Pool(), pool), "move them into one pool")
		}
	}
	slices.SortFunc(l.Datasets, func(a, b Dataset) int { return cmp.Compare(a.Name, b.Name) })
	return l, nil
}

// add adds the dataset of one place, and those that are mounted below it.
func (l *Layout) add(mounts mountinfo.Mounts, f disks.PlacedFiles, temporary map[string]bool) error {
	where := fmt.Sprintf("%s of %s, %q", f.Kind, l.Instance, f.Path)
	if f.Trouble != "" || f.Place.Layer == nil {
		return refuse(fmt.Sprintf("what holds the %s was not found: %s", where, cmp.Or(f.Trouble, "no mount is known")),
			"`bulkhead discover disks` shows the mounts")
	}
	if f.Place.Layer.Type != "zfs" {
		return refuse(fmt.Sprintf("the %s, is on %s and not on ZFS: a snapshot would not have it", where,
			cmp.Or(f.Place.Layer.Type, "no file system")), "move it onto the pool that holds the data")
	}
	real := cmp.Or(f.Place.Real, f.Path)
	d := Dataset{Name: f.Place.Layer.Source}
	if m, is := mounts.Of(real); is && m.Type == "zfs" && m.Source == d.Name && m.Root == "/" {
		d.Point = m.Point
	}
	if f.Kind == datafiles.Data && l.DataDir == "" {
		l.DataDir = real
	}
	l.dataset(d)
	for _, m := range mounts {
		if !strings.HasPrefix(m.Point, strings.TrimSuffix(real, "/")+"/") || !mounts.Visible(m) || temporary[m.Point] {
			continue
		}
		if m.Type == "zfs" && strings.Contains(m.Source, "@") {
			continue // a snapshot that somebody looked into, below .zfs
		}
		if m.Type != "zfs" {
			return refuse(fmt.Sprintf("%q, below the %s, is on %s and not on ZFS", m.Point, where, m.Type),
				"move it onto the pool that holds the data")
		}
		l.dataset(Dataset{Name: m.Source, Point: m.Point})
	}
	return nil
}

func (l *Layout) dataset(d Dataset) {
	if !slices.ContainsFunc(l.Datasets, func(o Dataset) bool { return o.Name == d.Name }) {
		l.Datasets = append(l.Datasets, d)
	}
}

// text is the layout as a property.
func (l Layout) text() (string, error) {
	data, err := json.Marshal(l)
	if err == nil && len(data) > maxProperty {
		err = fmt.Errorf("the layout of %s takes %d bytes, and a property of ZFS has %d", l.Instance, len(data),
			maxProperty)
	}
	return string(data), err
}

// maxProperty is how long the value of a user property may be (zfsprops(7)).
const maxProperty = 8191

func refuse(text, hint string) error {
	return api.Errorf(api.CodeRefused, hint, "%s", text)
}

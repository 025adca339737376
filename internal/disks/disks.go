// Package disks finds what the files of a host lie on, and where each database keeps which of its own.
package disks

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
)

// Disks is what `discover disks` shows.
type Disks struct {
	Storage   *blockdev.Storage
	Databases []DatabaseFiles
	// IOVersion is the version of the control groups that hold io limits here, 0 for none.
	IOVersion int
}

// DatabaseFiles is where one instance keeps its files.
type DatabaseFiles struct {
	Instance engine.Instance
	Files    []PlacedFiles
	Written  []WrittenKind // what its main process has open for writing, as far as that may be looked at
	Trouble  string        // what could not be found out
}

// WrittenKind counts the files of one kind that a server has open for writing.
type WrittenKind struct {
	Kind   datafiles.Kind `json:"kind"`
	Files  int            `json:"files"`
	Direct int            `json:"direct"` // of them, those with O_DIRECT
}

// PlacedFiles is one kind of files with the storage that holds it.
type PlacedFiles struct {
	datafiles.Files
	Place   blockdev.Place // without a Layer when the place was not found
	Trouble string
}

// Find finds what this host's files lie on, and where each database keeps which of its own.
func Find(h *host.Host) (*Disks, error) {
	storage, err := h.Block.Storage()
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "look at the storage: %w", err)
	}
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil && !errors.Is(err, procfs.ErrHidden) {
		return nil, api.Errorf(api.CodeFailed, "", "read the process table: %w", err)
	}
	d := &Disks{Storage: storage}
	if facts, err := h.Facts(); err == nil {
		if io, ok := facts.HierarchyOf("blkio"); ok {
			d.IOVersion = io.Version
		}
	}
	for _, inst := range recognise.Instances(procs, recognise.SourceOf(h)) {
		if inst.Sentinel() {
			continue // holds no data
		}
		files, err := datafiles.Of(inst, procs, recognise.SourceOf(h))
		if errors.Is(err, procfs.ErrExited) && files == nil {
			continue
		}
		db := DatabaseFiles{Instance: inst, Files: placeFiles(storage, inst.Main.PID, files)}
		if err != nil {
			db.Trouble = "its open files could not be read: " + err.Error()
		}
		if open, err := h.Proc.WrittenFiles(inst.Main.PID); err == nil { // else Trouble says it
			db.Written = writtenKinds(db.Files, open)
		}
		d.Databases = append(d.Databases, db)
	}
	return d, nil
}

// writtenKinds sorts files that a server writes by the kind of the place that they lie in: the deepest one counts.
func writtenKinds(places []PlacedFiles, open []procfs.WrittenFile) []WrittenKind {
	var kinds []WrittenKind
	for _, f := range open {
		best := -1
		for i, p := range places {
			for _, dir := range []string{p.Path, p.Place.Real} {
				inside := dir != "" && (f.Path == dir || strings.HasPrefix(f.Path, strings.TrimSuffix(dir, "/")+"/"))
				if inside && (best < 0 || len(dir) > len(places[best].Path)) {
					best = i
				}
			}
		}
		if best < 0 {
			continue
		}
		at := slices.IndexFunc(kinds, func(k WrittenKind) bool { return k.Kind == places[best].Kind })
		if at < 0 {
			at, kinds = len(kinds), append(kinds, WrittenKind{Kind: places[best].Kind})
		}
		if kinds[at].Files++; f.Direct {
			kinds[at].Direct++
		}
	}
	slices.SortFunc(kinds, func(a, b WrittenKind) int { return rank(a.Kind) - rank(b.Kind) })
	return kinds
}

// Measure measures what a device, or the disks below a path, can do. Begin is told before the first request what will
// be done.
func Measure(ctx context.Context, h *host.Host, target string, begin func(what string) error) (*blockdev.Measured,
	error) {
	target, err := filepath.Abs(target)
	if err != nil {
		return nil, api.Errorf(api.CodeUsage, "", "measure: %w", err)
	}
	storage, err := h.Block.Storage()
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "", "look at the storage: %w", err)
	}
	m, err := storage.Measure(ctx, target, blockdev.MeasureOptions{Begin: begin})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, api.Errorf(api.CodeUsage, "name an existing directory, or a device", "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, api.Errorf(api.CodeFailed, "a device takes root; a path, somebody who may write there", "%w", err)
	case errors.Is(err, blockdev.ErrNoMeasure):
		return nil, api.Errorf(api.CodeFailed, "`bulkhead discover disks` shows what is on which disk", "%w", err)
	case err != nil:
		return nil, api.Errorf(api.CodeFailed, "", "%w", err)
	}
	return m, nil
}

// placeFiles finds the storage of each place. Open files of a kind are told of where nothing else of that kind lies on
// the same storage: they are what the configuration does not say.
func placeFiles(s *blockdev.Storage, pid int, files []datafiles.Files) []PlacedFiles {
	var placed []PlacedFiles
	for _, f := range files {
		p := PlacedFiles{Files: f}
		var err error
		if f.Open > 0 && !strings.HasPrefix(f.Path, "/dev/") {
			p.Place, err = s.Open(pid, f.Path)
		} else {
			p.Place, err = s.Place(pid, f.Path)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			p.Trouble = "not there"
		case err != nil:
			p.Trouble = err.Error()
		}
		switch {
		case f.Open > 0 && strings.HasPrefix(f.Path, "/dev/") && (p.Place.Layer == nil || p.Place.Layer.Device == nil):
			continue // a terminal, /dev/null
		case f.Open > 0 && p.Place.Layer != nil && joined(placed, p):
			continue
		}
		placed = append(placed, p)
	}
	slices.SortStableFunc(placed, func(a, b PlacedFiles) int { return rank(a.Kind) - rank(b.Kind) })
	return placed
}

// joined adds open files to a place of their kind on the same storage, if there is one.
func joined(placed []PlacedFiles, p PlacedFiles) bool {
	for i := range placed {
		other := &placed[i]
		same := other.Kind == p.Kind || p.Kind == datafiles.Data && other.Kind == datafiles.Tablespace
		if !same || other.Place.Layer != p.Place.Layer {
			continue
		}
		if other.How == "open" {
			other.Path = common(other.Path, p.Path)
			other.Place.Path, other.Place.Real = other.Path, other.Path
		}
		other.Open += p.Open
		return true
	}
	return false
}

// common is the deepest directory that holds both.
func common(a, b string) string {
	for a != b {
		if len(a) > len(b) {
			a = path.Dir(a)
		} else {
			b = path.Dir(b)
		}
	}
	return a
}

func rank(kind datafiles.Kind) int {
	return slices.Index([]datafiles.Kind{
		datafiles.Data, datafiles.Tablespace, datafiles.Undo, datafiles.Redo, datafiles.Binlog,
		datafiles.Relay, datafiles.Archive, datafiles.Control, datafiles.Temp,
	}, kind)
}

// Roots are the filesystems worth drawing, in the order of their mounts: those on devices, pools and the network, and
// whatever a database keeps files on. A read-only image, such as of a program package, counts only in the last case.
func (d *Disks) Roots() []*blockdev.Layer {
	var roots []*blockdev.Layer
	add := func(l *blockdev.Layer) {
		if !slices.Contains(roots, l) {
			roots = append(roots, l)
		}
	}
	held := map[*blockdev.Layer]bool{}
	for _, db := range d.Databases {
		for _, f := range db.Files {
			if f.Place.Layer != nil {
				held[f.Place.Layer] = true
			}
		}
	}
	for _, m := range d.Storage.Mounts() {
		l := d.Storage.On(m)
		switch l.Filesystem {
		case blockdev.OnDevice:
			if l.Type != "squashfs" && l.Type != "erofs" && l.Type != "iso9660" {
				add(l)
			}
		case blockdev.OnNetwork, blockdev.OnPool, blockdev.OnUnknown:
			add(l)
		}
		if held[l] {
			add(l)
		}
	}
	for _, db := range d.Databases {
		for _, f := range db.Files {
			if f.Place.Layer != nil {
				add(f.Place.Layer)
			}
		}
	}
	return roots
}

// Holds names what databases keep on a layer: "mysql3306: data, redo log".
func (d *Disks) Holds(l *blockdev.Layer) []string {
	var all []string
	for _, db := range d.Databases {
		var kinds []string
		for _, f := range db.Files {
			if f.Place.Layer == l && !slices.Contains(kinds, string(f.Kind)) {
				kinds = append(kinds, string(f.Kind))
			}
		}
		if len(kinds) > 0 {
			all = append(all, db.Instance.Name()+": "+strings.Join(kinds, ", "))
		}
	}
	return all
}

package zfslayout

import (
	"fmt"
	"path/filepath"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/steprecord"
)

// Phase is how far a move is.
type Phase string

// Phases.
const (
	Applying  Phase = "applying"
	Applied   Phase = "applied"
	Back      Phase = "rolling back"
	Finishing Phase = "finishing"
)

// Record is a move that was begun. It is on the disk before each step that it tells of.
type Record struct {
	Version  int       `json:"version"`
	ID       string    `json:"id"` // the property Owner of what was made
	Plan     *Plan     `json:"plan"`
	Phase    Phase     `json:"phase"`
	Begun    time.Time `json:"begun"`
	PoolMade bool      `json:"pool_made"`
	// Kept says which directories the files were in (treecopy.Identity), by the names that they had.
	Kept map[string]string `json:"kept"`
	// Newer says that the data sets may hold newer data than the old directories: the server may have run on them.
	Newer bool `json:"newer"`
	// CopyingBack says that the old directories are, or were, made equal to the data sets. Lose says that what the data
	// sets have that is newer is to be lost.
	CopyingBack bool `json:"copying_back"`
	Lose        bool `json:"lose_new_data"`
	// Restored says that the old directories are whole, and what counts: the data sets do not any more.
	Restored  bool       `json:"restored"`
	Originals []Original `json:"originals,omitempty"` // of option files
}

// Original is an option file before and after its edit.
type Original struct {
	Edit Edit   `json:"edit"`
	File string `json:"file"` // every symbolic link followed
	Text []byte `json:"text"`
	New  []byte `json:"new"`
}

// Owner is the property of data sets that says which move made them.
const Owner = "bulkhead:layout"

const recordVersion = 1

// Records are the moves that were begun and not finished, each in a file of a directory.
type Records struct{ Dir string }

// path is the file of an instance, whose name is one for a group: it has no slash and does not begin with a dot.
func (r Records) path(instance string) string { return filepath.Join(r.Dir, instance+".json") }

// Mounts is the directory for data sets of an instance that are not in their place yet, or any more.
func (r Records) Mounts(instance string) string { return filepath.Join(r.Dir, instance) }

// Load gives the move of an instance; nil where there is none.
func (r Records) Load(instance string) (*Record, error) {
	if instance == "" || instance != filepath.Base(instance) || instance[0] == '.' {
		return nil, api.Errorf(api.CodeUsage, "`bulkhead discover` lists instances", "%q is no instance", instance)
	}
	rec, err := steprecord.Load[Record](r.path(instance))
	if rec == nil && err == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	if err == nil && (rec.Version != recordVersion || rec.Plan == nil || rec.Plan.Instance != instance ||
		rec.ID == "" ||
		len(rec.Plan.Sets) < 2) {
		err = fmt.Errorf("it is of version %d, or not whole", rec.Version)
	}
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "nothing was changed; the file says which data sets and directories "+
			"the move is about", "read %q: %w", r.path(instance), err)
	}
	return rec, nil
}

// save puts a move on the disk.
func (r Records) save(rec *Record) error { return steprecord.Save(r.path(rec.Plan.Instance), rec) }

// remove forgets a move.
func (r Records) remove(instance string) error { return steprecord.Remove(r.path(instance)) }

// Printable is a plan without what only root may know: the environment of a server may hold a password.
func (p *Plan) Printable() *Plan {
	shown := *p
	if p.Start.Command != nil {
		c := *p.Start.Command
		c.Env = nil
		shown.Start.Command = &c
	}
	return &shown
}

// Printable is a move without what only root may know: option files may hold passwords, too.
func (r *Record) Printable() *Record {
	shown := *r
	shown.Plan, shown.Originals = r.Plan.Printable(), nil
	return &shown
}

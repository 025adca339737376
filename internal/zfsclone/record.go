package zfsclone

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/steprecord"
)

// Phase is how far a copy is.
type Phase string

// Phases. A copy that is being made is made anew by the next call, and nothing of it counts.
const (
	Making   Phase = "making"
	Ready    Phase = "ready"
	Dropping Phase = "dropping"
)

// Record is a copy that was begun. It is on the disk before each step that it tells of.
type Record struct {
	Version int       `json:"version"`
	ID      string    `json:"id"` // the property Owner of what was made
	Phase   Phase     `json:"phase"`
	Begun   time.Time `json:"begun"`
	Plan    *Plan     `json:"plan"`
	// Refreshed says that the copy was there before: what fails leaves it to another try.
	Refreshed bool `json:"refreshed,omitempty"`
}

// Owner is the property of data sets that says which copy they belong to.
const Owner = zfs.OfCopy

const recordVersion = 1

// Records are the copies of a host, each in a file of a directory.
type Records struct{ Directory string }

func (r Records) path(name string) string { return filepath.Join(r.Directory, name+".json") }

// Load gives the record of a copy; nil where there is none.
func (r Records) Load(name string) (*Record, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	rec, err := steprecord.Load[Record](r.path(name))
	if rec == nil && err == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	if err == nil && (rec.Version != recordVersion || rec.ID == "" || rec.Plan == nil || rec.Plan.Name != name ||
		len(rec.Plan.Sets) < 2) {
		err = fmt.Errorf("it is of version %d, or not whole", rec.Version)
	}
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "nothing was changed; the file says which data sets are the copy's",
			"read %q: %w", r.path(name), err)
	}
	return rec, nil
}

// Names are those of all copies.
func (r Records) Names() []string {
	names := []string{}
	entries, _ := os.ReadDir(r.Directory)
	for _, e := range entries {
		if name, is := strings.CutSuffix(e.Name(), ".json"); is {
			names = append(names, name)
		}
	}
	return names
}

// save puts a record on the disk.
func (r Records) save(rec *Record) error { return steprecord.Save(r.path(rec.Plan.Name), rec) }

func (r Records) remove(name string) error { return steprecord.Remove(r.path(name)) }

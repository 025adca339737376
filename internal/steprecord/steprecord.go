// Package steprecord keeps what is known of long work in a file, which is on the disk before each step that it tells
// of. So the work can be ended, or taken back, after a kill or a crash of the host.
package steprecord

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"bulkhead/internal/atomicfile"
)

// Load reads a record; nil where there is none.
func Load[T any](file string) (*T, error) {
	data, err := (atomicfile.OS{}).ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none
	}
	rec := new(T)
	if err == nil {
		err = json.Unmarshal(data, rec)
	}
	return rec, err
}

// Save puts a record on the disk, for root alone to read. Its directory is made where it is not there.
func Save(file string, rec any) error {
	data, err := json.MarshalIndent(rec, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		_, err = atomicfile.Write(atomicfile.OS{}, file, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down the step: %w", err)
	}
	return nil
}

// Remove takes a record away; that it is not there is no error.
func Remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.SyncDir(atomicfile.OS{}, filepath.Dir(file))
}

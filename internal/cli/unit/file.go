package unit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/atomicfile"
	"bulkhead/internal/systemd/sandbox"
)

// File is the drop-in.
const File = "/etc/systemd/system/bulkhead.service.d/policy.conf"

// result of an update.
type result struct {
	File      string         `json:"file"`
	Changed   bool           `json:"changed"`
	Needs     []sandbox.Need `json:"needs"`
	NoSystemd bool           `json:"no_systemd,omitempty"`
}

// update makes the drop-in of a host what the needs ask for. One that somebody else wrote is an error.
func update(root string, needs []sandbox.Need) (result, error) {
	r := result{File: File, Needs: append([]sandbox.Need{}, needs...)}
	file, want := filepath.Join(root, File), sandbox.DropIn(needs)
	have, err := read(root)
	if err != nil {
		return r, err
	}
	if _, err := os.Stat(filepath.Join(root, "/etc/systemd")); errors.Is(err, fs.ErrNotExist) {
		r.NoSystemd = true
		return r, nil
	}
	if have == want {
		return r, nil
	}
	if have != "" && !strings.HasPrefix(have, sandbox.Mark) {
		return r, api.Errorf(api.CodeFailed, "give that drop-in another name, such as local.conf, and try again",
			"%s was not written by bulkhead", File)
	}
	r.Changed = true
	if want == "" {
		if err := os.Remove(file); err != nil {
			return r, api.Errorf(api.CodeFailed, "", "take the drop-in away: %w", err)
		}
		_ = os.Remove(filepath.Dir(file)) // drop-ins of others keep it
		return r, nil
	}
	err = os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		_, err = atomicfile.Write(atomicfile.OS{}, file, []byte(want), 0o644)
	}
	if err != nil {
		return r, api.Errorf(api.CodeFailed, "`bulkhead unit --print` prints what it is to hold",
			"write the drop-in: %w", err)
	}
	return r, nil
}

// read is the drop-in as it is; "" where there is none.
func read(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, File))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", api.Errorf(api.CodeFailed, "", "read the drop-in: %w", err)
	}
	return string(text), nil
}

// settings are the lines of a drop-in that set something.
func settings(text string) (all []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.Contains(line, "=") && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

package collect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"bulkhead/internal/atomicfile"
)

// Load reads a choice that was kept; the zero value where none was.
func Load(file string) (Choice, error) {
	text, err := atomicfile.OS{}.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Choice{}, nil
	}
	var c Choice
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return Choice{}, fmt.Errorf("read which collectors are on: %q: %w", file, err)
	}
	return c, nil
}

// Keep writes a choice, so that it outlives this process, and makes the directory for it.
func Keep(file string, c Choice) error {
	text, err := json.MarshalIndent(c, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		_, err = atomicfile.Write(atomicfile.OS{}, file, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep which collectors are on: %w", err)
	}
	return nil
}

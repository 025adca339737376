package fsinfo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestSize(t *testing.T) {
	dir := t.TempDir()
	for name, n := range map[string]int{"a": 1000, "b/c": 24, "b/d/e": 1} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700),
			os.WriteFile(name, make([]byte, n), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink("/proc", filepath.Join(dir, "b/proc")), os.Symlink(dir, outside)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{dir, outside} {
		if size, err := Size(t.Context(), name); size != 1025 || err != nil {
			t.Errorf("%s has %d bytes, %v", name, size, err)
		}
	}
	if _, err := Size(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Size(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

package neighbour

import (
	"os"
	"path/filepath"
	"testing"
)

// A hog is no call of bulkhead: it runs under a path of its own, on the same file system as the program or on another.
func TestProgram(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "bulkhead")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"beside it": t.TempDir(), "in memory": elsewhere(t)} {
		got, err := Program(binary, dir)
		if err != nil || got == binary || filepath.Dir(got) != dir {
			t.Errorf("%s: %q, %v: want a path in %q", name, got, err, dir)
		}
		text, err := os.ReadFile(got)
		if err != nil || string(text) != "#!/bin/sh\n" {
			t.Errorf("%s: it holds %q, %v", name, text, err)
		}
	}
	if _, err := Program(filepath.Join(t.TempDir(), "gone"), t.TempDir()); err == nil {
		t.Error("a program that is gone gave no error")
	}
}

// elsewhere is a directory that is likely on another file system.
func elsewhere(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "neighbour")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Package linuxtest makes captured hosts out of text, for tests of what reads below a root directory: a txtar archive
// of files below /proc, /sys and /etc, as hosttest.Capture writes it or a hand does. It imports no reader, so that each
// can use it in tests of its own.
package linuxtest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/linux/sysroot"
)

// Unpack does what FromArchive does and returns the directory, for a test that changes files in it.
func Unpack(t testing.TB, text string) string {
	t.Helper()
	dir := tempDir(t)
	for _, f := range parse(text) {
		if err := unpackFile(dir, f); err != nil {
			t.Fatalf("unpack %s: %v", f.name, err)
		}
	}
	return dir
}

// Files makes a host of files by their names, all with one mode, and returns its directory.
func Files(t testing.TB, files map[string]string, mode fs.FileMode) string {
	t.Helper()
	dir := tempDir(t)
	for name, text := range files {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err == nil {
			err = os.WriteFile(at, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tempDir returns a directory that goes with the test, in memory where it can: a hundred small files
// take a disk a tenth of a second, and every test unpacks its own.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hosttest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove captured host: %v", err)
		}
	})
	return dir
}

// file is one entry of an archive.
type file struct{ name, text string }

// parse reads the txtar format: a line "-- NAME --" before each file, a comment before the first.
func parse(archive string) []file {
	var files []file
	for line := range strings.Lines(archive) {
		rest, opens := strings.CutPrefix(strings.TrimSpace(line), "-- ")
		name, closes := strings.CutSuffix(rest, " --")
		switch {
		case opens && closes && name != "":
			files = append(files, file{name: name})
		case len(files) > 0:
			files[len(files)-1].text += line
		}
	}
	return files
}

// Text returns the archive of a fixture by its name: one of package host, or "storage/…" of package blockdev.
func Text(t testing.TB, name string) string {
	t.Helper()
	module, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := "host"
	if strings.HasPrefix(name, "storage/") {
		dir = "linux/blockdev"
	}
	text, err := os.ReadFile(filepath.Join(module, "internal", dir, "testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// moduleRoot goes up from the working directory, which in a test is its package.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("find module root: no go.mod above the working directory")
		}
		dir = parent
	}
}

func unpackFile(dir string, f file) error {
	name := filepath.Join(dir, filepath.FromSlash(f.name))
	if !filepath.IsLocal(strings.TrimSuffix(f.name, "/")) {
		return fmt.Errorf("the name leads outside")
	}
	if strings.HasSuffix(f.name, "/") {
		return os.MkdirAll(name, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	text := f.text
	if target, is := strings.CutPrefix(text, sysroot.CapturedLink); is {
		return os.Symlink(strings.TrimSuffix(target, "\n"), name)
	}
	if escaped, is := strings.CutPrefix(text, sysroot.CapturedBytes); is {
		text = unescapeBytes.Replace(strings.TrimSuffix(escaped, "\n"))
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

var unescapeBytes = strings.NewReplacer(`\\`, `\`, `\0`, "\x00", `\n`, "\n")

// Entries returns the texts of all files of captured hosts whose names end so: seeds for fuzzing.
func Entries(t testing.TB, suffix string) [][]byte {
	t.Helper()
	module, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	archives, err := filepath.Glob(filepath.Join(module, "internal", "host", "testdata", "*.txtar"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	var texts [][]byte
	for _, name := range archives {
		archive, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range parse(string(archive)) {
			if strings.HasSuffix(f.name, suffix) {
				texts = append(texts, []byte(f.text))
			}
		}
	}
	if len(texts) == 0 {
		t.Fatalf("no fixture has a %s", suffix)
	}
	return texts
}

// FirstDifference shows the first line in which two texts differ.
func FirstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return "got  " + g[i] + "\nwant " + w[i]
		}
	}
	return "one is longer"
}

// Package hosttest makes hosts out of text, for tests: a txtar archive of files below /proc, /sys
// and /etc, as host.Capture writes it or a hand does.
package hosttest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/host"
)

// FromArchive unpacks a txtar archive into a temporary directory and returns the host it describes.
// An entry of the form "symlink: TARGET" is a symbolic link, "escaped: a\0b" has its bytes written
// out; one whose name ends with "/" is an empty directory.
func FromArchive(t testing.TB, text string) *host.Host {
	t.Helper()
	return host.New(Unpack(t, text))
}

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

// Load is FromArchive for a fixture of package host, by its name: "centos7", "debian12",
// "fournodes", "hybrid", "container".
func Load(t testing.TB, name string) *host.Host {
	t.Helper()
	return FromArchive(t, Text(t, name))
}

// Text returns the archive of a fixture of package host.
func Text(t testing.TB, name string) string {
	t.Helper()
	module, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module, "internal", "host", "testdata", name+".txtar"))
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
	if target, is := strings.CutPrefix(text, host.CapturedLink); is {
		return os.Symlink(strings.TrimSuffix(target, "\n"), name)
	}
	if escaped, is := strings.CutPrefix(text, host.CapturedBytes); is {
		text = unescapeBytes.Replace(strings.TrimSuffix(escaped, "\n"))
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

var unescapeBytes = strings.NewReplacer(`\\`, `\`, `\0`, "\x00", `\n`, "\n")

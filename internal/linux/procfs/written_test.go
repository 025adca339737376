package procfs_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

func TestWrittenFiles(t *testing.T) {
	dir := t.TempDir()
	open := func(name string, flags int) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), flags|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	open("read", os.O_RDONLY)
	open("cached", os.O_RDWR)
	open("appended", os.O_WRONLY|os.O_APPEND)
	open("direct", os.O_RDWR|unix.O_DIRECT)
	open("both", os.O_WRONLY|unix.O_DIRECT)
	open("both", os.O_WRONLY)
	all, err := host.New("/").Proc.WrittenFiles(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var got []procfs.WrittenFile
	for _, f := range all {
		if name, err := filepath.Rel(dir, f.Path); err == nil && filepath.IsLocal(name) {
			got = append(got, procfs.WrittenFile{Path: name, Direct: f.Direct})
		}
	}
	want := []procfs.WrittenFile{{Path: "appended"}, {Path: "both"}, {Path: "cached"}, {Path: "direct", Direct: true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := host.New("/").Proc.WrittenFiles(1 << 30); err == nil {
		t.Error("of a process that is not there")
	}
}

package procfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/linuxtest"
)

func TestProcRootFile(t *testing.T) {
	dir := linuxtest.Unpack(t, `
-- proc/7/stat --
7 (db) S 1
-- proc/7/root --
symlink: /var/lib/containers/db
-- proc/7/cwd --
symlink: /var/lib/containers/db/home
-- proc/8/stat --
8 (other) S 1
-- proc/8/cwd --
symlink: /etc
-- etc/my.cnf --
outer
-- var/lib/containers/db/etc/my.cnf --
symlink: /etc/mysql/my.cnf
-- var/lib/containers/db/etc/mysql/my.cnf --
inner
-- var/lib/containers/db/home/local.cnf --
local
-- var/lib/containers/db/up.cnf --
symlink: ../../../../../etc/my.cnf
`)
	h := host.New(dir)
	for _, test := range []struct {
		pid        int
		name, want string
	}{
		{7, "/etc/my.cnf", "inner\n"}, // an absolute link counts from the process's root
		{7, "/up.cnf", "inner\n"},     // and nothing leads above it
		{7, "local.cnf", "local\n"},
		{7, "../etc/my.cnf", "inner\n"},
		{8, "/etc/my.cnf", "outer\n"},
		{8, "my.cnf", "outer\n"},
	} {
		got, err := h.Proc.ReadRootFile(test.pid, test.name, 100)
		if err != nil || string(got) != test.want {
			t.Errorf("process %d, %s: %q, %v, want %q", test.pid, test.name, got, err, test.want)
		}
	}
	if _, err := h.Proc.ReadRootFile(8, "/etc/my.cnf", 6); err != nil {
		t.Errorf("exactly at the limit: %v", err)
	}
	if got, err := h.Proc.ReadRootFile(8, "/etc/my.cnf", 5); err == nil {
		t.Errorf("one byte over the limit gives %q", got)
	}
	if _, err := h.Proc.ReadRootFile(8, "/etc/none", 5); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "/etc/none") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestProcRootFileOpensRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil { // opening it would wait for a writer
		t.Fatal(err)
	}
	for _, name := range []string{pipe, dir, "/dev/zero"} {
		if got, err := host.New("/").Proc.ReadRootFile(os.Getpid(), name, 100); err == nil {
			t.Errorf("%s gives %q", name, got)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := host.New("/").Proc.ReadRootFile(os.Getpid(), file, 100); err != nil || string(got) != "text" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestOpenFiles(t *testing.T) {
	got, err := hosttest.Load(t, "debian12").Proc.OpenFiles(900)
	if want := []string{"/dev/null", "/tmp/old", "/var/log/postgresql/postgresql-15-main.log"}; err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

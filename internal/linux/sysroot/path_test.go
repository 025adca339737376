package sysroot_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/linuxtest"
)

func TestEvaluate(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := hosttest.FromArchive(t, `
-- srv/db/data/ibdata1 --
x
-- srv/link --
symlink: db/data
-- var/absolute --
symlink: /srv/link
-- var/up --
symlink: ../../../../srv/db
-- var/dangling --
symlink: /nowhere
-- var/loop --
symlink: /var/loop
-- var/out --
symlink: `+outside+`
`)
	for name, want := range map[string]string{
		"/srv/db/data":             "/srv/db/data",
		"/srv/./db//data/../data/": "/srv/db/data",
		"/srv/link":                "/srv/db/data",
		"/srv/link/..":             "/srv/db", // of what the link leads to, as the kernel has it
		"/var/absolute/ibdata1":    "/srv/db/data/ibdata1",
		"/var/up/data":             "/srv/db/data", // nothing is above the root
		"/../../srv":               "/srv",
		"/":                        "/",
	} {
		if got, err := h.Root.EvalSymlinks(name); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]error{
		"/nowhere": fs.ErrNotExist, "/var/dangling": fs.ErrNotExist, "/var/out": fs.ErrNotExist,
		"/var/loop": syscall.ELOOP,
	} {
		if got, err := h.Root.EvalSymlinks(name); !errors.Is(err, want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s gives %q, %v, want %v", name, got, err, want)
		}
	}
	if got, err := h.Root.EvalSymlinks("srv/db"); err == nil {
		t.Errorf("a relative path gives %q", got)
	}
}

func TestEvaluateOnThisMachine(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	got, err := host.New("/").Root.EvalSymlinks(filepath.Join(dir, "link"))
	if want := filepath.Join(dir, "real"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestNothingOutsideTheRootIsRead(t *testing.T) {
	dir := linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
	outside := filepath.Join(t.TempDir(), "osrelease")
	if err := os.WriteFile(outside, []byte("9.9.9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "proc/sys/kernel/osrelease")
	relative, err := filepath.Rel(filepath.Dir(file), outside)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{outside, relative} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, file); err != nil {
			t.Fatal(err)
		}
		if f, err := host.New(dir).Facts(); err == nil {
			t.Errorf("a link to %s was followed: kernel %s", target, f.Kernel)
		}
	}
}

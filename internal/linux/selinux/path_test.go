package selinux_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/sysroot"
)

// told is a host on which each file has its path as its type.
func told(root *sysroot.FS) selinux.Host {
	return selinux.Host{Root: root, Labels: func(file string) (string, error) {
		if strings.HasSuffix(file, "/bare") {
			return "", selinux.ErrNoLabel
		}
		if strings.HasSuffix(file, "/broken") {
			return "", fs.ErrPermission
		}
		return "u:r:" + file + ":s0", nil
	}}
}

const tree = `
-- a/b/file --
-- a/b/bare --
-- a/b/broken --
-- a/link --
symlink: b/file
-- abs --
symlink: /a/../a/./b
-- loop --
symlink: loop2
-- loop2 --
symlink: loop
-- dangling --
symlink: /a/none/x
`

func TestWay(t *testing.T) {
	h := told(sysroot.New(linuxtest.Unpack(t, tree)))
	for name, want := range map[string]string{
		"/":             "dir:/",
		"/a/b/file":     "dir:/ dir:/a dir:/a/b file:/a/b/file",
		"/a//b/./":      "dir:/ dir:/a dir:/a/b",
		"/a/link":       "dir:/ dir:/a lnk_file:/a/link dir:/a/b file:/a/b/file",
		"/abs/file":     "dir:/ lnk_file:/abs dir:/a dir:/a dir:/a/b file:/a/b/file",
		"/a/b/bare":     "dir:/ dir:/a dir:/a/b file:/a/b/bare",
		"/a/new":        "dir:/ dir:/a, not /a/new",
		"/a/new/x/y":    "dir:/ dir:/a, not /a/new/x/y",
		"/dangling":     "dir:/ lnk_file:/dangling dir:/a, not /a/none/x",
		"/../../a/b/..": "dir:/ dir:/a dir:/a/b",
	} {
		w, err := h.Way(1, name)
		got := []string{}
		for _, c := range w.Components {
			got = append(got, c.Class+":"+c.Path)
			if c.Label != "u:r:"+c.Path+":s0" && c.Label != "" {
				t.Errorf("%s: label %q", c.Path, c.Label)
			}
		}
		text := strings.Join(got, " ")
		if w.Missing != "" {
			text += ", not " + w.Missing
		}
		if err != nil || text != want {
			t.Errorf("%s: %s, %v; want %s", name, text, err, want)
		}
	}
	for _, name := range []string{"a", "", "/loop", "/a/b/broken"} {
		if w, err := h.Way(1, name); err == nil {
			t.Errorf("%q is %+v", name, w)
		}
	}
}

// On the live host paths are those of the process, sockets and all.
func TestWayOfThisProcess(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w, err := told(sysroot.New("/")).Way(os.Getpid(), filepath.Join(dir, "s"))
	if err != nil || w.Last().Class != "sock_file" || w.Last().Path != filepath.Join(dir, "s") || !strings.Contains(
		w.Last().Label, fmt.Sprintf("/proc/%d/root/", os.Getpid())) {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := told(sysroot.New("/")).Way(1<<30, "/"); err == nil {
		t.Log("no process has a root, too") // the label of "/" is all that is asked
	}
}

func TestLabelling(t *testing.T) {
	h := selinux.Host{Root: sysroot.New(linuxtest.Unpack(t, `
-- proc/7/mountinfo --
1 0 8:1 / / rw - ext4 /dev/sda1 rw,seclabel
2 1 8:2 / /nfs rw - nfs4 server:/ rw
3 1 8:3 / /fixed rw - xfs /dev/sdc rw,context="system_u:object_r:usr_t:s0:c1,c2"
-- proc/8/mountinfo --
-- proc/9/mountinfo --
nonsense
`))}
	for name, want := range map[string]selinux.Labelling{
		"/a/b": {Mount: "/", Own: true}, "/nfs/x": {Mount: "/nfs"},
		"/fixed": {Mount: "/fixed", Context: "system_u:object_r:usr_t:s0:c1"},
	} {
		if got, err := h.Labelling(7, name); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, pid := range []int{8, 9, 10} {
		if got, err := h.Labelling(pid, "/a"); err == nil {
			t.Errorf("process %d: %+v", pid, got)
		}
	}
}

func TestKernel(t *testing.T) {
	dir := linuxtest.Unpack(t, `
-- etc/selinux/config --
SELINUX=permissive
SELINUXTYPE=default
-- proc/7/attr/current --
system_u:system_r:mysqld_t:s0
-- sys/fs/selinux/reject_unknown --
0
-- sys/fs/selinux/deny_unknown --
0
-- etc/selinux/default/active/modules/400/b/cil --
-- etc/selinux/default/active/modules/100/c/cil --
-- etc/selinux/default/active/modules/400/a/cil --
-- etc/selinux/default/active/modules/disabled/a --
`)
	h := selinux.Host{Root: sysroot.New(dir)}
	if got, err := h.Process(7); err != nil || got != "system_u:system_r:mysqld_t:s0" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := h.Process(8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
	if got, err := h.Wanted(); err != nil || got != "permissive" {
		t.Errorf("%q, %v", got, err)
	}
	for _, c := range []struct{ file, want string }{{"", "allow"}, {"deny_unknown", "deny"}, {"reject_unknown",
		"reject"}} {
		if c.file != "" {
			if err := os.WriteFile(filepath.Join(dir, "sys/fs/selinux", c.file), []byte("1"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := h.Unknown(); err != nil || got != c.want {
			t.Errorf("%s: %q, %v", c.file, got, err)
		}
	}
	if got, err := h.Modules("/etc/selinux/default"); err != nil || fmt.Sprint(got) !=
		"[{100 c false} {400 a true} {400 b false}]" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := h.Modules("/etc/selinux/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no store: %v", err)
	}
}

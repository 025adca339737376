package mounted_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/linux/tunable/ownfile"
)

func newHost(t *testing.T, files map[string]string) mounted.Host {
	t.Helper()
	dir := linuxtest.Files(t, files, 0o640)
	return mounted.Host{Root: sysroot.New(dir), Dir: dir}
}

// One option of one line is written, every other byte stays, and an undo gives the file back as it was.
func TestFstab(t *testing.T) {
	for name, tt := range map[string]struct{ table, addr, value, want string }{
		"appended":     {"U=1 /d ext4 defaults 0 2\n", "/d/atime", "noatime", "U=1 /d ext4 defaults,noatime 0 2\n"},
		"in its place": {"a /d ext4 relatime,rw\n", "/d/atime", "noatime", "a /d ext4 noatime,rw\n"},
		"the last of two counts": {"a /d ext4 noatime,rw,relatime 0 0", "/d/atime", "noatime",
			"a /d ext4 noatime,rw,noatime 0 0"},
		"no options": {"a /d ext4\n", "/d/atime", "noatime", "a /d ext4 noatime\n"},
		"blanks": {"\ta  /d\text4 \t rw \t0  2  \r\n", "/d/atime", "noatime",
			"\ta  /d\text4 \t rw,noatime \t0  2  \r\n"},
		"the root": {"a /d x y\nb / ext4 rw\n", "/errors", "remount-ro",
			"a /d x y\nb / ext4 rw,errors=remount-ro\n"},
		"errors":        {"b / ext4 errors=continue,rw 0 1\n", "/errors", "panic", "b / ext4 errors=panic,rw 0 1\n"},
		"a blank in it": {"a /d\\040e ext4 rw\n", "/d e/discard", "off", "a /d\\040e ext4 rw,nodiscard\n"},
		"comments": {"#a /d ext4 rw\na /d ext4 rw\n # x\n", "/d/atime", "noatime",
			"#a /d ext4 rw\na /d ext4 rw,noatime\n # x\n"},
		"nobarrier":      {"a /d ext4 nobarrier,rw\n", "/d/barrier", "on", "a /d ext4 barrier,rw\n"},
		"without an end": {"a /d xfs discard", "/d/discard", "off", "a /d xfs nodiscard"},
		"discard=async":  {"a /d btrfs discard=async\n", "/d/discard", "off", "a /d btrfs nodiscard\n"},
	} {
		h := newHost(t, map[string]string{"etc/fstab": tt.table})
		file := filepath.Join(h.Dir, "etc/fstab")
		a, target := mounted.Listed{Host: h}, mounted.Target(tt.addr)
		old, err := a.Read(t.Context(), tt.addr)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := change.Set(t.Context(), a, target, tt.value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text, _ := os.ReadFile(file); string(text) != tt.want {
			t.Errorf("%s: it is %q, want %q", name, text, tt.want)
		}
		if _, err := a.Undo(t.Context(), change.Of(target, old, tt.value)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text, _ := os.ReadFile(file); string(text) != tt.table {
			t.Errorf("%s: undone it is %q, want %q", name, text, tt.table)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o640 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// What cannot be told, or would keep a file system from being mounted, is an error, and nothing is written.
func TestFstabRefuses(t *testing.T) {
	for table, want := range map[string]string{
		"a /d ext4 rw\nb /d xfs rw\n": "lines 1 and 2",
		"a /e ext4 rw\n":              "no line for /d",
		"a /d xfs rw\n":               "type xfs has no option errors=remount-ro",
	} {
		h := newHost(t, map[string]string{"etc/fstab": table})
		err := mounted.Listed{Host: h}.Write(t.Context(), "/d/errors", "remount-ro")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", table, err, want)
		}
		if text, _ := os.ReadFile(filepath.Join(h.Dir, "etc/fstab")); string(text) != table {
			t.Errorf("%q: it is %q", table, text)
		}
	}
	h := newHost(t, map[string]string{"etc/real": "a /d ext4 rw\n"})
	if err := os.Symlink("real", filepath.Join(h.Dir, "etc/fstab")); err != nil {
		t.Fatal(err)
	}
	if err := (mounted.Listed{Host: h}).Write(t.Context(), "/d/atime", "noatime"); err == nil {
		t.Error("a link was replaced by a file")
	}
}

func TestConformance(t *testing.T) {
	h := newHost(t, map[string]string{"etc/fstab": "a /d ext4 rw 0 0\n",
		"proc/1/mountinfo": "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /d rw,nosuid,relatime - ext4 b rw,sync\n"})
	h.Remount = func(point string, flags uintptr, data string) error {
		if point != "/d" || data != "" || flags&^(unix.MS_NOATIME|unix.MS_STRICTATIME|unix.MS_RELATIME) !=
			unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID {
			return unix.EINVAL
		}
		times := ""
		if flags&unix.MS_NOATIME != 0 {
			times = ",noatime"
		} else if flags&unix.MS_RELATIME != 0 {
			times = ",relatime"
		}
		return os.WriteFile(filepath.Join(h.Dir, "proc/1/mountinfo"),
			[]byte("2 1 8:2 / /d rw,nosuid"+times+" - ext4 b rw,sync\n"), 0o600)
	}
	conformance.Run(t, conformance.Case{Actuator: mounted.Listed{Host: h}, Target: mounted.Target("/d/atime"),
		Values: []string{"noatime", "strictatime"}, Refused: "never", Gone: "/none/atime"})
	conformance.Run(t, conformance.Case{Actuator: mounted.Mounted{Host: h},
		Target: change.Target{Kind: mounted.KindMounted, Addr: "/d/atime"}, Values: []string{"noatime", "strictatime"},
		Refused: "never", Gone: "/none/atime"})
}

// What is in force is what the kernel tells, also where it tells nothing; flags of the file system are kept.
func TestMounted(t *testing.T) {
	h := newHost(t, map[string]string{
		"proc/self/mountinfo": "1 0 8:1 / / ro,noexec,relatime - ext4 a ro,lazytime,nobarrier\n" +
			"2 1 8:2 / /x rw - xfs b rw\n3 1 8:3 / /w ro - ext4 c rw\n",
		"proc/fs/ext4/sda1/options": "rw\nerrors=continue\ncommit=5\n"})
	if err := os.MkdirAll(filepath.Join(h.Dir, "sys/dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../devices/sda/sda1", filepath.Join(h.Dir, "sys/dev/block/8:1")); err != nil {
		t.Fatal(err)
	}
	m := mounted.Mounted{Host: h}
	for addr, want := range map[string]string{"/errors": "continue", "/barrier": "nobarrier", "/discard": "off",
		"/atime": "relatime", "/x/atime": "strictatime", "/x/discard": "off", "/w/barrier": "on"} {
		if got, err := m.Read(t.Context(), addr); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", addr, got, err, want)
		}
	}
	for _, addr := range []string{"/x/errors", "/none/atime", "/etc/atime"} {
		if got, err := m.Read(t.Context(), addr); err == nil {
			t.Errorf("%s is %q", addr, got)
		}
	}
	var flags uintptr
	m.Remount = func(_ string, f uintptr, data string) error {
		if flags = f; data != "errors=remount-ro" {
			t.Errorf("mounted with %q", data)
		}
		return nil
	}
	if err := m.Write(t.Context(), "/errors", "remount-ro"); err != nil {
		t.Error(err)
	}
	if want := uintptr(unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOEXEC | unix.MS_RELATIME |
		unix.MS_LAZYTIME); flags != want {
		t.Errorf("flags %#x, want %#x", flags, want)
	}
	if err := m.Write(t.Context(), "/w/barrier", "on"); err == nil {
		t.Error("a read-only mount made its file system read-only")
	}
}

// What a finding asks for has a name; what is not set here has none.
func TestNames(t *testing.T) {
	for option, want := range map[string]string{
		"noatime": "mount /d/atime noatime", "barrier=1": "mount /d/barrier on", "nodiscard": "mount /d/discard off",
		"errors=remount-ro": "mount /d/errors remount-ro",
	} {
		name, word, known := mounted.Name("/d", option)
		if !known || name+" "+word != want || mounted.Check(strings.TrimPrefix(name, mounted.Prefix), word) != nil {
			t.Errorf("%s is %q = %q, %t", option, name, word, known)
		}
	}
	for _, option := range []string{"data=ordered", "hard", "nobarrier", "UUID", "discard=async", ""} {
		if name, word, known := mounted.Name("/d", option); known {
			t.Errorf("%s is set as %q = %q", option, name, word)
		}
	}
	for addr, value := range map[string]string{"/d/atime": "atime", "d/atime": "noatime", "/d/../e/atime": "noatime",
		"/d/barrier": "off", "/d/data": "journal", "/d\n/atime": "noatime", "/d//atime": "noatime"} {
		if err := mounted.Check(addr, value); err == nil {
			t.Errorf("%s = %s is taken", addr, value)
		}
	}
}

// What somebody who was killed while he wrote the file left beside it is seen, and goes with the next write.
func TestLeft(t *testing.T) {
	h := newHost(t, map[string]string{"etc/fstab": "a /d ext4 rw\n", "etc/.fstab.bulkhead": "a /d"})
	a := mounted.Listed{Host: h}
	if !a.Left("/d/atime") {
		t.Error("it is not seen")
	}
	if err := a.Write(t.Context(), "/d/atime", "noatime"); err != nil || a.Left("/d/atime") {
		t.Errorf("it is left after a write: %v", err)
	}
}

// A mount without a line in fstab, but with a unit, has its options in a drop-in, which goes when it says nothing new.
func TestUnit(t *testing.T) {
	const file = "/etc/systemd/system/srv-my\\x2ddb.mount.d/90-bulkhead.conf"
	files := map[string]string{"run/systemd/system/x": "", "etc/fstab": "U=1 / ext4 defaults 0 1\n",
		"usr/lib/systemd/system/srv-my\\x2ddb.mount":            "[Mount]\nType=ext4\nOptions=nodev\n",
		"etc/systemd/system/srv-my\\x2ddb.mount.d/10-site.conf": "[Mount]\nOptions = \\\n\tnodev,relatime\n"}
	h := newHost(t, files)
	a := mounted.Listed{Host: h}
	conformance.Run(t, conformance.Case{Actuator: a, Target: mounted.Target("/srv/my-db/atime"),
		Values: []string{"noatime", "strictatime"}, Refused: "never", Gone: "/srv/my/atime"})
	if h.Root.Exists(file) {
		t.Error("undone, the drop-in is there")
	}
	for option, word := range map[string]string{"atime": "noatime", "discard": "off"} {
		if err := a.Write(t.Context(), "/srv/my-db/"+option, word); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(h.Dir, file))
	body, ours := ownfile.Body(string(text))
	if err != nil || !ours || body != "[Mount]\nOptions=nodev,noatime,nodiscard\n" &&
		body != "[Mount]\nOptions=nodev,nodiscard,noatime\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := a.Write(t.Context(), "/srv/my-db/discard", ""); err != nil {
		t.Fatal(err)
	}
	const edited = "[Mount]\nOptions=ro\n"
	if err := os.WriteFile(filepath.Join(h.Dir, file), []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := a.Read(t.Context(), "/srv/my-db/atime")
	if err != nil || old != ownfile.AsLeft+edited {
		t.Errorf("edited: %q, %v", old, err)
	}
	if err := a.Write(t.Context(), "/srv/my-db/atime", "noatime"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Undo(t.Context(), change.Of(mounted.Target("/srv/my-db/atime"), old, "noatime")); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(filepath.Join(h.Dir, file)); string(text) != edited {
		t.Errorf("undone: %q", text)
	}
}

// What sets the options after any drop-in of bulkhead's is named, and a type without the option is refused.
func TestUnitRefuses(t *testing.T) {
	const unit = "etc/systemd/system/data.mount"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a later drop-in": {map[string]string{unit: "[Mount]\n", unit + ".d/99.conf": "[Mount]\nOptions=ro\n"},
			"/etc/systemd/system/data.mount.d/99.conf sets"},
		"no systemd":   {map[string]string{unit: "[Mount]\n"}, "no line for /data"},
		"another type": {map[string]string{unit: "[Mount]\nType=btrfs\n"}, "no option errors"},
	} {
		if name != "no systemd" {
			c.files["run/systemd/system/x"] = ""
		}
		err := mounted.Listed{Host: newHost(t, c.files)}.Write(t.Context(), "/data/errors", "panic")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

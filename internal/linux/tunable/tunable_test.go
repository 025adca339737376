package tunable_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/ownfile"
)

// newHost is a host with some settings.
func newHost(t *testing.T, files map[string]string) tunable.Host {
	t.Helper()
	dir := linuxtest.Files(t, files, 0o600)
	return tunable.Host{Root: sysroot.New(dir), Dir: dir}
}

func text(t *testing.T, h tunable.Host, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.Dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

const thp = "/sys/kernel/mm/transparent_hugepage/enabled"

func TestConformance(t *testing.T) {
	h := newHost(t, map[string]string{"proc/sys/vm/swappiness": "60\n", "sys/kernel/mm/ksm/run": "0\n"})
	for _, tt := range []conformance.Case{
		{Target: tunable.Sysctl("vm.swappiness"), Values: []string{"1", "0"}, Gone: "vm.no_such"},
		{Target: tunable.Attribute("/sys/kernel/mm/ksm/run"), Values: []string{"1", "2"}, Gone: "/sys/kernel/no_such"},
	} {
		tt.Actuator = h.Actuators()[tt.Target.Kind]
		t.Run(string(tt.Target.Kind), func(t *testing.T) { conformance.Run(t, tt) })
	}
}

// Where a sysctl lies, by the first separator of its name.
func TestNames(t *testing.T) {
	h := newHost(t, map[string]string{"proc/sys/net/ipv4/conf/eth0.1/rp_filter": "1", "proc/secret": "x"})
	a := h.Actuators()[tunable.KindSysctl]
	for _, name := range []string{"net/ipv4/conf/eth0.1/rp_filter", "net.ipv4.conf.eth0/1.rp_filter"} {
		if got, err := a.Read(t.Context(), name); err != nil || got != "1" {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "swappiness", "../secret", "vm/../../secret", "vm..x", "/proc/secret",
		"/sys/../proc", "/sys/a b", "/sys/*/x", "/sys/%m", "/sys/a//b", "/sys",
		"/sys/fs/cgroup/x/cgroup.procs", "vm.swappiness=1", "vm.x\ny.z"} {
		if err := tunable.Check(name, "1"); err == nil {
			t.Errorf("%q is taken", name)
		}
		if got, err := a.Read(t.Context(), name); err == nil {
			t.Errorf("%q is read as %q", name, got)
		}
	}
}

// A value is one line that neither sysctl.d(5) nor tmpfiles.d(5) reads as something else.
func TestValues(t *testing.T) {
	for value, fine := range map[string]bool{"1": true, "4096 131072 4194304": true, "50%": true, "": false,
		" 1": false, "1\nvm.x=2": false, `\x41`: false, "é": false} {
		if err := tunable.Check("vm.swappiness", value); (err == nil) != fine {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// A setting has one name, whatever it was called.
func TestCanonical(t *testing.T) {
	for name, want := range map[string]string{
		"vm.swappiness": "vm.swappiness", "vm/swappiness": "vm.swappiness", "thp": thp, thp: thp,
		"net/ipv4/conf/eth0.1/rp_filter": "net/ipv4/conf/eth0.1/rp_filter",
		"net.ipv4.conf.eth0/1.rp_filter": "net/ipv4/conf/eth0.1/rp_filter", "no name": "no name",
	} {
		if got := tunable.Canonical(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// A value that the kernel shows among others is read as the one that is chosen.
func TestChoice(t *testing.T) {
	h := newHost(t, map[string]string{thp: "always [madvise] never\n"})
	if got, err := h.Actuators()[tunable.KindAttribute].Read(t.Context(), thp); err != nil || got != "madvise" {
		t.Errorf("it is %q, %v", got, err)
	}
}

// Of two sysctls that set each other to 0, what counted counts again after an undo.
func TestTwins(t *testing.T) {
	h := newHost(t, map[string]string{"proc/sys/vm/dirty_bytes": "0\n", "proc/sys/vm/dirty_ratio": "20\n"})
	a, target := h.Actuators()[tunable.KindSysctl], tunable.Sysctl("vm.dirty_bytes")
	old, err := a.Read(t.Context(), target.Addr)
	if err != nil || old != "vm.dirty_ratio=20" {
		t.Fatalf("it was %q, %v", old, err)
	}
	// as the kernel does it
	for file, value := range map[string]string{"dirty_bytes": "1048576", "dirty_ratio": "0"} {
		if err := os.WriteFile(filepath.Join(h.Dir, "proc/sys/vm", file), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Undo(t.Context(), change.Of(target, old, "1048576")); err == nil {
		t.Error("the model keeps dirty_bytes, and the undo does not notice")
	}
	if got := text(t, h, "proc/sys/vm/dirty_ratio"); got != "20" {
		t.Errorf("dirty_ratio is %q", got)
	}
}

// The files say what they are; what somebody edited is kept aside; what somebody else had there comes back.
func TestBootFiles(t *testing.T) {
	h := newHost(t, nil)
	a := h.Actuators()[tunable.KindBootFile]
	value := tunable.Lines(map[string]string{thp: "madvise", "/sys/a": "50%"})
	target, _ := tunable.BootFile(tunable.KindAttribute)
	if err := change.Set(t.Context(), a, target, value); err != nil {
		t.Fatal(err)
	}
	if got := text(t, h, tunable.AttributeFile); !strings.HasSuffix(got, "\nw /sys/a - - - - 50%%\nw "+thp+
		" - - - - madvise\n") || !strings.HasPrefix(got, "# Written by bulkhead") {
		t.Errorf("it is\n%s", got)
	}
	edited := text(t, h, tunable.AttributeFile) + "w /sys/theirs - - - - 1\n"
	if err := os.WriteFile(filepath.Join(h.Dir, tunable.AttributeFile), []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	now, err := a.Read(t.Context(), target.Addr)
	if err != nil || now == value || !strings.Contains(now, "/sys/theirs") {
		t.Errorf("edited it is %q, %v", now, err)
	}
	if err := change.Set(t.Context(), a, target, value); err != nil {
		t.Fatal(err)
	}
	if got := text(t, h, tunable.AttributeFile+ownfile.Edited); got != edited {
		t.Errorf("kept aside is\n%s", got)
	}
	if _, err := a.Undo(t.Context(), change.Of(target, now, value)); err != nil ||
		text(t, h, tunable.AttributeFile) != edited {
		t.Errorf("back: %v\n%s", err, text(t, h, tunable.AttributeFile))
	}
	if err := change.Set(t.Context(), a, target, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(h.Dir, tunable.AttributeFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := a.Write(t.Context(), "/etc/passwd", "x = y"); err == nil {
		t.Error("another file was written")
	}
}

// A captured host is read and not written.
func TestCaptured(t *testing.T) {
	h := newHost(t, map[string]string{"proc/sys/vm/swappiness": "60\n"})
	h.Dir = ""
	file, _ := tunable.BootFile(tunable.KindSysctl)
	for _, target := range []change.Target{tunable.Sysctl("vm.swappiness"), file} {
		a := h.Actuators()[target.Kind]
		if err := a.Write(t.Context(), target.Addr, "1"); err == nil {
			t.Errorf("%s was written", target)
		}
	}
}

// A line of a file that is read after ours, and says something else, is named; the last one counts.
func TestOverruled(t *testing.T) {
	target := tunable.Sysctl("vm.swappiness")
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nobody": {map[string]string{"etc/sysctl.d/50-a.conf": "vm.swappiness=10\n"}, ""},
		"later": {map[string]string{"etc/sysctl.d/99-a.conf": "# x\n-vm/swappiness = 10\n"},
			"line 2 of /etc/sysctl.d/99-a.conf sets 10"},
		"the same": {map[string]string{"etc/sysctl.d/99-a.conf": "vm.swappiness=1\n"}, ""},
		"put right": {map[string]string{"etc/sysctl.d/70-a.conf": "vm.swappiness=9",
			"usr/lib/sysctl.d/80-b.conf": "vm.swappiness=1"}, ""},
		"hidden": {map[string]string{"usr/lib/sysctl.d/99-a.conf": "vm.swappiness=9", "etc/sysctl.d/99-a.conf": ""},
			""},
		"glob": {map[string]string{"run/sysctl.d/99-a.conf": "vm.swap*=9"},
			"line 1 of /run/sysctl.d/99-a.conf sets 9"},
		"sysctl.conf": {map[string]string{"etc/sysctl.d/99-a.conf": "vm.swappiness=1",
			"etc/sysctl.conf": "vm.swappiness=9"}, "line 1 of /etc/sysctl.conf sets 9"},
		"sysctl.conf beside systemd": {map[string]string{"run/systemd/system/.keep": "",
			"etc/sysctl.conf": "vm.swappiness=9"}, ""},
		"no comment": {map[string]string{"etc/sysctl.d/99-a.conf": ";vm.swappiness=9\n#vm.swappiness=9\n"}, ""},
	} {
		h := newHost(t, tt.files)
		got := tunable.Overruled(h.Root, map[change.Target]string{target: "1"})[target]
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// An undo takes away what somebody left who was killed before his file had its name.
func TestKilledBeforeTheRename(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, tunable.SysctlFile+".tmp")
	if err := os.MkdirAll(filepath.Dir(left), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, []byte("vm.swap"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := tunable.BootFiles{Host: tunable.Host{Root: sysroot.New(dir), Dir: dir}}
	file, _ := tunable.BootFile(tunable.KindSysctl)
	undone, err := a.Undo(t.Context(), change.Of(file, "", "vm.swappiness = 1"))
	if _, is := os.Lstat(left); undone || err != nil || !os.IsNotExist(is) {
		t.Errorf("undone %t, %v; what was left: %v", undone, err, is)
	}
}

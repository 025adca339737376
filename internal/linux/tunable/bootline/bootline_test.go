package bootline_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/ownfile"
)

func newHost(t *testing.T, more map[string]string) bootline.Host {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"usr/sbin/update-grub": "", "etc/default/grub": "", "boot/grub/grub.cfg": "",
		"etc/default/grub.d/10-x.cfg": ""}
	for name, text := range more {
		files[name] = text
	}
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return bootline.Host{Root: sysroot.New(dir), Dir: dir}
}

func TestConformance(t *testing.T) {
	h := newHost(t, nil)
	a := bootline.Arguments{Host: h}
	conformance.Run(t, conformance.Case{Actuator: a, Target: bootline.Target("psi"), Values: []string{"1", "0"},
		Refused: "a b"})
	if err := os.Remove(filepath.Join(h.Dir, "boot/grub/grub.cfg")); err != nil {
		t.Fatal(err)
	}
	if err := a.Write(t.Context(), "psi", "1"); err == nil || !strings.Contains(err.Error(), "grub.cfg") {
		t.Errorf("without GRUB: %v", err)
	}
}

// A shell, as update-grub is one, adds the arguments to those that are there; what somebody edited comes back.
func TestShell(t *testing.T) {
	h := newHost(t, nil)
	a, file := bootline.Arguments{Host: h}, filepath.Join(h.Dir, bootline.File)
	const edited = "GRUB_TIMEOUT=1\n"
	if err := os.WriteFile(file, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := a.Read(t.Context(), "psi")
	if err != nil || old != ownfile.AsLeft+edited {
		t.Errorf("edited: %q, %v", old, err)
	}
	for name, value := range map[string]string{"psi": "1", "nvme_core.io_timeout": "4294967295"} {
		if err := a.Write(t.Context(), name, value); err != nil {
			t.Error(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `GRUB_CMDLINE_LINUX_DEFAULT=quiet; . "$0"; `+
		`echo "$GRUB_CMDLINE_LINUX_DEFAULT"`, file).Output()
	if want := "quiet nvme_core.io_timeout=4294967295 psi=1\n"; err != nil || string(out) != want {
		t.Errorf("a shell has %q, %v", out, err)
	}
	if _, err := a.Undo(t.Context(), change.Of(bootline.Target("psi"), old, "1")); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(file); string(text) != edited {
		t.Errorf("undone: %q", text)
	}
}

// An argument waits until the kernel was started with it: with the last one of its name, however that is spelled.
func TestWaits(t *testing.T) {
	for line, waits := range map[string]bool{"quiet": true, "psi=1": false, "psi=1 psi=0": true, "xpsi=1": true} {
		h := newHost(t, map[string]string{"proc/cmdline": line + "\n"})
		if got := bootline.Waits(h.Root, bootline.Target("psi"), "1"); got != waits {
			t.Errorf("%q: %t", line, got)
		}
	}
	h := newHost(t, map[string]string{"proc/cmdline": "a-b=1\n"})
	if bootline.Waits(h.Root, bootline.Target("a_b"), "1") {
		t.Error("a-b is not a_b")
	}
}

func TestNames(t *testing.T) {
	if name, value, known := bootline.Name("psi=1"); name != "kernel psi" || value != "1" || !known {
		t.Errorf("%q = %q, %t", name, value, known)
	}
	for _, argument := range []string{"quiet", "a=$(reboot)", "a=\"b\"", "a b=1", "=1", "a=",
		"systemd.unified_cgroup_hierarchy=1"} {
		if name, value, known := bootline.Name(argument); known {
			t.Errorf("%q is %q = %q", argument, name, value)
		}
	}
}

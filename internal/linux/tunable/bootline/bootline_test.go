package bootline_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/ownfile"
)

func newHost(t *testing.T, more map[string]string) bootline.Host {
	t.Helper()
	files := map[string]string{"usr/sbin/update-grub": "", "etc/default/grub": "", "boot/grub/grub.cfg": "",
		"etc/default/grub.d/10-x.cfg": ""}
	for name, text := range more {
		files[name] = text
	}
	dir := linuxtest.Files(t, files, 0o600)
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
	if err := a.Write(t.Context(), "psi", "1"); err == nil || !strings.Contains(err.Error(), "no boot loader") {
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

// tools is a host with entries of two kernels, and grubby, or kernel-install, that are small programs here.
func tools(t *testing.T, program, script string, more map[string]string) bootline.Host {
	t.Helper()
	files := map[string]string{
		"boot/loader/entries/id-6.1.conf": "title A\nversion 6.1\noptions root=/dev/x ro $kernelopts\n",
		"boot/loader/entries/id-6.5.conf": "title B\nversion 6.5\noptions root=/dev/x ro quiet\n",
		"boot/loader/entries/notes":       "options psi=7\n", "boot/grub2/grubenv": "kernelopts=quiet\n",
		program: ""}
	for name, text := range more {
		files[name] = text
	}
	h := newHost(t, files)
	if err := os.Remove(filepath.Join(h.Dir, "usr/sbin/update-grub")); err != nil {
		t.Fatal(err)
	}
	h.Run = func(ctx context.Context, called string, args ...string) error {
		if called != "/"+program {
			t.Errorf("%s was started", called)
		}
		out, err := exec.CommandContext(ctx, "/bin/sh", append([]string{"-euc", script, h.Dir}, args...)...).
			CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v: %s", args, err, out)
		}
		return err
	}
	return h
}

// fakeGrubby is a grubby(8) that knows what is asked of it: arguments go from the entries of all kernels, and come.
const fakeGrubby = `
[ "$1" = --update-kernel=ALL ]
for a in "$2" "${3:---args=}"; do
	for f in "$0"/boot/loader/entries/*.conf; do
		case $a in
		--remove-args=*) sed -Ei "/^options/s/ ${a#--remove-args=}(=[^ ]*)?( |$)/\\2/" "$f" ;;
		--args=) ;;
		--args=*) sed -i "/^options/s|$| ${a#--args=}|" "$f" ;;
		*) exit 1 ;;
		esac
	done
done`

func read(t *testing.T, h bootline.Host, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.Dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// With grubby the entries of all kernels have an argument, and as they had it after an undo.
func TestGrubby(t *testing.T) {
	h := tools(t, "usr/sbin/grubby", fakeGrubby, nil)
	a := bootline.Arguments{Host: h}
	const first, second = "boot/loader/entries/id-6.1.conf", "boot/loader/entries/id-6.5.conf"
	before := read(t, h, first) + read(t, h, second)
	conformance.Run(t, conformance.Case{Actuator: a, Target: bootline.Target("psi"), Values: []string{"1", "0"},
		Refused: "a b"})
	if now := read(t, h, first) + read(t, h, second); now != before {
		t.Errorf("undone, the entries are\n%s", now)
	}
	if err := a.Write(t.Context(), "psi", "1"); err != nil {
		t.Fatal(err)
	}
	if now := read(t, h, first) + read(t, h, second); strings.Count(now, " psi=1\n") != 2 {
		t.Errorf("the entries are\n%s", now)
	}
	if err := h.Load(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(h.Dir, first), []byte("options ro psi=0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(t.Context(), "psi"); !errors.Is(err, change.ErrGone) ||
		!strings.Contains(err.Error(), "different values") {
		t.Errorf("of kernels that differ: %v", err)
	}
	if err := os.WriteFile(filepath.Join(h.Dir, first), []byte("options psi=1 ro psi=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(t.Context(), "psi"); !errors.Is(err, change.ErrGone) {
		t.Errorf("of one that is there twice: %v", err)
	}
}

// Killed between the entries of two kernels, some have the new value. What somebody else set of one kernel is no such
// half.
func TestHalf(t *testing.T) {
	c := change.Of(bootline.Target("psi"), "", "1")
	for options, half := range map[string]bool{"ro psi=1": true, "ro": false, "ro psi=2": false,
		"psi=1 ro psi=1": false} {
		h := tools(t, "usr/sbin/grubby", fakeGrubby,
			map[string]string{"boot/loader/entries/id-6.1.conf": "options " + options + "\n"})
		if got := (bootline.Arguments{Host: h}).Half(c); got != half {
			t.Errorf("%s: %t", options, got)
		}
	}
	if (bootline.Arguments{Host: newHost(t, nil)}).Half(c) {
		t.Error("one file is in halves")
	}
}

// Of kernel-install's command line one word is written, and every other byte stays.
func TestKernelInstall(t *testing.T) {
	for line, want := range map[string]string{"root=/dev/x ro\n": "root=/dev/x ro psi=1\n", "": "psi=1",
		"\n": "psi=1\n", "psi=0 root=/dev/x\n": "psi=1 root=/dev/x\n", "psi=2\tpsi=0 ro": "psi=2\tpsi=1 ro",
		"xpsi=1  ": "xpsi=1 psi=1  ", "a\nb\n": "a\nb psi=1\n"} {
		h := tools(t, "usr/bin/kernel-install", "exit 1", map[string]string{"etc/kernel/cmdline": line})
		a := bootline.Arguments{Host: h}
		old, err := a.Read(t.Context(), "psi")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Write(t.Context(), "psi", "1"); err != nil || read(t, h, "etc/kernel/cmdline") != want {
			t.Errorf("%q: %q, %v", line, read(t, h, "etc/kernel/cmdline"), err)
		}
		if _, err := a.Undo(t.Context(), change.Of(bootline.Target("psi"), old, "1")); err != nil ||
			read(t, h, "etc/kernel/cmdline") != line {
			t.Errorf("%q undone: %q, %v", line, read(t, h, "etc/kernel/cmdline"), err)
		}
	}
}

// The entries of the kernels that are here are made anew, by the kernel-install of this machine where it has one.
func TestEntriesAreMadeAnew(t *testing.T) {
	const fake = `sed -i "s|^options.*|options $(cat "$0/etc/kernel/cmdline")|" "$0/boot/loader/entries/id-$2.conf"
		[ "$1" = add ] && [ "$3" = "/usr/lib/modules/$2/vmlinuz" ]`
	real := `export KERNEL_INSTALL_CONF_ROOT=$0/etc/kernel BOOT_ROOT=$0/boot MACHINE_ID=id
		mkdir -p "$BOOT_ROOT/id/$2"; exec kernel-install "$1" "$2" "$0$3"`
	for name, script := range map[string]string{"a fake": fake, "the real one": real} {
		if _, err := exec.LookPath("kernel-install"); err != nil && script == real {
			continue
		}
		h := tools(t, "usr/bin/kernel-install", script, map[string]string{"usr/lib/modules/6.1/vmlinuz": "kernel",
			"etc/kernel/cmdline": "root=/dev/x ro\n", "etc/kernel/install.conf": "layout=bls\n",
			"etc/kernel/entry-token": "id\n"})
		other := read(t, h, "boot/loader/entries/id-6.5.conf")
		a := bootline.Arguments{Host: h}
		for value, want := range map[string]string{"1": "root=/dev/x ro psi=1", "": "root=/dev/x ro"} {
			if err := errors.Join(a.Write(t.Context(), "psi", value), h.Load(t.Context())); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			entry := read(t, h, "boot/loader/entries/id-6.1.conf")
			_, options, _ := strings.Cut(entry, "\noptions")
			options, _, _ = strings.Cut(options, "\n")
			if got := strings.TrimSuffix(strings.TrimSpace(options), " systemd.machine_id=id"); got != want {
				t.Errorf("%s, psi %q: the entry is\n%s", name, value, entry)
			}
		}
		if read(t, h, "boot/loader/entries/id-6.5.conf") != other {
			t.Errorf("%s: the entry of a kernel that is not here was changed", name)
		}
	}
}

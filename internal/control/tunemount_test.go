package control

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

const (
	mountTable = "proc/1/mountinfo"
	rootMount  = "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
	untunedTab = "# written by the installer\nUUID=1 / ext4 errors=remount-ro 0 1\n" +
		"UUID=2\t/data  ext4\tdefaults,relatime  0\t2 \n#end"
	tunedTab = "# written by the installer\nUUID=1 / ext4 errors=remount-ro 0 1\n" +
		"UUID=2\t/data  ext4\tdefaults,noatime,nodiscard  0\t2 \n#end"
	grubFile = "etc/default/grub.d/90-bulkhead.cfg"
)

// mountMachine is a machine with a file system that passes deletions on, and GRUB.
func mountMachine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, "252.39")
	m.put("run/systemd/system/.keep", "")
	m.put("etc/fstab", untunedTab)
	m.must(os.Chmod(filepath.Join(m.root, "etc/fstab"), 0o640))
	m.mountData("relatime", "discard")
	m.Remount = func(point string, flags uintptr, data string) error {
		text, err := os.ReadFile(filepath.Join(m.root, mountTable))
		if err != nil || point != "/data" || flags&unix.MS_REMOUNT == 0 || flags&unix.MS_NODEV == 0 {
			return errors.Join(err, unix.EINVAL)
		}
		times, discard := "relatime", "discard"
		if flags&unix.MS_NOATIME != 0 {
			times = "noatime"
		}
		if !strings.Contains(string(text), "rw,discard") {
			discard = ""
		}
		if flags&unix.MS_BIND == 0 {
			discard = strings.TrimPrefix(data, "nodiscard")
		}
		m.mountData(times, discard)
		return nil
	}
	m.put("usr/sbin/update-grub", "")
	m.put("etc/default/grub", "")
	m.put("etc/default/grub.d/10-cloud.cfg", "")
	m.put("proc/cmdline", "quiet\n")
	m.UpdateLoader = func(context.Context, string, ...string) error {
		text, err := os.ReadFile(filepath.Join(m.root, grubFile))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		m.put("boot/grub/grub.cfg", "linux quiet "+argumentsOf(string(text))+"\n")
		return nil
	}
	m.must(m.UpdateLoader(t.Context(), ""))
	return m
}

// argumentsOf are the arguments that GRUB takes from bulkhead's file.
func argumentsOf(text string) string {
	_, body, _ := strings.Cut(text, "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT ")
	return strings.TrimSuffix(body, "\"\n")
}

func (m *machine) mountData(times, discard string) {
	m.t.Helper()
	m.put(mountTable, rootMount+"30 20 8:2 / /data rw,nodev,"+times+" - ext4 /dev/sdb1 "+
		strings.TrimSuffix("rw,"+discard, ",")+"\n")
}

// bootMounts starts the machine again: with what fstab and GRUB say.
func (m *machine) bootMounts() {
	m.t.Helper()
	m.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
	text, err := os.ReadFile(filepath.Join(m.root, "etc/fstab"))
	m.must(err)
	times, discard := "relatime", "discard"
	if strings.Contains(string(text), "noatime") {
		times = "noatime"
	}
	if strings.Contains(string(text), "nodiscard") {
		discard = ""
	}
	m.mountData(times, discard)
	text, err = os.ReadFile(filepath.Join(m.root, "boot/grub/grub.cfg"))
	m.must(err)
	m.put("proc/cmdline", strings.TrimPrefix(string(text), "linux "))
	m.reopened(-1)
}

// mounts is what fstab has, with what is mounted and what GRUB boots.
func (m *machine) mounts() string {
	m.t.Helper()
	held := []string{}
	for _, file := range []string{"etc/fstab", mountTable, "boot/grub/grub.cfg"} {
		text, err := os.ReadFile(filepath.Join(m.root, file))
		m.must(err)
		held = append(held, strings.TrimPrefix(string(text), rootMount))
	}
	text, err := os.ReadFile(filepath.Join(m.root, grubFile))
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(m.root, "etc/fstab"))
	m.must(err)
	left, err := filepath.Glob(filepath.Join(m.root, "etc/.*"))
	m.must(err)
	return strings.Join(append(held, argumentsOf(string(text)), info.Mode().String(), strings.Join(left, " ")), "|")
}

func (m *machine) mountsAs(when, want string) {
	m.t.Helper()
	if got := m.mounts(); got != want {
		m.t.Errorf("%s: it is\n%q, want\n%q", when, got, want)
	}
}

var (
	noTimes   = state.Tuned{Rule: "FS-01", Name: "mount /data/atime", Value: "noatime"}
	noDiscard = state.Tuned{Rule: "IO-13", Name: "mount /data/discard", Value: "off"}
	pressure  = state.Tuned{Rule: "MEM-43", Name: "kernel psi", Value: "1"}
	timeout   = state.Tuned{Rule: "IO-22", Name: "kernel nvme_core.io_timeout", Value: "4294967295"}
)

const (
	mode       = "|-rw-r-----|"
	untunedFSs = untunedTab + "|30 20 8:2 / /data rw,nodev,relatime - ext4 /dev/sdb1 rw,discard\n|" +
		"linux quiet \n|" + mode
	tunedFSs = tunedTab + "|30 20 8:2 / /data rw,nodev,noatime - ext4 /dev/sdb1 rw\n|" +
		"linux quiet nvme_core.io_timeout=4294967295 psi=1\n|nvme_core.io_timeout=4294967295 psi=1" + mode
)

// Options of a mount are in fstab, where every other byte stays, and in force; arguments of the kernel wait for a boot.
// All of it goes again as it was, over a boot too, and is put right meanwhile.
func TestTuneMount(t *testing.T) {
	m := mountMachine(t)
	all := []state.Tuned{noTimes, noDiscard, pressure, timeout}
	reply := m.tune(all...)
	m.mountsAs("tuned", tunedFSs)
	if text := shown(reply); !strings.Contains(text, "it counts when the host boots next") ||
		!strings.Contains(text, "/data, at boot: relatime -> noatime") {
		t.Errorf("it says\n%s", text)
	}
	if n := m.reloads(); n != 1 {
		t.Errorf("systemd read its files %d times", n)
	}
	if reply := m.tune(all...); len(reply.Plan.Steps) > 0 {
		t.Errorf("once more: %+v", reply.Plan.Steps)
	}
	waits := func() (names []string) {
		kept, err := inspect.Tuning(t.Context(), m.Reconciler.Controller)
		m.must(err)
		for _, k := range kept {
			if k.Holds != k.Wanted || k.Running != "" {
				t.Errorf("status: %+v", k)
			}
			if k.Waits {
				names = append(names, k.Name)
			}
		}
		return names
	}
	if got := waits(); len(got) != 2 {
		t.Errorf("waiting for a boot: %v", got)
	}
	m.bootMounts()
	m.mountsAs("booted", tunedFSs)
	if got := waits(); len(got) > 0 {
		t.Errorf("waiting after a boot: %v", got)
	}
	m.mountData("relatime", "")
	_, err := m.full()
	m.must(err)
	m.mountsAs("put right", tunedFSs)

	edited := strings.Replace(tunedTab, "noatime", "nodev,noatime", 1) + "\nUUID=3 /more xfs defaults 0 2\n"
	m.put("etc/fstab", edited)
	_, err = m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	want := strings.Replace(untunedTab, "relatime", "nodev,relatime", 1) + "\nUUID=3 /more xfs defaults 0 2\n"
	m.mountsAs("rolled back, with what somebody wrote meanwhile", strings.Replace(untunedFSs, untunedTab, want, 1))
	m.put("etc/fstab", untunedTab)
	m.tune(all...)
	m.release()
	m.mountsAs("released", untunedFSs)
}

// Killed after any step, mounts and the kernel command line are as they were, over a boot too.
func TestTuneMountKilled(t *testing.T) {
	tuneKilled(t, tuneTrial{
		machine: mountMachine, settings: []state.Tuned{noTimes, noDiscard, pressure, timeout}, untuned: untunedFSs,
		tuned: tunedFSs, steps: 6, step: func(*machine, plan.Step) {}, boot: (*machine).bootMounts,
		held: (*machine).mounts,
	})
}

// A drop-in of a mount's unit that somebody else wrote, with two options of ours in its place: one of them goes alone,
// and stays away; with the other one the file comes back as it was.
func TestTuneMountForeign(t *testing.T) {
	const unit, theirs = "etc/systemd/system/data.mount", "[Mount]\nOptions=strictatime,discard\n"
	m := mountMachine(t)
	m.put("etc/fstab", "UUID=1 / ext4 errors=remount-ro 0 1\n")
	m.put(unit, "[Mount]\nWhere=/data\nType=ext4\nOptions=relatime,discard\n")
	at := filepath.Join(m.root, unit+".d/90-bulkhead.conf")
	m.put(unit+".d/90-bulkhead.conf", theirs)
	m.must(os.Chmod(at, 0o640))
	options := func(when, want string) {
		text, err := os.ReadFile(at)
		m.must(err)
		if _, got, _ := strings.Cut(string(text), "Options="); strings.TrimSpace(got) != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	back := func(rule string) {
		_, err := m.do(api.Request{Verb: "tune rollback", Rules: []string{rule}})
		m.must(err)
	}
	m.tune(noTimes, noDiscard)
	options("tuned", "noatime,nodiscard")
	back(noTimes.Rule)
	options("one taken back", "nodiscard")
	if reply := m.tune(noDiscard); len(reply.Plan.Steps) > 0 {
		t.Errorf("it is put right for ever: %+v", reply.Plan.Steps)
	}
	back(noDiscard.Rule)
	text, err := os.ReadFile(at)
	info, statErr := os.Stat(at)
	if err != nil || statErr != nil || string(text) != theirs || info.Mode() != 0o640 {
		t.Errorf("at the end: %q, %v, %v, %v", text, info, err, statErr)
	}
}

// The policy has them, too. What has no line in fstab, and a boot loader that is not known, are said.
func TestTuneMountByPolicy(t *testing.T) {
	m := mountMachine(t)
	const tune = "host: {tune: {mount /data: {atime: noatime, discard: off}, mount /none: {atime: noatime}, " +
		"kernel: {psi: 1, nvme_core.io_timeout: 4294967295}}}\n"
	reply := m.apply(tune)
	m.mountsAs("by the policy", tunedFSs)
	if text := shown(reply); !strings.Contains(text, "has no line for /none") {
		t.Errorf("it says\n%s", text)
	}
	m.release()
	m.must(os.Remove(filepath.Join(m.root, "usr/sbin/update-grub")))
	reply = m.apply(tune)
	if text := shown(reply); !strings.Contains(text, "add psi=1 to the kernel command line yourself") {
		t.Errorf("without update-grub it says\n%s", text)
	}
	if slices.ContainsFunc(reply.Plan.Steps, func(s plan.Step) bool { return s.Kind == bootline.KindArgument }) {
		t.Errorf("steps: %+v", reply.Plan.Steps)
	}
}

// What is not mounted has its line changed, and a remount that fails takes all of it back.
func TestTuneMountThatFails(t *testing.T) {
	m := mountMachine(t)
	m.Remount = func(string, uintptr, string) error { return unix.EBUSY }
	if _, err := m.do(api.Request{Verb: "tune apply", Tune: []state.Tuned{noTimes, pressure}}); err == nil {
		t.Error("it succeeds")
	}
	m.mountsAs("undone", untunedFSs)
	m.put(mountTable, rootMount)
	reply := m.tune(noTimes)
	if len(reply.Plan.Steps) != 1 || reply.Plan.Steps[0].Target != tunable.Target(noTimes.Name) {
		t.Errorf("of what is not mounted: %+v", reply.Plan.Steps)
	}
}

// What an agent in a sandbox has written by another process is written there, and nothing of another kind.
func TestWriteOutside(t *testing.T) {
	m := mountMachine(t)
	for kind, fine := range map[string]bool{"mount option at boot": true, "sysctl": false, "boot file": false} {
		order := fmt.Sprintf(`{"kind":%q,"addr":"/data/atime","value":"noatime"}`, kind)
		err := m.WriteOutside(t.Context(), base64.RawURLEncoding.EncodeToString([]byte(order)))
		if (err == nil) != fine {
			t.Errorf("%s: %v", kind, err)
		}
	}
	m.mountsAs("written", strings.Replace(untunedFSs, "defaults,relatime", "defaults,noatime", 1))
	for _, order := range []string{"", "{", "e30"} {
		if err := m.WriteOutside(t.Context(), order); err == nil {
			t.Errorf("%q was taken", order)
		}
	}
}

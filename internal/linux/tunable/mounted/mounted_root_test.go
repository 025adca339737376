//go:build root

package mounted_test

import (
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/testhost"
)

// The kernel takes each option, tells it, and has what it had after an undo, all other options with it.
func TestKernelMount(t *testing.T) {
	device, _ := testhost.LoopDevice(t, 32<<20)
	make := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-e", "continue", device)
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	point := t.TempDir()
	if err := unix.Mount(device, point, "ext4", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_STRICTATIME|unix.MS_LAZYTIME,
		"discard"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
	root := sysroot.New("/")
	now := func() mountinfo.Mount {
		t.Helper()
		all, err := mountinfo.Read(root)
		if err != nil {
			t.Fatal(err)
		}
		m, _ := all.Of(point)
		return m
	}
	before := now()
	a := mounted.Mounted{Host: mounted.Host{Root: root, Dir: "/"}}
	for option, values := range map[string][]string{"atime": {"noatime", "relatime"}, "errors": {"remount-ro", "panic"},
		"discard": {"off"}} {
		target := change.Target{Kind: mounted.KindMounted, Addr: point + "/" + option}
		conformance.Run(t, conformance.Case{Actuator: a, Target: target, Values: values, Refused: "never"})
	}
	after := now()
	// ext4 tells errors= where it was ever named at a mount.
	after.Super = slices.DeleteFunc(after.Super, func(o string) bool { return o == "errors=continue" })
	if !slices.Equal(before.Options, after.Options) || !slices.Equal(before.Super, after.Super) {
		t.Errorf("it was %v %v and is %v %v", before.Options, before.Super, after.Options, after.Super)
	}
}

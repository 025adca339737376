//go:build root

package blockdev_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
)

func TestLiveLoopDevice(t *testing.T) {
	backing := filepath.Join(t.TempDir(), "disk image")
	if err := os.WriteFile(backing, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "-f", "--show", backing).Output()
	if err != nil {
		t.Fatal(err)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if err := exec.Command("losetup", "-d", device).Run(); err != nil {
			t.Errorf("detach %s: %v", device, err)
		}
	})
	f, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Devices {
		if "/dev/"+d.Name == device {
			if d.Kind != blockdev.Loop || d.Backing != backing || d.Size != 1<<20 || d.Disk != d.Number {
				t.Errorf("%+v, want a loop device of 1 MiB on %s", d, backing)
			}
			return
		}
	}
	t.Errorf("%s is not among %+v", device, f.Devices)
}

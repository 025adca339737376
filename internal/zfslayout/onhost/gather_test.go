package onhost

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/zfslayout"
)

// A file for a pool that is in memory stands against a plan; one on a disk does not.
func TestDevicesInMemory(t *testing.T) {
	h := host.New("/")
	mounts, err := mountinfo.Read(h.Root)
	if err != nil {
		t.Fatal(err)
	}
	storage, err := h.Block.Storage()
	if err != nil {
		t.Skipf("no storage is told here: %v", err)
	}
	for dir, memory := range map[string]bool{"/dev/shm": true, t.TempDir(): false} {
		m, found := mounts.Of(dir)
		if !found || (m.Type == "tmpfs") != memory {
			t.Logf("%s is on %s here", dir, m.Type)
			continue
		}
		file, err := os.CreateTemp(dir, "bulkhead-test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(file.Name()) })
		_ = file.Close()
		f := &gathering{zfslayout.Facts{Request: zfslayout.Request{Devices: []string{filepath.Clean(file.Name())}}}}
		f.devices(storage)
		if d := f.Devices[0]; !d.File || strings.Contains(d.Trouble, "in memory") != memory {
			t.Errorf("%+v", d)
		}
	}
}

package blockdev_test

import (
	"os"
	"path/filepath"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

func TestDiskShape(t *testing.T) {
	const partitions = "major minor  #blocks  name\n\n   8        0  104857600 sda\n   8       16  104857600 sdb\n " +
		"253        0  104857600 dm-0\n"
	dir := linuxtest.Unpack(t, `
-- proc/partitions --
`+partitions+`
-- sys/class/block/dm-0/slaves/sda --
x
-- sys/fs/btrfs/features/raid56 --
0
-- sys/fs/btrfs/0c1e/devices/sdb --
x
`)
	h := host.New(dir)
	shape := func() string {
		text, err := h.Block.DiskShape()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	last := shape()
	if again := shape(); again != last {
		t.Fatalf("nothing has changed: %q, %q", last, again)
	}
	for what, change := range map[string]func(){
		"another disk": func() {
			write("proc/partitions",
				partitions+"   8       32  104857600 sdc\n")
		},
		"another disk below a volume":  func() { write("sys/class/block/dm-0/slaves/sdc", "") },
		"another disk below a btrfs":   func() { write("sys/fs/btrfs/0c1e/devices/sdd", "") },
		"another btrfs":                func() { write("sys/fs/btrfs/ff00/devices/sde", "") },
		"a disk that is gone, and all": func() { write("proc/partitions", "") },
	} {
		change()
		now := shape()
		if now == last {
			t.Errorf("%s is not seen", what)
		}
		last = now
	}
	if _, err := host.New(t.TempDir()).Block.DiskShape(); err != nil {
		t.Errorf("without any: %v", err)
	}
}

func BenchmarkDiskShape(b *testing.B) {
	h := host.New("/")
	for b.Loop() {
		if _, err := h.Block.DiskShape(); err != nil {
			b.Fatal(err)
		}
	}
}

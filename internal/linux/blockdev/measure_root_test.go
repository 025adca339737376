//go:build root

package blockdev_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/testhost"
)

// A device is read and nothing else, within the time and bytes that are given.
func TestMeasureDevice(t *testing.T) {
	testhost.RequireRoot(t)
	dev, _ := testhost.LoopDevice(t, 64<<20)
	mark := bytes.Repeat([]byte("not to be written"), 1000)
	if err := os.WriteFile(dev, mark, 0); err != nil {
		t.Fatal(err)
	}
	s, err := host.New("/").Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	told := ""
	m, err := s.Measure(context.Background(), dev,
		blockdev.MeasureOptions{Time: 2 * time.Second, Bytes: 96 << 20,
			Begin: func(what string) error { told = what; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", m)
	if m.ReadBandwidth <= 0 || m.ReadOps <= 0 || m.WriteBandwidth != 0 || m.WriteOps != 0 || m.Bytes > 96<<20 ||
		m.Bytes <= 0 || told != m.What {
		t.Errorf("told %q, got %+v", told, m)
	}
	// What was read in parts adds up.
	if m.Took > 20*time.Second {
		t.Errorf("took %s", m.Took)
	}
	got := make([]byte, len(mark))
	f, err := os.Open(dev)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, mark) {
		t.Errorf("the device was written: %v", err)
	}
	small, _ := testhost.LoopDevice(t, 1<<20)
	if s, err = host.New("/").Block.Storage(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Measure(context.Background(), small, blockdev.MeasureOptions{}); !errors.Is(err,
		blockdev.ErrNoMeasure) {
		t.Errorf("a device of 1 MiB: %v", err)
	}
}

// A filesystem gets a file without a name, which leaves nothing behind.
func TestMeasurePath(t *testing.T) {
	testhost.RequireRoot(t)
	dir, err := os.MkdirTemp("/var/tmp", "bulkhead-test-") // on the disk of the system, where /tmp may be in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, err := host.New("/").Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	o := blockdev.MeasureOptions{Time: 4 * time.Second, Bytes: 128 << 20}
	m, err := s.Measure(context.Background(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", m)
	if m.ReadBandwidth <= 0 || m.ReadOps <= 0 || m.WriteBandwidth <= 0 || m.WriteOps <= 0 || m.Bytes > o.Bytes ||
		m.Bytes <= 0 {
		t.Errorf("got %+v", m)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Measure(ended, dir, o); !errors.Is(err, context.Canceled) && !errors.Is(err, blockdev.ErrNoMeasure) {
		t.Errorf("cancelled: %v", err)
	}
	stop := errors.New("no")
	o.Begin = func(string) error { return stop }
	if _, err := s.Measure(context.Background(), dir, o); !errors.Is(err, stop) {
		t.Errorf("stopped before it began: %v", err)
	}
	for _, name := range []string{"/proc", "/dev/shm", "/nothing/there"} {
		if _, err := s.Measure(context.Background(), name, blockdev.MeasureOptions{}); err == nil {
			t.Errorf("%s was measured", name)
		}
	}
}

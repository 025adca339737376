package blockdev_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
)

func TestReads(t *testing.T) {
	block := blockdev.New(sysroot.New(linuxtest.Files(t, map[string]string{
		"sys/dev/block/8:0/stat":  "    1500       20   409600     7250      881        3    18144      912\n",
		"sys/dev/block/8:16/stat": "of another form\n",
	}, 0o444)))
	want := blockdev.Reads{Requests: 1500, Bytes: 409600 * 512, Waited: 7250 * time.Millisecond}
	if got, err := block.Reads("8:0"); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := block.Reads("8:16"); err == nil || errors.Is(err, change.ErrGone) {
		t.Errorf("of another form: %v", err)
	}
	if _, err := block.Reads("8:32"); !errors.Is(err, change.ErrGone) {
		t.Errorf("a disk that has gone: %v", err)
	}
}

// Requests that the kernel has joined or split count as they were made.
func TestQueuedRequests(t *testing.T) {
	const size = 256 << 10
	earlier := blockdev.Reads{Requests: 1000, Bytes: 1000 * size, Waited: time.Minute}
	for _, test := range []struct {
		requests, made int64
		waited         time.Duration
		want           string
	}{
		{100, 100, 16 * time.Second, "8.0"}, // 8 at a time over 2 s
		{50, 100, 8 * time.Second, "8.0"},   // two made one each
		{200, 100, 32 * time.Second, "8.0"}, // one made two each
		{100, 100, 2 * time.Second, "1.0"},
		{0, 0, 0, "0.0"},
	} {
		now := blockdev.Reads{Requests: 1000 + test.requests, Bytes: (1000 + test.made) * size,
			Waited: time.Minute + test.waited}
		if got := fmt.Sprintf("%.1f", now.Since(earlier).Queued(size, 2*time.Second)); got != test.want {
			t.Errorf("%+v: %s, want %s", now, got, test.want)
		}
	}
}

package blockdev_test

import (
	"errors"
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

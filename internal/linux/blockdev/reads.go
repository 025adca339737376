package blockdev

import (
	"fmt"
	"path"
	"time"
)

// Reads are what was read of a device since it came, all processes together.
type Reads struct {
	Requests int64 // after the kernel has joined and split them
	Bytes    int64
	Waited   time.Duration // of all requests, from when each came to the device's queue until it was done
}

// Reads tells what was read of a device, by its number (Documentation/block/stat.rst). A disk that has gone is
// change.ErrGone.
func (h FS) Reads(number string) (r Reads, err error) {
	const sector = 512
	file := path.Join(blockDevices, number, "stat")
	text, err := h.root.ReadText(file)
	if err != nil {
		return r, queueError("read", file, err)
	}
	var joined, sectors, milliseconds int64
	if _, err := fmt.Sscan(text, &r.Requests, &joined, &sectors, &milliseconds); err != nil {
		return r, fmt.Errorf("read %q: %w", file, err)
	}
	r.Bytes, r.Waited = sectors*sector, time.Duration(milliseconds)*time.Millisecond
	return r, nil
}

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

// Queued is how many requests of so many bytes there were at the device on average over a time, for what was read in
// it. What the kernel has joined or split counts as it was made.
func (r Reads) Queued(size int64, over time.Duration) float64 {
	if r.Requests <= 0 || over <= 0 {
		return 0
	}
	return r.Waited.Seconds() / float64(r.Requests) * float64(r.Bytes) / float64(size) / over.Seconds()
}

// Since is what was read since earlier.
func (r Reads) Since(e Reads) Reads {
	return Reads{r.Requests - e.Requests, r.Bytes - e.Bytes, r.Waited - e.Waited}
}

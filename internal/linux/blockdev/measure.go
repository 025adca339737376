package blockdev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// MeasureOptions bounds a measurement. Zero values are the defaults.
type MeasureOptions struct {
	Time  time.Duration // in all; default 8 s
	Bytes int64         // read and written in all; default 2 GiB
	// Begin is told what will be done before the first request; an error ends it there.
	Begin func(what string) error
}

// Measured is what a disk, or several below a filesystem, did in a short time, beside whatever else used them.
type Measured struct {
	What           string        `json:"what"`
	ReadBandwidth  int64         `json:"read_bandwidth"`            // bytes a second
	ReadOps        int64         `json:"read_iops"`                 // a second, at random
	ReadInRow      int64         `json:"read_sequential_iops"`      // a second, in a row
	WriteBandwidth int64         `json:"write_bandwidth,omitempty"` // 0: nothing was written
	WriteOps       int64         `json:"write_iops,omitempty"`
	WriteInRow     int64         `json:"write_sequential_iops,omitempty"`
	Bytes          int64         `json:"bytes"`
	Took           time.Duration `json:"took_ns"`
}

// The requests of a measurement: large ones in a row for bandwidth, small ones at random for operations. MeasuredAs
// says so.
const (
	largeRequest, largeDepth = 1 << 20, 4
	smallRequest, smallDepth = 4 << 10, 32

	leastFile = 16 << 20 // a smaller one would show a cache and no disk
	freeShare = 10       // no more than a tenth of what is free is written

	MeasuredAs = "bandwidth with 4 requests of 1 MiB at a time in a row, operations with 32 of 4 KiB at random and " +
		"in a row, O_DIRECT"
)

// ErrNoMeasure says that something cannot be measured; what it wraps says why.
var ErrNoMeasure = errors.New("nothing was measured")

// Measure measures what a device or the disks below a path can do: a device is only read, on a filesystem a temporary
// file of ours is written and read, which has no name and goes with the end of this process. It ends when time or
// bytes are used up, or ctx ends.
func (s *Storage) Measure(ctx context.Context, target string, o MeasureOptions) (*Measured, error) {
	if o.Time <= 0 {
		o.Time = 8 * time.Second
	}
	if o.Bytes <= 0 {
		o.Bytes = 2 << 30
	}
	p, err := s.Place(0, target)
	if err != nil {
		return nil, err
	}
	m := &measurement{o: o}
	if p.Layer.Kind == Filesystem {
		err = m.openFile(p)
	} else {
		err = m.openDevice(s, p)
	}
	if err != nil {
		return nil, fmt.Errorf("measure %s: %w", target, err)
	}
	defer m.file.Close()
	if o.Begin != nil {
		if err := o.Begin(m.what); err != nil {
			return nil, err
		}
	}
	result := &Measured{What: m.what}
	begin := time.Now()
	if err := m.all(ctx, result); err != nil {
		return nil, fmt.Errorf("measure %s: %w", target, err)
	}
	result.Bytes, result.Took = m.used.Load(), time.Since(begin)
	return result, nil
}

// measurement is one on its way.
type measurement struct {
	o      MeasureOptions
	file   *os.File
	what   string
	size   int64 // of what is read: a device, or what was written of the file
	room   int64 // of the file
	writes bool
	used   atomic.Int64 // bytes so far
}

// openFile makes the temporary file.
func (m *measurement) openFile(p Place) error {
	l := p.Layer
	if l.Filesystem != OnDevice || len(l.Drives()) == 0 {
		return fmt.Errorf("%w: %s is on no disk of this host", ErrNoMeasure, l)
	}
	dir := p.Real
	if info, err := os.Stat(dir); err != nil {
		return sysroot.Cause(err)
	} else if !info.IsDir() {
		dir = path.Dir(dir)
	}
	var free unix.Statfs_t
	if err := unix.Statfs(dir, &free); err != nil {
		return fmt.Errorf("look at the free space: %w", err)
	}
	// A sixth of the bytes for each of six parts.
	m.room = min(m.o.Bytes/6, int64(free.Bavail)*free.Bsize/freeShare) / largeRequest * largeRequest
	if m.room < leastFile {
		return fmt.Errorf("%w: a tenth of the free space of %s, or a sixth of what may be written, is less than %d MiB",
			ErrNoMeasure, l, leastFile>>20)
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EISDIR) {
		return fmt.Errorf("%w: %s takes no unnamed file with O_DIRECT (%w)", ErrNoMeasure, l, err)
	}
	if err != nil {
		return fmt.Errorf("make a temporary file in %s: %w", dir, err)
	}
	m.file, m.writes = os.NewFile(uintptr(fd), "temporary file in "+dir), true
	m.what = fmt.Sprintf("writes and reads of a temporary file of up to %d MiB in %s, for up to %s", m.room>>20, dir,
		m.o.Time)
	return nil
}

// openDevice opens a device for reading.
func (m *measurement) openDevice(s *Storage, p Place) error {
	d := p.Layer.Device
	if d == nil {
		return fmt.Errorf("%w: %s is no device", ErrNoMeasure, p.Layer)
	}
	if d.Size < leastFile {
		return fmt.Errorf("%w: %s has less than %d MiB", ErrNoMeasure, p.Layer, leastFile>>20)
	}
	fd, err := unix.Open(p.Real, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", p.Real, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		unix.Close(fd)
		return fmt.Errorf("%w: %s is no block device", ErrNoMeasure, p.Real)
	}
	m.file, m.size = os.NewFile(uintptr(fd), p.Real), d.Size
	m.what = fmt.Sprintf("reads of %s, for up to %s; nothing is written", p.Layer, m.o.Time)
	return nil
}

// all does the parts one after the other; each has its share of time and bytes.
func (m *measurement) all(ctx context.Context, r *Measured) error {
	parts := int64(3)
	if m.writes {
		parts = 6
	}
	span, bytes := m.o.Time/time.Duration(parts), m.o.Bytes/parts
	if m.writes {
		done, rate, err := m.part(ctx, requests{write: true, size: largeRequest, depth: largeDepth, within: m.room},
			span, m.room)
		if m.size = done / largeRequest * largeRequest; err != nil {
			return err
		}
		r.WriteBandwidth = rate
		if m.size < largeRequest*largeDepth {
			return fmt.Errorf("%w: the disk wrote %d bytes in %s", ErrNoMeasure, done, span)
		}
		if err := m.file.Sync(); err != nil {
			return sysroot.Cause(err)
		}
	}
	for _, p := range []struct {
		into     *int64
		requests requests
		do       bool
	}{
		{&r.ReadBandwidth, requests{size: largeRequest, depth: largeDepth, within: m.size}, true},
		{&r.ReadOps, requests{size: smallRequest, depth: smallDepth, within: m.size, random: true}, true},
		{&r.ReadInRow, requests{size: smallRequest, depth: smallDepth, within: m.size}, true},
		{&r.WriteOps, requests{write: true, size: smallRequest, depth: smallDepth, within: m.size, random: true},
			m.writes},
		{&r.WriteInRow, requests{write: true, size: smallRequest, depth: smallDepth, within: m.size}, m.writes},
	} {
		if !p.do {
			continue
		}
		_, rate, err := m.part(ctx, p.requests, span, bytes)
		if err != nil {
			return err
		}
		if *p.into = rate; p.requests.size == smallRequest {
			*p.into = rate / smallRequest
		}
	}
	return nil
}

// requests are those of one part.
type requests struct {
	write, random bool
	size, depth   int
	within        int64 // from the start of the file or device
}

// grace is how long after its time a part may take for the requests under way.
const grace = 10 * time.Second

// part does requests until its time or bytes are used up, and gives the bytes and their rate in a second.
func (m *measurement) part(ctx context.Context, q requests, span time.Duration, bytes int64) (done, rate int64,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	begin := time.Now()
	var next, total atomic.Int64
	var first error
	var once sync.Once
	var group sync.WaitGroup
	for range q.depth {
		group.Go(func() {
			buf := aligned(q.size)
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				if (n+1)*int64(q.size) > bytes {
					return
				}
				at := n % (q.within / int64(q.size))
				if q.random {
					at = rand.Int64N(q.within / int64(q.size))
				}
				if err := m.request(q.write, buf, at*int64(q.size)); err != nil {
					once.Do(func() { first = err })
					cancel()
					return
				}
				total.Add(int64(q.size))
				m.used.Add(int64(q.size))
			}
		})
	}
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(span + grace): // the goroutines, and the file with them, end when the kernel gives up
		return 0, 0, fmt.Errorf("%w: the disk has not answered for %s", ErrNoMeasure, grace)
	}
	if first != nil {
		return 0, 0, first
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return 0, 0, err
	}
	return total.Load(), int64(float64(total.Load()) / time.Since(begin).Seconds()), nil
}

func (m *measurement) request(write bool, buf []byte, at int64) error {
	if write {
		_, err := m.file.WriteAt(buf, at)
		return sysroot.Cause(err)
	}
	_, err := m.file.ReadAt(buf, at)
	return sysroot.Cause(err)
}

// aligned is a buffer as O_DIRECT takes it, with bytes that no file system can make smaller.
func aligned(size int) []byte {
	const page = 4096
	buf := make([]byte, size+page)
	skip := (page - int(uintptr(unsafe.Pointer(&buf[0]))%page)) % page
	buf = buf[skip : skip+size]
	for i := 0; i+8 <= size; i += 8 {
		binary.LittleEndian.PutUint64(buf[i:], rand.Uint64())
	}
	return buf
}

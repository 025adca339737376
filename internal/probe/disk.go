package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/fsinfo"
)

// Disk reads a device or reads and writes a file without a name in a directory.
type Disk struct {
	Device string `json:"device,omitempty"` // it is only read
	Dir    string `json:"dir,omitempty"`
	File   int64  `json:"file,omitempty"` // size of the file
	Write  bool   `json:"write,omitempty"`
	// Buffered goes through the page cache; what is read is taken from it first.
	Buffered bool  `json:"buffered,omitempty"`
	Random   bool  `json:"random,omitempty"`
	Size     int   `json:"size"`  // of a request
	Depth    int   `json:"depth"` // requests at a time
	Most     int64 `json:"most"`  // bytes in all
	// Warm is how long it works before it is measured: a throttle that was idle lets the first requests through.
	Warm time.Duration `json:"warm"`
	Span time.Duration `json:"span"`
}

// errNoTemporary says that a file system takes no file without a name.
var errNoTemporary = errors.New("it takes no file without a name")

func (d *Disk) open() (*os.File, error) {
	name, flags := d.Device, unix.O_RDONLY
	if d.Dir != "" {
		name, flags = d.Dir, unix.O_TMPFILE|unix.O_RDWR
	} else if d.Write {
		return nil, errors.New("a device is only read")
	}
	if !d.Buffered {
		flags |= unix.O_DIRECT
	}
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o600)
	if d.Dir != "" && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR)) {
		return nil, fmt.Errorf("open a file in %q: %w (%w)", d.Dir, errNoTemporary, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (d *Disk) run(ctx context.Context) (a Answer, err error) {
	if d.Size < 512 || d.Size > 4<<20 || d.Depth < 1 || d.Depth > 128 {
		return a, fmt.Errorf("%d requests of %d bytes", d.Depth, d.Size)
	}
	f, err := d.open()
	if err != nil {
		return a, err
	}
	defer f.Close()
	w := &requests{Disk: d, file: f, within: d.File}
	if d.Dir == "" {
		if w.within, err = f.Seek(0, io.SeekEnd); err != nil {
			return a, fmt.Errorf("size of %q: %w", d.Device, err)
		}
	} else if err := fsinfo.Allocate(f, d.File); err != nil {
		return a, fmt.Errorf("make a file of %d bytes in %q: %w", d.File, d.Dir, err)
	}
	if w.within < int64(d.Size) {
		return a, fmt.Errorf("%q is smaller than one request", f.Name())
	}
	if d.Buffered {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil { // no more is read than is asked for
			return a, fmt.Errorf("prepare %q: %w", f.Name(), err)
		}
	}
	return w.all(ctx)
}

// requests are those of one order on their way.
type requests struct {
	*Disk
	file        *os.File
	within      int64
	next        atomic.Int64
	bytes, used atomic.Int64 // used: those begun
	ops         atomic.Int64
}

// all keeps requests under way and measures how fast they end from the end of the warm-up to the end of the span.
func (r *requests) all(ctx context.Context) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.Warm+r.Span)
	defer cancel()
	var group sync.WaitGroup
	var once sync.Once
	begin := time.Now()
	for range r.Depth {
		group.Go(func() {
			buf := aligned(r.Size)
			for ctx.Err() == nil && r.used.Add(int64(r.Size)) <= r.Most {
				if failed := r.one(buf); failed != nil {
					once.Do(func() { err = failed })
					cancel()
					return
				}
				r.bytes.Add(int64(r.Size))
				r.ops.Add(1)
			}
		})
	}
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	bytes, ops := &meter{count: &r.bytes}, &meter{count: &r.ops}
	a.Took = sample(ctx, begin, ended, r.Warm, bytes, ops)
	a.Bytes, a.Ops = bytes.samples.In(a.Took), ops.samples.In(a.Took)
	cancel()
	select {
	case <-ended:
	case <-time.After(answerTimeout / 2):
		return a, fmt.Errorf("the disk has not answered for %s", answerTimeout/2)
	}
	return a, err
}

func (r *requests) one(buf []byte) error {
	blocks := r.within / int64(r.Size)
	at := rand.Int64N(blocks)
	if !r.Random {
		at = (r.next.Add(1) - 1) % blocks
	}
	at *= int64(r.Size)
	if r.Write {
		_, err := r.file.WriteAt(buf, at)
		return err
	}
	if r.Buffered {
		if err := unix.Fadvise(int(r.file.Fd()), at, int64(r.Size), unix.FADV_DONTNEED); err != nil {
			return err
		}
	}
	_, err := r.file.ReadAt(buf, at)
	return err
}

// Dirty writes a file without a name through the page cache and leaves it open and unwritten on the disk: that is for
// others to have done.
type Dirty struct {
	Dir   string `json:"dir"`
	Bytes int64  `json:"bytes"`
}

func (d *Dirty) run(ctx context.Context, s *server) (a Answer, err error) {
	f, err := (&Disk{Dir: d.Dir, Buffered: true}).open()
	if err != nil {
		return a, err
	}
	s.files = append(s.files, f)
	begin := time.Now()
	buf := aligned(256 << 10)
	for a.Bytes < d.Bytes && ctx.Err() == nil {
		n, err := f.Write(buf)
		if a.Bytes += int64(n); err != nil {
			return a, fmt.Errorf("write a file in %q: %w", d.Dir, err)
		}
	}
	a.Took, a.File = time.Since(begin), int(f.Fd())
	return a, nil
}

// WriteBack has what a load's open file holds in the page cache written to the disk, by this process and not by the
// load: as the kernel's own threads do it. It takes kernel 5.6.
func (l *Load) WriteBack(file int) error {
	pidfd, err := unix.PidfdOpen(l.ID.PID, 0)
	if err != nil {
		return fmt.Errorf("write back the load's file: %w", err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, file, 0)
	if err != nil {
		return fmt.Errorf("write back the load's file: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Fdatasync(fd); err != nil {
		return fmt.Errorf("write back the load's file: %w", err)
	}
	return nil
}

// Temporary makes a file without a name, to be written past the page cache.
func Temporary(dir string) (*os.File, error) { return (&Disk{Dir: dir}).open() }

// Noise is so many bytes that no file system makes smaller, where O_DIRECT takes them.
func Noise(size int) []byte { return aligned(size) }

// aligned is a buffer as O_DIRECT takes it, with bytes that no file system makes smaller.
func aligned(size int) []byte {
	const page = 4096
	buf := make([]byte, size+page)
	skip := (page - int(uintptr(unsafe.Pointer(&buf[0]))%page)) % page
	buf = buf[skip : skip+size]
	for i := range buf {
		buf[i] = byte(rand.Uint32())
	}
	return buf
}

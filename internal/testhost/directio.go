package testhost

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rate is what a measurement gave.
type Rate struct {
	Bytes float64 // per second
	Ops   float64 // per second
}

// DirectIO is a process, a copy of the test binary, that reads or writes a device, or a file that has its size already,
// past the page cache. It does nothing until Sequential or Random is called: put it into a group first.
type DirectIO struct{ *child }

// BufferedWriter starts a process that writes a file of its own through the page cache and sees again and again that it
// gets to the disk, so that no more than a little is dirty at a time. The file is made by the process: what it writes
// back counts for the group that it is in from the start, and not for that of another who made the file (the kernel
// changes its mind only after seconds).
func BufferedWriter(t testing.TB, file string) *DirectIO {
	t.Helper()
	return direct(t, "write-buffered", file)
}

// Begin tells a BufferedWriter that it is where it belongs.
func (d *DirectIO) Begin() {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.commands); err != nil {
		d.t.Fatalf("buffered writer: %v", err)
	}
}

// BufferedReader starts a process that reads a file through the page cache, from which it takes first what it is about
// to read.
func BufferedReader(t testing.TB, file string) *DirectIO {
	t.Helper()
	return direct(t, "read-buffered", file)
}

// DirectWriter starts a process that writes the device. What the device held is lost.
func DirectWriter(t testing.TB, device string) *DirectIO {
	t.Helper()
	return direct(t, "write", device)
}

// DirectReader starts a process that reads the device.
func DirectReader(t testing.TB, device string) *DirectIO {
	t.Helper()
	return direct(t, "read", device)
}

func direct(t testing.TB, how, device string) *DirectIO {
	t.Helper()
	return &DirectIO{copyOfSelf(t, how+" "+device)}
}

// Sequential does requests of 256 KiB for so long, several at a time.
func (d *DirectIO) Sequential(duration time.Duration) Rate {
	d.t.Helper()
	return d.measure("sequential", duration)
}

// How many requests are under way at a time, so that a limit is met even where each takes long: in an emulated machine
// on a busy host 20 ms for a large one and 10 for a small one were seen. With one at a time such a host never loads a
// device up to 10 MiB/s, and the test blames the limit.
const (
	deepSequential = 4
	deepRandom     = 16
)

// Random does requests of 4 KiB at random places for so long, several at a time.
func (d *DirectIO) Random(duration time.Duration) Rate {
	d.t.Helper()
	return d.measure("random", duration)
}

// measure waits for the answer longer than the generator works: a request that a very low limit holds
// back finishes late.
func (d *DirectIO) measure(pattern string, duration time.Duration) Rate {
	d.t.Helper()
	answer, err := d.ask(fmt.Sprint(pattern, " ", duration.Nanoseconds()), duration+30*time.Second)
	if err != nil {
		d.t.Fatalf("direct IO: %v", err)
	}
	var bytes, ops, nanoseconds int64
	if _, err := fmt.Sscan(answer, &bytes, &ops, &nanoseconds); err != nil || nanoseconds <= 0 {
		d.t.Fatalf("direct IO: no measurement: %q", answer)
	}
	seconds := float64(nanoseconds) / 1e9
	return Rate{Bytes: float64(bytes) / seconds, Ops: float64(ops) / seconds}
}

// warmUp is left out of each measurement: a fresh throttle lets the first requests through.
const warmUp = 300 * time.Millisecond

// generate is the child: it reads "pattern nanoseconds" lines and answers "bytes ops nanoseconds".
func generate(verb, device string, commands io.Reader, answers io.Writer) error {
	verb, way, _ := strings.Cut(verb, "-")
	buffered := way == "buffered"
	fd, err := openFor(verb == "write", buffered, device, commands)
	if err != nil {
		return err
	}
	size, err := unix.Seek(fd, 0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of %q: %w", device, err)
	}
	load := load{fd: fd, size: size, write: verb == "write", buffered: buffered,
		buf: aligned(deepSequential * sequential)}
	for {
		var pattern string
		var nanoseconds int64
		_, err := fmt.Fscanln(commands, &pattern, &nanoseconds)
		if errors.Is(err, io.EOF) {
			return nil // the test is over
		}
		if err != nil {
			return fmt.Errorf("read a command: %w", err)
		}
		load.random = pattern == "random"
		if _, _, _, err := load.run(warmUp); err != nil {
			return err
		}
		bytes, ops, took, err := load.run(time.Duration(nanoseconds))
		if err != nil {
			return err
		}
		fmt.Fprintln(answers, bytes, ops, took.Nanoseconds())
	}
}

// openFor opens what is read or written. A buffered writer makes its file, once it is told that it is in its group.
func openFor(write, buffered bool, name string, commands io.Reader) (int, error) {
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if write {
		flags = unix.O_WRONLY | unix.O_CLOEXEC
	}
	switch {
	case !buffered:
		flags |= unix.O_DIRECT
	case write:
		if _, err := fmt.Fscanln(commands); err != nil && err.Error() != "unexpected newline" {
			return -1, err
		}
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	fd, err := unix.Open(name, flags, 0o600)
	switch {
	case err != nil:
		return -1, fmt.Errorf("open %q: %w", name, err)
	case !buffered:
	case write:
		err = unix.Ftruncate(fd, bufferedSize)
	default:
		err = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM) // no more is read than is asked for
	}
	if err != nil {
		return -1, fmt.Errorf("prepare %q: %w", name, err)
	}
	return fd, nil
}

// The sizes of requests.
const (
	sequential = 256 << 10
	random     = 4 << 10
)

// aligned gives a buffer that direct IO takes: page aligned.
func aligned(size int) []byte {
	const page = 4096
	buf := make([]byte, size+page)
	skip := page - int(uintptr(unsafe.Pointer(&buf[0]))%page)
	return buf[skip : skip+size]
}

// load is one generator.
type load struct {
	fd     int
	size   int64
	write  bool
	random bool
	// buffered: not past the page cache
	buffered bool
	buf      []byte // its parts belong to one request each
	at       atomic.Int64
}

// run does requests until the time is over; took ends with the last one.
func (l *load) run(duration time.Duration) (bytes, ops int64, took time.Duration, err error) {
	begin := time.Now()
	depth, size := deepSequential, sequential
	if l.random {
		depth, size = deepRandom, random
	}
	type result struct {
		bytes, ops int64
		err        error
	}
	done := make(chan result)
	for i := range depth {
		go func() {
			n, ops, err := l.requests(l.buf[i*size:][:size], begin.Add(duration))
			done <- result{n, ops, err}
		}()
	}
	for range depth {
		r := <-done
		bytes, ops, err = bytes+r.bytes, ops+r.ops, errors.Join(err, r.err)
	}
	return bytes, ops, time.Since(begin), err
}

// requests does requests of the size of a buffer, one at a time, until the time is over.
func (l *load) requests(buf []byte, end time.Time) (bytes, ops int64, err error) {
	block := int64(len(buf))
	blocks := l.size / block
	if blocks == 0 {
		return 0, 0, fmt.Errorf("the device is smaller than one request of %d bytes", block)
	}
	for time.Now().Before(end) {
		at := rand.Int64N(blocks)
		if !l.random {
			at = l.at.Add(1) % blocks
		}
		n, err := l.request(buf, at*block)
		if err != nil {
			return 0, 0, err
		}
		bytes += int64(n)
		ops++
	}
	return bytes, ops, nil
}

// bufferedSize is that of the file of a buffered writer: written twice over before a measurement has well begun.
const bufferedSize = 16 << 20

// syncEvery is after how many bytes a buffered writer waits for the disk: small enough that the steady state is soon
// reached.
const syncEvery = 1 << 20

func (l *load) request(buf []byte, offset int64) (int, error) {
	switch {
	case l.write:
		n, err := unix.Pwrite(l.fd, buf, offset)
		if err == nil && l.buffered && (l.random || offset/syncEvery != (offset+int64(n))/syncEvery) {
			err = unix.Fdatasync(l.fd)
		}
		return n, err
	case l.buffered:
		if err := unix.Fadvise(l.fd, offset, int64(len(buf)), unix.FADV_DONTNEED); err != nil {
			return 0, err
		}
	}
	return unix.Pread(l.fd, buf, offset)
}

package neighbour

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/host"
)

// HogOptions says how much a hog may take. The zero value of a bound picks a harmless one.
type HogOptions struct {
	// Programs: cpu: this many child programs do it, each in a session of its own; 0 is this one itself.
	Programs int
	For      time.Duration // ends after this long; default 10 s, at most an hour
	// memory: what it allocates, at most a quarter of the available memory, default 256 MiB; disk: the size of its
	// file, default 64 MiB
	Bytes int64
	Rate  int64  // disk: most bytes per second it writes; 0 is 256 MiB/s
	File  string // disk: an existing file to overwrite; default a new one
	Dir   string // disk: where it puts a new file, which it removes again; default the temporary directory
	// Buffered makes the disk hog write through the page cache; else it writes directly.
	Buffered bool
	Shared   bool  // cpu: the child programs share one session
	Block    int64 // disk: bytes per write, whole pages; default 2 MiB
	Random   bool  // disk: writes blocks in no order
}

// HogKinds names the hogs there are.
func HogKinds() []string { return []string{"cpu", "memory", "disk"} }

const (
	hogStep    = 1 << 20 // memory: bytes between two looks at the clock
	maxHogTime = time.Hour
)

// Hog is a bad neighbour: it takes all it can of one resource, within its bounds, until its time is
// up or ctx is done. Both are a good end.
func Hog(ctx context.Context, kind string, o HogOptions) error {
	if o.For <= 0 {
		o.For = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, min(o.For, maxHogTime))
	defer cancel()
	switch kind {
	case "cpu":
		if o.Programs > 0 {
			return hogPrograms(ctx, o)
		}
		return hogCPU(ctx)
	case "memory":
		return hogMemory(ctx, o)
	case "disk":
		return hogDisk(ctx, o)
	}
	return fmt.Errorf("start hog %q: there is no such kind, only %s", kind, strings.Join(HogKinds(), ", "))
}

// hogPrograms starts as many CPU hogs as asked, and ends them with itself.
func hogPrograms(ctx context.Context, o HogOptions) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start hogs: %w", err)
	}
	args := []string{self, "bench", "hog", "cpu", "--for=" + o.For.String()}
	n := process.NewSupervisor()
	for range o.Programs {
		if _, err := n.Start(process.Spec{Args: args, Session: !o.Shared}); err != nil {
			return errors.Join(err, n.Close())
		}
	}
	<-ctx.Done()
	return n.Close()
}

// hogCPU keeps one thread busy.
func hogCPU(ctx context.Context) error {
	runtime.GOMAXPROCS(1)
	for ctx.Err() == nil {
		spin(1 << 20)
	}
	return nil
}

// spin works for n rounds, about a nanosecond each.
func spin(n int) {
	var x uint64 = 1
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	runtime.KeepAlive(x)
}

// hogMemory allocates step by step and then keeps dirtying every page.
func hogMemory(ctx context.Context, o HogOptions) error {
	runtime.GOMAXPROCS(1)
	if o.Bytes <= 0 {
		o.Bytes = 256 << 20
	}
	available, err := availableMemory()
	if err != nil {
		return err
	}
	size := min(o.Bytes, available/4) / hogStep * hogStep
	if size == 0 {
		return fmt.Errorf("start memory hog: only %d bytes of memory are available", available)
	}
	mem, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", size, err)
	}
	defer func() { _ = syscall.Munmap(mem) }()
	page := os.Getpagesize()
	for round := byte(1); ; round++ {
		for i := 0; i < len(mem); i += page {
			mem[i] = round
			if i%hogStep == 0 && ctx.Err() != nil {
				return nil
			}
		}
	}
}

// availableMemory is what could be allocated without swapping, in bytes: MemAvailable of /proc/meminfo (kernel 3.14).
func availableMemory() (int64, error) {
	info, err := host.New("/").MemInfo()
	if err != nil {
		return 0, fmt.Errorf("read available memory: %w", err)
	}
	return info["MemAvailable"], nil
}

const (
	// HogBlock is how many bytes a disk hog writes at once by default.
	HogBlock = 2 << 20
	// hogWriters write at once, so that writers which wait long for a CPU still reach their limit.
	hogWriters     = 8
	defaultHogRate = 256 << 20
)

// hogDisk writes its file over and over, no faster than its rate, and removes it.
func hogDisk(ctx context.Context, o HogOptions) (err error) {
	if o.Bytes <= 0 {
		o.Bytes = 64 << 20
	}
	if o.Rate <= 0 {
		o.Rate = defaultHogRate
	}
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	if o.Block <= 0 {
		o.Block = HogBlock
	}
	f, size, err := hogFile(o)
	if err != nil {
		return fmt.Errorf("start disk hog: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	block, err := alignedBlock(o.Block)
	if err != nil {
		return err
	}
	// A writer keeps its place in the Go scheduler while it waits for the disk: one for each.
	runtime.GOMAXPROCS(hogWriters)
	start := time.Now()
	var taken atomic.Int64
	errs := make(chan error, hogWriters)
	for range hogWriters {
		go func() {
			for ctx.Err() == nil {
				offset := taken.Add(o.Block) - o.Block
				due := time.Duration(float64(offset) / float64(o.Rate) * float64(time.Second))
				process.Sleep(ctx, due-time.Since(start))
				if ctx.Err() != nil {
					break
				}
				at := offset % size
				if o.Random {
					at = rand.Int64N(size/o.Block) * o.Block
				}
				if _, err := f.WriteAt(block, at); err != nil {
					errs <- fmt.Errorf("write disk hog: %w", err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range hogWriters {
		err = errors.Join(err, <-errs)
	}
	return err
}

// hogFile opens what the disk hog writes, and gives the part of its size that is whole blocks.
func hogFile(o HogOptions) (f *os.File, size int64, err error) {
	flags := os.O_WRONLY
	if !o.Buffered {
		flags |= syscall.O_DIRECT
	}
	if o.File == "" {
		path := filepath.Join(o.Dir, fmt.Sprintf("hog-%d", os.Getpid()))
		if f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return nil, 0, err
		}
		// Unlinked at once: the file is gone with the process, however that ends.
		if err := os.Remove(path); err != nil {
			return nil, 0, errors.Join(err, f.Close())
		}
		return f, max(o.Bytes/o.Block, 1) * o.Block, nil
	}
	if f, err = os.OpenFile(o.File, flags, 0); err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < o.Block {
		err = fmt.Errorf("%q has %d bytes, less than one block of %d", o.File, info.Size(), o.Block)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size() / o.Block * o.Block, nil
}

// PrepareFile writes a file for disk hogs to overwrite. Writing a new one would wait for the file
// system to allocate blocks, and a limit could not be measured on it.
func PrepareFile(path string, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("prepare the disk hog's file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	block := make([]byte, HogBlock)
	for i := range block {
		block[i] = byte(i * 7)
	}
	for offset := int64(0); offset < size; offset += HogBlock {
		if _, err := f.WriteAt(block, offset); err != nil {
			return fmt.Errorf("prepare the disk hog's file: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("prepare the disk hog's file: %w", err)
	}
	return nil
}

// alignedBlock is a block that direct IO takes: a mapping begins at a page.
func alignedBlock(size int64) ([]byte, error) {
	block, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map a block: %w", err)
	}
	for i := range block {
		block[i] = byte(i * 7)
	}
	return block, nil
}

package neighbour

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
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

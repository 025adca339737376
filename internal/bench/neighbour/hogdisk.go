package neighbour

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"bulkhead/internal/bench/process"
)

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

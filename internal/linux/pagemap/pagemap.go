// Package pagemap tells where the memory of a process lies: on which NUMA nodes (/proc/PID/numa_maps, numa(7)) and
// charged to which memory control groups (/proc/PID/pagemap with /proc/kpagecgroup,
// Documentation/admin-guide/mm/pagemap.rst). Both walk page tables and take seconds for hundreds of GiB. The functions
// keep nothing and may be called concurrently.
package pagemap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// ErrNoCharges says that the kernel does not tell where pages are charged: it was built without CONFIG_MEMCG or
// CONFIG_PROC_PAGE_MONITOR, or the caller lacks CAP_SYS_ADMIN.
var ErrNoCharges = errors.New("the kernel does not tell where pages are charged")

const (
	pagemapEntry   = 8
	pagemapPresent = 1 << 63
	pagemapFrame   = 1<<55 - 1
	// pagemapBatch is how many pages are looked up at once, and how many frames one read spans at most.
	pagemapBatch = 256 << 10
	// frameGap is how many frames in between are read rather than left out: a call costs more.
	frameGap = 64
	// hugeFrames is how many frames a transparent huge page has, and is aligned to, at most.
	hugeFrames = 512
	// Flags of a frame (include/uapi/linux/kernel-page-flags.h).
	compoundHead, compoundTail = 1 << 15, 1 << 16
)

// Charges gives, for the pages that a process has in memory, how many bytes of them each memory control group is
// charged with, by the inode number of the group's directory; 0 is no group. Shared pages count for every process
// that maps them, and huge pages of hugetlb for none. What is swapped out is not in it.
//
// The page frames are those of /proc/PID/pagemap, their groups those of /proc/kpagecgroup (proc(5); 4.3): a process
// of 100 GiB takes some seconds. A group that is gone shows up as the nearest one above it. Of a transparent huge
// page the kernel names the group at its first frame alone (seen on 6.1), which /proc/kpageflags tells.
func Charges(ctx context.Context, h procfs.FS, id procfs.ID) (map[uint64]int64, error) {
	dir, err := h.OpenID(id)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	maps, err := dir.Read(nil, "maps", 64<<20)
	if err != nil {
		return nil, dir.Failed(err)
	}
	pages, err := h.Root.Open("/proc/" + strconv.Itoa(id.PID) + "/pagemap")
	if err != nil {
		return nil, noCharges(err)
	}
	defer pages.Close()
	groups, err := h.Root.Open("/proc/kpagecgroup")
	if err != nil {
		return nil, noCharges(err)
	}
	defer groups.Close()
	flags, err := h.Root.Open("/proc/kpageflags")
	if err != nil {
		return nil, noCharges(err)
	}
	defer flags.Close()
	r := chargeReader{pages: pages, groups: groups, flags: flags, page: uint64(os.Getpagesize()),
		bytes: map[uint64]int64{}}
	for line := range strings.Lines(string(maps)) {
		from, to, err := parseAddresses(line)
		if err != nil {
			return nil, fmt.Errorf("read maps of process %d: %w", id.PID, err)
		}
		if err := r.add(ctx, from, to); err != nil {
			return nil, fmt.Errorf("read where pages of process %d are charged: %w", id.PID, err)
		}
	}
	if err := r.flush(); err != nil {
		return nil, fmt.Errorf("read where pages of process %d are charged: %w", id.PID, err)
	}
	return r.bytes, dir.Check(id)
}

func noCharges(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrNoCharges, err)
	}
	return err
}

// parseAddresses reads the range at the start of a line of /proc/PID/maps.
func parseAddresses(line string) (from, to uint64, err error) {
	head, _, _ := strings.Cut(line, " ")
	a, b, ok := strings.Cut(head, "-")
	if !ok {
		return 0, 0, fmt.Errorf("%q is no address range", head)
	}
	if from, err = strconv.ParseUint(a, 16, 64); err == nil {
		to, err = strconv.ParseUint(b, 16, 64)
	}
	if err == nil && to < from {
		err = fmt.Errorf("%q ends before it begins", head)
	}
	return from, to, err
}

// chargeReader adds up the pages of address ranges by group.
type chargeReader struct {
	pages, groups, flags io.ReaderAt
	page                 uint64
	frames               []uint64 // to look up
	bytes                map[uint64]int64
	buffer               []byte
	block                hugeBlock // the one that was looked at last
}

// hugeBlock is what is known of as many frames as a huge page has.
type hugeBlock struct {
	first         uint64
	flags, groups []uint64
}

// read reads entries of a file of 64-bit words; fewer at its end.
func (r *chargeReader) read(f io.ReaderAt, first uint64, count int) ([]uint64, error) {
	if need := count * pagemapEntry; len(r.buffer) < need {
		r.buffer = make([]byte, need)
	}
	n, err := f.ReadAt(r.buffer[:count*pagemapEntry], int64(first)*pagemapEntry)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	words := make([]uint64, n/pagemapEntry)
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(r.buffer[i*pagemapEntry:])
	}
	return words, nil
}

// add takes in the pages between two addresses. What is not user space's, as [vsyscall], has no entries.
func (r *chargeReader) add(ctx context.Context, from, to uint64) error {
	const step = 32 << 10 // entries of one read
	for first, last := from/r.page, to/r.page; first < last && first < 1<<51; {
		if err := ctx.Err(); err != nil {
			return err
		}
		words, err := r.read(r.pages, first, int(min(step, last-first)))
		if err != nil {
			return err
		}
		if len(words) == 0 {
			return nil
		}
		for _, w := range words {
			if w&pagemapPresent == 0 {
				continue
			}
			if w&pagemapFrame == 0 {
				return fmt.Errorf("%w: the page frames are hidden without CAP_SYS_ADMIN", ErrNoCharges)
			}
			r.frames = append(r.frames, w&pagemapFrame)
		}
		if len(r.frames) >= pagemapBatch {
			if err := r.flush(); err != nil {
				return err
			}
		}
		first += uint64(len(words))
	}
	return nil
}

// flush looks up the groups of the frames that were found, those near each other in one read.
func (r *chargeReader) flush() error {
	slices.Sort(r.frames)
	for i := 0; i < len(r.frames); {
		first, n := r.frames[i], i+1
		for n < len(r.frames) && r.frames[n]-r.frames[n-1] <= frameGap && r.frames[n]-first < pagemapBatch {
			n++
		}
		words, err := r.read(r.groups, first, int(r.frames[n-1]-first)+1)
		if err != nil {
			return err
		}
		for _, f := range r.frames[i:n] {
			at := f - first
			if at >= uint64(len(words)) {
				continue
			}
			group := words[at]
			if group == 0 {
				if group, err = r.ofHugePage(f); err != nil {
					return err
				}
			}
			r.bytes[group] += int64(r.page)
		}
		i = n
	}
	r.frames = r.frames[:0]
	return nil
}

// ofHugePage gives the group of the huge page that a frame is a later part of; 0 when it is none.
func (r *chargeReader) ofHugePage(frame uint64) (uint64, error) {
	first := frame &^ (hugeFrames - 1)
	if r.block.flags == nil || r.block.first != first {
		flags, err := r.read(r.flags, first, hugeFrames)
		if err != nil {
			return 0, err
		}
		groups, err := r.read(r.groups, first, hugeFrames)
		if err != nil {
			return 0, err
		}
		r.block = hugeBlock{first, flags, groups}
	}
	at := int(frame - first)
	if at >= len(r.block.flags) || r.block.flags[at]&compoundTail == 0 {
		return 0, nil
	}
	for ; at >= 0; at-- {
		if r.block.flags[at]&compoundHead != 0 && at < len(r.block.groups) {
			return r.block.groups[at], nil
		}
	}
	return 0, nil
}

package record

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The files of a record are named after the time at which they begin, in milliseconds since 1970.
const (
	sealedEnd = ".seg"  // a sealed segment
	thinEnd   = ".thin" // one of which a reading in a minute is left
	openEnd   = ".open" // openMagic, then ticks as they came, each behind its length and its CRC-32C (little endian)
	newEnd    = ".new"  // a sealed segment that is being written
)

// openMagic begins an open segment.
const openMagic = "bhtick\x01\n"

// mostTick bounds one tick, and mostSpan the time from the first tick of a file to its last one.
const (
	mostTick = 2 << 20
	mostSpan = time.Hour
)

// gapFrom is the shortest gap that is told.
const gapFrom = 2 * time.Minute

// entry is one file of a record.
type entry struct {
	name string
	from int64
	size int64
	// whole says that it cannot be thinned.
	whole bool
}

func (e *entry) sealed() bool { return strings.HasSuffix(e.name, sealedEnd) || e.thinned() }

func (e *entry) thinned() bool { return strings.HasSuffix(e.name, thinEnd) }

// later gives the file that a recorder makes of one; false when there is none.
func (e *entry) later() (name string, is bool) {
	switch {
	case e.thinned():
		return "", false
	case e.sealed():
		return nameOf(e.from, thinEnd), true
	}
	return nameOf(e.from, sealedEnd), true
}

func nameOf(from int64, end string) string { return fmt.Sprintf("%013d%s", from, end) }

// list gives the files of a record, the oldest first, and those that a crash has left half written.
func list(dir *os.Root) (all []entry, left []string, err error) {
	names, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, nil, err
	}
	for _, d := range names {
		number, _, _ := strings.Cut(d.Name(), ".")
		from, err := strconv.ParseInt(number, 10, 64)
		info, gone := d.Info()
		if err != nil || gone != nil || !d.Type().IsRegular() {
			continue
		}
		switch path.Ext(d.Name()) {
		case sealedEnd, openEnd, thinEnd:
			all = append(all, entry{name: d.Name(), from: from, size: info.Size()})
		case newEnd:
			left = append(left, d.Name())
		}
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.name, a.name)) // what was made of it first
	})
	for i := len(all) - 1; i > 0; i-- {
		if all[i].from == all[i-1].from { // a crash came between making it and taking the one before away
			left = append(left, all[i].name)
			all = slices.Delete(all, i, i+1)
		}
	}
	return all, left, nil
}

// openTicks gives the ticks of an open segment, as they were written, up to the first that is not whole or not as it
// was written.
func openTicks(text []byte, do func(tick []byte) error) error {
	if !strings.HasPrefix(string(text[:min(len(text), len(openMagic))]), openMagic) {
		if len(text) < len(openMagic) {
			return nil // a crash came before the first tick
		}
		return errOther
	}
	text = text[len(openMagic):]
	for len(text) >= 8 {
		n := binary.LittleEndian.Uint32(text)
		if n > mostTick || int(n) > len(text)-8 {
			return nil
		}
		tick := text[8 : 8+n]
		if crc32.Checksum(tick, castagnoli) != binary.LittleEndian.Uint32(text[4:]) {
			return nil
		}
		if err := do(tick); err != nil {
			return nil //nolint:nilerr // as a tick whose checksum is wrong
		}
		text = text[8+n:]
	}
	return nil
}

// frameTick puts length and checksum before a tick.
func frameTick(b []byte, tick func([]byte) []byte) []byte {
	at := len(b)
	b = tick(append(b, make([]byte, 8)...))
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-8))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(b[at+8:], castagnoli))
	return b
}

// sealText makes a sealed segment of an open one; nil when that has no tick.
func sealText(text []byte) ([]byte, error) {
	var c converter
	if err := openTicks(text, c.add); err != nil || len(c.times) == 0 {
		return nil, err
	}
	return c.seal()
}

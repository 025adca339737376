package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Before is how much time before a moment has to be read so that all that was known then is told: two readings of the
// slowest collector, also when it costs so much that it reads four times less often.
const Before = 10 * time.Minute

// ErrDamaged says that bytes are not as they were written.
var ErrDamaged = errors.New("the record is damaged")

// SegmentsType is the media type of segments that Open gives.
const SegmentsType = "application/vnd.bulkhead.record"

// Open gives the segments of a record that have ticks between two times, both included, the oldest first, for Walk,
// Segments and At. name is the directory of a recorder, or a file that Write wrote, which is given whole. What a
// recorder takes away meanwhile is left out, and so is a file that is cut off. The caller closes what it gets.
func Open(name string, from, to time.Time) (io.ReadCloser, error) {
	info, err := os.Stat(name)
	if err == nil && !info.IsDir() {
		return os.Open(name)
	}
	dir, err := os.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("read the record: %w", err)
	}
	all, _, err := list(dir)
	if err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("read the record: %w", err)
	}
	all = slices.DeleteFunc(all, func(e entry) bool {
		return e.from > to.UnixMilli() || e.from+mostSpan.Milliseconds() < from.UnixMilli()
	})
	return &directory{Root: dir, left: all, now: strings.NewReader("")}, nil
}

// directory reads the files of a record as segments that follow each other.
type directory struct {
	*os.Root

	left []entry
	now  io.Reader
}

func (d *directory) Read(b []byte) (int, error) {
	for {
		n, err := d.now.Read(b)
		if n > 0 || !errors.Is(err, io.EOF) || len(d.left) == 0 {
			return n, err
		}
		d.now = strings.NewReader(segment(d.Root, d.left[0]))
		d.left = d.left[1:]
	}
}

// segment gives a file of a record as a sealed segment; "" when there is none in it.
func segment(dir *os.Root, e entry) string {
	text, sealed, err := load(dir, e)
	if err == nil && !sealed {
		text, err = sealText(text)
	}
	if err != nil || len(text) < headSize ||
		int64(len(text)) != int64(headSize)+int64(binary.LittleEndian.Uint32(text[len(magic):])) {
		return ""
	}
	return string(text)
}

// load reads a file of a record.
func load(dir *os.Root, e entry) (text []byte, sealed bool, err error) {
	f, err := dir.Open(e.name)
	for errors.Is(err, fs.ErrNotExist) { // it was sealed or thinned meanwhile
		name, is := e.later()
		if !is {
			break
		}
		e.name = name
		f, err = dir.Open(e.name)
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, mostFile))
	return text, e.sealed(), err
}

// Segments reads segments that follow each other, and gives those that have ticks between two times. One that is
// damaged is left out; the error, which is ErrDamaged, comes when the others were given.
func Segments(segments io.Reader, from, to time.Time, do func(*Segment) error) error {
	var damaged error
	for {
		s, err := readSegment(segments, from, to)
		switch {
		case errors.Is(err, io.EOF):
			return damaged
		case errors.Is(err, errOne):
			damaged = err
		case err != nil:
			return fmt.Errorf("read the record: %w", err)
		case s != nil:
			if err := do(s); err != nil {
				return err
			}
		}
	}
}

// Walk reads segments that follow each other, and gives the ticks between two times, both included, in the order in
// which they were taken: their times go back where the clock was set back. It ends like Segments.
func Walk(segments io.Reader, from, to time.Time, do func(Tick) error) error {
	return Segments(segments, from, to, func(s *Segment) error {
		for i := range s.Ticks {
			if at := s.At(i); at.Before(from) || at.After(to) {
				continue
			}
			if err := do(s.Tick(i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// At gives what was known at a time: the last reading of each collector until then, none that is older than Before. The
// tick's time is that of the last one; it is zero when nothing is known. It ends like Segments.
func At(segments io.Reader, at time.Time) (known Tick, err error) {
	err = Walk(segments, at.Add(-Before), at, func(t Tick) error {
		known = known.With(t)
		return nil
	})
	return known, err
}

// With is what is known after a later tick, too: the last reading of each collector. The tick it is called on is not
// used any more.
func (t Tick) With(later Tick) Tick {
	for _, p := range later.Parts {
		t.Parts = append(slices.DeleteFunc(t.Parts, func(old Part) bool { return old.Name == p.Name }), p)
	}
	t.At = later.At
	return t
}

// Write writes ticks as sealed segments that follow each other: a file for Open.
func Write(w io.Writer, ticks func(yield func(Tick) error) error) error {
	var c converter
	write := func() error {
		text, err := c.seal()
		if err == nil {
			_, err = w.Write(text)
		}
		c = converter{}
		return err
	}
	var e encoder
	err := ticks(func(t Tick) error {
		if err := c.add(e.append(nil, t)); err != nil || c.values < mostValues {
			return err
		}
		e = encoder{}
		return write()
	})
	if err == nil && len(c.times) > 0 {
		err = write()
	}
	return err
}

// mostValues is how many figures Write puts into a segment.
const mostValues = 1 << 20

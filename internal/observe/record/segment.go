package record

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"time"

	"bulkhead/internal/observe"
)

// Head is what is known of a sealed segment without reading it.
type Head struct {
	From, To      time.Time // the first and the last tick by the clock
	Ticks, Values int
	Size          int64 // of the segment in bytes
}

// What a segment may be: several times as large as one that is written, so that a damaged one, or one that somebody has
// made up, takes no more memory than that.
const (
	mostFile    = 8 << 20  // bytes of a file
	mostBody    = 16 << 20 // bytes before they are compressed
	mostFigures = 4 << 20
	mostColumns = 1 << 17
	mostKeys    = 16 << 20 // bytes of all keys
)

// errOne says that one segment is damaged, and that the next one can be read.
var errOne = fmt.Errorf("%w: a part of it is left out", ErrDamaged)

var errOther = errors.New("it is no record of bulkhead, or one of a later version")

// readHead reads the begin of a segment, of which it gives all but the magic, the length and the checksum. io.EOF:
// there is none.
func readHead(r io.Reader) (h Head, sum uint32, begin []byte, err error) {
	var fixed [headSize]byte
	switch n, err := io.ReadFull(r, fixed[:]); {
	case errors.Is(err, io.EOF):
		return h, 0, nil, io.EOF
	case string(fixed[:min(n, len(magic))]) != magic[:min(n, len(magic))]:
		return h, 0, nil, errOther
	case err != nil:
		return h, 0, nil, cutOff(err)
	}
	size := binary.LittleEndian.Uint32(fixed[len(magic):])
	if size > mostFile {
		return h, 0, nil, ErrDamaged
	}
	h.Size = int64(size) + int64(headSize)
	begin = make([]byte, min(size, 4*binary.MaxVarintLen64))
	if _, err := io.ReadFull(r, begin); err != nil {
		return h, 0, nil, cutOff(err)
	}
	in := &input{b: begin}
	h.From, h.To = time.UnixMilli(in.varint()).UTC(), time.UnixMilli(in.varint()).UTC()
	h.Ticks, h.Values = in.upTo(mostFigures), in.upTo(mostFigures)
	if in.err != nil || h.Ticks == 0 || h.To.Before(h.From) {
		return h, 0, nil, ErrDamaged
	}
	return h, binary.LittleEndian.Uint32(fixed[len(magic)+4:]), begin, nil
}

// cutOff says that the bytes have ended too early, unless something else was wrong.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: its end is missing", ErrDamaged)
	}
	return err
}

// readSegment reads the next sealed segment; nil when it has no tick between two times. io.EOF: there is none. After
// errOne the one behind it can be read.
func readSegment(r io.Reader, from, to time.Time) (*Segment, error) {
	h, sum, begin, err := readHead(r)
	if err != nil {
		return nil, err
	}
	rest := h.Size - int64(headSize+len(begin))
	if h.To.Before(from) || h.From.After(to) {
		if _, err := io.CopyN(io.Discard, r, rest); err != nil {
			return nil, cutOff(err)
		}
		return nil, nil //nolint:nilnil // as said
	}
	text := bytes.NewBuffer(begin) // not made at once: the length may be damaged
	if _, err := io.CopyN(text, r, rest); err != nil {
		return nil, cutOff(err)
	}
	if crc32.Checksum(text.Bytes(), castagnoli) != sum {
		return nil, errOne
	}
	in := &input{b: text.Bytes()}
	for range 4 { // what readHead has read
		in.uvarint()
	}
	body, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(in.b)), mostBody))
	if err != nil {
		return nil, errOne
	}
	s := &Segment{Head: h}
	if err := s.read(body); err != nil {
		return nil, errOne
	}
	return s, nil
}

// Segment is a sealed segment that was read. It is not changed, and may be read from any goroutine.
type Segment struct {
	Head

	times []int64
	parts []segmentPart
}

type segmentPart struct {
	name    observe.Part
	ticks   []int // that have a reading, ascending
	ages    []int64
	columns []segmentColumn
}

// segmentColumn has the values of one figure, one after the other.
type segmentColumn struct {
	key    Key
	spans  []span
	scaled []scaled
	values []int64
}

// span says that a column is in n readings of its part, from one on, and where the values of these begin.
type span struct{ first, n, at int }

// scaled says up to which value a scale is that of a column.
type scaled struct{ end, scale int }

func (s *Segment) read(body []byte) error {
	in := &input{b: body}
	last := int64(0)
	for range in.within(uint64(s.Ticks), uint64(len(body))) {
		last += in.varint()
		s.times = append(s.times, last)
	}
	l := left{values: s.Values, columns: mostColumns, keys: mostKeys}
	for range in.number() {
		p := s.part(in, &l)
		if in.err != nil {
			return in.err
		}
		s.parts = append(s.parts, p)
	}
	if len(in.b) > 0 || l.values > 0 {
		return ErrDamaged
	}
	return in.err
}

// left is what the rest of a segment may have.
type left struct{ values, columns, keys int }

// part reads a part of a segment.
func (s *Segment) part(in *input, left *left) segmentPart {
	p := segmentPart{name: observe.Part(in.text())}
	n := in.number()
	at := uint64(0)
	for i := range n {
		step := in.uvarint()
		if at += step; step > uint64(len(s.times)) || at >= uint64(len(s.times)) || step == 0 && i > 0 {
			in.fail()
			return p
		}
		p.ticks = append(p.ticks, int(at))
	}
	for range n {
		p.ages = append(p.ages, in.varint())
	}
	key := ""
	for range in.number() {
		same, text := in.upTo(uint64(len(key))), in.text()
		if left.columns, left.keys = left.columns-1, left.keys-same-len(text); left.columns < 0 || left.keys < 0 {
			in.fail()
			return p
		}
		key = key[:same] + text
		c := segmentColumn{key: Key(key)}
		c.read(in, n, left)
		if in.err != nil {
			return p
		}
		p.columns = append(p.columns, c)
	}
	return p
}

// read reads a column of n readings.
func (c *segmentColumn) read(in *input, n int, left *left) {
	at, there := 0, 0
	for i := range in.number() {
		length := in.upTo(uint64(n - at))
		if length == 0 && i > 0 {
			in.fail()
			return
		}
		if i%2 == 1 {
			c.spans = append(c.spans, span{first: at, n: length, at: there})
			there += length
		}
		at += length
	}
	if left.values -= there; left.values < 0 {
		in.fail()
		return
	}
	end := 0
	for range in.number() {
		before := end
		if end += in.upTo(uint64(there - end)); end == before {
			in.fail()
			return
		}
		c.scaled = append(c.scaled, scaled{end: end, scale: in.upTo(uint64(len(scales))) - 1})
	}
	if end < there {
		in.fail()
		return
	}
	for _, r := range c.scaled {
		c.readValues(in, r.end-len(c.values))
	}
}

// readValues reads n values of one scale.
func (c *segmentColumn) readValues(in *input, n int) {
	how := in.byte()
	last, slope := column{}, int64(0)
	if how == byBits {
		last.scale = -1
	}
	for i := range n {
		if in.err != nil {
			return
		}
		switch how {
		case byBits, byValue:
			last.value(in)
		case bySlope:
			slope += in.varint()
			last.last += slope
		case byNothing:
			if i == 0 {
				last.value(in)
			}
		default:
			in.fail()
		}
		c.values = append(c.values, last.last)
	}
}

// at gives the value in a reading.
func (c *segmentColumn) at(reading int) (value float64, there bool) {
	i := sort.Search(len(c.spans), func(i int) bool { return c.spans[i].first > reading }) - 1
	if i < 0 || reading >= c.spans[i].first+c.spans[i].n {
		return 0, false
	}
	return c.value(c.spans[i].at + reading - c.spans[i].first), true
}

// value gives the value at a place among the values.
func (c *segmentColumn) value(i int) float64 {
	k := sort.Search(len(c.scaled), func(k int) bool { return c.scaled[k].end > i })
	return figure(c.values[i], c.scaled[k].scale)
}

// At is when a tick was taken, counted from 0 to Ticks-1.
func (s *Segment) At(i int) time.Time { return time.UnixMilli(s.times[i]).UTC() }

// Tick gives one tick, in the order in which they were taken.
func (s *Segment) Tick(i int) Tick { return s.Last(i, i+1) }

// Last gives the last reading of each collector in the ticks from first on, up to the one before end, whose time it
// has.
func (s *Segment) Last(first, end int) Tick {
	t := Tick{At: s.At(end - 1)}
	for k := range s.parts {
		from := &s.parts[k]
		reading := sort.SearchInts(from.ticks, end) - 1
		if reading < 0 || from.ticks[reading] < first {
			continue
		}
		p := Part{Name: from.name, Read: time.UnixMilli(s.times[from.ticks[reading]] - from.ages[reading]).UTC(),
			Figures: make([]Figure, 0, len(from.columns))}
		for j := range from.columns {
			if value, there := from.columns[j].at(reading); there {
				p.Figures = append(p.Figures, Figure{from.columns[j].key, value})
			}
		}
		t.Parts = append(t.Parts, p)
	}
	return t
}

// Columns gives every figure of the segment with its values, in the order of their keys within a collector.
func (s *Segment) Columns(do func(key Key, each func(tell func(at time.Time, value float64)))) {
	for k := range s.parts {
		p := &s.parts[k]
		for j := range p.columns {
			c := &p.columns[j]
			do(c.key, func(tell func(at time.Time, value float64)) {
				for _, span := range c.spans {
					for i := range span.n {
						tell(s.At(p.ticks[span.first+i]), c.value(span.at+i))
					}
				}
			})
		}
	}
}

package record

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"bulkhead/internal/observe"
)

// A sealed segment has its ticks by column, compressed. A file of the record has one, and the file that is sent to
// somebody has several, one after the other:
//
//	magic    8 bytes
//	length   4 bytes, little endian, of all that follows the checksum
//	checksum 4 bytes, little endian, CRC-32C of that
//	from, to varints, milliseconds since 1970: the first and the last tick by the clock
//	ticks    uvarint
//	values   uvarint, how many figures there are in all
//	body     compressed by deflate (RFC 1951)
//
// The body:
//
//	times    of each tick, a zig-zag varint of the difference to the one before
//	parts    uvarint; for each its name, in how many ticks it is, which (uvarints of the difference to the one
//	         before), the ages of its readings (zig-zag varints), and its columns, sorted by key
//	column   key: uvarint of how many bytes are those of the key before, then the rest as a text; in which readings of
//	         the part it is: uvarint, then lengths in turn of absence and presence; scales: uvarint, then for each how
//	         many values have it and 0 for bits or 1 + the scale; values
//	values   of each scale: a byte that says how, and the values
const magic = "bhrec\x00\x01\n"

const headSize = len(magic) + 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// How values are written.
const (
	byBits    = 0 // of numbers that are no whole ones: uvarint of the reversed difference (xor)
	byValue   = 1 // zig-zag varint of the difference to the value before
	bySlope   = 2 // zig-zag varint of the difference of that to the difference before
	byNothing = 3 // they are all like the first, which is a zig-zag varint
)

// run are values of one scale.
type run struct {
	scale  int
	values []byte // zig-zag varints
	n      int
}

// sealedColumn collects a column of a segment.
type sealedColumn struct {
	key      Key
	presence []int // lengths in turn of absence and presence
	seen     int   // readings of its part that presence covers
	runs     []run
	last     int64 // so that what is collected is small
}

type sealedPart struct {
	name    observe.Part
	ticks   []int
	ages    []int64
	columns []*sealedColumn
	at      map[Key]int
}

// sealer collects ticks and makes a sealed segment of them.
type sealer struct {
	times  []int64
	parts  []*sealedPart
	values int
}

// converter makes a sealed segment of what an encoder wrote.
type converter struct {
	decoder
	sealer
}

// add adds a tick; one that cannot be read changes nothing.
func (c *converter) add(tick []byte) error {
	at, parts, err := c.next(tick)
	if err == nil {
		c.sealer.add(c.decoder.parts, at, parts)
	}
	return err
}

// add adds a tick. from has the names of what was decoded.
func (s *sealer) add(from []*part, at int64, parts []read) {
	s.times = append(s.times, at)
	for _, r := range parts {
		s.read(from[r.part], r)
	}
}

func (s *sealer) read(from *part, r read) {
	i := slices.IndexFunc(s.parts, func(p *sealedPart) bool { return p.name == from.name })
	if i < 0 {
		i = len(s.parts)
		s.parts = append(s.parts, &sealedPart{name: from.name, at: map[Key]int{}})
	}
	p := s.parts[i]
	reading := len(p.ticks)
	p.ticks, p.ages = append(p.ticks, len(s.times)-1), append(p.ages, r.age)
	for i, c := range r.which {
		key := from.columns[c].key
		at, there := p.at[key]
		if !there {
			at = len(p.columns)
			p.at[key] = at
			p.columns = append(p.columns, &sealedColumn{key: key})
		}
		p.columns[at].add(reading, from.columns[c].scale, r.values[i])
	}
	s.values += len(r.which)
}

// add adds a value of one reading.
func (c *sealedColumn) add(reading, scale int, value int64) {
	if absent := reading - c.seen; absent > 0 || len(c.presence) == 0 {
		c.presence = append(c.presence, absent, 0)
	}
	c.presence[len(c.presence)-1]++
	c.seen = reading + 1
	if len(c.runs) == 0 || c.runs[len(c.runs)-1].scale != scale {
		c.runs, c.last = append(c.runs, run{scale: scale}), 0
	}
	r := &c.runs[len(c.runs)-1]
	r.values = binary.AppendVarint(r.values, value-c.last)
	r.n++
	c.last = value
}

// each gives the values of a run.
func (r *run) each(do func(value int64)) {
	last, rest := int64(0), r.values
	for range r.n {
		step, size := binary.Varint(rest)
		rest = rest[size:]
		last += step
		do(last)
	}
}

// append appends the values in the shortest way.
func (r *run) append(b []byte) []byte {
	if r.scale < 0 {
		b = append(b, byBits)
		c := column{scale: -1}
		r.each(func(n int64) { b = c.append(b, n) })
		return b
	}
	var values, slopes []byte
	last, slope, constant := int64(0), int64(0), true
	i := 0
	r.each(func(n int64) {
		constant = constant && (i == 0 || n == last)
		i++
		values = binary.AppendVarint(values, n-last)
		slopes = binary.AppendVarint(slopes, n-last-slope)
		last, slope = n, n-last
	})
	switch {
	case constant:
		return binary.AppendVarint(append(b, byNothing), last)
	case len(slopes) < len(values):
		return append(append(b, bySlope), slopes...)
	}
	return append(append(b, byValue), values...)
}

// seal gives the segment.
func (s *sealer) seal() ([]byte, error) {
	columns := 0
	for _, p := range s.parts {
		columns += len(p.columns)
	}
	body := s.body()
	if len(body) > mostBody || s.values > mostFigures || columns > mostColumns {
		return nil, fmt.Errorf("a segment of %d figures of %d names is too large", s.values, columns)
	}
	return pack(slices.Min(s.times), slices.Max(s.times), len(s.times), s.values, body)
}

// pack makes a segment of its body.
func pack(from, to int64, ticks, values int, body []byte) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, headSize, headSize+len(body)/3))
	head := binary.AppendVarint(nil, from)
	head = binary.AppendVarint(head, to)
	head = binary.AppendUvarint(head, uint64(ticks))
	head = binary.AppendUvarint(head, uint64(values))
	_, _ = out.Write(head)
	w, err := flate.NewWriter(out, flate.DefaultCompression)
	if err == nil {
		_, err = w.Write(body)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("compress a segment of the record: %w", err)
	}
	text := out.Bytes()
	copy(text, magic)
	binary.LittleEndian.PutUint32(text[len(magic):], uint32(len(text)-headSize))
	binary.LittleEndian.PutUint32(text[len(magic)+4:], crc32.Checksum(text[headSize:], castagnoli))
	return text, nil
}

// body is what is compressed.
func (s *sealer) body() (b []byte) {
	last := int64(0)
	for _, at := range s.times {
		b = binary.AppendVarint(b, at-last)
		last = at
	}
	b = binary.AppendUvarint(b, uint64(len(s.parts)))
	for _, p := range s.parts {
		b = appendText(b, string(p.name))
		b = binary.AppendUvarint(b, uint64(len(p.ticks)))
		before := 0
		for _, at := range p.ticks {
			b = binary.AppendUvarint(b, uint64(at-before))
			before = at
		}
		for _, age := range p.ages {
			b = binary.AppendVarint(b, age)
		}
		slices.SortFunc(p.columns, func(a, b *sealedColumn) int { return cmp.Compare(a.key, b.key) })
		b = binary.AppendUvarint(b, uint64(len(p.columns)))
		key := Key("")
		for _, c := range p.columns {
			same := 0
			for same < min(len(key), len(c.key)) && key[same] == c.key[same] {
				same++
			}
			b = appendText(binary.AppendUvarint(b, uint64(same)), string(c.key[same:]))
			key = c.key
			b = c.append(b)
		}
	}
	return b
}

func (c *sealedColumn) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(c.presence)))
	for _, n := range c.presence {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = binary.AppendUvarint(b, uint64(len(c.runs)))
	for _, r := range c.runs {
		b = binary.AppendUvarint(b, uint64(r.n))
		b = binary.AppendUvarint(b, uint64(1+r.scale))
	}
	for i := range c.runs {
		b = c.runs[i].append(b)
	}
	return b
}

package record

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"time"

	"bulkhead/internal/observe"
)

// A tick as it is written to the open segment:
//
//	time       zig-zag varint, milliseconds since the tick before (the first: since 1970)
//	parts      uvarint, their number; then for each
//	  part     uvarint, its number in this segment; a new one has the next number, and its name follows
//	  read     zig-zag varint, milliseconds from the reading to the tick
//	  columns  uvarint, how many are new; then the key of each
//	  which    0: the same as in the last reading of the part; else 1 + their number, and for each its number in the
//	           part, as a zig-zag varint of the difference to the one before + 1
//	  scales   uvarint, how many change; then for each its place among the columns, and 0 for bits or 1 + the scale
//	  values   whole numbers as zig-zag varints of the difference to the column's last one; bits as uvarint of the
//	           reversed difference (xor) to the column's last ones
//
// Texts have their length before them. Everything counts from the begin of the segment.

// column is one figure over a segment.
type column struct {
	key   Key
	scale int // -1: bits
	last  int64
}

// part is a collector in a segment.
type part struct {
	name    observe.Part
	columns []column
	which   []int // the columns of the last reading
	// What only an encoder has: where a key is in columns, and in which of its ticks a column was last.
	at   map[Key]int
	seen []int
}

// encoder writes ticks. It keeps what came before.
type encoder struct {
	last  int64
	parts []*part
	ticks int
}

// append appends one tick.
func (e *encoder) append(b []byte, t Tick) []byte {
	at := t.At.UnixMilli()
	b = binary.AppendVarint(b, at-e.last)
	e.last = at
	e.ticks++
	b = binary.AppendUvarint(b, uint64(len(t.Parts)))
	for i := range t.Parts {
		b = e.part(b, t.At, &t.Parts[i])
	}
	return b
}

func (e *encoder) part(b []byte, at time.Time, told *Part) []byte {
	number := slices.IndexFunc(e.parts, func(p *part) bool { return p.name == told.Name })
	if number < 0 {
		number = len(e.parts)
		e.parts = append(e.parts, &part{name: told.Name, at: map[Key]int{}})
		b = appendText(binary.AppendUvarint(b, uint64(number)), string(told.Name))
	} else {
		b = binary.AppendUvarint(b, uint64(number))
	}
	p := e.parts[number]
	b = binary.AppendVarint(b, at.UnixMilli()-told.Read.UnixMilli())
	which, values, known := make([]int, 0, len(told.Figures)), make([]float64, 0, len(told.Figures)), len(p.columns)
	for _, f := range told.Figures {
		c, there := p.at[f.Key]
		if !there {
			c = len(p.columns)
			p.at[f.Key] = c
			p.columns, p.seen = append(p.columns, column{key: f.Key}), append(p.seen, 0)
		}
		if p.seen[c] == e.ticks {
			continue // told twice
		}
		p.seen[c] = e.ticks
		which, values = append(which, c), append(values, f.Value)
	}
	b = binary.AppendUvarint(b, uint64(len(p.columns)-known))
	for _, c := range p.columns[known:] {
		b = appendText(b, string(c.key))
	}
	if slices.Equal(which, p.which) {
		b = append(b, 0)
	} else {
		b = binary.AppendUvarint(b, 1+uint64(len(which)))
		before := -1
		for _, c := range which {
			b = binary.AppendVarint(b, int64(c-before-1))
			before = c
		}
		p.which = which
	}
	numbers, changed := make([]int64, len(which)), []int{}
	for i, c := range which {
		col := &p.columns[c]
		n, scale := whole(values[i], col.scale)
		if col.scale < 0 || scale >= 0 && figure(n, scale) != values[i] {
			scale = -1
		}
		if scale != col.scale {
			changed = append(changed, i)
			col.scale, col.last = scale, 0
		}
		if numbers[i] = n; scale < 0 {
			numbers[i] = int64(math.Float64bits(values[i]))
		}
	}
	b = binary.AppendUvarint(b, uint64(len(changed)))
	for _, i := range changed {
		b = binary.AppendUvarint(b, uint64(i))
		b = binary.AppendUvarint(b, uint64(1+p.columns[which[i]].scale))
	}
	for i, c := range which {
		b = p.columns[c].append(b, numbers[i])
	}
	return b
}

// append appends a value in the column's scale.
func (c *column) append(b []byte, n int64) []byte {
	if c.scale < 0 {
		b = binary.AppendUvarint(b, bits.ReverseBytes64(uint64(n^c.last)))
	} else {
		b = binary.AppendVarint(b, n-c.last)
	}
	c.last = n
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// input reads what was encoded. After an error it gives zeros, and err says so.
type input struct {
	b   []byte
	err error
}

func (in *input) uvarint() uint64 {
	n, size := binary.Uvarint(in.b)
	return in.took(n, size)
}

func (in *input) varint() int64 {
	n, size := binary.Varint(in.b)
	return int64(in.took(uint64(n), size))
}

func (in *input) took(n uint64, size int) uint64 {
	if size <= 0 {
		in.fail()
		return 0
	}
	in.b = in.b[size:]
	return n
}

// number reads how many things follow, of at least a byte each.
func (in *input) number() int {
	n := in.uvarint()
	return in.within(n, uint64(len(in.b)))
}

// upTo reads a number of at most that much.
func (in *input) upTo(most uint64) int { return in.within(in.uvarint(), most) }

func (in *input) within(n, most uint64) int {
	if n > most {
		in.fail()
		return 0
	}
	return int(n)
}

// fail ends the reading.
func (in *input) fail() { in.b, in.err = nil, ErrDamaged }

func (in *input) byte() byte {
	if len(in.b) == 0 {
		in.fail()
		return 0
	}
	first := in.b[0]
	in.b = in.b[1:]
	return first
}

func (in *input) text() string {
	n := in.number()
	text := string(in.b[:n])
	in.b = in.b[n:]
	return text
}

// value reads a value of a column.
func (c *column) value(in *input) int64 {
	if c.scale < 0 {
		c.last ^= int64(bits.ReverseBytes64(in.uvarint()))
	} else {
		c.last += in.varint()
	}
	return c.last
}

// figure is the value of a column as a figure.
func figure(n int64, scale int) float64 {
	if scale < 0 {
		return math.Float64frombits(uint64(n))
	}
	return float64(n) / scales[scale]
}

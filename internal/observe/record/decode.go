package record

import (
	"time"

	"bulkhead/internal/observe"
)

// decoder reads ticks as an encoder has written them.
type decoder struct {
	last  int64
	parts []*part
}

// read is one reading as it was decoded: values[i] is that of the column which[i] of the part, in its scale now.
type read struct {
	part   int
	age    int64 // milliseconds
	which  []int
	values []int64
}

// next reads one tick. Nothing of it holds on to b.
func (d *decoder) next(b []byte) (at int64, parts []read, err error) {
	in := &input{b: b}
	d.last += in.varint()
	for range in.number() {
		parts = append(parts, d.part(in))
		if in.err != nil {
			return 0, nil, in.err
		}
	}
	if len(in.b) > 0 {
		return 0, nil, ErrDamaged
	}
	return d.last, parts, in.err
}

func (d *decoder) part(in *input) (r read) {
	r.part = in.upTo(uint64(len(d.parts)))
	if r.part == len(d.parts) {
		d.parts = append(d.parts, &part{name: observe.Part(in.text())})
	}
	p := d.parts[r.part]
	r.age = in.varint()
	for range in.number() {
		p.columns = append(p.columns, column{key: Key(in.text())})
	}
	if n := in.uvarint(); n > 0 {
		p.which = d.which(in, n-1, len(p.columns))
	}
	r.which = p.which
	for range in.number() {
		i, scale := in.uvarint(), in.upTo(uint64(len(scales)))
		if i >= uint64(len(r.which)) {
			in.fail()
			return r
		}
		c := &p.columns[r.which[i]]
		c.scale, c.last = scale-1, 0
	}
	if len(r.which) > len(in.b) {
		in.fail()
		return r
	}
	r.values = make([]int64, len(r.which))
	for i, c := range r.which {
		r.values[i] = p.columns[c].value(in)
	}
	return r
}

// which reads which of so many columns follow.
func (d *decoder) which(in *input, n uint64, columns int) []int {
	if n > uint64(len(in.b)) {
		in.fail()
		return nil
	}
	all := make([]int, n)
	at := int64(-1)
	for i := range all {
		at += 1 + in.varint()
		if at < 0 || at >= int64(columns) {
			in.fail()
			return nil
		}
		all[i] = int(at)
	}
	return all
}

// tick gives what was decoded with names and figures.
func (d *decoder) tick(at int64, parts []read) Tick {
	t := Tick{At: time.UnixMilli(at).UTC()}
	for _, r := range parts {
		from := d.parts[r.part]
		p := Part{Name: from.name, Read: time.UnixMilli(at - r.age).UTC(), Figures: make([]Figure, len(r.which))}
		for i, c := range r.which {
			p.Figures[i] = Figure{from.columns[c].key, figure(r.values[i], from.columns[c].scale)}
		}
		t.Parts = append(t.Parts, p)
	}
	return t
}

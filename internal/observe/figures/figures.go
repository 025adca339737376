// Package figures has what scrapers get of a sample, and brings it from the agent to `serve`: the figures of the rows
// of observe.Table, but of those that are for the record alone.
//
// They travel as a message of Protocol Buffers (https://protobuf.dev/programming-guides/encoding/), which is read and
// written here:
//
//	message Set {
//	  int64 at = 1;               // of the sample, in nanoseconds since 1970
//	  int64 age = 2;              // ns
//	  int64 every = 3;            // ns between two samples
//	  Layout layout = 4;
//	  repeated double values = 5; // packed: those of all figures, in the order of the layout
//	}
//	message Layout {
//	  repeated bytes texts = 1;   // all values of labels, each once
//	  repeated Row rows = 2;
//	}
//	message Row {
//	  string name = 1;
//	  repeated string labels = 2; // their names, those of a group too
//	  int64 figures = 3;          // how many there are
//	  repeated uint32 texts = 4;  // packed: for each figure the values of its labels, by their places in Layout.texts
//	}
//
// A row that the reader's table lacks, or has with other labels, is left out, and so are fields that it does not know:
// agent and `serve` may be of different versions.
//
// Sets and layouts are not changed after they were made, and may be read from any goroutine.
package figures

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"bulkhead/internal/observe"
)

// Type is the media type of a Set as it travels. Another message would have another one.
const Type = "application/vnd.bulkhead.figures"

// Set are the figures of one sample.
type Set struct {
	At    time.Time     // of the sample
	Age   time.Duration // since then, when the answer was given
	Every time.Duration // between two samples
	// Layout says what the Values are. Read gives samples that follow each other the same one, as long as it is.
	Layout *Layout
	Values []float64
}

// Layout says which figures there are.
type Layout struct {
	text  []byte   // as it travels
	texts []string // all values of labels
	rows  []row
}

// row are the figures of a row of the table.
type row struct {
	of      *observe.Row
	first   int // the place of its first one in Set.Values
	figures int
	texts   []uint32 // of each figure the values of its labels, by their places in Layout.texts
}

// Of gives the figures of a sample.
func Of(s *observe.Sample) *Set {
	set, all := &Set{At: s.At, Age: s.Age, Every: s.Every}, &Layout{}
	places := map[string]uint32{}
	place := func(text string) uint32 {
		at, known := places[text]
		if !known {
			at = uint32(len(all.texts))
			places[text], all.texts = at, append(all.texts, text)
		}
		return at
	}
	texts := make([]uint32, 0, 4096) // of all rows, one behind the other
	for i := range observe.Table {
		of := &observe.Table[i]
		if of.Recorded {
			continue
		}
		r := row{of: of, first: len(set.Values), texts: texts[len(texts):]}
		width := len(of.AllLabels())
		of.Each(s, func(value float64, labels ...string) {
			for _, label := range labels {
				at := len(r.texts) - width // of the same label of the figure before, which often has the same value
				if at < 0 || all.texts[r.texts[at]] != label {
					r.texts = append(r.texts, place(label))
				} else {
					r.texts = append(r.texts, r.texts[at])
				}
			}
			set.Values = append(set.Values, value)
		})
		texts = r.texts
		if r.figures = len(set.Values) - r.first; r.figures > 0 {
			all.rows = append(all.rows, r)
		}
	}
	all.text = all.append(nil)
	set.Layout = all
	return set
}

// Each tells the place in Set.Values of every figure of a row of the table, with its labels, in the order of the row's
// Each. The labels hold until it returns.
func (l *Layout) Each(of *observe.Row, tell func(at int, labels []string)) {
	for i := range l.rows {
		if r := &l.rows[i]; r.of == of {
			labels := make([]string, len(r.texts)/r.figures)
			for n := range r.figures {
				for i := range labels {
					labels[i] = l.texts[r.texts[n*len(labels)+i]]
				}
				tell(r.first+n, labels)
			}
			return
		}
	}
}

// Unless is the query of GET /v1/samples that asks for no more than the age of the sample while it is the last one; ""
// of nil.
func (s *Set) Unless() string {
	if s == nil {
		return ""
	}
	return "?unless=" + strconv.FormatInt(s.At.UnixNano(), 10)
}

// Aged is the same with another age.
func (s *Set) Aged(age time.Duration) *Set {
	one := *s
	one.Age = age
	return &one
}

// Numbers of the fields of each message.
const (
	setAt, setAge, setEvery, setLayout, setValues = 1, 2, 3, 4, 5
	layoutTexts, layoutRows                       = 1, 2
	rowName, rowLabels, rowFigures, rowTexts      = 1, 2, 3, 4
)

// ErrDamaged says that what was read is no Set.
var ErrDamaged = errors.New("the figures are damaged")

// Append appends the set as it travels.
func (s *Set) Append(b []byte) []byte {
	b = slices.Grow(b, len(s.Layout.text)+8*len(s.Values)+64)
	b = appendNumber(b, setAt, s.At.UnixNano())
	b = appendNumber(b, setAge, int64(s.Age))
	b = appendNumber(b, setEvery, int64(s.Every))
	b = protowire.AppendTag(b, setLayout, protowire.BytesType)
	b = protowire.AppendBytes(b, s.Layout.text)
	b = protowire.AppendTag(b, setValues, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(8*len(s.Values)))
	for _, value := range s.Values {
		b = protowire.AppendFixed64(b, math.Float64bits(value))
	}
	return b
}

func (l *Layout) append(b []byte) []byte {
	for _, text := range l.texts {
		b = appendText(b, layoutTexts, text)
	}
	var one []byte
	for i := range l.rows {
		one = l.rows[i].append(one[:0])
		b = protowire.AppendTag(b, layoutRows, protowire.BytesType)
		b = protowire.AppendBytes(b, one)
	}
	return b
}

func (r *row) append(b []byte) []byte {
	b = appendText(b, rowName, r.of.Name)
	for _, name := range r.of.AllLabels() {
		b = appendText(b, rowLabels, name)
	}
	b = appendNumber(b, rowFigures, int64(r.figures))
	size := 0
	for _, place := range r.texts {
		size += protowire.SizeVarint(uint64(place))
	}
	b = protowire.AppendTag(b, rowTexts, protowire.BytesType)
	b = slices.Grow(protowire.AppendVarint(b, uint64(size)), size)
	for _, place := range r.texts {
		b = protowire.AppendVarint(b, uint64(place))
	}
	return b
}

func appendNumber(b []byte, field protowire.Number, n int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(n))
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// Read reads a set as it travels. It shares the layout of the set that was read before, which may be nil, where it has
// the same one. Nothing of it holds on to b.
func Read(b []byte, had *Set) (*Set, error) {
	s := &Set{}
	var layout, values []byte
	err := fields(b, func(field protowire.Number, n uint64, of []byte) {
		switch field {
		case setAt:
			s.At = time.Unix(0, int64(n))
		case setAge:
			s.Age = time.Duration(n)
		case setEvery:
			s.Every = time.Duration(n)
		case setLayout:
			layout = of
		case setValues:
			values = of
		}
	})
	if err != nil {
		return nil, err
	}
	s.Values = make([]float64, 0, len(values)/8)
	for len(values) > 0 {
		value, size := protowire.ConsumeFixed64(values)
		if size < 0 {
			return nil, ErrDamaged
		}
		s.Values, values = append(s.Values, math.Float64frombits(value)), values[size:]
	}
	if had != nil && len(had.Values) == len(s.Values) && bytes.Equal(had.Layout.text, layout) {
		s.Layout = had.Layout
		return s, nil
	}
	s.Layout, err = readLayout(bytes.Clone(layout), len(s.Values))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// readLayout reads a layout of so many figures, and keeps b.
func readLayout(b []byte, figures int) (*Layout, error) {
	l := &Layout{text: b}
	var rows [][]byte
	err := fields(b, func(field protowire.Number, _ uint64, of []byte) {
		switch field {
		case layoutTexts:
			l.texts = append(l.texts, string(of))
		case layoutRows:
			rows = append(rows, of)
		}
	})
	if err != nil {
		return nil, err
	}
	first := 0
	for _, of := range rows {
		r, known, err := l.row(of, figures-first)
		if err != nil {
			return nil, err
		}
		r.first, first = first, first+r.figures
		if known {
			l.rows = append(l.rows, r)
		}
	}
	if first != figures {
		return nil, ErrDamaged
	}
	return l, nil
}

// row reads a row of at most so many figures; it is not known when the table has none of its name with its labels.
func (l *Layout) row(b []byte, most int) (r row, known bool, err error) {
	var labels []string
	var texts []byte
	err = fields(b, func(field protowire.Number, n uint64, of []byte) {
		switch field {
		case rowName:
			r.of = observe.RowOf(string(of))
		case rowLabels:
			labels = append(labels, string(of))
		case rowFigures:
			r.figures = int(min(n, math.MaxInt32))
		case rowTexts:
			texts = of
		}
	})
	if err != nil || r.figures < 1 || r.figures > most {
		return row{}, false, ErrDamaged
	}
	if r.of == nil || !slices.Equal(labels, r.of.AllLabels()) {
		return r, false, nil
	}
	r.texts = make([]uint32, 0, min(len(texts), r.figures*len(labels)))
	for len(texts) > 0 {
		place, size := protowire.ConsumeVarint(texts)
		if size < 0 || place >= uint64(len(l.texts)) {
			return row{}, false, ErrDamaged
		}
		r.texts, texts = append(r.texts, uint32(place)), texts[size:]
	}
	if len(r.texts) != len(labels)*r.figures {
		return row{}, false, ErrDamaged
	}
	return r, true, nil
}

// fields tells each field of a message that is a number or has bytes.
func fields(b []byte, tell func(field protowire.Number, n uint64, of []byte)) error {
	for len(b) > 0 {
		field, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return ErrDamaged
		}
		b = b[size:]
		var n uint64
		var of []byte
		switch kind {
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			of, size = protowire.ConsumeBytes(b)
		default:
			size = protowire.ConsumeFieldValue(field, kind, b)
		}
		if size < 0 {
			return ErrDamaged
		}
		tell(field, n, of)
		b = b[size:]
	}
	return nil
}

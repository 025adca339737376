package record

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"
)

// few are ticks of which a segment has all that it can have: figures that come and go, that change their scale, that
// are no numbers.
func few() (ticks []Tick) {
	for i := range 6 {
		at := time.UnixMilli(1_795_000_000_000 + int64(i)*5000)
		p := Part{Name: "cpu", Read: at, Figures: []Figure{{"a", float64(i)}, {"a\x00b", 0.1},
			{"c", math.Pi * float64(i)}}}
		if i%2 == 1 {
			p.Figures = append(p.Figures[1:], Figure{"a\x00b\x00c", math.NaN()})
		}
		ticks = append(ticks, Tick{At: at, Parts: []Part{p}})
	}
	return ticks
}

// crowded is the body of a segment in which everything is constant, which takes few bytes: so many names that differ in
// their ends, behind that many bytes which they have in common.
func crowded(ticks, columns, common int) []byte {
	s := sealer{times: make([]int64, ticks)}
	part := &sealedPart{name: "cpu"}
	for i := range ticks {
		part.ticks, part.ages = append(part.ticks, i), append(part.ages, 0)
	}
	name := strings.Repeat("a", common)
	for i := range columns {
		c := &sealedColumn{key: Key(fmt.Sprintf("%s%05d", name, i))}
		for i := range ticks {
			c.add(i, 0, 7)
		}
		part.columns = append(part.columns, c)
	}
	s.parts = []*sealedPart{part}
	return s.body()
}

// FuzzSegment reads what is behind a checksum that is right. It ends, and takes no more memory than what it reads and
// the figures that are told for it.
func FuzzSegment(f *testing.F) {
	var c converter
	if err := openTicks(text(few()), c.add); err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(6), uint16(c.values), c.body())
	f.Add(uint16(500), uint16(500*60), crowded(500, 60, 1))
	f.Add(uint16(5_000), uint16(1), crowded(5_000, 1000, 1)) // far more figures than its head says
	f.Add(uint16(1), uint16(8_000), crowded(1, 8_000, 4_000))
	f.Fuzz(func(t *testing.T, ticks, values uint16, body []byte) {
		segment, err := pack(1, 2, max(1, int(ticks)), int(values), body)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := readSegment(bytes.NewReader(segment), time.Time{}, eternity)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20+200*uint64(len(body))+100*uint64(values) {
			t.Errorf("%d bytes for %d figures take %d of memory", len(body), values, took)
		}
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("it is not said to be damaged: %v", err)
			}
			return
		}
		told := 0
		for i := range s.Ticks {
			for _, p := range s.Tick(i).Parts {
				told += len(p.Figures)
			}
		}
		columns := 0
		s.Columns(func(_ Key, each func(func(time.Time, float64))) {
			each(func(time.Time, float64) { columns++ })
		})
		if told != s.Values || columns != told {
			t.Errorf("of %d figures the ticks have %d, and the columns %d", s.Values, told, columns)
		}
	})
}

// FuzzFile reads what may be any file as a record, and as an open segment.
func FuzzFile(f *testing.F) {
	open := text(few())
	sealed, err := sealText(open)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(open)
	f.Add(sealed)
	f.Add(append(sealed[:len(sealed):len(sealed)], sealed...))
	f.Add(sealed[:len(sealed)-3])
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = Walk(bytes.NewReader(b), time.Time{}, eternity, func(Tick) error { return nil })
		_, _ = At(bytes.NewReader(b), few()[3].At)
		_, _ = sealText(b)
		var d decoder
		_, _, _ = d.next(b)
	})
}

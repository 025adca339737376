package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/observe"
)

// sorted is a tick with its parts and figures in the order of their names, so that two can be compared.
func sorted(t Tick) Tick {
	t.At = t.At.UTC()
	t.Parts = slices.Clone(t.Parts)
	for i := range t.Parts {
		p := &t.Parts[i]
		p.Read = p.Read.UTC()
		p.Figures = slices.Clone(p.Figures)
		slices.SortFunc(p.Figures, func(a, b Figure) int { return cmp.Compare(a.Key, b.Key) })
	}
	slices.SortFunc(t.Parts, func(a, b Part) int { return cmp.Compare(a.Name, b.Name) })
	return t
}

// same says what differs between two ticks, to the bit.
func same(a, b Tick) error {
	a, b = sorted(a), sorted(b)
	if !a.At.Equal(b.At) || len(a.Parts) != len(b.Parts) {
		return fmt.Errorf("%v with %d parts, and %v with %d", a.At, len(a.Parts), b.At, len(b.Parts))
	}
	for i, p := range a.Parts {
		q := b.Parts[i]
		if p.Name != q.Name || !p.Read.Equal(q.Read) || len(p.Figures) != len(q.Figures) {
			return fmt.Errorf("%s of %v with %d figures, and %s of %v with %d", p.Name, p.Read, len(p.Figures), q.Name,
				q.Read, len(q.Figures))
		}
		for j, f := range p.Figures {
			g := q.Figures[j]
			if f.Key != g.Key || math.Float64bits(f.Value) != math.Float64bits(g.Value) {
				return fmt.Errorf("%q is %v, and %q is %v", f.Key, f.Value, g.Key, g.Value)
			}
		}
	}
	return nil
}

// text is ticks as an open segment has them.
func text(ticks []Tick) []byte {
	var e encoder
	b := []byte(openMagic)
	for _, t := range ticks {
		b = frameTick(b, func(b []byte) []byte { return e.append(b, t) })
	}
	return b
}

var eternity = time.Now().AddDate(100, 0, 0)

// opened reads an open segment.
func opened(b []byte) (ticks []Tick, err error) {
	var d decoder
	err = openTicks(b, func(tick []byte) error {
		at, parts, err := d.next(tick)
		if err == nil {
			ticks = append(ticks, d.tick(at, parts))
		}
		return err
	})
	return ticks, err
}

// generated draws ticks with whatever a figure can be: figures that come, go, change their scale or are no number.
func generated(t *rapid.T) (ticks []Tick) {
	keys := []Key{KeyOf("a"), KeyOf("a", "x"), KeyOf("a", "x", ""), KeyOf("b_total", "mysql3306", "database"),
		KeyOf("c")}
	value := rapid.OneOf(rapid.Float64(), rapid.Just(math.NaN()), rapid.Just(math.Inf(-1)),
		rapid.Just(math.Copysign(0, -1)), rapid.Map(rapid.Int64(), func(n int64) float64 { return float64(n) }),
		rapid.Map(rapid.Int64Range(-1e12, 1e12), func(n int64) float64 { return float64(n) / 1e6 }),
		rapid.Map(rapid.IntRange(0, 9), func(n int) float64 { return float64(n) }))
	at := time.UnixMilli(1_795_000_000_000)
	for range rapid.IntRange(1, 12).Draw(t, "ticks") {
		at = at.Add(time.Duration(rapid.IntRange(-2000, 60000).Draw(t, "after")) * time.Millisecond)
		tick := Tick{At: at}
		for _, name := range []observe.Part{"cpu", "io", "later"} {
			if !rapid.Bool().Draw(t, "reads") {
				continue
			}
			age := time.Duration(rapid.IntRange(0, 300).Draw(t, "age")) * time.Millisecond
			p := Part{Name: name, Read: at.Add(-age)}
			for _, k := range keys {
				if rapid.IntRange(0, 3).Draw(t, "there") > 0 {
					p.Figures = append(p.Figures, Figure{k, Canonical(value.Draw(t, "value"))})
				}
			}
			tick.Parts = append(tick.Parts, p)
		}
		ticks = append(ticks, tick)
	}
	return ticks
}

// What was written is read again, to the bit: from the open segment, and from the sealed one.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ticks := generated(t)
		open := text(ticks)
		got, err := opened(open)
		if err != nil || len(got) != len(ticks) {
			t.Fatalf("%d of %d ticks are read: %v", len(got), len(ticks), err)
		}
		sealed, err := sealText(open)
		if err != nil {
			t.Fatal(err)
		}
		s, err := readSegment(bytes.NewReader(sealed), time.Time{}, eternity)
		if err != nil || s.Ticks != len(ticks) || s.Size != int64(len(sealed)) {
			t.Fatalf("sealed: %+v, %v", s, err)
		}
		values := 0
		for i, want := range ticks {
			if err := same(got[i], want); err != nil {
				t.Fatalf("tick %d: %v", i, err)
			}
			if err := same(s.Tick(i), want); err != nil {
				t.Fatalf("tick %d, sealed: %v", i, err)
			}
			for _, p := range want.Parts {
				values += len(p.Figures)
			}
			if want.At.Before(s.From) || want.At.After(s.To) {
				t.Fatalf("tick %d of %v is not between %v and %v", i, want.At, s.From, s.To)
			}
		}
		if s.Values != values {
			t.Fatalf("it says that it has %d figures of %d", s.Values, values)
		}
	})
}

// A figure is kept as it is, but for the last digits of one that was divided.
func TestCanonical(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		n := random.Int64N(1 << 45)
		for _, v := range []float64{float64(n), float64(n) / 1e6, time.Duration(n).Seconds(), random.NormFloat64(),
			-float64(n) / 100} {
			c := Canonical(v)
			if c != Canonical(c) {
				t.Errorf("%v becomes %v and then %v", v, c, Canonical(c))
			}
			if math.Abs(c-v) > nearly*math.Abs(v) {
				t.Errorf("%v becomes %v", v, c)
			}
		}
	}
	if n, scale := whole(time.Duration(3_300_000_001).Seconds(), 0); n != 3_300_000_001 || scale != 4 {
		t.Errorf("nanoseconds are %d at scale %d", n, scale)
	}
}

// However an open segment is cut or damaged, the whole ticks before that are read. A sealed one is read whole or not.
func TestDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ticks := generated(t)
		open := text(ticks)
		sealed, err := sealText(open)
		if err != nil {
			t.Fatal(err)
		}
		cut := rapid.IntRange(0, len(open)).Draw(t, "cut")
		whole := 0
		for n := range ticks {
			if len(text(ticks[:n+1])) <= cut {
				whole = n + 1
			}
		}
		got, err := opened(open[:cut])
		if err != nil || len(got) != whole {
			t.Fatalf("cut at %d of %d, %d ticks of %d are read: %v", cut, len(open), len(got), whole, err)
		}
		at := rapid.IntRange(len(openMagic), len(open)-1).Draw(t, "at")
		open[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		got, err = opened(open)
		for i, tick := range got {
			if err := same(tick, ticks[i]); err != nil {
				t.Fatalf("damaged at %d, tick %d is another one: %v", at, i, err)
			}
		}
		if err != nil {
			t.Fatalf("damaged at %d: %v", at, err)
		}
		at = rapid.IntRange(0, len(sealed)-1).Draw(t, "at, sealed")
		sealed[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits, sealed"))
		if s, err := readSegment(bytes.NewReader(sealed), time.Time{}, eternity); err == nil {
			t.Fatalf("damaged at %d, a sealed segment is read: %+v", at, s.Head)
		}
		at = rapid.IntRange(1, len(sealed)-1).Draw(t, "cut, sealed")
		_, err = readSegment(bytes.NewReader(sealed[:at]), time.Time{}, eternity)
		if err == nil || errors.Is(err, io.EOF) {
			t.Fatalf("a cut sealed segment: %v", err)
		}
	})
}

// A figure that is told twice in a tick is kept as it was told first.
func TestToldTwice(t *testing.T) {
	at := time.UnixMilli(1_795_000_000_000)
	figures := []Figure{{"a", 0.5}, {"b", 1}, {"a", math.Pi}}
	tick := Tick{At: at, Parts: []Part{{Name: "cpu", Read: at, Figures: figures}}}
	want := Tick{At: at, Parts: []Part{{Name: "cpu", Read: at, Figures: figures[:2]}}}
	var b bytes.Buffer
	err := Write(&b, func(yield func(Tick) error) error { return errors.Join(yield(tick), yield(tick)) })
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = Walk(&b, at, at, func(got Tick) error {
		n++
		return same(got, want)
	})
	if err != nil || n != 2 {
		t.Errorf("%d ticks: %v", n, err)
	}
}

// Of what somebody sends all that is whole is read, and the rest is told.
func TestDamagedFile(t *testing.T) {
	start := time.UnixMilli(1_795_000_000_000)
	var parts [3][]byte
	for i := range parts {
		var b bytes.Buffer
		err := Write(&b, func(yield func(Tick) error) error {
			at := start.Add(time.Duration(i) * time.Hour)
			return yield(Tick{At: at, Parts: []Part{{Name: "cpu", Read: at, Figures: []Figure{{"a", float64(i)}}}}})
		})
		if err != nil {
			t.Fatal(err)
		}
		parts[i] = b.Bytes()
	}
	whole := bytes.Join(parts[:], nil)
	bent := slices.Clone(whole)
	bent[len(parts[0])+len(parts[1])-1] ^= 1
	other := slices.Clone(whole)
	other[len(parts[0])] ^= 1
	for what, file := range map[string]struct {
		text    []byte
		ticks   int
		damaged bool
	}{
		"whole":            {whole, 3, false},
		"second is bent":   {bent, 2, true},
		"cut off":          {whole[:len(whole)-1], 2, true},
		"cut in its begin": {whole[:len(parts[0])+3], 1, true},
		"something else":   {other, 1, false},
		"empty":            {nil, 0, false},
	} {
		n := 0
		err := Walk(bytes.NewReader(file.text), start, eternity, func(Tick) error {
			n++
			return nil
		})
		if n != file.ticks || errors.Is(err, ErrDamaged) != file.damaged ||
			errors.Is(err, errOther) != (what == "something else") {
			t.Errorf("%s: %d ticks: %v", what, n, err)
		}
	}
	name := filepath.Join(t.TempDir(), "sent")
	for _, n := range []int{len(whole) - 1, len(parts[0]) + len(parts[1]) + 3, len(whole) - len(parts[2]) + headSize} {
		if err := os.WriteFile(name, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Survey(name); err != nil || r.Ticks != 2 || r.Damaged != 1 || r.Bytes > int64(n) {
			t.Errorf("cut off behind %d bytes it has %+v: %v", n, r, err)
		}
	}
	if err := os.WriteFile(name, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	segments, err := Open(name, start, start)
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	known, err := At(segments, start.Add(time.Hour+time.Minute))
	if err != nil || len(known.Parts) != 1 || known.Parts[0].Figures[0].Value != 1 {
		t.Errorf("at 1:01 %+v is known: %v", known, err)
	}
	if r, err := Survey(name); err != nil || r.Ticks != 3 || r.Segments != 3 || r.Bytes != int64(len(whole)) ||
		len(r.Gaps) != 2 {
		t.Errorf("it has %+v: %v", r, err)
	}
}

// What is known at a time is the last reading of each collector.
func TestAt(t *testing.T) {
	start := time.UnixMilli(1_795_000_000_000)
	part := func(name observe.Part, at time.Time, value float64) Part {
		return Part{Name: name, Read: at.UTC(), Figures: []Figure{{Key(name), value}}}
	}
	var b bytes.Buffer
	err := Write(&b, func(yield func(Tick) error) error {
		for i := range 200 {
			at := start.Add(time.Duration(i) * 5 * time.Second)
			tick := Tick{At: at, Parts: []Part{part("cpu", at, float64(i))}}
			if i%12 == 0 {
				tick.Parts = append(tick.Parts, part("slow", at, float64(i)))
			}
			if i == 0 {
				tick.Parts = append(tick.Parts, part("once", at, 1))
			}
			if err := yield(tick); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, parts := range map[int]int{0: 3, 1: 3, 13: 3, 119: 3, 121: 2, 199: 2} {
		at := start.Add(time.Duration(i) * 5 * time.Second)
		known, err := At(bytes.NewReader(b.Bytes()), at.Add(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		slow := start.Add(time.Duration(i/12) * time.Minute)
		want := Tick{At: at, Parts: []Part{part("cpu", at, float64(i)), part("slow", slow, float64(i/12*12))}}
		if parts == 3 {
			want.Parts = append(want.Parts, part("once", start, 1))
		}
		if err := same(known, want); err != nil {
			t.Errorf("after tick %d: %v", i, err)
		}
	}
	if known, err := At(bytes.NewReader(b.Bytes()), start.Add(-time.Second)); err != nil || len(known.Parts) > 0 {
		t.Errorf("before the first tick %v is known: %v", known, err)
	}
}

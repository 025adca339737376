package figures

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
)

// figure is one as it is told: the bits of its value, and its labels.
type figure struct {
	bits   uint64
	labels string
}

// told are all figures of a row that a set has.
func told(s *Set, of *observe.Row) (all []figure) {
	s.Layout.Each(of, func(at int, labels []string) {
		all = append(all, figure{math.Float64bits(s.Values[at]), fmt.Sprintf("%q", labels)})
	})
	return all
}

// odd is the sample of the table's tests, with a second group whose texts and values are odd.
func odd(t testing.TB) *observe.Sample {
	t.Helper()
	s := observetest.Sample(t)
	s.Groups = append(s.Groups, s.Groups[0])
	last := &s.Groups[len(s.Groups)-1]
	last.Group, last.Role, last.Engine = "quo\"te\\back\nline \xff", "", ""
	last.Limits = slices.Clone(last.Limits)
	last.Limits[0].Asked, last.Limits[0].Held = new(math.Inf(-1)), new(math.NaN())
	s.Host.Load = 1e-9
	return s
}

// What was sent tells what the rows of the table tell of the sample, in the same order and to the last bit. What is for
// the record alone is left out.
func TestSentAsTold(t *testing.T) {
	one := odd(t)
	set, err := Read(Of(one).Append(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !set.At.Equal(one.At) || set.Age != one.Age || set.Every != one.Every {
		t.Errorf("it is of %v, %v old, every %v; want %v, %v, %v", set.At, set.Age, set.Every, one.At, one.Age,
			one.Every)
	}
	all := 0
	for i := range observe.Table {
		r := &observe.Table[i]
		var want []figure
		r.Each(one, func(value float64, labels ...string) {
			if !r.Recorded {
				want = append(want, figure{math.Float64bits(value), fmt.Sprintf("%q", labels)})
			}
		})
		got := told(set, r)
		if all += len(got); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", r.Name, got, want)
		}
	}
	if all < 100 {
		t.Errorf("%d figures were compared", all)
	}
}

// Who has a set asks for no more than its age, and makes of that another set.
func TestAged(t *testing.T) {
	set := Of(observetest.Sample(t))
	set.At = time.Unix(1, 2)
	if got := set.Unless(); got != "?unless=1000000002" {
		t.Errorf("it asks %q", got)
	}
	if got := (*Set)(nil).Unless(); got != "" {
		t.Errorf("who has none asks %q", got)
	}
	age := set.Age
	if aged := set.Aged(time.Hour); aged.Age != time.Hour || set.Age != age || aged.Layout != set.Layout {
		t.Errorf("an hour old it is %v, and before %v", aged.Age, set.Age)
	}
}

// Of samples with the same figures there is one layout, whatever their values; one more or less is another layout.
func TestSameLayout(t *testing.T) {
	one := odd(t)
	read := func(had *Set) *Set {
		t.Helper()
		set, err := Read(Of(one).Append(nil), had)
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	load := observe.RowOf("bulkhead_host_load1")
	first := read(nil)
	one.Host.Load = 7
	next := read(first)
	if next.Layout != first.Layout || slices.Equal(told(first, load), told(next, load)) {
		t.Errorf("the load was %v and is %v, by the same layout: %t", told(first, load), told(next, load),
			next.Layout == first.Layout)
	}
	one.Groups[0].Role = "other"
	if other := read(next); other.Layout == next.Layout {
		t.Error("with another label the layout is the same")
	}
	one.Groups = one.Groups[1:]
	if less := read(next); less.Layout == next.Layout || len(less.Values) >= len(next.Values) {
		t.Errorf("with a group less there are %d figures, before %d", len(less.Values), len(next.Values))
	}
}

// message writes a message of fields.
func message(fields ...any) (b []byte) {
	for i := 0; i < len(fields); i += 2 {
		number := protowire.Number(fields[i].(int))
		switch v := fields[i+1].(type) {
		case string:
			b = appendText(b, number, v)
		case []byte:
			b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), v)
		case int:
			b = appendNumber(b, number, int64(v))
		case float64:
			b = protowire.AppendFixed64(protowire.AppendTag(b, number, protowire.Fixed64Type), math.Float64bits(v))
		}
	}
	return b
}

func doubles(all ...float64) (b []byte) {
	for _, v := range all {
		b = protowire.AppendFixed64(b, math.Float64bits(v))
	}
	return b
}

// Of an agent of another version what both know is told. A row that means something else is not.
func TestOtherVersion(t *testing.T) {
	waits := message(rowName, "bulkhead_host_pressure_seconds_total", rowLabels, "resource", rowLabels, "kind",
		rowFigures, 1, rowTexts, []byte{0, 1}, 9, "new", 10, 7)
	layout := message(layoutTexts, "cpu", layoutTexts, "some", 11, "new",
		layoutRows, message(rowName, "bulkhead_host_brand_new", rowFigures, 2),
		layoutRows, message(rowName, "bulkhead_host_load1", rowLabels, "cpu", rowFigures, 1, rowTexts, []byte{0}),
		layoutRows, waits)
	set, err := Read(message(setAge, 7, 12, "new", setLayout, layout, setValues, doubles(1, 2, 3, 1.5), 13, 1.25), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []figure{{math.Float64bits(1.5), `["cpu" "some"]`}}
	got := told(set, observe.RowOf("bulkhead_host_pressure_seconds_total"))
	if !slices.Equal(got, want) || len(set.Layout.rows) != 1 || set.Age != 7 {
		t.Errorf("it tells %v, has %d rows, and is %v old", got, len(set.Layout.rows), set.Age)
	}
}

// What cannot be meant is an error.
func TestDamaged(t *testing.T) {
	set := func(values []byte, fields ...any) []byte {
		row := message(append([]any{rowName, "bulkhead_host_memory_bytes", rowLabels, "kind"}, fields...)...)
		return message(setLayout, message(layoutTexts, "a", layoutRows, row), setValues, values)
	}
	if _, err := Read(set(doubles(1), rowFigures, 1, rowTexts, []byte{0}), nil); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"half a tag":           {0x80},
		"half a number":        {setAt << 3, 0x80},
		"a text that ends":     {setLayout<<3 | 2, 5, 'a'},
		"half a value":         set([]byte{1, 2, 3}, rowFigures, 1, rowTexts, []byte{0}),
		"more values":          set(doubles(1, 2), rowFigures, 1, rowTexts, []byte{0}),
		"less values":          set(nil, rowFigures, 1, rowTexts, []byte{0}),
		"a text that is not":   set(doubles(1), rowFigures, 1, rowTexts, []byte{1}),
		"half a place":         set(doubles(1), rowFigures, 1, rowTexts, []byte{0x80}),
		"more texts":           set(doubles(1), rowFigures, 1, rowTexts, []byte{0, 0}),
		"less texts":           set(doubles(1), rowFigures, 1),
		"no figure":            set(nil),
		"less than no figure":  set(nil, rowFigures, -1),
		"a row that ends":      message(setLayout, message(layoutRows, []byte{rowName<<3 | 2, 9})),
		"a layout that ends":   message(setLayout, []byte{layoutTexts<<3 | 2, 9}),
		"a group of old times": {1<<3 | 3, 2 << 3},
	} {
		if set, err := Read(b, nil); err == nil {
			t.Errorf("%s is read as %+v", name, set)
		}
	}
}

// Whatever is read is read the same again, also beside a set of the same layout.
func FuzzRead(f *testing.F) {
	f.Add(Of(odd(f)).Append(nil))
	f.Add(message(setAt, 5, setLayout, message(layoutTexts, "a", layoutRows, message(rowName, "bulkhead_host_load1",
		rowFigures, 1)), setValues, doubles(1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := Read(b, nil)
		if err != nil {
			return
		}
		again, err := Read(set.Append(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		beside, err := Read(b, again)
		if err != nil || beside.Layout != again.Layout {
			t.Fatalf("beside itself it has another layout: %v", err)
		}
		for i := range observe.Table {
			r := &observe.Table[i]
			if want := told(set, r); !slices.Equal(told(again, r), want) || !slices.Equal(told(beside, r), want) {
				t.Errorf("%s: %v and %v, want %v", r.Name, told(again, r), told(beside, r), want)
			}
		}
	})
}

// BenchmarkSend is what the agent does for one who asks, and BenchmarkRead what that one does, of fifty groups.
func BenchmarkSend(b *testing.B) {
	one := observetest.Groups(b, 50, 3)
	b.ReportAllocs()
	size := 0
	for b.Loop() {
		size = len(Of(one).Append(nil))
	}
	b.ReportMetric(float64(size), "bytes")
}

func BenchmarkRead(b *testing.B) {
	text := Of(observetest.Groups(b, 50, 3)).Append(nil)
	b.ReportAllocs()
	var had *Set
	for b.Loop() {
		set, err := Read(text, had)
		if err != nil {
			b.Fatal(err)
		}
		had = set
	}
}

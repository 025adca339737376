package idset_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/linux/idset"
)

func TestParseIDSet(t *testing.T) {
	for text, want := range map[string]idset.Set{
		"":                 {},
		"\n":               {},
		"0":                {0},
		"0-3,8\n":          {0, 1, 2, 3, 8},
		"8,0-3":            {0, 1, 2, 3, 8},
		" 0 - 1 , 3 ":      {0, 1, 3},
		"0-3,2-5,4":        {0, 1, 2, 3, 4, 5},
		"007":              {7},
		"65535":            {65535},
		"0,4,8,12,16,20":   {0, 4, 8, 12, 16, 20},
		"2-2":              {2},
		"10,9,8,7,6,5,4,3": {3, 4, 5, 6, 7, 8, 9, 10},
	} {
		got, err := idset.Parse(text)
		if err != nil || !got.Equal(want) {
			t.Errorf("%q gives %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestParseIDSetErrors(t *testing.T) {
	for text, offset := range map[string]int{
		"3-1":                     0,
		"0,5-4":                   2,
		"0, 5-4":                  3,
		"x":                       0,
		"0,1x":                    3,
		"0,,1":                    2,
		"0,":                      2,
		",":                       0,
		"-1":                      0,
		"1-":                      2,
		"1-2-3":                   3,
		"65536":                   0,
		"0-65536":                 2,
		"99999999999999999999999": 0,
		"0x1":                     1,
		"+1":                      0,
		"1 2":                     1,
		"0-7:2/4":                 3,
		"all":                     0,
	} {
		got, err := idset.Parse(text)
		var list *idset.ListError
		if !errors.As(err, &list) {
			t.Errorf("%q gives %v, %v, want a ListError", text, got, err)
			continue
		}
		if list.Offset != offset || list.Text != text {
			t.Errorf("%q: error at %d (%v), want %d", text, list.Offset, err, offset)
		}
	}
}

func TestIDSetJSON(t *testing.T) {
	type value struct{ CPUs idset.Set }
	text, err := json.Marshal(value{idset.Set{0, 1, 2, 8}})
	if err != nil || string(text) != `{"CPUs":"0-2,8"}` {
		t.Errorf("got %s, %v", text, err)
	}
	var back value
	if err := json.Unmarshal(text, &back); err != nil || !back.CPUs.Equal(idset.Set{0, 1, 2, 8}) {
		t.Errorf("got %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"CPUs":"2-1"}`), &back); err == nil {
		t.Error("a reversed range was accepted")
	}
}

func drawSet(t *rapid.T, label string) idset.Set {
	return idset.New(rapid.SliceOfN(rapid.IntRange(0, 70), 0, 40).Draw(t, label)...)
}

func TestIDSetTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSet(t, "s")
		back, err := idset.Parse(s.String())
		if err != nil || !back.Equal(s) {
			t.Fatalf("%v prints as %q, which gives %v, %v", s, s, back, err)
		}
		if again := back.String(); again != s.String() {
			t.Fatalf("%q became %q", s, again)
		}
	})
}

// The operations must agree with what they mean, member by member.
func TestIDSetOperations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawSet(t, "a"), drawSet(t, "b")
		union, minus, intersection := a.Union(b), a.Minus(b), a.Intersect(b)
		subset := true
		for id := range 71 {
			inA, inB := slices.Contains(a, id), slices.Contains(b, id)
			if a.Contains(id) != inA || union.Contains(id) != (inA || inB) ||
				minus.Contains(id) != (inA && !inB) || intersection.Contains(id) != (inA && inB) {
				t.Fatalf("a %v, b %v: wrong about %d", a, b, id)
			}
			subset = subset && (!inA || inB)
		}
		if a.Subset(b) != subset {
			t.Fatalf("%v is a subset of %v: %t", a, b, !subset)
		}
		if a.Equal(b) != (a.Subset(b) && b.Subset(a)) {
			t.Fatalf("%v equals %v: %t", a, b, a.Equal(b))
		}
		for _, s := range []idset.Set{union, minus, intersection} {
			if !slices.IsSorted(s) || len(slices.Compact(slices.Clone(s))) != len(s) {
				t.Fatalf("%v is not sorted without repeats", s)
			}
		}
		if !union.Minus(b).Union(intersection).Union(b).Equal(union) {
			t.Fatalf("a %v, b %v: the parts do not make the union", a, b)
		}
	})
}

func TestIDSetLeavesItsOperandsAlone(t *testing.T) {
	backing := idset.Set{0, 1, 2, 3, 4}
	a := backing[:2]
	_ = a.Union(idset.Set{9})
	if backing[2] != 2 {
		t.Errorf("Union wrote behind its operand: %v", backing)
	}
}

func FuzzParseIDSet(f *testing.F) {
	for _, seed := range []string{"", "0-3,8", "0,4,8,12,16,20,24,28", "3-1", "65535", "65536", "0-65535,0-65535",
		" 1 , 2-3\n", "0-7:2/4", "-", ","} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := idset.Parse(text)
		if err != nil {
			var list *idset.ListError
			if !errors.As(err, &list) || list.Offset < 0 || list.Offset > len(text) {
				t.Fatalf("%q: error %#v", text, err)
			}
			return
		}
		back, err := idset.Parse(s.String())
		if err != nil || !back.Equal(s) {
			t.Fatalf("%q gives %v, which prints as %q and gives %v, %v", text, s, s, back, err)
		}
	})
}

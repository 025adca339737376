package knob

import (
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

func budgets(t *testing.T) (v1, v2 *Row) {
	t.Helper()
	for _, r := range Table() {
		if r.Budget() && r.Version == 2 {
			v2 = r
		} else if r.File == "blkio.throttle.write_bps_device" {
			v1 = r
		}
	}
	if v1 == nil || v2 == nil {
		t.Fatal("no rows of budgets")
	}
	return v1, v2
}

func TestAmount(t *testing.T) {
	v1, v2 := budgets(t)
	const max = "8:0 rbps=100 wbps=max riops=max wiops=7\n8:16 rbps=max wbps=max riops=5 wiops=max\n"
	for _, test := range []struct {
		row     *Row
		key     policy.Key
		text    string
		on      string
		want    int64
		limited bool
	}{
		{v1, policy.KeyIOWriteBandwidth, "8:0 100\n8:16 200\n", "8:16", 200, true},
		{v1, policy.KeyIOWriteBandwidth, "8:0 100\n", "8:16", 0, false},
		{v1, policy.KeyIOWriteBandwidth, "8:0 0\n", "8:0", 0, false},
		{v1, policy.KeyIOReadIOPS, "8:0 100\n", "8:0", 0, false}, // another file's
		{v2, policy.KeyIOReadBandwidth, max, "8:0", 100, true},
		{v2, policy.KeyIOWriteBandwidth, max, "8:0", 0, false},
		{v2, policy.KeyIOWriteIOPS, max, "8:0", 7, true},
		{v2, policy.KeyIOReadIOPS, max, "8:16", 5, true},
		{v2, policy.KeyIOReadIOPS, max, "8:32", 0, false},
		{v2, policy.KeyIOReadIOPS, "", "8:0", 0, false},
	} {
		if got, limited := test.row.Amount(test.key, test.text, test.on); got != test.want || limited != test.limited {
			t.Errorf("%s of %s in %q: %d, %t", test.key, test.on, test.text, got, limited)
		}
	}
}

// What is least loosens neither of two, whatever they are.
func TestLeast(t *testing.T) {
	v1, v2 := budgets(t)
	amount := func(none string) *rapid.Generator[string] {
		return rapid.OneOf(rapid.Just(none), rapid.StringMatching(`[1-9][0-9]{0,6}`))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := amount("0").Draw(t, "a"), amount("0").Draw(t, "b")
		if c := v1.Least(a, b); c != a && c != b || v1.Loosens(a, c) && !v1.Same(a, c) || v1.Loosens(b, c) &&
			!v1.Same(b, c) {
			t.Fatalf("v1: %q of %q and %q", c, a, b)
		}
		form := format.IOMax{}
		var x, y [4]string
		for i := range x {
			x[i], y[i] = amount("max").Draw(t, "x"), amount("max").Draw(t, "y")
		}
		from, to := form.Join(x), form.Join(y)
		c := v2.Least(from, to)
		for _, key := range v2.Keys {
			got, limited := v2.Amount(key, "8:0 "+c, "8:0")
			for _, other := range []string{from, to} {
				if n, is := v2.Amount(key, "8:0 "+other, "8:0"); is && (!limited || got > n) {
					t.Fatalf("v2: %s of %q and %q is %q", key, from, to, c)
				}
			}
		}
	})
}

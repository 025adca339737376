package knob

import (
	"strconv"

	"bulkhead/internal/policy"
)

// amounts is a format whose values allow so much of each of a row's keys.
type amounts interface {
	// amount is what a parsed value allows of the nth key; limited is false when that is everything.
	amount(value string, n int) (amount int64, limited bool)
	// least is a value that allows no more than either of two.
	least(a, b string) string
}

// Budget says whether the row holds a budget of input and output on a device: one that several devices may share, so
// that while it is shared anew some are lowered before others are raised.
func (r *Row) Budget() bool { return r.Controller == "blkio" && r.PerDevice && r.via == "" }

// Amount is what the value of one device in the text of a budget's file allows of one key; limited is false when that
// is everything.
func (r *Row) Amount(key policy.Key, text, on string) (amount int64, limited bool) {
	form, is := r.form.(amounts)
	for n, k := range r.Keys {
		if is && k == key {
			return form.amount(r.Parse(r.Line(text, on)), n)
		}
	}
	return 0, false
}

// Least is a value of a budget that allows no more than either of two.
func (r *Row) Least(a, b string) string {
	if form, is := r.form.(amounts); is {
		return form.least(a, b)
	}
	return a
}

func (f number) amount(value string, _ int) (int64, bool) {
	n, none, ok := f.value(value)
	return n, ok && !none
}

func (f number) least(a, b string) string {
	m, limitedA := f.amount(a, 0)
	n, limitedB := f.amount(b, 0)
	if limitedA && (!limitedB || m <= n) {
		return a
	}
	return b
}

func (f ioMax) amount(value string, n int) (int64, bool) {
	amount, err := strconv.ParseInt(f.values(value)[n], 10, 64)
	return amount, err == nil
}

func (f ioMax) least(a, b string) string {
	values := f.values(a)
	for i, other := range f.values(b) {
		values[i] = number{none: "max"}.least(values[i], other)
	}
	return f.join(values)
}

package knob

import (
	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// Budget says whether the row holds a budget of input and output on a device: one that several devices may share, so
// that while it is shared anew some are lowered before others are raised.
func (r *Row) Budget() bool { return r.Controller == "blkio" && r.PerDevice && r.via == "" }

// Amount is what the value of one device in the text of a budget's file allows of one key; limited is false when that
// is everything.
func (r *Row) Amount(key policy.Key, text, on string) (amount int64, limited bool) {
	form, is := r.form.(format.Amounts)
	for n, k := range r.Keys {
		if is && k == key {
			return form.Amount(r.Parse(r.Line(text, on)), n)
		}
	}
	return 0, false
}

// Least is a value of a budget that allows no more than either of two.
func (r *Row) Least(a, b string) string {
	if form, is := r.form.(format.Amounts); is {
		return form.Least(a, b)
	}
	return a
}

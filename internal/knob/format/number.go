package format

import (
	"math"
	"strconv"
	"strings"
)

// unlimited is what people read where a file holds no limit.
const unlimited = "unlimited"

// noLimit is the least value that a v1 counter shows for "no limit": PAGE_COUNTER_MAX in bytes is
// LONG_MAX rounded down to a page (9223372036854771712 with 4 KiB pages), or to a huge page for
// hugetlb; res_counter of kernels before 3.19 shows LONG_MAX or ULONG_MAX. Real limits stay far below.
const noLimit = math.MaxInt64 - 1<<40

// Number is a file with one integer.
type Number struct {
	None   string // how the file writes "no limit"; "" when it has no such value
	Giant  bool   // shows "no limit" as a giant number (v1 memory and hugetlb)
	Paged  bool   // the kernel rounds down to a page
	Invert bool   // a smaller number allows more (flags)
	Unit   func(int64) string
}

// value reads the number; none is true for "no limit", ok false for text that is neither.
func (f Number) value(text string) (n int64, none, ok bool) {
	if text == "" || text == f.None {
		return 0, f.None != "", f.None != ""
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		if _, tooBig := strconv.ParseUint(text, 10, 64); f.Giant && tooBig == nil {
			return 0, true, true
		}
		return 0, false, false
	}
	if f.Giant && n >= noLimit || f.None == "-1" && n < 0 {
		return 0, true, true
	}
	return n, false, true
}

// Parse implements Format.
func (f Number) Parse(got string) string {
	switch n, none, ok := f.value(got); {
	case !ok:
		return got
	case none:
		return f.None
	default:
		return strconv.FormatInt(n, 10)
	}
}

// Same implements Format.
func (f Number) Same(want, got string) bool {
	want, got = f.Parse(strings.TrimSpace(want)), f.Parse(strings.TrimSpace(got))
	if want == got {
		return true
	}
	w, wNone, wOK := f.value(want)
	g, gNone, gOK := f.value(got)
	if !f.Paged || wNone || gNone || !wOK || !gOK || w < 0 {
		return false
	}
	for page := int64(4096); page <= 65536 && w%4096 != 0; page *= 2 {
		if g == w-w%page {
			return true
		}
	}
	return false
}

// Loosens implements Format.
func (f Number) Loosens(from, to string) bool {
	a, aNone, aOK := f.value(f.Parse(strings.TrimSpace(from)))
	b, bNone, bOK := f.value(f.Parse(strings.TrimSpace(to)))
	switch {
	case !aOK || !bOK || aNone || f.Same(to, from) || f.Same(from, to):
		return false
	case bNone:
		return true
	case f.Invert:
		return b < a
	default:
		return b > a
	}
}

// Human implements Format.
func (f Number) Human(value string) string {
	n, none, ok := f.value(value)
	switch {
	case !ok:
		return value
	case none:
		return unlimited
	default:
		return f.Unit(n)
	}
}

// WeightV2 is v2's cpu.weight, 1 to 10000. Older kernels show 0 while cpu.idle is set and refuse it
// when written; newer ones show 1.
type WeightV2 struct{ Number }

// Parse implements Format.
func (f WeightV2) Parse(got string) string {
	text := f.Number.Parse(got)
	if text == "0" {
		return "1"
	}
	return text
}

// Same implements Format.
func (f WeightV2) Same(want, got string) bool {
	return f.Parse(strings.TrimSpace(want)) == f.Parse(strings.TrimSpace(got))
}

// OOMControl is v1's memory.oom_control: written as one number, read as lines "name number", of which
// "oom_kill_disable" is the one written.
type OOMControl struct{ Number }

// Parse implements Format.
func (f OOMControl) Parse(got string) string {
	for line := range strings.Lines(got) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill_disable "); ok {
			return f.Number.Parse(strings.TrimSpace(value))
		}
	}
	return f.Number.Parse(got)
}

// Same implements Format.
func (f OOMControl) Same(want, got string) bool {
	return f.Parse(strings.TrimSpace(want)) == f.Parse(strings.TrimSpace(got))
}

// Loosens implements Format.
func (f OOMControl) Loosens(from, to string) bool {
	return f.Number.Loosens(f.Parse(strings.TrimSpace(from)), f.Parse(strings.TrimSpace(to)))
}

// Amount implements Amounts.
func (f Number) Amount(value string, _ int) (int64, bool) {
	n, none, ok := f.value(value)
	return n, ok && !none
}

// Least implements Amounts.
func (f Number) Least(a, b string) string {
	m, limitedA := f.Amount(a, 0)
	n, limitedB := f.Amount(b, 0)
	if limitedA && (!limitedB || m <= n) {
		return a
	}
	return b
}

// DiskWeight is a line of weights: one that is not there is the group's weight on all disks, 100 of iocost and BFQ.
type DiskWeight struct{ Number }

// Human implements Format.
func (f DiskWeight) Human(value string) string {
	if _, none, ok := f.value(value); ok && none {
		return "the default weight"
	}
	return f.Number.Human(value)
}

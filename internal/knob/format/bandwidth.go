package format

import (
	"cmp"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// CPUMax is v2's cpu.max: "QUOTA PERIOD" in microseconds, QUOTA may be "max".
type CPUMax struct{}

// Bandwidth is a CPU limit: so many microseconds in each period. A negative quota is no limit.
type Bandwidth struct{ Quota, Period int64 }

// Unlimited says that the bandwidth is no limit.
func (b Bandwidth) Unlimited() bool { return b.Quota < 0 }

// Compare orders two bandwidths by how much of a CPU they give.
func (b Bandwidth) Compare(o Bandwidth) int {
	if b.Unlimited() || o.Unlimited() {
		switch {
		case b.Unlimited() == o.Unlimited():
			return 0
		case b.Unlimited():
			return 1
		}
		return -1
	}
	// b.quota/b.period against o.quota/o.period without rounding or overflow.
	xh, xl := bits.Mul64(uint64(b.Quota), uint64(o.Period))
	yh, yl := bits.Mul64(uint64(o.Quota), uint64(b.Period))
	return cmp.Or(cmp.Compare(xh, yh), cmp.Compare(xl, yl))
}

// String is the bandwidth as cpu.max has it: "50000 100000", "max 100000".
func (b Bandwidth) String() string {
	if b.Unlimited() {
		return fmt.Sprintf("max %d", b.Period)
	}
	return fmt.Sprintf("%d %d", b.Quota, b.Period)
}

// Value reads a line of cpu.max; ok is false for other text.
func (CPUMax) Value(text string) (b Bandwidth, ok bool) {
	fields := strings.Fields(text)
	if len(fields) == 0 || len(fields) > 2 {
		return b, false
	}
	b.Period = DefaultPeriod
	if len(fields) == 2 {
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || n <= 0 {
			return b, false
		}
		b.Period = n
	}
	if fields[0] == "max" {
		b.Quota = -1
		return b, true
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	b.Quota = n
	return b, err == nil && n >= 0
}

// Parse implements Format.
func (f CPUMax) Parse(got string) string {
	b, ok := f.Value(got)
	if !ok {
		return got
	}
	return b.String()
}

// Same implements Format.
func (f CPUMax) Same(want, got string) bool {
	return f.Parse(strings.TrimSpace(want)) == f.Parse(strings.TrimSpace(got))
}

// Loosens implements Format.
func (f CPUMax) Loosens(from, to string) bool {
	a, aOK := f.Value(from)
	b, bOK := f.Value(to)
	return aOK && bOK && b.Compare(a) > 0
}

// Human implements Format.
func (f CPUMax) Human(value string) string {
	b, ok := f.Value(value)
	switch {
	case !ok:
		return value
	case b.Unlimited():
		return unlimited
	}
	text := trimFloat(float64(b.Quota)/float64(b.Period), 3) + " cores"
	if b.Quota == b.Period {
		text = "1 core"
	}
	if b.Period != DefaultPeriod {
		text += " (in periods of " + Microseconds(b.Period) + ")"
	}
	return text
}

// BandwidthFrom reads the two numbers of cgroup v1, in microseconds; ok is false when they are no bandwidth.
func BandwidthFrom(quota, period string) (b Bandwidth, ok bool) {
	q, errQ := strconv.ParseInt(quota, 10, 64)
	p, errP := strconv.ParseInt(period, 10, 64)
	return Bandwidth{q, p}, errQ == nil && errP == nil && p > 0 && q != 0
}

// Bridge finds a quota that keeps the ratio between those of a and b with either period. It prefers
// one of theirs, which saves a write.
func Bridge(a, b Bandwidth) (quota int64, ok bool) {
	low, high := a, b
	if b.Compare(a) < 0 {
		low, high = b, a
	}
	fits := func(q int64) bool {
		for _, period := range []int64{a.Period, b.Period} {
			at := Bandwidth{q, period}
			if at.Compare(low) < 0 || at.Compare(high) > 0 {
				return false
			}
		}
		return true
	}
	for _, q := range []int64{a.Quota, b.Quota, scaleUp(low, max(a.Period, b.Period))} {
		if q > 0 && fits(q) {
			return q, true
		}
	}
	return 0, false
}

// scaleUp is the least quota that gives at least b's ratio with another period; 0 when it overflows.
func scaleUp(b Bandwidth, period int64) int64 {
	high, low := bits.Mul64(uint64(b.Quota), uint64(period))
	if high >= uint64(b.Period) {
		return 0
	}
	quotient, remainder := bits.Div64(high, low, uint64(b.Period))
	if remainder > 0 {
		quotient++
	}
	if quotient > 1<<62 {
		return 0
	}
	return int64(quotient)
}

// DefaultPeriod is the period of a fresh directory, in microseconds.
const DefaultPeriod = 100_000

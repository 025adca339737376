// Package format knows how the files of cgroups write their values: numbers, lists of CPUs, cpu.max, io.max and others.
//
// A Format parses what the kernel shows into what is written there, compares two values up to the kernel's rounding,
// says which of two allows more, and prints one for people. Text that a Format does not know is passed on, equal only
// to itself: a newer kernel may show more. Everything is pure.
package format

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

// Format is how one kind of kernel file writes its values. Text that it does not know is passed on,
// equal only to itself: a newer kernel may show more.
type Format interface {
	Parse(got string) string // trimmed text of the kernel → as Encode writes it
	Same(want, got string) bool
	Loosens(from, to string) bool
	Human(value string) string // of a parsed value
}

// IDList is a cpuset file: a list of CPUs or nodes such as "0-3,8". On v2 the empty list means "as
// the parent"; on v1 it means none at all.
type IDList struct {
	Empty string // what the empty list means, for people
	Noun  string // "CPU" or "node"
	Wide  bool   // the empty list is the widest of all
}

// Parse implements Format.
func (f IDList) Parse(got string) string {
	ids, err := idset.Parse(got)
	if err != nil {
		return got
	}
	return ids.String()
}

// Same implements Format.
func (f IDList) Same(want, got string) bool {
	return f.Parse(strings.TrimSpace(want)) == f.Parse(strings.TrimSpace(got))
}

// Loosens is true when something is added, even when something else is taken away.
func (f IDList) Loosens(from, to string) bool {
	a, errA := idset.Parse(strings.TrimSpace(from))
	b, errB := idset.Parse(strings.TrimSpace(to))
	if errA != nil || errB != nil {
		return false
	}
	if f.Wide && (len(a) == 0 || len(b) == 0) {
		return len(a) > 0
	}
	return len(b.Minus(a)) > 0
}

// Union gives the list that holds both; ok is false when one holds the other already.
func (f IDList) Union(x, y string) (both string, ok bool) {
	a, errA := idset.Parse(x)
	b, errB := idset.Parse(y)
	if errA != nil || errB != nil || len(a.Minus(b)) == 0 || len(b.Minus(a)) == 0 {
		return "", false
	}
	return a.Union(b).String(), true
}

// Human implements Format.
func (f IDList) Human(value string) string {
	ids, err := idset.Parse(value)
	switch {
	case err != nil:
		return value
	case len(ids) == 0:
		return f.Empty
	case len(ids) == 1:
		return f.Noun + " " + value
	default:
		return f.Noun + "s " + value
	}
}

// trimFloat prints a number with at most that many decimals.
func trimFloat(x float64, decimals int) string {
	text := strconv.FormatFloat(x, 'f', decimals, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// Decimal writes a number as the kernel does.
func Decimal(n int64) string { return strconv.FormatInt(n, 10) }

// ByteCount prints a size: "8 GiB".
func ByteCount(n int64) string { return policy.Bytes(n).Human() }
func perSecond(n int64) string { return policy.Rate(n).Human() }
func iops(n int64) string      { return Decimal(n) + " IOPS" }

// Weight prints a weight.
func Weight(n int64) string { return "weight " + Decimal(n) }

// SharesWeight prints cpu.shares on v2's scale.
func SharesWeight(n int64) string {
	if Decimal(n) == IdleShares {
		return "weight of an idle group"
	}
	return "weight " + trimFloat(float64(n)*100/1024, 1)
}

// Microseconds prints a time in the unit that suits its size: "100 ms", "1500 µs".
func Microseconds(n int64) string {
	if n >= 1000 {
		return trimFloat(float64(n)/1000, 3) + " ms"
	}
	return Decimal(n) + " µs"
}

// Either names the two values of a switch.
func Either(off, on string) func(int64) string {
	return func(n int64) string {
		if n == 0 {
			return off
		}
		return on
	}
}

// Amounts is a format whose values allow so much of each of a row's keys.
type Amounts interface {
	// Amount is what a parsed value allows of the nth key; limited is false when that is everything.
	Amount(value string, n int) (Amount int64, limited bool)
	// Least is a value that allows no more than either of two.
	Least(a, b string) string
}

// Owners is how a cgroup.Tree writes who owns files.
type Owners struct{}

// Parse implements Format.
func (Owners) Parse(got string) string { return got }

// Same implements Format.
func (Owners) Same(want, got string) bool { return cgroup.SameOwner(want, got) }

// Loosens implements Format.
func (Owners) Loosens(string, string) bool { return false }

// Human implements Format.
func (Owners) Human(value string) string { return value }

// Word is a file with one word.
type Word struct{}

// Parse implements Format.
func (Word) Parse(got string) string { return strings.TrimSpace(got) }

// Same implements Format.
func (Word) Same(want, got string) bool { return strings.TrimSpace(want) == strings.TrimSpace(got) }

// Loosens implements Format.
func (Word) Loosens(_, _ string) bool { return false }

// Human implements Format.
func (Word) Human(value string) string { return value }

// Parameters is a line of io.cost.qos or io.cost.model: "name=value" pairs. Where idle is among them, or nothing is
// there, the rest does not count: the kernel shows what it has worked out itself.
type Parameters struct{ Idle string }

// Parse implements Format.
func (f Parameters) Parse(got string) string {
	fields := strings.Fields(got)
	if len(fields) == 0 || slices.Contains(fields, f.Idle) {
		return f.Idle
	}
	return strings.Join(fields, " ")
}

// Same takes what is not asked for as it comes.
func (f Parameters) Same(want, got string) bool {
	have := strings.Fields(f.Parse(got))
	for _, w := range strings.Fields(f.Parse(want)) {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}

// Loosens implements Format.
func (Parameters) Loosens(_, _ string) bool { return false }

// Human implements Format.
func (Parameters) Human(value string) string { return value }

// IdleShares is what cpu.shares shows while cpu.idle is set: WEIGHT_IDLEPRIO. cpu.weight shows 1, on
// older kernels 0.
const IdleShares = "3"

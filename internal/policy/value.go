package policy

import (
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bulkhead/internal/linux/idset"
)

// Value is a typed limit. Its String is what a person may write in the file for it.
type Value interface{ String() string }

// The types of limits; each is a Value.
type (
	// Bytes is a size in bytes.
	Bytes int64
	// Cores is CPU time per time, in millionths of one CPU core.
	Cores int64
	// Weight is 1–10000, the scale of cgroup v2.
	Weight int64
	// Rate is in bytes per second.
	Rate int64
	// IOPS is in operations per second.
	IOPS int64
	// Count is a plain number.
	Count int64
	// Duration is in whole microseconds.
	Duration time.Duration
	// Flag is true or false.
	Flag bool
	// OOM is "kill", "kill-group" or "pause".
	OOM string
	// IDs is a set of CPUs or nodes; it prints as "0-3,8".
	IDs struct{ idset.Set }
	// Unlimited is written "max" and lifts what a class asks.
	Unlimited struct{}
	// MemoryPercent is a share of MemTotal in millionths of one percent; Resolve turns it into Bytes.
	MemoryPercent int64
	// IOPercent is a share of a ceiling of host.io in millionths of one percent; Resolve turns it into a Rate or IOPS.
	IOPercent int64
)

// One is one CPU core, and one percent of MemTotal, in the units of Cores and MemoryPercent.
const One = 1_000_000

// byteUnits are the units of sizes, largest first.
var byteUnits = []struct {
	name  string
	bytes int64
}{
	{"PiB", 1 << 50}, {"PB", 1e15}, {"TiB", 1 << 40}, {"TB", 1e12}, {"GiB", 1 << 30}, {"GB", 1e9},
	{"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3}, {"B", 1},
}

// String is the exact size in the unit that makes it shortest: "8GiB", "1.5GiB", "500MB", "12345B".
func (v Bytes) String() string { return exactBytes(int64(v)) }

// Human is the size for people, rounded to one decimal in a binary unit: "23.4 GiB".
func (v Bytes) Human() string {
	for _, u := range byteUnits {
		if strings.HasSuffix(u.name, "iB") && int64(v) >= u.bytes {
			text := strconv.FormatFloat(float64(v)/float64(u.bytes), 'f', 1, 64)
			return strings.TrimSuffix(text, ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", int64(v))
}

func exactBytes(n int64) string {
	if n == 0 {
		return "0"
	}
	best := strconv.FormatInt(n, 10) + "B"
	for _, u := range byteUnits {
		tenths := n % u.bytes * 10
		if tenths%u.bytes != 0 || n < u.bytes {
			continue
		}
		text := strconv.FormatInt(n/u.bytes, 10)
		if tenths > 0 {
			text += "." + strconv.FormatInt(tenths/u.bytes, 10)
		}
		if text += u.name; len(text) < len(best) {
			best = text
		}
	}
	return best
}

// Human is the rate for people: exact where that is a short number in one of the units, "50 MB/s" or "10 MiB/s", else
// rounded to one decimal in a decimal unit, as rates of disks are given: "12.3 MB/s".
func (v Rate) Human() string {
	exact := exactBytes(int64(v))
	if at := strings.IndexFunc(exact, unicode.IsLetter); at > 0 && at <= 4 {
		return exact[:at] + " " + exact[at:] + "/s"
	}
	for _, u := range byteUnits {
		if !strings.HasSuffix(u.name, "iB") && int64(v) >= u.bytes {
			text := strconv.FormatFloat(float64(v)/float64(u.bytes), 'f', 1, 64)
			return strings.TrimSuffix(text, ".0") + " " + u.name + "/s"
		}
	}
	return fmt.Sprintf("%d B/s", int64(v))
}

// String is the exact rate: "10MiB/s", "50MB/s".
func (v Rate) String() string { return exactBytes(int64(v)) + "/s" }

// String is the number of cores: "1.5".
func (v Cores) String() string { return millionths(int64(v)) }

// Float is the number of cores as a fraction.
func (v Cores) Float() float64 { return float64(v) / One }

// String is the percentage: "4%".
func (v MemoryPercent) String() string { return millionths(int64(v)) + "%" }

// Of is the share of a whole, rounded down to a byte.
func (v MemoryPercent) Of(total Bytes) Bytes { return Bytes(percentOf(int64(v), int64(total))) }

// String is the percentage: "20%".
func (v IOPercent) String() string { return millionths(int64(v)) + "%" }

// Of is the share of a ceiling, rounded down.
func (v IOPercent) Of(whole int64) int64 { return percentOf(int64(v), whole) }

func percentOf(share, whole int64) int64 {
	part := new(big.Int).Mul(big.NewInt(share), big.NewInt(whole))
	return part.Div(part, big.NewInt(100*One)).Int64()
}

func (v Weight) String() string  { return strconv.FormatInt(int64(v), 10) }
func (v IOPS) String() string    { return strconv.FormatInt(int64(v), 10) }
func (v Count) String() string   { return strconv.FormatInt(int64(v), 10) }
func (v Flag) String() string    { return strconv.FormatBool(bool(v)) }
func (v OOM) String() string     { return string(v) }
func (Unlimited) String() string { return "max" }

// String is the duration in the largest unit that gives a whole number: "100ms", "1500us".
func (v Duration) String() string {
	if v == 0 {
		return "0"
	}
	for _, u := range durationUnits {
		if time.Duration(v)%u.length == 0 {
			return strconv.FormatInt(int64(time.Duration(v)/u.length), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(time.Duration(v)/time.Microsecond), 10) + "us"
}

// millionths prints n/1e6 without trailing zeros.
func millionths(n int64) string {
	text := fmt.Sprintf("%d.%06d", n/One, n%One)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// HugePageName is the kernel's name of a huge page size: "2MB" of 2 MiB, as in hugetlb.2MB.max.
func HugePageName(size int64) string {
	switch {
	case size >= 1<<30:
		return strconv.FormatInt(size>>30, 10) + "GB"
	case size >= 1<<20:
		return strconv.FormatInt(size>>20, 10) + "MB"
	default:
		return strconv.FormatInt(size>>10, 10) + "KB"
	}
}

// HugePageSize is the size in bytes that a name of HugePageName stands for; 0 when it is none.
func HugePageSize(name string) int64 {
	for suffix, shift := range map[string]int{"KB": 10, "MB": 20, "GB": 30} {
		digits, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(digits, 10, 32); err == nil && n > 0 {
			return n << shift
		}
	}
	return 0
}

// SameValue says whether two values are of one type and equal. Values must not be compared with ==:
// IDs holds a slice.
func SameValue(a, b Value) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a.String() == b.String()
}

// Counted gives a number with its noun: "1 process", "3 processes".
func Counted(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		return strconv.Itoa(n) + " " + noun + "es"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

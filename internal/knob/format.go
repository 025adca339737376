package knob

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

// format is how one kind of kernel file writes its values. Text that it does not know is passed on,
// equal only to itself: a newer kernel may show more.
type format interface {
	parse(got string) string // trimmed text of the kernel → as Encode writes it
	same(want, got string) bool
	loosens(from, to string) bool
	human(value string) string // of a parsed value
}

// unlimited is what people read where a file holds no limit.
const unlimited = "unlimited"

// noLimit is the least value that a v1 counter shows for "no limit": PAGE_COUNTER_MAX in bytes is
// LONG_MAX rounded down to a page (9223372036854771712 with 4 KiB pages), or to a huge page for
// hugetlb; res_counter of kernels before 3.19 shows LONG_MAX or ULONG_MAX. Real limits stay far below.
const noLimit = math.MaxInt64 - 1<<40

// number is a file with one integer.
type number struct {
	none   string // how the file writes "no limit"; "" when it has no such value
	giant  bool   // shows "no limit" as a giant number (v1 memory and hugetlb)
	paged  bool   // the kernel rounds down to a page
	invert bool   // a smaller number allows more (flags)
	unit   func(int64) string
}

// value reads the number; none is true for "no limit", ok false for text that is neither.
func (f number) value(text string) (n int64, none, ok bool) {
	if text == "" || text == f.none {
		return 0, f.none != "", f.none != ""
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		if _, tooBig := strconv.ParseUint(text, 10, 64); f.giant && tooBig == nil {
			return 0, true, true
		}
		return 0, false, false
	}
	if f.giant && n >= noLimit || f.none == "-1" && n < 0 {
		return 0, true, true
	}
	return n, false, true
}

func (f number) parse(got string) string {
	switch n, none, ok := f.value(got); {
	case !ok:
		return got
	case none:
		return f.none
	default:
		return strconv.FormatInt(n, 10)
	}
}

func (f number) same(want, got string) bool {
	want, got = f.parse(strings.TrimSpace(want)), f.parse(strings.TrimSpace(got))
	if want == got {
		return true
	}
	w, wNone, wOK := f.value(want)
	g, gNone, gOK := f.value(got)
	if !f.paged || wNone || gNone || !wOK || !gOK || w < 0 {
		return false
	}
	for page := int64(4096); page <= 65536 && w%4096 != 0; page *= 2 {
		if g == w-w%page {
			return true
		}
	}
	return false
}

func (f number) loosens(from, to string) bool {
	a, aNone, aOK := f.value(f.parse(strings.TrimSpace(from)))
	b, bNone, bOK := f.value(f.parse(strings.TrimSpace(to)))
	switch {
	case !aOK || !bOK || aNone || f.same(to, from) || f.same(from, to):
		return false
	case bNone:
		return true
	case f.invert:
		return b < a
	default:
		return b > a
	}
}

func (f number) human(value string) string {
	n, none, ok := f.value(value)
	switch {
	case !ok:
		return value
	case none:
		return unlimited
	default:
		return f.unit(n)
	}
}

// weightV2 is v2's cpu.weight, 1 to 10000. Older kernels show 0 while cpu.idle is set and refuse it
// when written; newer ones show 1.
type weightV2 struct{ number }

func (f weightV2) parse(got string) string {
	text := f.number.parse(got)
	if text == "0" {
		return "1"
	}
	return text
}

func (f weightV2) same(want, got string) bool {
	return f.parse(strings.TrimSpace(want)) == f.parse(strings.TrimSpace(got))
}

// oomControl is v1's memory.oom_control: written as one number, read as lines "name number", of which
// "oom_kill_disable" is the one written.
type oomControl struct{ number }

func (f oomControl) parse(got string) string {
	for line := range strings.Lines(got) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill_disable "); ok {
			return f.number.parse(strings.TrimSpace(value))
		}
	}
	return f.number.parse(got)
}

func (f oomControl) same(want, got string) bool {
	return f.parse(strings.TrimSpace(want)) == f.parse(strings.TrimSpace(got))
}

func (f oomControl) loosens(from, to string) bool {
	return f.number.loosens(f.parse(strings.TrimSpace(from)), f.parse(strings.TrimSpace(to)))
}

// idList is a cpuset file: a list of CPUs or nodes such as "0-3,8". On v2 the empty list means "as
// the parent"; on v1 it means none at all.
type idList struct {
	empty string // what the empty list means, for people
	noun  string // "CPU" or "node"
	wide  bool   // the empty list is the widest of all
}

func (f idList) parse(got string) string {
	ids, err := idset.Parse(got)
	if err != nil {
		return got
	}
	return ids.String()
}

func (f idList) same(want, got string) bool {
	return f.parse(strings.TrimSpace(want)) == f.parse(strings.TrimSpace(got))
}

// loosens is true when something is added, even when something else is taken away.
func (f idList) loosens(from, to string) bool {
	a, errA := idset.Parse(strings.TrimSpace(from))
	b, errB := idset.Parse(strings.TrimSpace(to))
	if errA != nil || errB != nil {
		return false
	}
	if f.wide && (len(a) == 0 || len(b) == 0) {
		return len(a) > 0
	}
	return len(b.Minus(a)) > 0
}

// union gives the list that holds both; ok is false when one holds the other already.
func (f idList) union(x, y string) (both string, ok bool) {
	a, errA := idset.Parse(x)
	b, errB := idset.Parse(y)
	if errA != nil || errB != nil || len(a.Minus(b)) == 0 || len(b.Minus(a)) == 0 {
		return "", false
	}
	return a.Union(b).String(), true
}

func (f idList) human(value string) string {
	ids, err := idset.Parse(value)
	switch {
	case err != nil:
		return value
	case len(ids) == 0:
		return f.empty
	case len(ids) == 1:
		return f.noun + " " + value
	default:
		return f.noun + "s " + value
	}
}

// cpuMax is v2's cpu.max: "QUOTA PERIOD" in microseconds, QUOTA may be "max".
type cpuMax struct{}

// bandwidth is a CPU limit: so many microseconds in each period. A negative quota is no limit.
type bandwidth struct{ quota, period int64 }

func (b bandwidth) unlimited() bool { return b.quota < 0 }

// compare orders two bandwidths by how much of a CPU they give.
func (b bandwidth) compare(o bandwidth) int {
	if b.unlimited() || o.unlimited() {
		return cmp.Compare(b2i(b.unlimited()), b2i(o.unlimited()))
	}
	// b.quota/b.period against o.quota/o.period without rounding or overflow.
	xh, xl := bits.Mul64(uint64(b.quota), uint64(o.period))
	yh, yl := bits.Mul64(uint64(o.quota), uint64(b.period))
	return cmp.Or(cmp.Compare(xh, yh), cmp.Compare(xl, yl))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (b bandwidth) String() string {
	if b.unlimited() {
		return fmt.Sprintf("max %d", b.period)
	}
	return fmt.Sprintf("%d %d", b.quota, b.period)
}

func (cpuMax) value(text string) (b bandwidth, ok bool) {
	fields := strings.Fields(text)
	if len(fields) == 0 || len(fields) > 2 {
		return b, false
	}
	b.period = defaultPeriod
	if len(fields) == 2 {
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || n <= 0 {
			return b, false
		}
		b.period = n
	}
	if fields[0] == "max" {
		b.quota = -1
		return b, true
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	b.quota = n
	return b, err == nil && n >= 0
}

func (f cpuMax) parse(got string) string {
	b, ok := f.value(got)
	if !ok {
		return got
	}
	return b.String()
}

func (f cpuMax) same(want, got string) bool {
	return f.parse(strings.TrimSpace(want)) == f.parse(strings.TrimSpace(got))
}

func (f cpuMax) loosens(from, to string) bool {
	a, aOK := f.value(from)
	b, bOK := f.value(to)
	return aOK && bOK && b.compare(a) > 0
}

func (f cpuMax) human(value string) string {
	b, ok := f.value(value)
	switch {
	case !ok:
		return value
	case b.unlimited():
		return unlimited
	}
	text := trimFloat(float64(b.quota)/float64(b.period), 3) + " cores"
	if b.period != defaultPeriod {
		text += " (in periods of " + microseconds(b.period) + ")"
	}
	return text
}

// ioMax is v2's io.max for one device: "rbps=N wbps=N riops=N wiops=N", each may be "max".
type ioMax struct{}

// ioMaxFields are the limits of io.max in the order the kernel shows them.
var ioMaxFields = []ioMaxField{
	{"rbps", policy.KeyIOReadBandwidth, false, perSecond, "IOReadBandwidthMax"},
	{"wbps", policy.KeyIOWriteBandwidth, true, perSecond, "IOWriteBandwidthMax"},
	{"riops", policy.KeyIOReadIOPS, false, iops, "IOReadIOPSMax"},
	{"wiops", policy.KeyIOWriteIOPS, true, iops, "IOWriteIOPSMax"},
}

type ioMaxField struct {
	name     string
	key      policy.Key
	write    bool
	unit     func(int64) string
	property string // systemd's
}

// values reads the four limits; missing ones are "max". Fields that it does not know do not count.
func (ioMax) values(text string) [4]string {
	values := [4]string{"max", "max", "max", "max"}
	for _, field := range strings.Fields(text) {
		name, value, _ := strings.Cut(field, "=")
		for i, known := range ioMaxFields {
			if known.name == name {
				values[i] = value
			}
		}
	}
	return values
}

func (ioMax) join(values [4]string) string {
	var parts []string
	for i, known := range ioMaxFields {
		parts = append(parts, known.name+"="+values[i])
	}
	return strings.Join(parts, " ")
}

func (f ioMax) parse(got string) string      { return f.join(f.values(got)) }
func (f ioMax) same(want, got string) bool   { return f.values(want) == f.values(got) }
func (f ioMax) loosens(from, to string) bool { return f.any(from, to, number{none: "max"}.loosens) }

// any says whether one of the four limits has what is asked.
func (f ioMax) any(from, to string, has func(from, to string) bool) bool {
	a, b := f.values(from), f.values(to)
	for i := range a {
		if has(a[i], b[i]) {
			return true
		}
	}
	return false
}

func (f ioMax) human(value string) string {
	var reads, writes []string
	for i, v := range f.values(value) {
		if known := ioMaxFields[i]; v != "max" {
			text := number{none: "max", unit: known.unit}.human(v)
			if known.write {
				writes = append(writes, "write "+text)
			} else {
				reads = append(reads, "read "+text)
			}
		}
	}
	if len(reads)+len(writes) == 0 {
		return unlimited
	}
	return strings.Join(append(reads, writes...), ", ")
}

// trimFloat prints a number with at most that many decimals.
func trimFloat(x float64, decimals int) string {
	text := strconv.FormatFloat(x, 'f', decimals, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

func plain(n int64) string     { return strconv.FormatInt(n, 10) }
func byteCount(n int64) string { return policy.Bytes(n).Human() }
func perSecond(n int64) string { return policy.Bytes(n).Human() + "/s" }
func iops(n int64) string      { return plain(n) + " IOPS" }
func weight(n int64) string    { return "weight " + plain(n) }

// sharesWeight prints cpu.shares on v2's scale.
func sharesWeight(n int64) string {
	if plain(n) == idleShares {
		return "weight of an idle group"
	}
	return "weight " + trimFloat(float64(n)*100/1024, 1)
}

// microseconds prints a time in the unit that suits its size: "100 ms", "1500 µs".
func microseconds(n int64) string {
	if n >= 1000 {
		return trimFloat(float64(n)/1000, 3) + " ms"
	}
	return plain(n) + " µs"
}

// either names the two values of a switch.
func either(off, on string) func(int64) string {
	return func(n int64) string {
		if n == 0 {
			return off
		}
		return on
	}
}

package kernelfile

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
)

// Param is one file of a control group with what is, or was, to be written to it.
type Param struct {
	File, Text string
	At         policy.Pos
}

// What is the line that a param comes from, for comments and reports.
func (p Param) What() string { return p.File + " = " + p.Text }

// Params turns the files of one group into limits.
type Params struct {
	*convert.Draft
	G   *convert.Group
	All []Param
	// SayDefaults notes what is left out because every group has it: for files that somebody wrote.
	SayDefaults bool

	files map[string]Param // of All, the first of each name
	by    map[limited]Param
	mark  int // of what was said and set so far
}

// limited is what a file limits.
type limited struct {
	key policy.Key
	on  string
}

// said grows with everything that comes of a file.
func (p *Params) said() int {
	return p.mark + p.Report.Said()
}

// set gives the group a limit, unless a newer file of the same group has given it one already; an older one gives way.
func (p *Params) set(key policy.Key, on, text string, f Param, what string) bool {
	p.mark++
	at := limited{key, on}
	if other, both := p.by[at]; both && other.File != f.File {
		if rank(other.File) >= rank(f.File) {
			p.Change(f.At, what, "gives way to %s: both limit the same", other.What())
			return false
		}
		p.Change(other.At, other.What(), "gives way to %s: both limit the same", what)
	}
	p.by[at] = f
	return p.Set(p.G, key, on, text, f.At, what)
}

// rank orders files that limit the same: those of cgroup v2 go before v1's, and those of the scheduler that weighs
// (BFQ) before what another would take.
func rank(file string) (n int) {
	if !strings.Contains(file, "_in_bytes") && !strings.HasPrefix(file, "blkio.") &&
		!strings.HasPrefix(file, "cpu.cfs") {
		n++
	}
	if strings.Contains(file, ".bfq.") {
		n += 2
	}
	return n
}

// of finds another file of the group.
func (p *Params) of(file string) (Param, bool) {
	f, there := p.files[file]
	return f, there
}

// number reads a whole number as the kernel does: 010 and 0x8 are 8.
func (p *Params) number(f Param, lowest, highest int64) (int64, bool) {
	text := strings.TrimSpace(f.Text)
	return p.numberOf(f, base(text), lowest, highest)
}

// decimal reads a number of a device's limit, for which the kernel knows no other base (sscanf in blk-throttle.c).
func (p *Params) decimal(f Param, lowest, highest int64) (int64, bool) {
	return p.numberOf(f, 10, lowest, highest)
}

func (p *Params) numberOf(f Param, base int, lowest, highest int64) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(f.Text), base, 64)
	if err != nil {
		p.Fail(f.At, fmt.Sprintf("write a whole number from %d to %d", lowest, highest), "%s: %q is not a number",
			f.File, convert.Clean(f.Text))
		return 0, false
	}
	if n < lowest || n > highest {
		p.Fail(f.At, "", "%s: %d is outside %d to %d", f.File, n, lowest, highest)
		return 0, false
	}
	return n, true
}

// base is the base of a number, as kstrtoull of the kernel takes it.
func base(text string) int {
	text = strings.TrimLeft(text, "+-")
	switch {
	case strings.HasPrefix(text, "0x"), strings.HasPrefix(text, "0X"):
		return 0
	case len(text) > 1 && text[0] == '0':
		return 8
	}
	return 10
}

// bytes reads an amount as memparse of the kernel does: 4096, 512M, 2G; none is no limit.
func (p *Params) bytes(f Param) (n int64, none, ok bool) {
	text := strings.TrimSpace(f.Text)
	if text == "max" || text == "-1" {
		return 0, true, true
	}
	digits, shift := text, 0
	if i := len(text) - 1; i > 0 && (base(text) != 0 || text[i]&^0x20 != 'E') {
		if unit := strings.IndexByte("KMGTPE", text[i]&^0x20); unit >= 0 && text[i] > '9' {
			digits, shift = text[:i], 10*(unit+1)
		}
	}
	u, err := strconv.ParseUint(digits, base(digits), 64)
	switch {
	case err != nil || digits[0] == '+':
		p.Fail(f.At, "the kernel takes bytes, K, M, G and T, powers of 1024: 512M", "%s: %q is not an amount of memory",
			f.File, convert.Clean(f.Text))
		return 0, false, false
	case u >= noLimit>>shift:
		return 0, true, true
	}
	return int64(u) << shift, false, true
}

// noLimit is what v1 shows for no limit, or nearly.
const noLimit = math.MaxInt64 - 1<<40

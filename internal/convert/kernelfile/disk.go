package kernelfile

import (
	"math"
	"strconv"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
)

// throttle reads lines "8:16 10485760" of v1's blkio.
func throttle(key policy.Key, unit string) func(*Params, Param) {
	return func(p *Params, f Param) {
		for line := range strings.Lines(f.Text) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			if len(words) != 2 || !convert.IsDevice(words[0]) {
				p.Fail(f.At, `write the device's number and the limit: "8:16 10485760"`,
					"%s: %q is not a limit of a device", f.File, convert.Clean(line))
				continue
			}
			n, ok := p.decimal(Param{f.File, words[1], f.At}, 0, math.MaxInt64)
			if ok && n > 0 { // 0 takes the limit away
				p.set(key, words[0], strconv.FormatInt(n, 10)+unit, f, f.File+" = "+strings.TrimSpace(line))
			}
		}
	}
}

// ioMaxKeys are the words of v2's io.max.
var ioMaxKeys = map[string]struct {
	key  policy.Key
	unit string
}{
	"rbps": {policy.KeyIOReadBandwidth, "B/s"}, "wbps": {policy.KeyIOWriteBandwidth, "B/s"},
	"riops": {policy.KeyIOReadIOPS, ""}, "wiops": {policy.KeyIOWriteIOPS, ""},
}

func (p *Params) ioMax(f Param) {
	for line := range strings.Lines(f.Text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		for _, word := range words[1:] {
			name, number, _ := strings.Cut(word, "=")
			to, fine := ioMaxKeys[name]
			if !fine || !convert.IsDevice(words[0]) {
				p.Fail(f.At, `write the device's number and the limits: "8:16 rbps=10485760 wiops=500"`,
					"io.max: %q is not a limit of a device", convert.Clean(line))
				break
			}
			if number == "max" {
				continue
			}
			if n, ok := p.decimal(Param{f.File, number, f.At}, 1, math.MaxInt64); ok {
				p.set(to.key, words[0], strconv.FormatInt(n, 10)+to.unit, f,
					f.File+" = "+strings.TrimSpace(line))
			}
		}
	}
}

// diskWeight reads the weight of a group on all devices or on one: lines "250", "default 250" and "8:16 250". middle is
// what every group has there, and 100 in a policy (systemd's rule); lowest and most are the kernel's bounds.
func diskWeight(middle, lowest, most int64) func(*Params, Param) {
	return func(p *Params, f Param) {
		for line := range strings.Lines(f.Text) {
			line = strings.TrimSpace(line)
			on, number, two := strings.Cut(line, " ")
			switch {
			case line == "":
				continue
			case !two || on == "default":
				on, number = "", line[strings.LastIndexByte(line, ' ')+1:]
			case !convert.IsDevice(on):
				p.Fail(f.At, `write a weight, or a device's number and a weight: "8:16 200"`, "%s: %q is not a weight",
					f.File, convert.Clean(line))
				continue
			}
			n, ok := p.number(Param{f.File, number, f.At}, 0, most)
			if !ok || n == 0 { // 0 takes that of one device away
				continue
			}
			what := f.File + " = " + line
			fit := max(n, lowest)
			weight := min(max((fit*100+middle/2)/middle, 1), convert.MaxWeight)
			switch set := p.set(policy.KeyIOWeight, on, strconv.FormatInt(weight, 10), f, what); {
			case !set:
			case fit != n:
				p.Change(f.At, what, "is a weight of %d, as of %d, the lowest that kernels take there", weight, fit)
			case weight*middle != n*100:
				p.Change(f.At, what, "is a weight of %d", weight)
			}
			if on != "" {
				p.Change(f.At, what, "names a disk, so that plan has the disk weigh (BFQ or iocost) where it does not "+
					"yet; the file that this was imported from changed no disk")
			}
		}
	}
}

package knob

import (
	"math"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/policy"
)

// Number is a value of a policy in base units: bytes, cores, bytes or operations per second, seconds. It is nil for
// what is no number, and for no limit.
func Number(v policy.Value) *float64 {
	switch v := v.(type) {
	case policy.Bytes:
		return new(float64(v))
	case policy.Cores:
		return new(v.Float())
	case policy.Weight:
		return new(float64(v))
	case policy.Rate:
		return new(float64(v))
	case policy.IOPS:
		return new(float64(v))
	case policy.Count:
		return new(float64(v))
	case policy.BitRate:
		return new(float64(v) / 8)
	case policy.Duration:
		return new(time.Duration(v).Seconds())
	case policy.Flag:
		if v {
			return new(1.0)
		}
		return new(0.0)
	}
	return nil
}

// inFiles are the limits whose files hold what the policy asks for, in the same unit.
var inFiles = map[policy.Key]bool{
	policy.KeyMemoryMin: true, policy.KeyMemoryLow: true, policy.KeyMemoryHigh: true, policy.KeyMemoryMax: true,
	policy.KeyMemoryHuge: true, policy.KeyTasks: true, policy.KeyIOReadBandwidth: true, policy.KeyIOReadIOPS: true,
	policy.KeyIOWriteBandwidth: true, policy.KeyIOWriteIOPS: true,
}

// NumberIn is what the row's file holds of a limit, in the unit of Number, with the files beside it by name; nil is no
// limit. told is false where the text does not say.
func (r *Row) NumberIn(key policy.Key, text string, beside map[string]string) (n *float64, told bool) {
	if key == policy.KeyCPULimit {
		var b format.Bandwidth
		ok := false
		switch r.File {
		case "cpu.max":
			b, ok = format.CPUMax{}.Value(r.Parse(text))
		case "cpu.cfs_quota_us":
			b, ok = format.BandwidthFrom(r.Parse(text), strings.TrimSpace(beside["cpu.cfs_period_us"]))
		}
		if !ok || b.Unlimited() {
			return nil, ok
		}
		return new(float64(b.Quota) / float64(b.Period)), true
	}
	if !inFiles[key] {
		return nil, false
	}
	one := r.Number(key, text)
	if math.IsInf(one, 1) {
		return nil, true
	}
	return &one, one > 0 || r.Parse(text) == "0"
}

// Number reads a limit from the text of a file, in the file's unit: +Inf is none, 0 not known.
func (r *Row) Number(key policy.Key, text string) float64 {
	if r.File == "io.max" {
		fields := map[policy.Key]string{
			policy.KeyIOReadBandwidth: "rbps", policy.KeyIOWriteBandwidth: "wbps",
			policy.KeyIOReadIOPS: "riops", policy.KeyIOWriteIOPS: "wiops",
		}
		for field := range strings.FieldsSeq(text) {
			if name, value, _ := strings.Cut(field, "="); name == fields[key] {
				return ParseNumber(value)
			}
		}
		return math.Inf(1)
	}
	text = r.Parse(text)
	if r.PerDevice && (text == "" || text == "0") {
		return math.Inf(1)
	}
	return ParseNumber(text)
}

// ParseNumber reads an amount from a file of the kernel: +Inf is no limit, 0 not known.
func ParseNumber(text string) float64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	switch {
	case strings.TrimSpace(text) == "max" || err == nil && (n < 0 || n >= math.MaxInt64/2):
		return math.Inf(1)
	case err != nil:
		return 0
	}
	return float64(n)
}

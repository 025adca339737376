package policy

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/linux/idset"
)

// Fault is what is wrong with one piece of text; its reader adds the place.
type Fault struct{ Msg, Hint string }

// Faultf makes a Fault; the format is of its message.
func Faultf(hint, format string, args ...any) *Fault {
	return &Fault{Msg: fmt.Sprintf(format, args...), Hint: hint}
}

// unit is how the values of one type are written: it reads them, and describes them in the schema.
type unit struct {
	number bool // a YAML number when written bare; in quotes it is a mistake
	read   func(text string) (Value, *Fault)
	schema JSONSchema
}

// The shape of a decimal number with a unit, such as "1.5 GiB"; the number part is checked by decimal.
var numberAndUnit = regexp.MustCompile(`^([+-]?[0-9.][0-9.,_]*(?:[eE][+-]?[0-9]+|[xX][0-9a-fA-F]+)?)\s*(.*)$`)

// split cuts text into its number and its unit.
func split(text string) (number, unit string, ok bool) {
	m := numberAndUnit.FindStringSubmatch(text)
	if m == nil || len(text) > 64 || !strings.ContainsAny(m[1], "0123456789") {
		return "", "", false
	}
	return m[1], m[2], true
}

var plainDecimal = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// decimal reads a plain decimal number, not negative. Everything else that YAML or Go would take for
// a number is refused, because it means different things to different readers.
func decimal(text string) (*big.Rat, *Fault) {
	if strings.HasPrefix(text, "-") {
		return nil, Faultf("", "%s is negative", text)
	}
	whole, _, _ := strings.Cut(text, ".")
	switch {
	case len(whole) > 1 && whole[0] == '0' && plainDecimal.MatchString(text):
		plain := strings.TrimLeft(whole, "0") + text[len(whole):]
		if plain == "" {
			plain = "0"
		}
		if octal, err := strconv.ParseInt(text, 8, 64); err == nil && strconv.FormatInt(octal, 10) != plain {
			return nil, Faultf(fmt.Sprintf("write %s or %d", plain, octal),
				"%s could mean %s or, as YAML reads it, octal %d", text, plain, octal)
		}
		return nil, Faultf("write "+plain, "%s has a leading zero", text)
	case strings.Contains(text, ","):
		return nil, Faultf("write "+strings.ReplaceAll(text, ",", ".")+" for a fraction, or leave the comma out",
			"%s has a comma, which could mark a fraction or thousands", text)
	case !plainDecimal.MatchString(text):
		return nil, Faultf("write plain digits, such as 16 or 1.5", "%s is not a plain decimal number", text)
	}
	n, ok := new(big.Rat).SetString(text)
	if !ok {
		return nil, Faultf("", "%s is not a number", text)
	}
	return n, nil
}

// scaled multiplies and rounds down to a whole int64.
func scaled(n *big.Rat, factor int64, text string) (int64, *Fault) {
	product := new(big.Rat).Mul(n, new(big.Rat).SetInt64(factor))
	whole := new(big.Int).Quo(product.Num(), product.Denom())
	if !whole.IsInt64() {
		return 0, Faultf("", "%s is too large", text)
	}
	if whole.Sign() == 0 && product.Sign() > 0 {
		return 0, Faultf("", "%s is too small", text)
	}
	return whole.Int64(), nil
}

// bytesPer gives the size of a unit of sizes, which are case-sensitive but for kB and KB.
func bytesPer(name string) int64 {
	if name == "KB" {
		name = "kB"
	}
	for _, u := range byteUnits {
		if u.name == name {
			return u.bytes
		}
	}
	return 0
}

const sizePattern = `[0-9]+(\.[0-9]+)? ?([kKMGTP]?B|[KMGTP]iB)`

// SizeUnit reads "8GiB" and "8GB"; with percent also "4%" of MemTotal.
func SizeUnit(percent bool) unit {
	pattern, examples := "^"+sizePattern+"$", []any{"8GiB", "512MB"}
	if percent {
		pattern, examples = `^(`+sizePattern+`|[0-9]+(\.[0-9]+)? ?%)$`, append(examples, "4%")
	}
	return unit{
		schema: JSONSchema{"type": "string", "pattern": pattern, "examples": examples},
		read: func(text string) (Value, *Fault) {
			number, name, ok := split(text)
			if !ok {
				return nil, Faultf("write a number with its unit, such as 8GiB or 512MB", "%q is not a size", text)
			}
			n, wrong := decimal(number)
			if wrong != nil {
				return nil, wrong
			}
			switch {
			case n.Sign() == 0 && (name == "" || bytesPer(name) > 0):
				return Bytes(0), nil
			case name == "%" && percent:
				return readPercent(n, text)
			case name == "%":
				return nil, Faultf("write a size, such as 8GiB", "%s: only memory limits can be a percentage", text)
			case bytesPer(name) == 0:
				return nil, wrongByteUnit(text, number, name, "")
			}
			b, wrong := scaled(n, bytesPer(name), text)
			return Bytes(b), wrong
		},
	}
}

func readPercent(n *big.Rat, text string) (Value, *Fault) {
	share, wrong := scaled(n, One, text)
	if wrong == nil && share > 100*One {
		return nil, Faultf("", "%s is more than all of the memory", text)
	}
	return MemoryPercent(share), wrong
}

// SizeRateSchema is a rate in bytes a second, such as 50MB/s.
var SizeRateSchema = JSONSchema{"type": "string", "pattern": "^" + sizePattern + "/s$",
	"examples": []any{"50MB/s", "10MiB/s"}}

// RateUnit reads "10MiB/s", "10MB/s", and a share of what the disk can do, "20%".
var RateUnit = unit{
	schema: JSONSchema{"anyOf": []any{SizeRateSchema, PercentSchema}},
	read: func(text string) (Value, *Fault) {
		number, name, ok := split(text)
		if !ok {
			return nil, Faultf("write a number with its unit, such as 50MB/s or 10MiB/s", "%q is not a rate", text)
		}
		n, wrong := decimal(number)
		if wrong != nil {
			return nil, wrong
		}
		size, perSecond := strings.CutSuffix(name, "/s")
		switch {
		case name == "%":
			return ioPercentOf(n, text)
		case !perSecond && bytesPer(name) > 0:
			return nil, Faultf(fmt.Sprintf("write %s%s/s", number, name), "%s is a size, not a rate", text)
		case strings.HasSuffix(size, "bit") || strings.HasSuffix(name, "bps"):
			return nil, Faultf("write bytes, such as 50MB/s",
				"%s is in bits, as networks are; disks are limited in bytes", text)
		case bytesPer(size) == 0:
			return nil, wrongByteUnit(text, number, size, "/s")
		}
		b, wrong := scaled(n, bytesPer(size), text)
		return Rate(b), wrong
	},
}

// wrongByteUnit says which two things a missing or shortened unit could mean.
func wrongByteUnit(text, number, name, per string) *Fault {
	plural := "bytes"
	if per != "" {
		plural = "bytes a second"
	}
	if name == "" {
		other := "GiB"
		if per != "" {
			other = "MiB"
		}
		if len(number) > 4 { // as the kernel's files print it, or in their KiB
			other = "KiB"
		}
		return Faultf(fmt.Sprintf("write %sB%s or %s%s%s", number, per, number, other, per),
			"%s has no unit: it could mean %s%s (%s) or %s%s%s", text, number, "B"+per, plural, number, other, per)
	}
	letter := strings.ToUpper(name[:1])
	if strings.Contains("KMGTP", letter) {
		small := letter + "B"
		if letter == "K" {
			small = "kB"
		}
		big := letter + "iB"
		return Faultf(fmt.Sprintf("write %s%s%s or %s%s%s", number, small, per, number, big, per),
			"%s could mean %s%s%s (%s %s) or %s%s%s (%s %s)", text,
			number, small, per, inBytes(number, small), plural, number, big, per, inBytes(number, big), plural)
	}
	return Faultf("units are B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024)",
		"%s: unknown unit %q", text, name)
}

// inBytes is a size in bytes; the caller has checked the number.
func inBytes(number, name string) string {
	n, _ := new(big.Rat).SetString(number)
	product := n.Mul(n, new(big.Rat).SetInt64(bytesPer(name)))
	return new(big.Int).Quo(product.Num(), product.Denom()).String()
}

// CoresUnit reads cores as a number, "1.5", or as a percentage of one core, "150%".
var CoresUnit = unit{
	number: true,
	schema: JSONSchema{"anyOf": []any{
		JSONSchema{"type": "number", "exclusiveMinimum": 0},
		JSONSchema{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?%$`, "examples": []any{"150%"}},
	}},
	read: func(text string) (Value, *Fault) {
		number, name, ok := split(text)
		if !ok {
			return nil, Faultf("write a number of cores, such as 1.5, or a percentage of one core, such as 150%",
				"%q is not a number of cores", text)
		}
		n, wrong := decimal(number)
		if wrong != nil {
			return nil, wrong
		}
		factor := int64(One)
		switch name {
		case "":
		case "%":
			factor = One / 100
		default:
			return nil, Faultf("write a number of cores, such as 1.5, or a percentage of one core, such as 150%",
				"%s: unknown unit %q", text, name)
		}
		cores, wrong := scaled(n, factor, text)
		return Cores(cores), wrong
	},
}

var durationUnits = []struct {
	name   string
	length time.Duration
}{{"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}}

// durationUnit reads "100ms" and "20us" between two bounds.
func durationUnit(lowest, highest time.Duration) unit {
	return unit{
		schema: JSONSchema{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?(us|µs|ms|s)$`,
			"examples": []any{"100ms", "20us"}},
		read: func(text string) (Value, *Fault) {
			number, name, ok := split(text)
			if !ok {
				return nil, Faultf("write a number with its unit, such as 100ms or 20us", "%q is not a duration", text)
			}
			n, wrong := decimal(number)
			if wrong != nil {
				return nil, wrong
			}
			length := time.Duration(0)
			for _, u := range durationUnits {
				if u.name == strings.Replace(name, "µ", "u", 1) {
					length = u.length
				}
			}
			switch {
			case n.Sign() == 0 && name == "":
				length = time.Second
			case name == "":
				return nil, Faultf(fmt.Sprintf("write %sus or %sms", number, number),
					"%s has no unit: it could mean %sus or %sms", text, number, number)
			case length == 0:
				return nil, Faultf("units are us, ms and s", "%s: unknown unit %q", text, name)
			}
			us, wrong := scaled(n, int64(length/time.Microsecond), text)
			if wrong != nil {
				return nil, wrong
			}
			if us > math.MaxInt64/1000 {
				return nil, Faultf("", "%s is too large", text)
			}
			d := time.Duration(us) * time.Microsecond
			if d < lowest || d > highest {
				return nil, Faultf("", "%s is outside %s to %s", text, Duration(lowest), Duration(highest))
			}
			return Duration(d), nil
		},
	}
}

// Integer reads a whole number between two bounds.
func Integer(text, what string, lowest, highest int64) (int64, *Fault) {
	digits, negative := strings.CutPrefix(text, "-")
	if !negative || lowest >= 0 {
		digits = text
	}
	hint := fmt.Sprintf("%s is a whole number from %d to %d, without a unit", what, lowest, highest)
	if lowest < 0 && strings.HasPrefix(digits, "-") {
		return 0, Faultf(hint, "%s is not a number", text)
	}
	if number, _, ok := split(digits); !ok || number != digits {
		return 0, Faultf(hint, "%q is not a number", text)
	}
	n, wrong := decimal(digits)
	if wrong != nil {
		return 0, wrong
	}
	if !n.IsInt() {
		return 0, Faultf(hint, "%s is not a whole number", text)
	}
	whole := n.Num()
	if digits != text {
		whole = new(big.Int).Neg(whole)
	}
	if !whole.IsInt64() || whole.Int64() < lowest || whole.Int64() > highest {
		return 0, Faultf(hint, "%s is outside %d to %d", text, lowest, highest)
	}
	return whole.Int64(), nil
}

// IntegerUnit is a whole number of some type between two bounds.
func IntegerUnit[T interface {
	~int64
	Value
}](what string, lowest, highest int64) unit {
	return unit{
		number: true,
		schema: JSONSchema{"type": "integer", "minimum": lowest, "maximum": highest},
		read: func(text string) (Value, *Fault) {
			n, wrong := Integer(text, what, lowest, highest)
			return T(n), wrong
		},
	}
}

// flagUnit reads true and false.
var flagUnit = unit{
	number: true,
	schema: JSONSchema{"type": "boolean"},
	read: func(text string) (Value, *Fault) {
		switch text {
		case "true", "false":
			return Flag(text == "true"), nil
		}
		return nil, Faultf("write true or false", "%q is neither true nor false", text)
	},
}

var oomWords = []string{"kill", "kill-group", "pause"}

// oomUnit reads what happens when a group is out of memory.
var oomUnit = unit{
	schema: JSONSchema{"enum": oomWords},
	read: func(text string) (Value, *Fault) {
		if !slices.Contains(oomWords, text) {
			return nil, Faultf("write kill (one process), kill-group (all of the group) or pause (wait until "+
				"there is memory)", "%q is not known here", text)
		}
		return OOM(text), nil
	},
}

// paddedID is a number with a leading zero in a list, which YAML alone would read as octal.
var paddedID = regexp.MustCompile(`(^|[,-])\s*0[0-9]`)

// idsUnit reads the kernel's list format (cpuset(7)).
var idsUnit = unit{
	schema: JSONSchema{"anyOf": []any{
		JSONSchema{"type": "integer", "minimum": 0},
		JSONSchema{"type": "string", "pattern": `^ *[0-9]+( *- *[0-9]+)?( *, *[0-9]+( *- *[0-9]+)?)* *$`,
			"examples": []any{"0-3,8"}},
	}},
	read: func(text string) (Value, *Fault) {
		const hint = `write a list such as "0-3,8"`
		if len(text) > 4096 {
			return nil, Faultf(hint, "the list is too long")
		}
		ids, err := idset.Parse(text)
		if list := (*idset.ListError)(nil); errors.As(err, &list) {
			return nil, Faultf(hint, "%q: %s", text, list.Problem)
		}
		switch {
		case err != nil:
			return nil, Faultf(hint, "%v", err)
		case len(ids) == 0:
			return nil, Faultf(hint, "the list is empty")
		case paddedID.MatchString(text):
			return nil, Faultf("write it without the zero", "%q has a number with a leading zero", text)
		}
		return IDs{ids}, nil
	},
}

// ioPercentOf reads a share of a ceiling.
func ioPercentOf(n *big.Rat, text string) (Value, *Fault) {
	share, wrong := scaled(n, One, text)
	if wrong == nil && share > 100*One {
		return nil, Faultf("", "%s is more than all that the disk can do", text)
	}
	return IOPercent(share), wrong
}

// iopsUnit reads a number of operations, or a share of what the disk can do.
var iopsUnit = func() unit {
	whole := IntegerUnit[IOPS]("an IOPS limit", 1, 1<<31-1)
	return unit{
		number: true,
		schema: JSONSchema{"anyOf": []any{whole.schema, PercentSchema}},
		read: func(text string) (Value, *Fault) {
			if number, name, ok := split(text); ok && name == "%" {
				n, wrong := decimal(number)
				if wrong != nil {
					return nil, wrong
				}
				return ioPercentOf(n, text)
			}
			return whole.read(text)
		},
	}
}()

// PercentSchema is a percentage.
var PercentSchema = JSONSchema{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?%$`, "examples": []any{"20%"}}

// JSONSchema is a JSON Schema, draft 2020-12.
type JSONSchema map[string]any

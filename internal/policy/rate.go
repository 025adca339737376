package policy

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// BitRate is in bits per second, as networks are counted.
type BitRate int64

// bitUnits are the units of rates on networks, largest first.
var bitUnits = []struct {
	name string
	bits int64
}{{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// String is the exact rate in the unit that makes it shortest: "100Mbit/s", "2.5Gbit/s".
func (v BitRate) String() string {
	for _, u := range bitUnits {
		if tenths := int64(v) % u.bits * 10; int64(v) >= u.bits && tenths%u.bits == 0 {
			text := strconv.FormatInt(int64(v)/u.bits, 10)
			if tenths > 0 {
				text += "." + strconv.FormatInt(tenths/u.bits, 10)
			}
			return text + u.name + "/s"
		}
	}
	return "0"
}

const bitRatePattern = `^[0-9]+(\.[0-9]+)? ?[kKMGT]?bit/s$`

func bitsPer(name string) int64 {
	if name == "Kbit" {
		name = "kbit"
	}
	for _, u := range bitUnits {
		if u.name == name {
			return u.bits
		}
	}
	return 0
}

// BitRateUnit reads "100Mbit/s".
var BitRateUnit = unit{
	schema: JSONSchema{"type": "string", "pattern": bitRatePattern, "examples": []any{"100Mbit/s", "2.5Gbit/s"}},
	read: func(text string) (Value, *Fault) {
		number, name, ok := split(text)
		if !ok {
			return nil, Faultf("write a number with its unit, such as 100Mbit/s", "%q is not a rate", text)
		}
		n, wrong := decimal(number)
		if wrong != nil {
			return nil, wrong
		}
		size, perSecond := strings.CutSuffix(name, "/s")
		if bits := bitsPer(size); bits > 0 && perSecond || n.Sign() == 0 && name == "" {
			b, wrong := scaled(n, bits, text)
			return BitRate(b), wrong
		}
		return nil, wrongBitUnit(text, number, name, n)
	},
}

// wrongBitUnit says what a rate that is not in bits per second could mean.
func wrongBitUnit(text, number, name string, n *big.Rat) *Fault {
	size := strings.TrimSuffix(name, "/s")
	switch {
	case name == "":
		return Faultf(fmt.Sprintf("write %sMbit/s or %skbit/s", number, number),
			"%s has no unit: it could mean %sMbit/s or %skbit/s", text, number, number)
	case bitsPer(name) > 0:
		return Faultf(fmt.Sprintf("write %s%s/s", number, name), "%s is an amount, not a rate", text)
	case name == "%":
		return Faultf("write a rate, such as 100Mbit/s", "%s: limits on networks are no percentages", text)
	case strings.HasSuffix(name, "bps"):
		prefix := strings.Replace(strings.ToUpper(strings.TrimSuffix(name, "bps")), "K", "k", 1)
		return Faultf(fmt.Sprintf("write %s%sbit/s", number, prefix),
			"%s could mean bits or, as tc reads it, bytes a second", text)
	case bytesPer(size) > 0:
		bits := new(big.Rat).Mul(n, new(big.Rat).SetInt64(8*bytesPer(size)))
		if whole := new(big.Int).Quo(bits.Num(), bits.Denom()); whole.IsInt64() && whole.Sign() > 0 {
			return Faultf(fmt.Sprintf("write %s, if bytes are meant", BitRate(whole.Int64())),
				"%s is in bytes; limits on networks are in bits, of which a byte has eight", text)
		}
		return Faultf("", "%s is in bytes, and too much", text)
	}
	if letter := strings.ToUpper(name[:1]); strings.Contains("KMGT", letter) {
		if letter == "K" {
			letter = "k"
		}
		return Faultf(fmt.Sprintf("write %s%sbit/s", number, letter), "%s: %q is no unit of a rate on a network", text,
			name)
	}
	return Faultf("units are kbit/s, Mbit/s, Gbit/s", "%s: %q is no unit of a rate on a network", text, name)
}

package policy

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
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

// bitRateUnit reads "100Mbit/s".
var bitRateUnit = unit{
	schema: JSONSchema{"type": "string", "pattern": bitRatePattern, "examples": []any{"100Mbit/s", "2.5Gbit/s"}},
	read: func(text string) (Value, *fault) {
		number, name, ok := split(text)
		if !ok {
			return nil, faultf("write a number with its unit, such as 100Mbit/s", "%q is not a rate", text)
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
func wrongBitUnit(text, number, name string, n *big.Rat) *fault {
	size := strings.TrimSuffix(name, "/s")
	switch {
	case name == "":
		return faultf(fmt.Sprintf("write %sMbit/s or %skbit/s", number, number), "%s has no unit: it could mean %sMbit/s or %skbit/s", text, number, number)
	case bitsPer(name) > 0:
		return faultf(fmt.Sprintf("write %s%s/s", number, name), "%s is an amount, not a rate", text)
	case name == "%":
		return faultf("write a rate, such as 100Mbit/s", "%s: limits on networks are no percentages", text)
	case strings.HasSuffix(name, "bps"):
		prefix := strings.Replace(strings.ToUpper(strings.TrimSuffix(name, "bps")), "K", "k", 1)
		return faultf(fmt.Sprintf("write %s%sbit/s", number, prefix), "%s could mean bits or, as tc reads it, bytes a second", text)
	case bytesPer(size) > 0:
		bits := new(big.Rat).Mul(n, new(big.Rat).SetInt64(8*bytesPer(size)))
		if whole := new(big.Int).Quo(bits.Num(), bits.Denom()); whole.IsInt64() && whole.Sign() > 0 {
			return faultf(fmt.Sprintf("write %s, if bytes are meant", BitRate(whole.Int64())), "%s is in bytes; limits on networks are in bits, of which a byte has eight", text)
		}
		return faultf("", "%s is in bytes, and too much", text)
	}
	if letter := strings.ToUpper(name[:1]); strings.Contains("KMGT", letter) {
		if letter == "K" {
			letter = "k"
		}
		return faultf(fmt.Sprintf("write %s%sbit/s", number, letter), "%s: %q is no unit of a rate on a network", text, name)
	}
	return faultf("units are kbit/s, Mbit/s, Gbit/s", "%s: %q is no unit of a rate on a network", text, name)
}

// The keys of limits on a network interface. They belong to one interface (Setting.On); no file of the kernel holds them.
const (
	KeyNetworkEgressMin  Key = "network.egress.min"  // BitRate
	KeyNetworkEgressMax  Key = "network.egress.max"  // BitRate
	KeyNetworkIngressMin Key = "network.ingress.min" // BitRate
	KeyNetworkIngressMax Key = "network.ingress.max" // BitRate
)

// networkLimits are the rows of limits on interfaces; see limits.
var networkLimits = []limit{
	{key: KeyNetworkEgressMin, unit: bitRateUnit, doc: "Bandwidth that is kept for what leaves the group, whenever it wants it. It is a share of the link, whose rate must be known."},
	{key: KeyNetworkEgressMax, unit: bitRateUnit, lift: true, doc: "Most bandwidth of what leaves the group."},
	{key: KeyNetworkIngressMin, unit: bitRateUnit, doc: "Bandwidth that is kept for what arrives for the group. It needs the ports that the group listens on."},
	{key: KeyNetworkIngressMax, unit: bitRateUnit, lift: true, doc: "Most bandwidth of what arrives for the group."},
}

// NetworkKeys gives the keys of limits on interfaces.
func NetworkKeys() []Key {
	return []Key{KeyNetworkEgressMin, KeyNetworkEgressMax, KeyNetworkIngressMin, KeyNetworkIngressMax}
}

// OfNetwork says whether a key is that of a limit on an interface.
func (k Key) OfNetwork() bool { return strings.HasPrefix(string(k), "network.") }

// Sort says how the packets of a group are told from others.
type Sort string

// The ways to tell packets apart; "" is SortAuto.
const (
	SortAuto  Sort = "auto"  // by the group's sockets where the kernel can, else by ports
	SortPorts Sort = "ports" // by ports in both directions: holds connections, too, that were open before the group
)

var sorts = []string{string(SortAuto), string(SortPorts)}

// NetworkPart is how the limits of a group on one interface are put in force.
type NetworkPart struct {
	Replace bool   `json:"replace,omitempty"` // foreign qdiscs make room, and come back
	Sort    Sort   `json:"by,omitempty"`
	Ports   string `json:"ports,omitempty"` // "3306,33060": that the group's processes listen on, beside those found
}

// PortList is the ports of the part.
func (n NetworkPart) PortList() []uint16 {
	var all []uint16
	for text := range strings.SplitSeq(n.Ports, ",") {
		if port, err := strconv.ParseUint(text, 10, 16); err == nil {
			all = append(all, uint16(port))
		}
	}
	return all
}

// networkItem is one entry of `network:` while it is read.
type networkItem struct {
	on     string
	onPos  Pos
	part   NetworkPart
	limits Settings
}

// sharesSchema is that of one direction: a ceiling alone, or guarantee and ceiling.
func sharesSchema(least, most *limit) JSONSchema {
	return JSONSchema{"anyOf": []any{most.Schema(), JSONSchema{
		"type": "object", "additionalProperties": false, "minProperties": 1,
		"properties": JSONSchema{"min": least.Schema(), "max": most.Schema()},
	}}}
}

// directionField is `egress:` or `ingress:`.
func directionField(name, doc string, least, most *limit) FormKey[networkItem] {
	add := func(into *networkItem, s Setting) { into.limits = append(into.limits, s) }
	inner := Form[networkItem]{
		Name: "network." + name, Keys: []FormKey[networkItem]{limitField(least, add), limitField(most, add)},
		Elsewhere: map[string]string{"rate": "did you mean max?", "limit": "did you mean max?", "ceil": "did you mean max?", "guarantee": "did you mean min?"},
	}
	return FormKey[networkItem]{
		Name: name, Doc: doc + " A rate alone is the most; {min: …, max: …} keeps some of the link free, too.", Schema: sharesSchema(least, most),
		Read: func(v Item, i *networkItem) {
			if v.IsBlock() {
				inner.Read(v, v.Name()+".", i)
			} else if s, ok := v.Limit(most); ok {
				add(i, s)
			}
		},
	}
}

// networkForm is one entry of `network:`.
func networkForm() Form[networkItem] {
	row := limitOf
	return Form[networkItem]{
		Name:      "a network entry",
		Elsewhere: map[string]string{"min": "write it below `egress:` or `ingress:`", "max": "write it below `egress:` or `ingress:`", "dev": "did you mean on?", "port": "did you mean ports?"},
		Keys: []FormKey[networkItem]{
			{
				Name: "on", Doc: "The interface: its name, default for that of the default route, or a network such as 10.1.0.0/16 for that through which it is reached.",
				Schema: JSONSchema{"type": "string", "pattern": interfacePattern},
				Read: func(v Item, i *networkItem) {
					i.onPos = v.Pos()
					i.on, _ = readNetworkTarget(v)
				},
			},
			directionField("egress", "What leaves the group.", row(KeyNetworkEgressMin), row(KeyNetworkEgressMax)),
			directionField("ingress", "What arrives for the group.", row(KeyNetworkIngressMin), row(KeyNetworkIngressMax)),
			{
				Name: "replace", Doc: "Whether a queueing discipline that somebody else gave the interface makes room; it comes back in the end. Without it the interface is left alone.",
				Schema: JSONSchema{"type": "boolean"},
				Read:   func(v Item, i *networkItem) { i.part.Replace, _ = v.Flag() },
			},
			{
				Name: "ports", Doc: "TCP ports that the group listens on, beside those that are found. What arrives is told by them.",
				Schema: listOf(JSONSchema{"type": "integer", "minimum": 1, "maximum": 65535}),
				Read:   func(v Item, i *networkItem) { i.part.Ports = readPorts(v) },
			},
			{
				Name: "by", Doc: "How what leaves is told from others: auto is by the group's sockets where the kernel can, ports by the ports alone, which holds connections that were open before.",
				Schema: JSONSchema{"enum": sorts},
				Read: func(v Item, i *networkItem) {
					word, _ := v.Word(sorts...)
					i.part.Sort = Sort(word)
				},
			},
		},
	}
}

const interfacePattern = `^[^\s/]{1,15}$|^[0-9a-fA-F.:]+/[0-9]+$`

// networkTarget reads what names an interface.
func readNetworkTarget(v Item) (string, bool) {
	text, ok := v.Text()
	if !ok {
		return "", false
	}
	on, wrong := interfaceTarget(text)
	if wrong != nil {
		v.Fail(wrong.hint, "%s: %s", v.Name(), wrong.msg)
	}
	return on, wrong == nil
}

// interfaceTarget checks what names an interface. The kernel's names have at most 15 bytes and hold no slash and no space.
func interfaceTarget(text string) (string, *fault) {
	const hint = "write the name of an interface, default, or a network such as 10.1.0.0/16"
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return "", faultf(hint, "%q is not a network", text)
		}
		return prefix.Masked().String(), nil
	}
	if len(text) > 15 || strings.ContainsAny(text, " \t\n\v\f\r") || text == "." || text == ".." {
		return "", faultf(hint, "%q is not the name of an interface", text)
	}
	return text, nil
}

// ports reads a list of TCP ports, each once.
func readPorts(v Item) string {
	var all []string
	for _, item := range v.Items("write a list: `ports: [3306]`") {
		if n, ok := item.Number("a port", 1, 65535); ok {
			if text := strconv.FormatInt(n, 10); !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
	}
	return strings.Join(all, ",")
}

// network reads `network:`.
func readNetwork(v Item, o Form[networkItem], add func(Setting)) {
	seen := make(map[string]Item)
	for _, item := range v.Items("write a list: `network: [{on: eth0, egress: {max: 100Mbit/s}}]`") {
		var i networkItem
		if !o.Read(item, "network.", &i) {
			continue
		}
		switch first, twice := seen[i.on]; {
		case i.on == "":
			item.Fail("add `on: eth0`, or `on: default` for the interface of the default route", "this network entry names no interface")
			continue
		case len(i.limits) == 0:
			item.Fail("add `egress: {max: 100Mbit/s}` or `ingress: …`", "this network entry limits nothing")
			continue
		case twice:
			item.Fail("put both directions of one interface into one entry", "network: %s is here twice", i.on)
			item.Also(first.Pos())
			continue
		}
		seen[i.on] = item
		for _, s := range i.limits {
			s.On, s.onPos, s.Network = i.on, i.onPos, i.part
			add(s)
		}
	}
}

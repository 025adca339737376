package parse

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse/hostpart"
	"bulkhead/internal/policy/yamlform"
)

// networkItem is one entry of `network:` while it is read.
type networkItem struct {
	on     string
	onPos  policy.Pos
	part   policy.NetworkPart
	limits policy.Settings
}

// sharesSchema is that of one direction: a ceiling alone, or guarantee and ceiling.
func sharesSchema(least, most *policy.Limit) policy.JSONSchema {
	return policy.JSONSchema{"anyOf": []any{most.Schema(), policy.JSONSchema{
		"type": "object", "additionalProperties": false, "minProperties": 1,
		"properties": policy.JSONSchema{"min": least.Schema(), "max": most.Schema()},
	}}}
}

// directionField is `egress:` or `ingress:`.
func directionField(name, doc string, least, most *policy.Limit) yamlform.FormKey[networkItem] {
	add := func(into *networkItem, s policy.Setting) { into.limits = append(into.limits, s) }
	inner := yamlform.Form[networkItem]{
		Name: "network." + name, Keys: []yamlform.FormKey[networkItem]{limitField(least, add), limitField(most, add)},
		Elsewhere: map[string]string{"rate": "did you mean max?", "limit": "did you mean max?",
			"ceil": "did you mean max?", "guarantee": "did you mean min?"},
	}
	return yamlform.FormKey[networkItem]{
		Name: name, Doc: doc + " A rate alone is the most; {min: …, max: …} keeps some of the link free, too.",
		Schema: sharesSchema(least, most),
		Read: func(v yamlform.Item, i *networkItem) {
			if v.IsBlock() {
				inner.Read(v, v.Name()+".", i)
			} else if s, ok := v.Limit(most); ok {
				add(i, s)
			}
		},
	}
}

// networkForm is one entry of `network:`.
func networkForm() yamlform.Form[networkItem] {
	row := policy.LimitOf
	return yamlform.Form[networkItem]{
		Name: "a network entry",
		Elsewhere: map[string]string{"min": "write it below `egress:` or `ingress:`",
			"max": "write it below `egress:` or `ingress:`", "dev": "did you mean on?", "port": "did you mean ports?"},
		Keys: []yamlform.FormKey[networkItem]{
			{
				Name: "on", Doc: "The interface: its name, default for that of the default route, or a network such " +
					"as 10.1.0.0/16 for that through which it is reached.",
				Schema: policy.JSONSchema{"type": "string", "pattern": policy.InterfacePattern},
				Read: func(v yamlform.Item, i *networkItem) {
					i.onPos = v.Pos()
					i.on, _ = hostpart.NetworkTarget(v)
				},
			},
			directionField("egress", "What leaves the group.", row(policy.KeyNetworkEgressMin),
				row(policy.KeyNetworkEgressMax)),
			directionField("ingress", "What arrives for the group.", row(policy.KeyNetworkIngressMin),
				row(policy.KeyNetworkIngressMax)),
			{
				Name: "replace",
				Doc: "Whether a queueing discipline that somebody else gave the interface makes room; it comes " +
					"back in the end. Without it the interface is left alone.",
				Schema: policy.JSONSchema{"type": "boolean"},
				Read:   func(v yamlform.Item, i *networkItem) { i.part.Replace, _ = v.Flag() },
			},
			{
				Name: "ports",
				Doc: "TCP ports that the group listens on, beside those that are found. What arrives is " +
					"told by them.",
				Schema: yamlform.ListOf(policy.JSONSchema{"type": "integer", "minimum": 1, "maximum": 65535}),
				Read:   func(v yamlform.Item, i *networkItem) { i.part.Ports = readPorts(v) },
			},
			{
				Name: "by", Doc: "How what leaves is told from others: auto is by the group's sockets where the " +
					"kernel can, ports by the ports alone, which holds connections that were open before.",
				Schema: policy.JSONSchema{"enum": policy.Sorts},
				Read: func(v yamlform.Item, i *networkItem) {
					word, _ := v.Word(policy.Sorts...)
					i.part.Sort = policy.Sort(word)
				},
			},
		},
	}
}

// ports reads a list of TCP ports, each once.
func readPorts(v yamlform.Item) string {
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
func readNetwork(v yamlform.Item, o yamlform.Form[networkItem], add func(policy.Setting)) {
	seen := make(map[string]yamlform.Item)
	for _, item := range v.Items("write a list: `network: [{on: eth0, egress: {max: 100Mbit/s}}]`") {
		var i networkItem
		if !o.Read(item, "network.", &i) {
			continue
		}
		switch first, twice := seen[i.on]; {
		case i.on == "":
			item.Fail("add `on: eth0`, or `on: default` for the interface of the default route",
				"this network entry names no interface")
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
			s.On, s.OnPos, s.Network = i.on, i.onPos, i.part
			add(s)
		}
	}
}

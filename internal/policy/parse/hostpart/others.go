package hostpart

import (
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// othersField is `host.others:`.
func othersField() yamlform.FormKey[policy.HostPart] {
	block := yamlform.Form[policy.HostPart]{
		Name:      "host.others",
		Elsewhere: map[string]string{"match": "who matches no rule is gathered; write a group for the rest"},
	}
	for _, key := range []policy.Key{policy.KeyCPUWeight, policy.KeyCPUIdle, policy.KeyCPULimit} {
		l := policy.LimitOf(key)
		block.Keys = append(block.Keys, yamlform.FormKey[policy.HostPart]{
			Name: l.Name(), Doc: l.Doc, Schema: l.Schema(),
			Read: func(v yamlform.Item, h *policy.HostPart) {
				if s, ok := v.Limit(l); ok {
					h.Others = append(h.Others, s)
				}
			},
		})
	}
	return yamlform.FormKey[policy.HostPart]{
		Name: "others",
		Doc: "CPU of all processes that match no rule, gathered by session below one group; with systemd of " +
			"system.slice and user.slice. Off unless given.",
		Schema: block.Schema(),
		Read: func(v yamlform.Item, h *policy.HostPart) {
			h.OthersPos = v.Pos()
			if !block.Read(v, "host.others.", h) {
				return
			}
			if h.Others = h.Others.Settle("host.others"); len(h.Others) == 0 {
				v.Fail("write `others: {weight: 10}`, `{idle: true}` or `{limit: 1}`", "host.others asks for nothing")
			}
		},
	}
}

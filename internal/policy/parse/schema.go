package parse

import (
	"encoding/json"

	"bulkhead/internal/policy"
)

// Schema is the JSON Schema of the policy file, draft 2020-12. It is made from the tables that the
// parser reads by. It knows the form of a file only: what Parse and Resolve find by looking at two
// places at once (names, sums, this host) it does not.
func Schema() ([]byte, error) {
	match, except, each, io := matchForm().Schema(), exceptForm().Schema(), eachForm().Schema(), ioForm().Schema()
	for _, s := range []policy.JSONSchema{match, except, each} {
		s["minProperties"] = 1
	}
	each["required"] = []string{"engine"}
	network := networkForm().Schema()
	network["required"] = []string{"on"}
	network["anyOf"] = []any{policy.JSONSchema{"required": []string{"egress"}},
		policy.JSONSchema{"required": []string{"ingress"}}}
	io["anyOf"] = []any{policy.JSONSchema{"required": []string{"read"}},
		policy.JSONSchema{"required": []string{"write"}}}
	root := mainForm().Schema()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "bulkhead policy"
	root["description"] = "Which databases share this host, and what each of them may use."
	root["required"] = []string{"version"}
	root["$defs"] = policy.JSONSchema{
		"group": groupForm().Schema(), "class": classForm().Schema(),
		"match": match, "except": except, "each": each, "io": io, "network": network,
	}
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

package policy

import (
	"encoding/json"
	"slices"
)

// JSONSchema is a JSON Schema, draft 2020-12.
type JSONSchema map[string]any

// listOf is the schema of a list.
func listOf(items JSONSchema) JSONSchema { return JSONSchema{"type": "array", "items": items} }

// mapOf is the schema of a mapping whose keys match a pattern.
func mapOf(pattern string, values JSONSchema) JSONSchema {
	return JSONSchema{"type": "object", "propertyNames": JSONSchema{"pattern": pattern}, "additionalProperties": values}
}

// groupsSchema is the schema of a `groups:` block.
func groupsSchema() JSONSchema {
	s := mapOf(templatePattern, JSONSchema{"$ref": "#/$defs/group"})
	s["propertyNames"].(JSONSchema)["not"] = JSONSchema{"pattern": reservedGroup}
	return s
}

// Schema describes the values of a limit.
func (l *limit) Schema() JSONSchema {
	forms := []any{l.unit.schema}
	if several, ok := l.unit.schema["anyOf"].([]any); ok {
		forms = slices.Clone(several)
	}
	if l.zero && l.unit.schema["type"] == "string" {
		forms = append(forms, JSONSchema{"const": 0})
	}
	if l.lift {
		forms = append(forms, JSONSchema{"const": Unlimited{}.String()})
	}
	if len(forms) == 1 {
		return l.unit.schema
	}
	return JSONSchema{"anyOf": forms}
}

// Schema is the JSON Schema of the policy file, draft 2020-12. It is made from the tables that the
// parser reads by. It knows the form of a file only: what Parse and Resolve find by looking at two
// places at once (names, sums, this host) it does not.
func Schema() ([]byte, error) {
	match, except, each, io := matchForm().Schema(), exceptForm().Schema(), eachForm().Schema(), ioForm().Schema()
	for _, s := range []JSONSchema{match, except, each} {
		s["minProperties"] = 1
	}
	each["required"] = []string{"engine"}
	network := networkForm().Schema()
	network["required"] = []string{"on"}
	network["anyOf"] = []any{JSONSchema{"required": []string{"egress"}}, JSONSchema{"required": []string{"ingress"}}}
	io["anyOf"] = []any{JSONSchema{"required": []string{"read"}}, JSONSchema{"required": []string{"write"}}}
	root := mainForm().Schema()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "bulkhead policy"
	root["description"] = "Which databases share this host, and what each of them may use."
	root["required"] = []string{"version"}
	root["$defs"] = JSONSchema{
		"group": groupForm().Schema(), "class": classForm().Schema(),
		"match": match, "except": except, "each": each, "io": io, "network": network,
	}
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

package policy

import (
	"encoding/json"
	"slices"
)

// schema is a JSON Schema, draft 2020-12.
type schema map[string]any

// listOf is the schema of a list.
func listOf(items schema) schema { return schema{"type": "array", "items": items} }

// mapOf is the schema of a mapping whose keys match a pattern.
func mapOf(pattern string, values schema) schema {
	return schema{"type": "object", "propertyNames": schema{"pattern": pattern}, "additionalProperties": values}
}

// groupsSchema is the schema of a `groups:` block.
func groupsSchema() schema {
	s := mapOf(templatePattern, schema{"$ref": "#/$defs/group"})
	s["propertyNames"].(schema)["not"] = schema{"pattern": reservedGroup}
	return s
}

// schema describes the values of a limit.
func (l *limit) schema() schema {
	forms := []any{l.unit.schema}
	if several, ok := l.unit.schema["anyOf"].([]any); ok {
		forms = slices.Clone(several)
	}
	if l.zero && l.unit.schema["type"] == "string" {
		forms = append(forms, schema{"const": 0})
	}
	if l.lift {
		forms = append(forms, schema{"const": Unlimited{}.String()})
	}
	if len(forms) == 1 {
		return l.unit.schema
	}
	return schema{"anyOf": forms}
}

// schema describes an object: its keys with their documentation, and no others.
func (o object[T]) schema() schema {
	properties := make(schema, len(o.fields))
	for _, f := range o.fields {
		s := schema{"description": f.doc}
		for key, value := range f.schema {
			s[key] = value
		}
		properties[f.name] = s
	}
	return schema{"type": "object", "properties": properties, "additionalProperties": false}
}

// Schema is the JSON Schema of the policy file, draft 2020-12. It is made from the tables that the
// parser reads by. It knows the form of a file only: what Parse and Resolve find by looking at two
// places at once (names, sums, this host) it does not.
func Schema() ([]byte, error) {
	match, except, each, io := matchObject().schema(), exceptObject().schema(), eachObject().schema(), ioObject().schema()
	for _, s := range []schema{match, except, each} {
		s["minProperties"] = 1
	}
	each["required"] = []string{"engine"}
	network := networkObject().schema()
	network["required"] = []string{"on"}
	network["anyOf"] = []any{schema{"required": []string{"egress"}}, schema{"required": []string{"ingress"}}}
	io["anyOf"] = []any{schema{"required": []string{"read"}}, schema{"required": []string{"write"}}}
	root := mainObject().schema()
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "bulkhead policy"
	root["description"] = "Which databases share this host, and what each of them may use."
	root["required"] = []string{"version"}
	root["$defs"] = schema{
		"group": groupObject().schema(), "class": classObject().schema(),
		"match": match, "except": except, "each": each, "io": io, "network": network,
	}
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

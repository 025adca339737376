package manual

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// example is the policy that the page shows.
const example = `version: 1
host:
  reserve: {cpu: 0.5, memory: 1GiB}
groups:
  "mysql{port}":
    role: database
    each: {engine: mysql}
  reports:
    role: batch
    match: [{user: report}]
    cpu: {limit: 1.5}
    memory: {max: 4GiB, swap: 0}
    io: [{on: /, read: {bandwidth: 50MB/s}}]
`

// schema is a JSON Schema, as decoded.
type schema = map[string]any

// part is a part of the schema that has a section of its own.
type part struct{ title, def, about string }

var parts = []part{
	{"GROUPS", "group", "What stands below the name of a group."},
	{"CLASSES", "class", "What stands below the name of a class."},
	{"MATCH", "match", "An entry of match. All of its keys must match a process."},
	{"EXCEPT", "except", "An entry of except. All of its keys must match a process."},
	{"EACH", "each", "Which instances a template makes a group for. All of its keys must match an instance."},
	{"IO", "io", "An entry of io: a limit, or a share, of a device."},
	{"NETWORK", "network", "An entry of network: what a group may send and receive."},
}

// keys writes the keys of the policy file.
type keys struct {
	*page
	// told are keys that another section has, with its title: the same key of the same form refers to it.
	told  map[string]any
	where string
}

// policyPage is bulkhead-policy(5), from the schema of policies. file is where a policy is unless named.
func policyPage(text []byte, file string, f foot) (string, error) {
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		return "", fmt.Errorf("read the schema of policies: %w", err)
	}
	defs := below(root, "$defs")
	p := newPage("bulkhead-policy", "5", "the policy file of bulkhead", f)
	p.section("SYNOPSIS")
	p.line(italic(file))
	p.section("DESCRIPTION")
	about, _ := root["description"].(string)
	if about == "" {
		return "", errors.New("read the schema of policies: it has no description")
	}
	p.prose("The policy file says " + strings.ToLower(about[:1]) + about[1:] + " It is YAML. " +
		"`bulkhead discover --as-policy` prints one to start from, `bulkhead check` says what is wrong with it, " +
		"`bulkhead plan` what it would change, and `bulkhead apply` puts it in force.\n\n" +
		"An unknown key, a key given twice, an alias, a merge key and a tag are errors. A size has a unit: 8GiB, " +
		"512MB. Below, NAME stands for a name that you choose, and [] for an entry of a list.")
	k := keys{page: p}
	p.section("THE TOP OF THE FILE")
	k.told, k.where = below(below(defs, "class"), "properties"), "a group"
	k.list("", root)
	for _, part := range parts {
		p.section(part.title)
		p.line(marked(part.about))
		switch part.def {
		case "group", "match":
			k.told = nil
		case "class":
			k.told, k.where = below(below(defs, "group"), "properties"), "a group"
		case "except":
			k.told, k.where = below(below(defs, "match"), "properties"), "match"
		}
		k.list("", below(defs, part.def))
	}
	p.section("EXAMPLE")
	p.indented(strings.Split(strings.TrimSpace(example), "\n"))
	p.section("SEE ALSO")
	p.line(bold("bulkhead") + "(8), " + bold("bulkhead-check") + "(8), " + bold("bulkhead-schema") + "(8)")
	return p.String(), nil
}

// below is a part of a schema; nil where there is none.
func below(s schema, key string) schema {
	part, _ := s[key].(schema)
	return part
}

// list writes the keys of an object, each with those below it.
func (k *keys) list(prefix string, s schema) {
	properties := below(s, "properties")
	var same []string
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if told, ok := k.told[name]; ok && reflect.DeepEqual(told, properties[name]) {
			same = append(same, name)
		}
	}
	if len(same) > 0 {
		var names []string
		for _, name := range same {
			names = append(names, bold(prefix+name))
		}
		k.WriteString(".TP\n" + "as in " + k.where + "\n")
		k.line(strings.Join(names, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if !slices.Contains(same, name) {
			k.key(prefix+name, below(properties, name))
		}
	}
}

// key writes one key, and those below it.
func (k *keys) key(name string, s schema) {
	text, _ := s["description"].(string)
	if form := form(s); form != "" {
		if s["const"] != nil {
			form = "always " + form
		}
		text = strings.TrimSpace(text + " " + strings.ToUpper(form[:1]) + form[1:] + ".")
	}
	if usual, ok := s["default"]; ok {
		text += fmt.Sprintf(" Default: %v.", usual)
	}
	k.item(bold(name), text)
	k.inside(name, s)
}

// inside writes the keys of the objects that a value may be, or hold.
func (k *keys) inside(name string, s schema) {
	k.list(name+".", s)
	if values := below(s, "additionalProperties"); values != nil {
		k.inside(name+".NAME", values)
	}
	if items := below(s, "items"); items != nil {
		k.inside(name+"[]", items)
	}
	forms, _ := s["anyOf"].([]any)
	for _, form := range forms {
		// A list of what may also stand alone has the same keys.
		if one, ok := form.(schema); ok && below(one, "items") == nil {
			k.inside(name, one)
		}
	}
}

// form says what may be written as a value; "" for an object, whose keys say it.
func form(s schema) string {
	if ref, ok := s["$ref"].(string); ok {
		for _, p := range parts {
			if ref == "#/$defs/"+p.def {
				return "as below " + p.title
			}
		}
	}
	if forms, ok := s["anyOf"].([]any); ok && len(below(s, "properties")) == 0 {
		var all []string
		for _, f := range forms {
			if text := form(f.(schema)); text != "" && !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
		return strings.Join(all, ", or ")
	}
	if listed := listed(s); listed != "" {
		return listed
	}
	switch s["type"] {
	case "integer":
		return "a whole number" + bounds(s)
	case "number":
		return "a number" + bounds(s)
	case "boolean":
		return "true or false"
	case "array":
		if one := form(below(s, "items")); one != "" {
			return "a list; an entry is " + one
		}
		return "a list"
	case "object":
		if values := below(s, "additionalProperties"); values["$ref"] != nil {
			return "by name, " + form(values)
		}
		return ""
	case "string":
		return "text"
	}
	return "text or a whole number"
}

// listed is what may be written where the schema lists it, or gives examples of it.
func listed(s schema) string {
	if only, ok := s["const"]; ok {
		return fmt.Sprint(only)
	}
	if values, ok := s["enum"].([]any); ok {
		return "one of " + joined(values)
	}
	if examples, ok := s["examples"].([]any); ok && s["type"] != "object" {
		return "such as " + joined(examples)
	}
	return ""
}

// bounds says what a number must keep within.
func bounds(s schema) string {
	least, hasLeast := s["minimum"].(float64)
	most, hasMost := s["maximum"].(float64)
	above, hasAbove := s["exclusiveMinimum"].(float64)
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	switch {
	case hasLeast && hasMost:
		return ", " + number(least) + " to " + number(most)
	case hasLeast:
		return " of at least " + number(least)
	case hasAbove:
		return " above " + number(above)
	}
	return ""
}

func joined(values []any) string {
	var all []string
	for _, v := range values {
		all = append(all, fmt.Sprint(v))
	}
	return strings.Join(all, ", ")
}

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// field is one key of a mapping in the file: how its value is read into a T, and how the schema
// shows it. The parser and the schema are made from the same fields, so there is no second list.
type field[T any] struct {
	name   string
	doc    string
	schema schema
	read   func(w *walker, v value, into *T)
}

// object is the fields of one mapping. elsewhere says of keys that are known in other mappings
// where they belong.
type object[T any] struct {
	name      string // for messages: "a group"
	fields    []field[T]
	elsewhere map[string]string
}

// value is a node with its name for messages: "cpu.limit".
type value struct {
	*yaml.Node
	name string
}

// entry is one key of a mapping with its value.
type entry struct {
	key   *yaml.Node
	value value
}

// walker walks the nodes of one source and gathers what is wrong with them.
type walker struct {
	source   Source
	lines    lines
	problems Problems
	group    object[Group] // kept here because groups hold groups
}

func newWalker(s Source) *walker {
	return &walker{source: s, lines: newLines([]Source{s}), group: groupObject()}
}

func (w *walker) at(n *yaml.Node) Pos { return Pos{w.source.Path, n.Line, n.Column} }

func (w *walker) fail(n *yaml.Node, hint, format string, args ...any) {
	at := w.at(n)
	w.problems = append(w.problems, Problem{Pos: at, Msg: fmt.Sprintf(format, args...), Hint: hint, Source: w.lines.of(at)})
}

// also names other places that take part in the last problem.
func (w *walker) also(places ...Pos) {
	last := &w.problems[len(w.problems)-1]
	last.Also = append(last.Also, places...)
}

// kindOf names what a node is, for "needs a list, not a number".
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a block of keys"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	}
	return "text"
}

// wants checks the kind of a value; an alias has been reported already (firstAlias).
func (w *walker) wants(v value, kind yaml.Kind, want, hint string) bool {
	switch {
	case v.Kind == yaml.AliasNode:
		return false
	case v.Style&yaml.TaggedStyle != 0:
		w.fail(v.Node, "take the tag out", "%s: a policy has no tags (%s)", v.name, v.Tag)
		return false
	case v.Kind == kind && v.Tag != "!!null":
		return true
	case v.Tag == "!!null":
		w.fail(v.Node, cmp.Or(hint, "write its value, or take the key out"), "%s has no value", v.name)
	default:
		w.fail(v.Node, hint, "%s needs %s, not %s", v.name, want, kindOf(v.Node))
	}
	return false
}

// entries gives the keys of a mapping, each once, in file order. prefix goes before the names of the
// values: "cpu." makes "cpu.limit".
func (w *walker) entries(v value, prefix string) []entry {
	if !w.wants(v, yaml.MappingNode, "a block of keys", "") {
		return nil
	}
	seen := make(map[string]*yaml.Node)
	var all []entry
	for i := 0; i+1 < len(v.Content); i += 2 {
		key := v.Content[i]
		switch {
		case key.Kind == yaml.AliasNode:
			continue
		case key.Tag == "!!merge":
			w.fail(key, "give groups that share settings a class", "a policy has no merge keys (<<)")
			continue
		case key.Kind != yaml.ScalarNode:
			w.fail(key, "put quotes around a key that holds { or [", "a key needs to be a word, not %s", kindOf(key))
			continue
		}
		if first := seen[key.Value]; first != nil {
			w.fail(key, "keep one of them", "key %q is here twice", key.Value)
			w.also(w.at(first))
			continue
		}
		seen[key.Value] = key
		all = append(all, entry{key, value{v.Content[i+1], prefix + key.Value}})
	}
	return all
}

// items gives the elements of a list.
func (w *walker) items(v value, hint string) []value {
	if !w.wants(v, yaml.SequenceNode, "a list", hint) {
		return nil
	}
	items := make([]value, len(v.Content))
	for i, n := range v.Content {
		items[i] = value{n, v.name}
	}
	return items
}

// text reads a string that is not empty. Numbers count as text (a user may be named by number).
func (w *walker) text(v value) (string, bool) {
	if !w.wants(v, yaml.ScalarNode, "text", "") {
		return "", false
	}
	if strings.TrimSpace(v.Value) == "" {
		w.fail(v.Node, "", "%s is empty", v.name)
		return "", false
	}
	return v.Value, true
}

// word reads one of a few words.
func (w *walker) word(v value, known ...string) (string, bool) {
	text, ok := w.text(v)
	if !ok || slices.Contains(known, text) {
		return text, ok
	}
	hint := "write " + known[0]
	if len(known) > 1 {
		hint = "write one of " + joinWords(known)
	}
	if near := nearest(text, known); near != "" && len(known) > 1 {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	w.fail(v.Node, hint, "%s cannot be %q", v.name, text)
	return "", false
}

// limit reads the value of one limit, with where it is written.
func (w *walker) limit(v value, l *limit) (Setting, bool) {
	hint := ""
	if v.Kind == yaml.SequenceNode {
		hint = "write a list of numbers as text: \"0-3,8\""
	}
	if !w.wants(v, yaml.ScalarNode, "a value", hint) {
		return Setting{}, false
	}
	text := strings.TrimSpace(v.Value)
	quoted := v.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	if _, wrong := l.unit.read(text); quoted && l.unit.number && wrong == nil && raw(text) == "" {
		w.fail(v.Node, "take the quotes off", "%s: %q is text, not %s", v.name, text, l.unit.kind())
		return Setting{}, false
	}
	got, wrong := l.parse(text)
	if wrong != nil {
		w.fail(v.Node, wrong.hint, "%s: %s", v.name, wrong.msg)
		return Setting{}, false
	}
	return Setting{Key: l.key, Value: got, Raw: raw(text), Pos: w.at(v.Node)}, true
}

func (u unit) kind() string {
	if u.schema["type"] == "boolean" {
		return "true or false"
	}
	return "a number"
}

// read reads a mapping into a T, key by key, and says whether nothing was wrong with it.
func (o object[T]) read(w *walker, v value, prefix string, into *T) (sound bool) {
	before := len(w.problems)
	for _, e := range w.entries(v, prefix) {
		i := slices.IndexFunc(o.fields, func(f field[T]) bool { return f.name == e.key.Value })
		if i < 0 {
			o.unknown(w, e)
			continue
		}
		o.fields[i].read(w, e.value, into)
	}
	return len(w.problems) == before
}

// unknown reports a key that is not in the object, with what was most likely meant.
func (o object[T]) unknown(w *walker, e entry) {
	name := e.key.Value
	names := make([]string, len(o.fields))
	for i, f := range o.fields {
		names[i] = f.name
	}
	var hint string
	near := nearest(name, names)
	switch {
	case o.elsewhere[name] != "":
		hint = o.elsewhere[name]
	case near != "":
		hint = fmt.Sprintf("did you mean %s?", near)
	case limitOf(Key(name)) != nil:
		hint = fmt.Sprintf("write it as a block: `%s`", block(name))
	case e.value.Tag == "!!null" && name != "" && name[0] >= '0' && name[0] <= '9':
		hint = "a comma ends a value between { and }: put quotes around \"0-3,8\", and write 1.5 for a fraction"
	default:
		hint = "known here: " + joinWords(names)
	}
	w.fail(e.key, hint, "unknown key %q in %s", name, o.name)
}

// block writes a dotted key as the file wants it: "cpu: {limit: …}".
func block(key string) string {
	parts := strings.Split(key, ".")
	return strings.Join(parts[:len(parts)-1], ": {") + ": {" + parts[len(parts)-1] + ": …" + strings.Repeat("}", len(parts)-1)
}

// Package yamlform reads YAML files as strictly as a configuration needs: every key is known, every value has one type,
// and whatever is wrong is reported with its line, its column and what to do about it.
//
// A Form lists the keys of one block, each with its documentation, its JSON Schema and a function that reads it. An
// Item is a value with its place; its methods (Text, Word, Number, Limit, Items, Entries, …) read it or report why they
// cannot. Problems go to a Report, which bounds how many are listed and never quotes a file that the reader may not
// see. Read collects a policy file with its includes; ReadForm reads one file of another kind.
//
// A Report and its items belong to one goroutine. Forms may be shared once they are made.
package yamlform

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/policy"

	"go.yaml.in/yaml/v4"
)

// Item is one value of a file, with its place and its name for messages: "cpu.limit". Its methods read the value as
// one type; what they cannot read they report to the file's Report, and then return false.
type Item struct {
	file *file
	node *yaml.Node
	name string
}

// Pos is where the item is written.
func (i Item) Pos() policy.Pos {
	return policy.Pos{File: i.file.path, Line: i.node.Line, Column: i.node.Column}
}

// Name is the name of the item for messages.
func (i Item) Name() string { return i.name }

// Fail reports a problem at the item.
func (i Item) Fail(hint, format string, args ...any) {
	i.file.report.Fail(i.Pos(), hint, format, args...)
}

// FailAt reports a problem at another place of the file.
func (i Item) FailAt(at policy.Pos, hint, format string, args ...any) {
	i.file.report.Fail(at, hint, format, args...)
}

// Also names other places that take part in the last problem.
func (i Item) Also(places ...policy.Pos) { i.file.report.Also(places...) }

// Problems is how many problems were reported so far, in all files.
func (i Item) Problems() int { return i.file.report.Count() }

// IsNull says whether nothing is written.
func (i Item) IsNull() bool { return i.node.Tag == "!!null" }

// IsList says whether the item is a list.
func (i Item) IsList() bool { return i.node.Kind == yaml.SequenceNode }

// IsBlock says whether the item is a block of keys.
func (i Item) IsBlock() bool { return i.node.Kind == yaml.MappingNode }

// IsAlias says whether the item is an alias. Open has reported it.
func (i Item) IsAlias() bool { return i.node.Kind == yaml.AliasNode }

// Len is the number of keys and values of a block, or of the items of a list.
func (i Item) Len() int { return len(i.node.Content) }

// Has says whether a block has a key.
func (i Item) Has(key string) bool {
	for k := 0; k+1 < len(i.node.Content); k += 2 {
		if i.node.Content[k].Value == key {
			return true
		}
	}
	return false
}

// kind names what the item is, for "needs a list, not a number".
func (i Item) kind() string {
	switch i.node.Kind {
	case yaml.MappingNode:
		return "a block of keys"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch i.node.Tag {
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	}
	return "text"
}

// wants checks the kind of an item.
func (i Item) wants(kind yaml.Kind, want, hint string) bool {
	switch {
	case i.IsAlias():
		return false
	case i.node.Style&yaml.TaggedStyle != 0:
		i.Fail("take the tag out", "%s: a policy has no tags (%s)", i.name, i.node.Tag)
		return false
	case i.node.Kind == kind && !i.IsNull():
		return true
	case i.IsNull():
		i.Fail(cmp.Or(hint, "write its value, or take the key out"), "%s has no value", i.name)
	default:
		i.Fail(hint, "%s needs %s, not %s", i.name, want, i.kind())
	}
	return false
}

// Entries returns the keys of a block, each once, in file order. prefix goes before the names of the values: "cpu."
// makes "cpu.limit".
func (i Item) Entries(prefix string) []Entry {
	if !i.wants(yaml.MappingNode, "a block of keys", "") {
		return nil
	}
	seen := make(map[string]Item)
	var all []Entry
	for n := 0; n+1 < len(i.node.Content); n += 2 {
		key := Item{i.file, i.node.Content[n], ""}
		name := key.node.Value
		switch {
		case key.IsAlias():
			continue
		case key.node.Tag == "!!merge":
			key.Fail("give groups that share settings a class", "a policy has no merge keys (<<)")
			continue
		case key.node.Kind != yaml.ScalarNode:
			key.Fail("put quotes around a key that holds { or [", "a key needs to be a word, not %s", key.kind())
			continue
		}
		if first, twice := seen[name]; twice {
			key.Fail("keep one of them", "key %q is here twice", name)
			key.Also(first.Pos())
			continue
		}
		seen[name] = key
		all = append(all, Entry{name, key, Item{i.file, i.node.Content[n+1], prefix + name}})
	}
	return all
}

// Named returns the entries of a block whose keys are names that the writer chose.
func (i Item) Named() []Entry {
	return slices.DeleteFunc(i.Entries(""), func(e Entry) bool {
		bad := !policy.ValidName(e.Name)
		if bad {
			e.Key.Fail(policy.NameHint, "%q is not a name", e.Name)
		}
		return bad
	})
}

// Items returns the elements of a list. hint says how the list is written.
func (i Item) Items(hint string) []Item {
	if !i.wants(yaml.SequenceNode, "a list", hint) {
		return nil
	}
	items := make([]Item, len(i.node.Content))
	for n, node := range i.node.Content {
		items[n] = Item{i.file, node, i.name}
	}
	return items
}

// Text reads text that is not empty. A number counts as text: a user may be named by number.
func (i Item) Text() (string, bool) {
	if !i.wants(yaml.ScalarNode, "text", "") {
		return "", false
	}
	if strings.TrimSpace(i.node.Value) == "" {
		i.Fail("", "%s is empty", i.name)
		return "", false
	}
	return i.node.Value, true
}

// Word reads one of a few words.
func (i Item) Word(known ...string) (string, bool) {
	text, ok := i.Text()
	if !ok || slices.Contains(known, text) {
		return text, ok
	}
	hint := "write " + known[0]
	if len(known) > 1 {
		hint = DidYouMean(text, known, "write one of "+JoinWords(known))
	}
	i.Fail(hint, "%s cannot be %q", i.name, text)
	return "", false
}

// Number reads a whole number between two bounds. what names it in messages: "a port".
func (i Item) Number(what string, lowest, highest int64) (int64, bool) {
	text, ok := i.Text()
	if !ok {
		return 0, false
	}
	n, wrong := policy.Integer(text, what, lowest, highest)
	if wrong == nil && i.kind() != "a number" {
		wrong = policy.Faultf("take the quotes off", "%q is text, not a number", text)
	}
	if wrong != nil {
		i.Fail(wrong.Hint, "%s: %s", i.name, wrong.Msg)
		return 0, false
	}
	return n, true
}

// Flag reads true or false.
func (i Item) Flag() (set, ok bool) {
	text, ok := i.Text()
	if !ok {
		return false, false
	}
	if i.node.Tag != "!!bool" {
		i.Fail("write true or false", "%s needs true or false, not %q", i.name, text)
		return false, false
	}
	return text == "true", true
}

// Percent reads a percentage from 0 to 100 as a fraction from 0 to 1.
func (i Item) Percent() (float64, bool) {
	text, ok := i.Text()
	if !ok {
		return 0, false
	}
	m := percentText.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		i.Fail("write a percentage: 20%", "%s: %q is not a percentage", i.name, text)
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil || n > 100 {
		i.Fail("write a percentage from 0 to 100: 20%", "%s: %s is more than all", i.name, text)
		return 0, false
	}
	return n / 100, true
}

// Limit reads the value of one limit, with where it is written.
func (i Item) Limit(l *policy.Limit) (policy.Setting, bool) {
	hint := ""
	if i.IsList() {
		hint = "write a list of numbers as text: \"0-3,8\""
	}
	if !i.wants(yaml.ScalarNode, "a value", hint) {
		return policy.Setting{}, false
	}
	text := strings.TrimSpace(i.node.Value)
	quoted := i.node.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	if bare := l.Unquoted(text); quoted && bare != "" {
		i.Fail("take the quotes off", "%s: %q is text, not %s", i.name, text, bare)
		return policy.Setting{}, false
	}
	got, wrong := l.Parse(text)
	if wrong != nil {
		i.Fail(wrong.Hint, "%s: %s", i.name, wrong.Msg)
		return policy.Setting{}, false
	}
	return policy.Setting{Key: l.Key, Value: got, Raw: policy.Raw(text), Pos: i.Pos()}, true
}

// Embed reports the problems of a text that stands in the file as a literal block (|) where that text stands. filled
// is the text that was read, with the same number of lines.
func (i Item) Embed(filled string, problems policy.Problems) {
	literal := i.node.Style&yaml.LiteralStyle != 0
	below := strings.Split(filled, "\n")
	for _, p := range problems {
		if !literal || p.Pos.Line == 0 {
			i.Fail(p.Hint, "in the policy: %s", p.Msg)
			continue
		}
		indent := 0
		if p.Pos.Line <= len(below) {
			indent = indentOf(below[p.Pos.Line-1])
		}
		// The text of a literal block begins in the line below its key.
		p.Pos.Line += i.node.Line
		p.Pos.File = i.file.path
		p.Source = i.file.report.Line(p.Pos)
		p.Pos.Column += indentOf(p.Source) - indent
		p.Msg = fmt.Sprintf("in the policy: %s", p.Msg)
		i.file.report.Add(p)
	}
}

// file is what the items of one file share.
type file struct {
	path   string
	report *Report
}

// Entry is one key of a block with its value.
type Entry struct {
	Name string // the key
	Key  Item   // where the key is written
	Item Item   // the value
}

// Open reads the text of a file as YAML and returns its root, named for messages. Problems of the text go to the
// report; without a root ok is false.
func Open(s policy.Source, name string, r *Report) (root Item, ok bool) {
	if p := CheckText(s); p != nil {
		r.Add(*p)
		return root, false
	}
	node, problems := decode(s)
	for _, p := range problems {
		r.Add(p)
	}
	return Item{&file{s.Path, r}, node, name}, node != nil
}

var percentText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?%$`)

// indentOf is how many spaces a line begins with.
func indentOf(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

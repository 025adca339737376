package policy

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Form is one block of keys in a YAML file that is no policy but is read as strictly as one: a scenario of
// internal/bench. This package is the only door to YAML, and its messages have places, carets and hints.
type Form[T any] struct {
	Name string // for messages: "an arm"
	Keys []FormKey[T]
	// Elsewhere says of keys that are known in other blocks where they belong.
	Elsewhere map[string]string
}

// FormKey is one key of a Form and how its value is read into a T.
type FormKey[T any] struct {
	Name string
	Read func(i Item, into *T)
}

// Item is a value in such a file, with its place.
type Item struct {
	w *walker
	v value
}

// Named is one entry of a block whose keys are names that the writer chose.
type Named struct {
	Name string
	Item Item
}

// ReadForm reads one file into a T, and lets after look at the whole, whatever is wrong with it. kind is what the
// file is, with its article: "a scenario". The error is Problems, in file order.
func ReadForm[T any](s Source, kind string, f Form[T], into *T, after func(whole Item)) error {
	problems := readForm(s, f, into, after)
	lines := newLines([]Source{s})
	for i := range problems {
		p := &problems[i]
		p.Msg, p.Hint = reword(p.Msg, kind), reword(p.Hint, kind)
		if p.Source == "" {
			p.Source = lines.of(p.Pos)
		}
	}
	return problems.inOrder([]Source{s}).orNil()
}

func readForm[T any](s Source, f Form[T], into *T, after func(Item)) Problems {
	if p := checkText(s); p != nil {
		return Problems{*p}
	}
	root, problems := decode(s)
	if root == nil {
		return problems
	}
	w := newWalker(s)
	w.problems = problems
	whole := Item{w, value{root, f.Name}}
	f.Read(whole, into)
	after(whole)
	return w.problems
}

// reword makes a message of the shared reader speak of another kind of file.
func reword(text, kind string) string {
	text, _, _ = strings.Cut(text, "; `bulkhead discover")
	return strings.NewReplacer(
		"a policy starts with `version: 1`", kind+" starts with `version: 1`",
		"give groups that share settings a class; put", "write the value again; put",
		"give groups that share settings a class", "write the keys again",
		"put the other into a file of its own and `include:` it", "put the other into a file of its own",
		"a policy", kind,
	).Replace(text)
}

// Read reads a block of keys and says whether nothing was wrong with it.
func (f Form[T]) Read(i Item, into *T) (sound bool) {
	o := object[T]{name: f.Name, elsewhere: f.Elsewhere}
	for _, k := range f.Keys {
		o.fields = append(o.fields, field[T]{name: k.Name, read: func(w *walker, v value, into *T) { k.Read(Item{w, v}, into) }})
	}
	return o.read(i.w, i.v, "", into)
}

// Fail says what is wrong with the value.
func (i Item) Fail(hint, format string, args ...any) { i.w.fail(i.v.Node, hint, format, args...) }

// Key is the name of the value for messages.
func (i Item) Key() string { return i.v.name }

// Pos is where the value is written.
func (i Item) Pos() Pos { return i.w.at(i.v.Node) }

// Has says whether a block has a key.
func (i Item) Has(key string) bool { return hasKey(i.v.Node, key) }

// Text reads text that is not empty; a number counts as text.
func (i Item) Text() (string, bool) { return i.w.text(i.v) }

// Word reads one of a few words.
func (i Item) Word(known ...string) (string, bool) { return i.w.word(i.v, known...) }

// Whole reads a whole number between two bounds.
func (i Item) Whole(what string, lowest, highest int64) (int64, bool) {
	return i.w.number(i.v, what, lowest, highest)
}

// Flag reads true or false.
func (i Item) Flag() (set, ok bool) {
	if !i.w.wants(i.v, yaml.ScalarNode, "true or false", "") {
		return false, false
	}
	if i.v.Tag != "!!bool" {
		i.Fail("write true or false", "%s needs true or false, not %s", i.v.name, kindOf(i.v.Node))
		return false, false
	}
	return i.v.Value == "true", true
}

// Items gives the elements of a list. hint says how one is written.
func (i Item) Items(hint string) []Item {
	var all []Item
	for _, v := range i.w.items(i.v, hint) {
		all = append(all, Item{i.w, v})
	}
	return all
}

// Named gives the entries of a block whose keys are the writer's own names.
func (i Item) Named() []Named {
	var all []Named
	for _, e := range i.w.entries(i.v, "") {
		if !validName(e.key.Value) {
			i.w.fail(e.key, nameHint, "%q is not a name", e.key.Value)
			continue
		}
		all = append(all, Named{e.key.Value, Item{i.w, e.value}})
	}
	return all
}

// Policy checks text that stands in the file as a literal block (|) as a policy, and reports what is wrong with it
// where it stands. filled is the text as it will be, with the same number of lines.
func (i Item) Policy(filled string) {
	_, err := Parse([]Source{{Path: i.w.source.Path, Text: filled}})
	var problems Problems
	errors.As(err, &problems)
	literal := i.v.Style&yaml.LiteralStyle != 0
	for _, p := range problems {
		if !literal || p.Pos.Line == 0 {
			i.Fail(p.Hint, "in the policy: %s", p.Msg)
			continue
		}
		// The text of a literal block begins in the line below its key.
		p.Pos.Line += i.v.Line
		p.Source = i.w.lines.of(p.Pos)
		p.Pos.Column += len(p.Source) - len(strings.TrimLeft(p.Source, " ")) - indentOf(filled, p.Pos.Line-i.v.Line)
		p.Msg = fmt.Sprintf("in the policy: %s", p.Msg)
		i.w.problems = append(i.w.problems, p)
	}
}

// indentOf is how many blanks a line of a text begins with.
func indentOf(text string, line int) int {
	all := strings.Split(text, "\n")
	if line < 1 || line > len(all) {
		return 0
	}
	return len(all[line-1]) - len(strings.TrimLeft(all[line-1], " "))
}

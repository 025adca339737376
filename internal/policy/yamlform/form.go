package yamlform

import (
	"slices"
	"strings"

	"bulkhead/internal/policy"
)

// Form is the keys of one block of a file. The reader and the JSON Schema are made from the same keys, so there is no
// second list of them.
type Form[T any] struct {
	Name string // for messages: "a group"
	Keys []FormKey[T]
	// Elsewhere says of keys that are known in other blocks where they belong.
	Elsewhere map[string]string
}

// Read reads a block into a T, key by key, and says whether nothing was wrong with it. prefix goes before the names
// of the values; see Item.Entries.
func (f Form[T]) Read(v Item, prefix string, into *T) (sound bool) {
	before := v.Problems()
	for _, e := range v.Entries(prefix) {
		at := slices.IndexFunc(f.Keys, func(k FormKey[T]) bool { return k.Name == e.Name })
		if at < 0 {
			f.unknown(e)
			continue
		}
		f.Keys[at].Read(e.Item, into)
	}
	return v.Problems() == before
}

// unknown reports a key that the form does not have, with what was most likely meant.
func (f Form[T]) unknown(e Entry) {
	names := make([]string, len(f.Keys))
	for i, k := range f.Keys {
		names[i] = k.Name
	}
	hint := DidYouMean(e.Name, names, "")
	switch {
	case f.Elsewhere[e.Name] != "":
		hint = f.Elsewhere[e.Name]
	case hint != "":
	case policy.LimitOf(policy.Key(e.Name)) != nil:
		hint = "write it as a block: `" + asBlock(e.Name) + "`"
	case nearestKey(e.Name) != "":
		near := nearestKey(e.Name)
		hint = "did you mean " + near + "? write it as a block: `" + asBlock(near) + "`"
	case e.Item.IsNull() && e.Name != "" && e.Name[0] >= '0' && e.Name[0] <= '9':
		hint = "a comma ends a value between { and }: put quotes around \"0-3,8\", and write 1.5 for a fraction"
	default:
		hint = "known here: " + JoinWords(names)
	}
	e.Key.Fail(hint, "unknown key %q in %s", e.Name, f.Name)
}

// Schema describes the block: its keys with their documentation, and no others.
func (f Form[T]) Schema() policy.JSONSchema {
	properties := make(policy.JSONSchema, len(f.Keys))
	for _, k := range f.Keys {
		s := policy.JSONSchema{"description": k.Doc}
		for key, value := range k.Schema {
			s[key] = value
		}
		properties[k.Name] = s
	}
	return policy.JSONSchema{"type": "object", "properties": properties, "additionalProperties": false}
}

// FormKey is one key of a Form: how its value is read into a T, and how the schema shows it.
type FormKey[T any] struct {
	Name   string
	Doc    string
	Schema policy.JSONSchema
	Read   func(v Item, into *T)
}

// ReadForm reads a file that is no policy, but as strict as one, into a T. after looks at the whole, whatever is wrong
// with it. kind says what the file is, with its article: "a scenario". The error is Problems, in file order.
func ReadForm[T any](s policy.Source, kind string, f Form[T], into *T, after func(whole Item)) error {
	r := NewReport([]policy.Source{s})
	if whole, ok := Open(s, f.Name, r); ok {
		f.Read(whole, "", into)
		after(whole)
	}
	problems := r.Problems()
	for i := range problems {
		p := &problems[i]
		p.Msg, p.Hint = reword(p.Msg, kind), reword(p.Hint, kind)
	}
	return problems.OrNil()
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

// nearestKey finds the limit that a misspelt dotted key most likely stands for; "" when none is close.
func nearestKey(name string) string {
	if !strings.Contains(name, ".") {
		return ""
	}
	var known []string
	for _, k := range policy.Keys() {
		known = append(known, string(k))
	}
	return Nearest(name, known)
}

// asBlock writes a dotted key as the file wants it: "cpu: {limit: …}".
func asBlock(key string) string {
	parts := strings.Split(key, ".")
	last := len(parts) - 1
	return strings.Join(parts[:last], ": {") + ": {" + parts[last] + ": …" + strings.Repeat("}", last)
}

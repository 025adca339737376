package parse

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

const modePattern = `^0?[0-7]{3}$`

var modeRegexp = regexp.MustCompile(modePattern)

// ownerField is `owner:` of a group or a class.
func ownerField[T any](of func(*T) *[]policy.Owner) yamlform.FormKey[T] {
	o := ownerForm()
	one := o.Schema()
	return yamlform.FormKey[T]{
		Name: "owner", Doc: "Who beside root may do what with the group: one block, or a list of them.",
		Schema: policy.JSONSchema{"anyOf": []any{one, yamlform.ListOf(one)}},
		Read:   func(v yamlform.Item, into *T) { *of(into) = readOwners(v, o) },
	}
}

// ownerForm is one entry of `owner:`.
func ownerForm() yamlform.Form[policy.Owner] {
	account := func(name, doc string, of func(*policy.Owner) *string) yamlform.FormKey[policy.Owner] {
		return yamlform.FormKey[policy.Owner]{
			Name: name, Doc: doc, Schema: accountSchema,
			Read: func(v yamlform.Item, o *policy.Owner) {
				text, ok := v.Text()
				if !ok {
					return
				}
				if strings.ContainsAny(text, " \t:/,{") || strings.HasPrefix(text, "-") {
					v.Fail("write one name or number", "%s: %q is not a user or group name", v.Name(), text)
				}
				*of(o) = text
			},
		}
	}
	mode := func(name, doc string, of func(*policy.Owner) *string) yamlform.FormKey[policy.Owner] {
		return yamlform.FormKey[policy.Owner]{
			Name: name, Doc: doc, Schema: policy.JSONSchema{"type": "string", "pattern": modePattern,
				"examples": []any{"0664"}},
			Read: func(v yamlform.Item, o *policy.Owner) {
				if text, ok := v.Text(); ok {
					*of(o) = readMode(v, text)
				}
			},
		}
	}
	return yamlform.Form[policy.Owner]{
		Name: "owner",
		Keys: []yamlform.FormKey[policy.Owner]{
			account("user", "Unix user who owns the files, by name or number; root when not given.",
				func(o *policy.Owner) *string { return &o.User }),
			account("unix_group", "Unix group that owns the files, by name or number; root when not given.",
				func(o *policy.Owner) *string { return &o.UnixGroup }),
			{
				Name: "may",
				Doc: "run and move: bring processes into the group; set: change its limits; freeze: stop " +
					"it for a time.", Schema: yamlform.ListOf(policy.JSONSchema{"enum": policy.Rights}),
				Read: func(v yamlform.Item, o *policy.Owner) {
					for _, item := range v.Items("write a list: `may: [run, move]`") {
						if word, ok := item.Word(policy.Rights...); ok && !slices.Contains(o.May, policy.Right(word)) {
							o.May = append(o.May, policy.Right(word))
						}
					}
				},
			},
			mode("mode", "Permissions of the files in octal, in quotes.",
				func(o *policy.Owner) *string { return &o.Mode }),
			mode("directory", "Permissions of the directory in octal, in quotes; where set is among may.",
				func(o *policy.Owner) *string { return &o.Directory }),
			boundsField(),
		},
	}
}

// mode reads permissions and gives them with four digits.
func readMode(v yamlform.Item, text string) string {
	bits, ok := policy.Permissions(text)
	switch owner := bits >> 6 & 7; {
	case !ok || !modeRegexp.MatchString(text):
		v.Fail("write permissions in octal: '0664'", "%s: %q is not a mode", v.Name(), text)
	case (bits>>3&7|bits&7)&^owner != 0:
		v.Fail("give the owner at least as much", "%s: %s gives others more than the owner", v.Name(), text)
	default:
		return fmt.Sprintf("0%03o", bits)
	}
	return ""
}

// owners reads `owner:`.
func readOwners(v yamlform.Item, o yamlform.Form[policy.Owner]) []policy.Owner {
	all := []yamlform.Item{v}
	if v.IsList() {
		all = v.Items("")
	}
	var owners []policy.Owner
	enter, set := policy.Pos{}, policy.Pos{}
	claim := func(item yamlform.Item, by *policy.Pos, what string) {
		if *by != (policy.Pos{}) {
			item.Fail("a file has one owner: give the others a Unix group", "owner: two may %s", what)
			item.Also(*by)
		}
		*by = item.Pos()
	}
	for _, item := range all {
		one := policy.Owner{Pos: item.Pos()}
		if !o.Read(item, "owner.", &one) {
			continue
		}
		switch {
		case len(one.May) == 0:
			item.Fail("add `may: [run, move, set, freeze]`, or some of these", "owner: nothing that %s may do is named",
				one)
		case one.Bounds != nil && !one.Has(policy.MaySet):
			item.Fail("add set to may, or take bounds out", "owner.bounds goes with set")
		case one.Directory != "" && !one.Sets():
			item.Fail("add set to may, or take directory out", "owner.directory goes with set without bounds")
		}
		if one.Enters() {
			claim(item, &enter, "bring processes in")
		}
		if one.Sets() {
			claim(item, &set, "set limits")
		}
		owners = append(owners, one)
	}
	return owners
}

// boundsField is `bounds:` of an owner.
func boundsField() yamlform.FormKey[policy.Owner] {
	return yamlform.FormKey[policy.Owner]{
		Name: "bounds",
		Doc: "Which limits may be set, and within what: cpu.limit: 1..8. With it the agent sets them, and the " +
			"kernel's files of limits stay root's.",
		Schema: policy.JSONSchema{"type": "object", "propertyNames": policy.JSONSchema{"enum": boundKeys()},
			"additionalProperties": policy.JSONSchema{"anyOf": []any{
				policy.JSONSchema{"type": "string", "examples": []any{"1..8", "10GiB..40GiB", "..50MB/s"}},
				policy.JSONSchema{"type": "integer"}}}},
		Read: func(v yamlform.Item, o *policy.Owner) {
			o.Bounds = map[policy.Key]policy.Bound{}
			for _, e := range v.Entries("owner.bounds.") {
				key := policy.Key(e.Name)
				l := policy.LimitOf(key)
				if l == nil || !bounded(key) {
					hint := yamlform.DidYouMean(e.Name, boundKeys(), "write one of "+yamlform.JoinWords(boundKeys()))
					e.Key.Fail(hint, "owner.bounds: %q is no limit that has bounds", e.Name)
					continue
				}
				if b, ok := readBound(e.Item, l); ok {
					o.Bounds[key] = b
				}
			}
			if len(o.Bounds) == 0 && v.Len() == 0 {
				v.Fail("write `bounds: {cpu.limit: 1..8}`, or take the key out", "owner.bounds: no limit is named")
			}
		},
	}
}

// bounded says whether the values of a limit have an order, or are sets.
func bounded(key policy.Key) bool {
	return key != policy.KeyCPUIdle && key != policy.KeyMemoryOOM && key != policy.KeyOOMScoreAdj
}

// boundKeys are the limits that may have bounds.
func boundKeys() []string {
	var names []string
	for _, k := range policy.Keys() {
		if bounded(k) {
			names = append(names, string(k))
		}
	}
	return names
}

// bound reads "1..8", "1..", "..8"; "0-7" for a set.
func readBound(v yamlform.Item, l *policy.Limit) (b policy.Bound, ok bool) {
	text, ok := v.Text()
	if !ok {
		return b, false
	}
	end := func(text string) (policy.Value, bool) {
		if text = strings.TrimSpace(text); text == "" {
			return nil, true
		}
		got, wrong := l.Parse(text)
		if wrong != nil {
			v.Fail(wrong.Hint, "%s: %s", v.Name(), wrong.Msg)
			return nil, false
		}
		switch got.(type) {
		case policy.MemoryPercent, policy.IOPercent:
			v.Fail("write the amount itself: what a percentage is of may change", "%s: %s is a percentage", v.Name(),
				text)
			return nil, false
		}
		return got, true
	}
	if slices.Contains([]policy.Key{policy.KeyCPUCPUs, policy.KeyCPUNUMA, policy.KeyMemoryNUMA}, l.Key) {
		all, ok := end(text)
		if _, set := all.(policy.IDs); ok && !set {
			v.Fail(`write the set: "0-7"`, "%s: %q is not a set", v.Name(), text)
			return b, false
		}
		return policy.Bound{Highest: all}, ok
	}
	low, high, found := strings.Cut(text, "..")
	if !found || strings.TrimSpace(low+high) == "" {
		v.Fail("write the lowest and the highest: 1..8, 1.. or ..8", "%s: %q is no pair of bounds", v.Name(), text)
		return b, false
	}
	var lowOK, highOK bool
	b.Lowest, lowOK = end(low)
	b.Highest, highOK = end(high)
	if !lowOK || !highOK {
		return b, false
	}
	if b.Lowest == (policy.Unlimited{}) || b.Lowest != nil && b.Highest != nil && b.Highest != (policy.Unlimited{}) &&
		!b.Allows(b.Lowest) {
		v.Fail("the lower one goes first", "%s: nothing is within %s", v.Name(), text)
		return b, false
	}
	return b, true
}

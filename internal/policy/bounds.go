package policy

import (
	"reflect"
	"slices"
	"strings"
)

// Bound is within what an owner may set a limit. Lowest and Highest are of the limit's own type and include their ends; nil is
// no bound on that side, and Unlimited as Highest allows to lift the limit. For limits that are sets of CPUs or nodes, Highest is the
// set that theirs is to be in.
type Bound struct{ Lowest, Highest Value }

// String is how it is written.
func (b Bound) String() string {
	text := func(v Value) string {
		if v == nil {
			return ""
		}
		return v.String()
	}
	if _, set := b.Highest.(IDs); set {
		return text(b.Highest)
	}
	return text(b.Lowest) + ".." + text(b.Highest)
}

// Allows says whether a value is within the bound. A value of another type is not: who compares percentages makes them bytes before.
func (b Bound) Allows(v Value) bool {
	if set, is := v.(IDs); is {
		all, same := b.Highest.(IDs)
		return same && set.Subset(all.IDSet)
	}
	if v == (Unlimited{}) {
		return b.Highest == (Unlimited{})
	}
	if b.Highest == (Unlimited{}) {
		b.Highest = nil
	}
	n, comparable := number(v)
	for _, end := range []Value{b.Lowest, b.Highest} {
		comparable = comparable && (end == nil || reflect.TypeOf(v) == reflect.TypeOf(end))
	}
	lowest, below := number(b.Lowest)
	highest, above := number(b.Highest)
	return comparable && (!below || n >= lowest) && (!above || n <= highest)
}

// number is a value as a number of its own unit, if it is one.
func number(v Value) (int64, bool) {
	if r := reflect.ValueOf(v); v != nil && r.Kind() == reflect.Int64 {
		return r.Int(), true
	}
	return 0, false
}

// boundsField is `bounds:` of an owner.
func boundsField() FormKey[Owner] {
	return FormKey[Owner]{
		Name: "bounds", Doc: "Which limits may be set, and within what: cpu.limit: 1..8. With it the agent sets them, and the kernel's files of limits stay root's.",
		Schema: JSONSchema{"type": "object", "propertyNames": JSONSchema{"enum": boundKeys()}, "additionalProperties": JSONSchema{"anyOf": []any{
			JSONSchema{"type": "string", "examples": []any{"1..8", "10GiB..40GiB", "..50MB/s"}}, JSONSchema{"type": "integer"}}}},
		Read: func(v Item, o *Owner) {
			o.Bounds = map[Key]Bound{}
			for _, e := range v.Entries("owner.bounds.") {
				key := Key(e.Name)
				l := limitOf(key)
				if l == nil || !bounded(key) {
					hint := didYouMean(e.Name, boundKeys(), "write one of "+joinWords(boundKeys()))
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
func bounded(key Key) bool {
	return key != KeyCPUIdle && key != KeyMemoryOOM && key != KeyOOMScoreAdj
}

// boundKeys are the limits that may have bounds.
func boundKeys() []string {
	var names []string
	for _, k := range append(KnownKeys(), NetworkKeys()...) {
		if bounded(k) {
			names = append(names, string(k))
		}
	}
	return names
}

// bound reads "1..8", "1..", "..8"; "0-7" for a set.
func readBound(v Item, l *limit) (b Bound, ok bool) {
	text, ok := v.Text()
	if !ok {
		return b, false
	}
	end := func(text string) (Value, bool) {
		if text = strings.TrimSpace(text); text == "" {
			return nil, true
		}
		got, wrong := l.parse(text)
		if wrong != nil {
			v.Fail(wrong.hint, "%s: %s", v.Name(), wrong.msg)
			return nil, false
		}
		switch got.(type) {
		case MemoryPercent, IOPercent:
			v.Fail("write the amount itself: what a percentage is of may change", "%s: %s is a percentage", v.Name(), text)
			return nil, false
		}
		return got, true
	}
	if slices.Contains([]Key{KeyCPUCPUs, KeyCPUNUMA, KeyMemoryNUMA}, l.key) {
		all, ok := end(text)
		if _, set := all.(IDs); ok && !set {
			v.Fail(`write the set: "0-7"`, "%s: %q is not a set", v.Name(), text)
			return b, false
		}
		return Bound{Highest: all}, ok
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
	if b.Lowest == (Unlimited{}) || b.Lowest != nil && b.Highest != nil && b.Highest != (Unlimited{}) && !b.Allows(b.Lowest) {
		v.Fail("the lower one goes first", "%s: nothing is within %s", v.Name(), text)
		return b, false
	}
	return b, true
}

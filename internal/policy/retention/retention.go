// Package retention is the part `snapshots:` of a policy: how many snapshots of a database on ZFS are kept, and for how
// long. Nothing here removes one; `zfs snapshot --retain` and `zfs prune --retain` do.
//
// Its values are immutable once they are read.
package retention

import (
	"regexp"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// Others is the name under which a rule is for every instance without one of its own.
const Others = "*"

// Rule says what is kept of one instance: the newest Keep, and each that is not older than Older. A zero value sets no
// bound: with the other one alone, that one decides.
type Rule struct {
	Instance string
	Keep     int
	Older    time.Duration
}

// Rules are those of a policy, in file order.
type Rules []Rule

// Of is the rule for an instance.
func (r Rules) Of(instance string) (Rule, bool) {
	for _, name := range []string{instance, Others} {
		if at := slices.IndexFunc(r, func(one Rule) bool { return one.Instance == name }); at >= 0 {
			return r[at], true
		}
	}
	return Rule{}, false
}

// The bounds on a rule.
const (
	mostSnapshots = 100000
	longestAge    = 100 * 365 * 24 * time.Hour
)

// namePattern is an instance as `bulkhead discover` names it, or all others.
const namePattern = `^([A-Za-z0-9_][A-Za-z0-9_.:+-]*|\*)$`

var nameRegexp = regexp.MustCompile(namePattern)

func form() yamlform.Form[Rule] {
	return yamlform.Form[Rule]{
		Name: "what is kept of snapshots",
		Elsewhere: map[string]string{"age": "did you mean older?", "count": "did you mean keep?",
			"recordsize": "a policy sets no properties of ZFS: `bulkhead zfs plan` does"},
		Keys: []yamlform.FormKey[Rule]{
			{
				Name:   "keep",
				Doc:    "How many stay, the newest. With older, those behind them stay until they are older.",
				Schema: policy.JSONSchema{"type": "integer", "minimum": 1, "maximum": mostSnapshots},
				Read: func(v yamlform.Item, r *Rule) {
					if n, ok := v.Number("a number of snapshots", 1, mostSnapshots); ok {
						r.Keep = int(n)
					}
				},
			},
			{
				Name: "older", Doc: "Only those older than this go, in days or hours: 14d, 36h.",
				Schema: policy.JSONSchema{"type": "string", "pattern": `^[0-9]+(d|h)$`, "examples": []any{"14d"}},
				Read: func(v yamlform.Item, r *Rule) {
					text, ok := v.Text()
					if !ok {
						return
					}
					if r.Older, ok = ageOf(text); !ok {
						v.Fail("write days or hours: 14d, 36h", "snapshots: %q is no age between an hour and a "+
							"hundred years", text)
					}
				},
			},
		},
	}
}

// ageOf reads "14d" or "36h".
func ageOf(text string) (time.Duration, bool) {
	if text == "" {
		return 0, false
	}
	unit := map[byte]time.Duration{'d': 24 * time.Hour, 'h': time.Hour}[text[len(text)-1]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 31)
	if err != nil || unit == 0 || n == 0 || time.Duration(n) > longestAge/unit {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

// Schema is that of the part.
func Schema() policy.JSONSchema { return yamlform.MapOf(namePattern, form().Schema()) }

// Read reads the part.
func Read(v yamlform.Item) (all Rules) {
	f := form()
	for _, e := range v.Entries("") {
		r := Rule{Instance: e.Name}
		if !nameRegexp.MatchString(e.Name) {
			e.Key.Fail("write it as `bulkhead discover` prints it, mysql3306, or \"*\" for all others",
				"%q is not the name of an instance", e.Name)
			continue
		}
		if !f.Read(e.Item, "snapshots.", &r) {
			continue
		}
		if r.Keep == 0 && r.Older == 0 {
			if !e.Item.Has("keep") && !e.Item.Has("older") {
				e.Key.Fail("write what stays: `{keep: 7, older: 14d}`", "snapshots: nothing is said of %s", e.Name)
			}
			continue
		}
		all = append(all, r)
	}
	return all
}

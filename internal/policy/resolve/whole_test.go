package resolve

import (
	"reflect"
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// Fitted to a host, a policy still has each part that the file has.
func TestResolveLeavesNoPartOut(t *testing.T) {
	p, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: `version: 1
host: {root: ora, weight: 9000}
agent: {fast_moves: on}
groups: {a: {cpu: {limit: 1}}}
schedules: [{name: s, when: "0 1 * * *", for: 1h, set: {a: {cpu: {limit: 2}}}}]
guard: {groups: {a: {oom_kills: 0}}}
slo: {mode: act}
`}})
	if err != nil {
		t.Fatal(err)
	}
	resolved, problems := Policy(p, testHost())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	before, after := reflect.ValueOf(*p), reflect.ValueOf(*resolved)
	for i := range before.NumField() {
		if name := before.Type().Field(i).Name; name != "Notes" &&
			(before.Field(i).IsZero() || after.Field(i).IsZero()) {
			t.Errorf("%s: parsed %v, resolved %v", name, before.Field(i), after.Field(i))
		}
	}
}

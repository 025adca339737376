package resolve_test

import (
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
)

// Times in which a fall of throughput cannot be told are refused for this host, and read all the same: a policy that
// was applied so by an earlier version is still in force.
func TestTimesOfTheGuard(t *testing.T) {
	for times, want := range map[string]string{
		"window: 10s, before: 50s, for: 20s": "",
		"window: 10s, before: 30s":           "less than five windows of 10s",
		"window: 10s, for: 15s":              "less than two windows of 10s",
	} {
		p, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: "version: 1\nguard: {" + times +
			", groups: {a: {throughput_falls: 30%}}}\ngroups: {a: {tasks: 5}}\n"}})
		if err != nil {
			t.Fatalf("%s: %v", times, err)
		}
		_, problems := resolve.Policy(p, &host.Facts{})
		var said strings.Builder
		for _, one := range problems {
			said.WriteString(one.Msg + "\n")
		}
		if got := said.String(); want == "" && strings.Contains(got, "guard") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", times, got)
		}
	}
}

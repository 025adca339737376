package resolve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/policy"
)

// TestSizesAreBounded reads policies near the most that a file can hold. Each took from 40 s to 14 minutes before the
// bounds; the time allowed here is for a busy machine.
func TestSizesAreBounded(t *testing.T) {
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	schedule := "  - {name: s%d, when: '0 22 * * *', for: 6h, set: {g: {cpu: {limit: 4}}}}\n"
	for _, test := range []struct{ name, text, says string }{
		{"problems on one line", "include: [" + strings.Repeat("[],", 400_000) + "]\n",
			"there are more than 20000 problems"},
		{"groups", "groups:\n" + repeat(300_000, " g%d: {}\n"), "a policy has at most 10000 groups"},
		{"nested groups", "groups:\n a:\n  groups:\n" + repeat(200_000, "   g%d: {}\n"),
			"a policy has at most 10000 groups"},
		{"matches", "groups:\n g:\n  match:\n" + repeat(80_000, "  - {exe: m%d}\n"),
			"a policy has at most 20000 match entries"},
		{"schedules", "groups: {g: {}}\nschedules:\n" + repeat(20_000, schedule), "a policy has at most 500 schedules"},
		{"schedules of no group", "groups: {h: {}}\nschedules:\n" + repeat(450, schedule), "there is no group \"g\""},
		{"unknown classes", "classes:\n" + repeat(9_000, " c%d: {}\n") + "groups:\n" + repeat(9_000,
			" g%d: {class: x}\n"), "class \"x\" is not defined"},
		{"the most that is taken", "groups:\n" + repeat(9_999, " g%d: {cpu: {weight: 5}}\n") + " g: {}\nschedules:\n" +
			repeat(50, schedule), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			started := time.Now()
			problems := ProblemsOn([]policy.Source{{Path: "p.yaml", Text: "version: 1\n" + test.text}}, testHost(),
				testResolver())
			text := problems.Error()
			if !strings.Contains(text, test.says) || (text == "") != (test.says == "") {
				t.Errorf("%d problems: %.300s", len(problems), text)
			}
			if len(text) > 32<<20 {
				t.Errorf("a text of %d bytes", len(text))
			}
			took := time.Since(started)
			if took > 20*time.Second {
				t.Errorf("took %s", took)
			}
			t.Logf("%s", took)
		})
	}
}

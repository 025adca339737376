package recognise

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/engine/tool"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// The account of engines and helpers names every engine, part, helper and rate option there is, and its examples
// are policies.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/engines.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	word := func(w string) bool {
		return regexp.MustCompile(`(^|[^\w-])` + regexp.QuoteMeta(w) + `($|[^\w-])`).MatchString(doc)
	}
	for _, name := range Known() {
		if !strings.Contains(doc, "\n| "+name) {
			t.Errorf("no row for engine %s", name)
		}
		for _, part := range Parts(name) {
			if !word(part) {
				t.Errorf("part %s of %s is not there", part, name)
			}
		}
	}
	for i := range tool.All {
		if !word(tool.All[i].Name) {
			t.Errorf("helper %s is not there", tool.All[i].Name)
		}
		for _, option := range append(tool.All[i].Rate.Options, tool.All[i].Rate.Env...) {
			if strings.HasPrefix(option, "--") && !strings.Contains(doc, option) {
				t.Errorf("rate option %s of %s is not there", option, tool.All[i].Name)
			}
		}
	}
	for _, kind := range helperKinds {
		if !strings.Contains(doc, "\n| "+kind+" |") {
			t.Errorf("no row for helpers of the kind %s", kind)
		}
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(doc, -1)
	if len(examples) != 2 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, e := range examples {
		if _, err := parse.Policy([]policy.Source{{Path: "example", Text: e[1]}}); err != nil {
			t.Errorf("an example is wrong:\n%s\n%v", e[1], err)
		}
	}
}

package examples

import (
	"io/fs"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
)

// Every example is a sound policy, also on a host.
func TestExamplesAreSound(t *testing.T) {
	files, err := fs.Glob(Policies, "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	facts := &host.Facts{Systemd: true, CPUs: idset.New(0, 1, 2, 3), MemTotal: 16 << 30, SwapTotal: 1 << 30,
		PageSize: 4096}
	for _, name := range files {
		text, err := Policies.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := parse.Policy([]policy.Source{{Path: name, Text: string(text)}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, problems := resolve.Policy(p, facts, resolve.Resolver{}); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
}

//go:build proof

package bench

import (
	"os"
	"strings"
	"testing"

	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// The figures in docs/proof.md are of the scenarios as they are now.
func TestProofIsOfTheseScenarios(t *testing.T) {
	text, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	all, err := scenario.Library()
	if err != nil {
		t.Fatal(err)
	}
	now := map[string]string{}
	for _, s := range all {
		if !strings.Contains(string(text), "| "+s.Name+" | | | | | left out: ") { // of this machine
			now[s.Name] = s.Digest
		}
	}
	if names := proof.Outdated(string(text), now); len(names) > 0 {
		t.Errorf("edited since the figures of docs/proof.md were measured: %s\nhint: make bench-proof",
			strings.Join(names, ", "))
	}
}

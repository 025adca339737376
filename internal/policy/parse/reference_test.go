package parse

import (
	"os"
	"strings"
	"testing"
)

// The reference names every key that the file has.
func TestReferenceNamesKeys(t *testing.T) {
	const referenceFile = "../../../docs/policy.md"
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range matchFields {
		if !strings.Contains(string(text), "| `"+f.name+"`") {
			t.Errorf("%s does not describe the match key %s", referenceFile, f.name)
		}
	}
	for _, f := range groupForm().Keys {
		if !strings.Contains(string(text), "`"+f.Name) {
			t.Errorf("%s does not describe the group key %s", referenceFile, f.Name)
		}
	}
}

//go:build proof

package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/proof"
)

// The results in docs/proof.md are of the scenarios as they are now, and the document is what they make.
func TestProofIsOfTheseScenarios(t *testing.T) {
	const path = "../../docs/proof.md"
	texts, err := Texts()
	if err != nil {
		t.Fatal(err)
	}
	lacks, err := proof.Wanting(path, texts)
	if err != nil {
		t.Fatal(err)
	}
	if len(lacks) > 0 {
		t.Errorf("to be measured again for docs/proof.md:\n%s\nhint: make bench-proof ONLY=NAME,NAME",
			strings.Join(lacks, "\n"))
	}
	copied := filepath.Join(t.TempDir(), "proof.md")
	if err := os.CopyFS(strings.TrimSuffix(copied, ".md"), os.DirFS(strings.TrimSuffix(path, ".md"))); err != nil {
		t.Fatal(err)
	}
	if err := proof.WriteDocument(copied, texts); err != nil {
		t.Fatal(err)
	}
	is, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if made, err := os.ReadFile(copied); err != nil || string(made) != string(is) {
		t.Errorf("docs/proof.md is not what its results make (%v)\n"+
			"hint: ./bulkhead bench document --into docs/proof.md", err)
	}
}

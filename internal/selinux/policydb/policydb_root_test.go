//go:build root

package policydb_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The policy that the other tests read is what secilc makes of its text; of older versions, it says the same.
func TestCompiled(t *testing.T) {
	if _, err := exec.LookPath("secilc"); err != nil {
		t.Fatalf("%v: `make deps` installs it", err)
	}
	for _, version := range []string{"24", "25", "26", "28", "30", "33"} {
		text, err := os.ReadFile("testdata/small.cil")
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		file, cil := filepath.Join(dir, "policy"), filepath.Join(dir, "small.cil")
		if version < "30" { // which brought such rules
			text = bytes.ReplaceAll(text, []byte("(allowx "), []byte(";(allowx "))
		}
		if err := os.WriteFile(cil, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c := exec.Command("secilc", "-c", version, "-o", file, "-f", "/dev/null", cil)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("secilc -c %s: %v\n%s", version, err, out)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		check(t, data)
		if version == "33" && hex.EncodeToString(data) != hex.EncodeToString(small(t)) {
			if *update {
				write(t, data)
				continue
			}
			t.Error("testdata/small.hex is not what secilc makes of small.cil: go test -tags root -update")
		}
	}
}

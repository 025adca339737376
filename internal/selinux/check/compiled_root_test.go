//go:build root

package check_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/server.hex anew")

// The policy that the other tests read is what secilc makes of its text.
func TestCompiled(t *testing.T) {
	if _, err := exec.LookPath("secilc"); err != nil {
		t.Fatalf("%v: `make deps` installs it", err)
	}
	file := filepath.Join(t.TempDir(), "policy")
	c := exec.Command("secilc", "-c", "33", "-o", file, "-f", "/dev/null", "testdata/server.cil")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("secilc: %v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		text := regexp.MustCompile(`.{1,96}`).ReplaceAllString(hex.EncodeToString(data), "$0\n")
		if err := os.WriteFile("testdata/server.hex", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(data, policy(t)) {
		t.Error("testdata/server.hex is not what secilc makes of server.cil: go test -tags root -update")
	}
}

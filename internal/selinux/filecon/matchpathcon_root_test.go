//go:build root

package filecon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// libselinux gives the same paths the same types.
func TestMatchpathcon(t *testing.T) {
	tool, err := exec.LookPath("matchpathcon")
	if err != nil {
		t.Fatalf("%v: `make deps` installs it", err)
	}
	file := filepath.Join(t.TempDir(), "file_contexts")
	// libselinux refuses lines that we leave out, and an equivalence needs a policy that is installed.
	text := strings.NewReplacer("/broken/(?=x)\tsystem_u:object_r:usr_t:s0\n", "", "/bad\n", "").Replace(base)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".local", []byte(local), 0o600); err != nil {
		t.Fatal(err)
	}
	for suffix, text := range map[string]string{".subs": subs, ".subs_dist": subsDist} {
		if err := os.WriteFile(file+suffix, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modes := map[string]string{"file": "file", "dir": "dir", "sock_file": "sock"}
	for _, c := range wanted {
		out, err := exec.Command(tool, "-N", "-n", "-f", file, "-m", modes[c.class], c.path).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != "system_u:object_r:"+c.want+":s0" {
			t.Errorf("%s %s is %q, %v, want %s", c.class, c.path, got, err, c.want)
		}
	}
}

package usage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A password is taken from a file of one's own alone, and no refusal repeats it.
func TestLogins(t *testing.T) {
	dir := t.TempDir()
	file, open := filepath.Join(dir, "dsn"), filepath.Join(dir, "open")
	for name, mode := range map[string]os.FileMode{file: 0o600, open: 0o644} {
		if err := os.WriteFile(name, []byte("mysql://app:geheim@localhost/\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for given, want := range map[string]string{
		"mysql3306=@" + file:                           "",
		"mysql3306=mysql://root@localhost/?socket=/x":  "",
		"mysql3306=@" + open:                           "chmod 600",
		"mysql3306=mysql://app:geheim@localhost/":      "everybody sees on a command line",
		"mysql://app:geheim@localhost/":                "INSTANCE=@FILE",
		"mysql://app:geheim@localhost/?charset=geheim": "INSTANCE=@FILE",
		"mysql3306=mysql://app:geheim@local host/":     "of the form",
		"mysql3306=@" + dir:                            "no regular file",
	} {
		logins, err := Logins(&cobra.Command{}, []string{given})
		switch {
		case want == "" && (err != nil || logins["mysql3306"] == nil):
			t.Errorf("%s: %v", given, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "geheim")):
			t.Errorf("%s: %v", given, err)
		}
	}
}

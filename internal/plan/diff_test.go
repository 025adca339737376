package plan

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/systemd/unitfiles"
)

// What is printed of a file is what diff(1) prints of it: patch(1) makes the new file from the old one by it.
func TestDiffIsWhatPatchTakes(t *testing.T) {
	long := "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n"
	for name, tt := range map[string]struct{ old, now string }{
		"middle":     {long, strings.Replace(long, "e\n", "E\ne2\n", 1)},
		"first line": {long, "x\n" + long},
		"last line":  {long, long + "z\n"},
		"shorter":    {long, strings.Replace(long, "c\nd\n", "", 1)},
		"all":        {"a\n", "b\n"},
		"new":        {"", "a\nb\n"},
		"gone":       {"a\nb\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			if tt.old != "" {
				if err := os.WriteFile(file, []byte(tt.old), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := Step{}
			s.Change = change.Of(change.Target{Kind: unitfiles.KindDropIn, Addr: file}, tt.old, tt.now)
			diff := Render(Plan{Steps: []Step{s}}, RenderOptions{Form: FormDiff})
			if !strings.Contains(diff, " "+file+"\n") {
				t.Errorf("the file is not named:\n%s", diff)
			}
			cmd := exec.Command("patch", "-s", "-E", "-r", "-", file)
			cmd.Stdin = strings.NewReader(diff)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s\n%s", err, out, diff)
			}
			if got, _ := os.ReadFile(file); string(got) != tt.now {
				t.Errorf("it is %q, want %q, by\n%s", got, tt.now, diff)
			}
		})
	}
}

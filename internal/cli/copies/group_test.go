package copies

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/state"
	"bulkhead/internal/zfsclone"
)

// The group of a copy comes into the policy only where the policy has its class and includes its file; else nothing of
// it is left. An edit that nobody applied is not put in force with it.
func TestGroupInPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	w := &work{Session: Session{Policy: &file}}
	part, text := w.groupFile(&zfsclone.Plan{Name: "dev1", Group: "dev1", Class: "developer"})
	policy := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const group, include = "groups: {reports: {match: [{user: report}]}}\n", "include: [policy.d/*.yaml]\n"
	policy("version: 1\n" + group)
	if err := w.addGroup(part, text, false); err == nil || !strings.Contains(api.HintOf(err), "include") {
		t.Errorf("without the directory: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(part), 0o700); err != nil {
		t.Fatal(err)
	}
	for text2, says := range map[string]string{"version: 1\n" + group: "does not include",
		"version: 1\n" + include + group: "developer"} {
		policy(text2)
		err := w.addGroup(part, text, false)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text2, err)
		}
		if _, err := os.Stat(part); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file is left: %v", text2, err)
		}
	}
	policy("version: 1\n" + include + "classes: {developer: {role: batch}}\n" + group)
	before, err := yamlform.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.addGroup(part, text, false); err != nil {
		t.Fatal(err)
	}
	after, err := yamlform.Read(file)
	if err != nil || len(after) != len(before)+1 {
		t.Fatalf("%d, %v", len(after), err)
	}
	for name, c := range map[string]struct {
		docs    *state.Documents
		applied bool
	}{"before": {&state.Documents{Applied: &state.Applied{Sources: before}}, false},
		"after": {&state.Documents{Applied: &state.Applied{Sources: after}}, true}} {
		if applied, err := w.pending(c.docs, part); err != nil || applied != c.applied {
			t.Errorf("%s: %v, %v", name, applied, err)
		}
	}
	policy("version: 1\n" + include + "classes: {developer: {role: helper}}\n" + group)
	if _, err := w.pending(&state.Documents{Applied: &state.Applied{Sources: after}}, part); api.CodeOf(err) !=
		api.CodeRefused {
		t.Errorf("an edit that nobody applied: %v", err)
	}
	if _, err := w.pending(&state.Documents{}, part); err == nil {
		t.Error("nothing was applied")
	}
}

func TestBytesOf(t *testing.T) {
	for text, want := range map[string]int64{"128MiB": 128 << 20, "2GiB": 2 << 30, "128": 0, "128M": 0, "-1MiB": 0,
		"0MiB": 0, "1.5GiB": 0, "": 0} {
		if got, err := bytesOf(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}

// What a copy would be is printed line by line, with each data set.
func TestPrintCopy(t *testing.T) {
	var out bytes.Buffer
	s := Session{Out: render.Printable(&out, 0)}
	s.printCopy(&zfsclone.Plan{Name: "dev1", Instance: "mysql3306", Snapshot: "s", Group: "dev1", Sets: []zfsclone.Set{
		{Name: "tank/dev1"}, {Name: "tank/dev1/data", Origin: "tank/my/data@s", Point: "/x",
			Properties: map[string]string{"recordsize": "16384"}}}})
	if text := out.String(); !strings.Contains(text, "\ntank/dev1/data, of tank/my/data@s, mounted at /x\n"+
		"  recordsize=16384\n") || strings.Contains(text, `\x0a`) {
		t.Error(text)
	}
}

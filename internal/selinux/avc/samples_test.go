package avc_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/selinux/avc"
)

var update = flag.Bool("update", false, "write the rules of the samples anew: only after audit2allow has agreed")

// now is when tests read logs.
var now = time.Date(2026, 11, 25, 21, 0, 0, 0, time.UTC)

// read reads a log.
func read(t testing.TB, text string) *avc.Log {
	t.Helper()
	log := &avc.Log{}
	if err := log.Read(strings.NewReader(text), now); err != nil {
		t.Fatal(err)
	}
	return log
}

// samples are logs that were published, or captured in the lab, by name.
func samples(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.log")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d samples: %v", len(files), err)
	}
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if head, _, _ := strings.Cut(string(text), "\n"); !strings.HasPrefix(head, "# ") ||
			!strings.Contains(head, "https://") && !strings.Contains(head, "captured in the lab") {
			t.Errorf("%s does not begin with where it comes from", file)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".log")] = string(text)
	}
	return all
}

// rulesOf are the rules of a log as audit2allow prints them.
func rulesOf(log *avc.Log) string {
	var b strings.Builder
	source := ""
	for _, g := range avc.Groups(log.Denials) {
		if g.Source != source {
			source = g.Source
			b.WriteString("\n\n#============= " + source + " ==============\n")
		}
		b.WriteString(g.Rule() + "\n")
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// The rules of each sample are those that audit2allow 3.4 makes; TestAudit2allow runs it.
func TestRulesOfSamples(t *testing.T) {
	for name, text := range samples(t) {
		log := read(t, text)
		if len(log.Unread) > 0 || len(log.Denials) == 0 {
			t.Errorf("%s: %d denials, %v", name, len(log.Denials), log.Unread)
		}
		file := "testdata/" + name + ".te"
		got := rulesOf(log)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || got != string(want) {
			t.Errorf("%s: the rules are%s, want%s, %v", name, got, want, err)
		}
	}
}

package verdict_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/verdict"
)

// Each verdict on each captured log, with a policy to ask and without, has reasons, what to do, and up to three lines
// of the log that say what it says: of its source, target and class, with permissions of its rule, and each by itself.
// The first port that it names stands in them.
func TestEvidence(t *testing.T) {
	files, err := filepath.Glob("../avc/testdata/*.log")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d logs: %v", len(files), err)
	}
	verdicts := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(data), "\n")
		for name, host := range map[string]verdict.Host{"without a policy": {}, "with one": centos()} {
			log := read(t, string(data))
			r := verdict.Judge(log, host)
			if want := len(avc.Groups(log.Denials)); len(r.Verdicts) != want {
				t.Errorf("%s, %s: %d verdicts on %d groups", file, name, len(r.Verdicts), want)
			}
			for _, v := range r.Verdicts {
				verdicts++
				if len(v.Because) == 0 || len(v.Fix) == 0 {
					t.Errorf("%s, %s: %s (%s) has no reason, or nothing to do: %+v", file, name, v.Rule, v.Kind, v)
				}
				rests(t, file+", "+name, lines, v)
			}
		}
	}
	t.Logf("%d verdicts on %d logs", verdicts, len(files))
}

// rests holds the lines of a verdict against what it says.
func rests(t *testing.T, where string, lines []string, v verdict.Verdict) {
	t.Helper()
	if want := min(3, v.Count); len(v.Evidence) == 0 || len(v.Evidence) > want {
		t.Errorf("%s: %s has %d lines of %d denials", where, v.Rule, len(v.Evidence), v.Count)
	}
	seen := map[string]bool{}
	for _, e := range v.Evidence {
		if e.Number < 1 || e.Number > len(lines) || strings.TrimSpace(lines[e.Number-1]) != strings.TrimSpace(e.Text) {
			t.Errorf("%s: line %d is not %q", where, e.Number, e.Text)
			continue
		}
		one := &avc.Log{}
		if err := one.Read(strings.NewReader(e.Text), time.Time{}); err != nil || len(one.Denials) != 1 {
			t.Errorf("%s: %q by itself has %d denials, %v", where, e.Text, len(one.Denials), err)
			continue
		}
		d := one.Denials[0]
		if d.Source.Type != v.Source || d.Target.Type != v.Target || d.Class != v.Class ||
			slices.ContainsFunc(d.Permissions, func(p string) bool { return !slices.Contains(v.Permissions, p) }) ||
			d.Comm != "" && !slices.Contains(v.Commands, d.Comm) {
			t.Errorf("%s: %q does not show %s by %q", where, e.Text, v.Rule, v.Commands)
		}
		seen[e.Text] = true
	}
	if v.Kind == verdict.Port && !slices.ContainsFunc(v.Evidence, func(e verdict.Line) bool {
		words := strings.Fields(v.Fix[0])
		number := words[len(words)-1]
		return strings.Contains(e.Text, "src="+number) || strings.Contains(e.Text, "dest="+number) ||
			!strings.HasPrefix(v.Fix[0], "semanage port")
	}) {
		t.Errorf("%s: no line shows the port of %q", where, v.Fix[0])
	}
}

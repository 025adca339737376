package rule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSite(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"adds, replaces and silences": {good + strings.Replace(good, "version: 1\nrules:", "", 1) +
			"silence:\n  - {rule: MEM-36, on: redis6379, reason: a cache, until: 2027-03-31}\n", ""},
		"an unknown rule":   {"silence: [{rule: MEM-999, reason: r, until: 2027-03-31}]", "no rule \"MEM-999\""},
		"no reason":         {"silence: [{rule: MEM-36, until: 2027-03-31}]", "rule, reason and until are needed"},
		"no day":            {"silence: [{rule: MEM-36, reason: r, until: soon}]", "no day"},
		"a rule that is no": {"rules: [{id: SITE-01}]", "title is needed"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		set, err := With(dir)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", name, err)
		case c.want == "":
			if r, known := set.Find("site-01"); !known || r.Area != "a" || len(set.Silence) != 1 {
				t.Errorf("%s: %+v", name, set.Silence)
			}
		}
	}
	if set, err := With(filepath.Join(t.TempDir(), "none")); err != nil || len(set.Rules) == 0 {
		t.Errorf("without a directory: %v", err)
	}
}

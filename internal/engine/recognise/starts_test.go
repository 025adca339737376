package recognise

import (
	"regexp"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// policyOf reads a starter with the real parser.
func policyOf(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := parse.Policy([]policy.Source{{Path: "starter.yaml", Text: text}})
	if err != nil {
		t.Fatalf("the starter is refused:\n%v\n%s", err, text)
	}
	return p
}

// limits returns the settings that take something away.
func limits(groups []*policy.Group) (found []policy.Setting) {
	for _, g := range groups {
		for _, s := range g.Settings {
			if s.Key != policy.KeyCPUWeight && s.Key != policy.KeyIOWeight && s.Key != policy.KeyCPUIdle {
				found = append(found, s)
			}
		}
		found = append(found, limits(g.Groups)...)
	}
	return found
}

func TestStarter(t *testing.T) {
	procs, h := captured(t)
	text := engine.Starter(Instances(procs, SourceOf(h)), 2, 8<<30, nil)
	golden(t, "starter.golden.yaml", text)
	p := policyOf(t, text)
	engines := []string{engine.MySQL, engine.PostgreSQL, engine.Redis}
	if len(p.Groups) != len(engines) {
		t.Fatalf("%d groups for %d engines", len(p.Groups), len(engines))
	}
	for n, g := range p.Groups {
		if g.Role != policy.RoleDatabase || g.Each == nil || g.Each.Engine != engines[n] {
			t.Errorf("group %s: role %q, each %+v", g.Name, g.Role, g.Each)
		}
	}
	if l := limits(p.Groups); len(l) != 0 {
		t.Errorf("the starter limits: %v", l)
	}
}

// The commented helpers are a policy too when they are uncommented.
func TestStarterHelpers(t *testing.T) {
	procs, h := captured(t)
	text := engine.Starter(Instances(procs, SourceOf(h)), 2, 8<<30, nil)
	commented := regexp.MustCompile(`(?m)^    # (groups:|  \w+: \{)`)
	found, want := 0, len(commented.FindAllString(text, -1))
	p := policyOf(t, commented.ReplaceAllString(text, "    $1"))
	for _, g := range p.Groups {
		if len(g.Groups) == 0 {
			t.Errorf("group %s has no helpers", g.Name)
		}
		found += 1 + len(g.Groups)
		for _, c := range g.Groups {
			if c.Role != policy.RoleHelper || len(c.Match) == 0 {
				t.Errorf("group %s: role %q, match %+v", c.Path, c.Role, c.Match)
			}
		}
	}
	if found != want {
		t.Errorf("%d of %d comments are groups", found, want)
	}
}

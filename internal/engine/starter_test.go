package engine

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// parse reads a starter with the real parser.
func parsed(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := parse.Policy([]policy.Source{{Path: "starter.yaml", Text: text}})
	if err != nil {
		t.Fatalf("the starter is refused:\n%v\n%s", err, text)
	}
	return p
}

// The user is part of the policy when all instances of a kind have one.
func TestStarterUser(t *testing.T) {
	for _, test := range []struct {
		users []string
		want  string
	}{
		{[]string{"mysql"}, "mysql"},
		{[]string{"mysql", "mysql"}, "mysql"},
		{[]string{"mysql", "anna"}, ""},
		{[]string{"102"}, ""},
		{[]string{"x\ny: z"}, ""},
		{[]string{"yes"}, "yes"},
		{[]string{""}, ""},
	} {
		var instances []Instance
		for n, user := range test.users {
			instances = append(instances, Instance{Engine: MySQL, Port: 3306 + n, User: user})
		}
		p := parsed(t, Starter(instances, 2, 8<<30, nil))
		if got := p.Groups[0].Each.User; got != test.want {
			t.Errorf("users %q: each has user %q, want %q", test.users, got, test.want)
		}
	}
}

// The sample of the README is what the starter prints on a host of two CPUs and 8 GiB, with limits uncommented.
func TestStarterIsTheSampleOfTheReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, sample, _ := strings.Cut(string(readme), "```yaml\n")
	sample, _, _ = strings.Cut(sample, "```")
	starter := Starter([]Instance{{Engine: MySQL, Port: 3306, User: "mysql", DataDir: "/var/lib/mysql"}}, 2, 8<<30, nil)
	for line := range strings.Lines(sample) {
		line = strings.TrimSpace(line)
		if !strings.Contains(starter, line+"\n") && !strings.Contains(starter, strings.TrimPrefix(line, "# ")+"\n") {
			t.Errorf("the README has %q, and the starter is\n%s", line, starter)
		}
	}
	p := parsed(t, strings.NewReplacer("\n    # ", "\n    ", "\n  # reports", "\n  reports").Replace(starter))
	if len(p.Groups) != 2 || len(p.Groups[0].Settings) != 4 {
		t.Errorf("with every comment as a setting: %+v", p.Groups)
	}
}

func TestStarterOddInstances(t *testing.T) {
	for _, test := range []struct {
		name      string
		instances []Instance
		groups    []string
		mentions  string
	}{
		{"none", nil, nil, "No database was found"},
		{"no port", []Instance{{Engine: MySQL, Port: 3306}, {Engine: MySQL, Socket: "/run/a.sock"}},
			[]string{"{instance}"}, "mysql-a"},
		{"only a container", []Instance{{Engine: Redis, Port: 6379, Container: true}}, nil, "in a container"},
		{"Oracle with ASM", []Instance{{Engine: Oracle, SID: "BX1"}, {Engine: Oracle, Flavor: ASM, SID: "+ASM"}},
			[]string{"{instance}"}, "wait for ASM:  oracle-ASM"},
		{"without helpers", []Instance{{Engine: SQLServer, Port: 1433}}, []string{"sqlserver{port}"}, "sqlserver1433"},
		{"only a sentinel", []Instance{{Engine: Redis, Members: []Member{{procfs.ID{PID: 1}, PartSentinel}}}}, nil,
			"sentinel"},
		{"line break in a path", []Instance{{Engine: PostgreSQL, Port: 1, DataDir: "/a\nversion: 2", User: "x\ny: z"}},
			[]string{"postgresql{port}"}, `\nversion`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := Starter(test.instances, 2, 8<<30, nil)
			p := parsed(t, text)
			if len(p.Groups) != len(test.groups) {
				t.Fatalf("groups %v in\n%s", p.Groups, text)
			}
			for n, g := range p.Groups {
				if g.Name != test.groups[n] {
					t.Errorf("group %q, want %q", g.Name, test.groups[n])
				}
			}
			if !strings.Contains(text, test.mentions) {
				t.Errorf("no mention of %q in\n%s", test.mentions, text)
			}
		})
	}
}

// With every comment as a setting the starter is a policy, whatever was found; and the memory that is proposed is more
// than what is held.
func TestStarterUncommented(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(starterHelpers)) {
		for _, held := range []int64{0, 300 << 20, 1100 << 20, 7 << 30} {
			text := Starter([]Instance{{Engine: name, Port: 4000, DataDir: "/srv/data"}}, 2, 8<<30,
				func(Instance) int64 { return held })
			p := parsed(t, strings.NewReplacer("\n    # ", "\n    ", "\n  # reports", "\n  reports").Replace(text))
			g := p.Groups[0]
			if len(g.Groups) != len(starterHelpers[name]) {
				t.Errorf("%s: helpers %v in\n%s", name, g.Groups, text)
			}
			for _, h := range g.Groups {
				if len(h.Settings) == 0 && h.Name != "vacuum" {
					t.Errorf("%s: no number for %s in\n%s", name, h.Name, text)
				}
			}
			for _, s := range g.Settings {
				if bytes, is := s.Value.(policy.Bytes); is && s.Key == policy.KeyMemoryMax && int64(bytes) <= held {
					t.Errorf("%s holds %d and is given %d", name, held, bytes)
				}
			}
		}
	}
}

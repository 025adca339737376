package resolve

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// checkGolden compares got with a golden file, or rewrites the file.
func checkGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update after looking):\n--- got\n%s--- want\n%s", file, got, want)
	}
}

// load takes a file through all three steps on testHost.
func load(file string) (*policy.Policy, error) {
	sources, err := yamlform.Read(file)
	if err != nil {
		return nil, err
	}
	p, err := parse.Policy(sources)
	if err != nil {
		return nil, err
	}
	resolved, problems := Policy(p, testHost(), testResolver())
	return resolved, problems.OrNil()
}

// eachPolicy runs a test for every policy in a directory of testdata, from inside that directory.
func eachPolicy(t *testing.T, dir string, test func(t *testing.T, file string)) {
	t.Chdir(filepath.Join("testdata", dir))
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no policies in testdata/%s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".yaml"), func(t *testing.T) { test(t, file) })
	}
}

// TestBad holds what a person sees for every mistake: message, place, caret and hint.
func TestBad(t *testing.T) {
	eachPolicy(t, "bad", func(t *testing.T, file string) {
		p, err := load(file)
		problems, ok := err.(policy.Problems)
		if !ok || len(problems) == 0 {
			t.Fatalf("no problems, but %v, %+v", err, p)
		}
		for _, problem := range problems {
			if problem.Pos.Line == 0 {
				t.Errorf("no place: %s", problem)
			}
			if problem.Msg == "" || strings.HasSuffix(problem.Msg, ".") || strings.Contains(problem.Msg, "\n") {
				t.Errorf("message %q", problem.Msg)
			}
		}
		checkGolden(t, strings.TrimSuffix(file, ".yaml")+".txt", err.Error()+"\n")
	})
}

// TestGood holds what a policy means on testHost, each setting with who asks and where.
func TestGood(t *testing.T) {
	eachPolicy(t, "good", func(t *testing.T, file string) {
		p, err := load(file)
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, strings.TrimSuffix(file, ".yaml")+".txt", dump(p))
	})
}

// dump prints a policy, one line for each setting.
func dump(p *policy.Policy) string {
	var b strings.Builder
	weight := "not named"
	if p.Host.Weight != 0 {
		weight = p.Host.Weight.String()
	}
	fmt.Fprintf(&b, "host root %s, weight %s, reserve cpu %s memory %v\n", p.Host.Root, weight, p.Host.Reserve.CPU,
		p.Host.Reserve.Memory)
	settings := func(all policy.Settings) {
		for _, s := range all {
			fmt.Fprintf(&b, "  %s [%s]", s, s.Dev)
			if s.Raw != "" {
				fmt.Fprintf(&b, " written %s", s.Raw)
			}
			if s.Network != (policy.NetworkPart{}) {
				fmt.Fprintf(&b, " %+v", s.Network)
			}
			fmt.Fprintf(&b, " from %s, %s\n", s.From, s.Pos)
		}
	}
	var group func(g *policy.Group)
	group = func(g *policy.Group) {
		fmt.Fprintf(&b, "group %s (%s) role %q class %q\n", g.Path, g.Pos, g.Role, g.Class)
		if g.Each != nil {
			fmt.Fprintf(&b, "  each %s\n", describe(*g.Each))
		}
		for _, m := range g.Match {
			fmt.Fprintf(&b, "  match %s\n", describe(m))
		}
		settings(g.Settings)
		for _, child := range g.Groups {
			group(child)
		}
	}
	for _, g := range p.Groups {
		group(g)
	}
	for _, s := range p.Schedules {
		fmt.Fprintf(&b, "schedule %s (%s) %q in %q for %s except %v\n", s.Name, s.Pos, s.Windows.When, s.Zone,
			s.Windows.Length, s.Windows.Except)
		for _, set := range s.Set {
			fmt.Fprintf(&b, " group %s (%s)\n", set.Group, set.Pos)
			settings(set.Settings)
		}
	}
	if g := p.Guard; g != nil {
		fmt.Fprintf(&b, "guard (%s) for %s, window %s, before %s\n", g.Pos, g.For, g.Window, g.Before)
		for _, one := range g.Groups {
			fmt.Fprintf(&b, " group %s (%s)", one.Group, one.Pos)
			if one.OOMKills != nil {
				fmt.Fprintf(&b, " oom_kills %d", *one.OOMKills)
			}
			if one.Throttled != nil {
				fmt.Fprintf(&b, " throttled %g", *one.Throttled)
			}
			if one.Throughput != nil {
				fmt.Fprintf(&b, " throughput falls %g by %q", *one.Throughput, one.DSN)
			}
			b.WriteByte('\n')
		}
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note %s %s: %s\n", n.Pos, n.Group, n.Text)
	}
	return b.String()
}

func describe(m policy.Match) string {
	text := m.Pos.String()
	fields := reflect.ValueOf(m)
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		if value, is := fields.Field(i).Interface().(string); is && value != "" {
			text += fmt.Sprintf(" %s=%s", strings.Replace(strings.ToLower(name), "unixgroup", "unix_group", 1), value)
		}
	}
	for _, e := range m.Except {
		text += " except{" + describe(e) + "}"
	}
	return text
}

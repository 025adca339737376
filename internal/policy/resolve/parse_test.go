package resolve

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
)

// FuzzParse holds that any text at all gives a policy or problems with a place in that text, that
// what is shown of it is fit for a terminal, and that a policy resolves without a trace on itself.
// One mistake in the text hides none of those that only the host shows.
func TestProblemsOnShowsAll(t *testing.T) {
	text := "version: 1\ngroups:\n  a: {match: [{exe: x}], cpu: {cpus: '900-901'}, memory: {maxx: 1GiB}}\n  b: " +
		"{match: [{exe: y}], memory: {max: 900TiB}}\n"
	var got []string
	for _, p := range ProblemsOn([]policy.Source{{Path: "main", Text: text}}, testHost(), testResolver()) {
		got = append(got, fmt.Sprintf("%d:%d %s", p.Pos.Line, p.Pos.Column, p.Msg))
	}
	for i, want := range []string{"3:38 ", "3:59 unknown key", "4:40 "} {
		if len(got) != 3 || !strings.HasPrefix(got[i], want) {
			t.Fatalf("problem %d is to begin with %q; all of them:\n%s", i, want, strings.Join(got, "\n"))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.yaml", "testdata/good/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no seeds in %s", pattern)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	f.Add("---")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse.Policy([]policy.Source{{Path: "main", Text: text}})
		checkProblems(t, text, err)
		if err != nil {
			checkProblems(t, text, ProblemsOn([]policy.Source{{Path: "main", Text: text}}, testHost(),
				testResolver()).OrNil())
			return
		}
		before := dump(p)
		resolved, problems := Policy(p, testHost(), testResolver())
		checkProblems(t, text, problems.OrNil())
		if after := dump(p); after != before {
			t.Fatalf("Resolve changed the policy:\n%s\nto\n%s", before, after)
		}
		for _, g := range resolvedLimits(resolved) {
			checkResolved(t, g)
		}
	})
}

func checkProblems(t *testing.T, text string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	problems, ok := err.(policy.Problems)
	if !ok || len(problems) == 0 {
		t.Fatalf("the error is %T", err)
	}
	if shown := err.Error(); !utf8.ValidString(shown) || strings.ContainsFunc(shown,
		func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r == 0x202e }) {
		t.Fatalf("%q is not fit for a terminal", shown)
	}
	last := strings.Count(text, "\n") + 1
	for _, p := range problems {
		if p.Pos.File != "main" || p.Pos.Line < 1 || p.Pos.Line > last || p.Pos.Column < 1 || p.Msg == "" {
			t.Fatalf("%+v is not in a text of %d lines", p, last)
		}
	}
}

func checkResolved(t *testing.T, g Limits) {
	t.Helper()
	for i, s := range g.Settings {
		_, percent := s.Value.(policy.MemoryPercent)
		io := strings.HasPrefix(string(s.Key), "io.") && s.Key != policy.KeyIOWeight
		switch {
		case s.Value == nil, percent, s.From == "", policy.LimitOf(s.Key) == nil, s.Key == policy.KeyCPUNUMA, io &&
			s.Dev == "" && s.Lost == "":
			t.Fatalf("group %s: %+v is not resolved", g.Group, s)
		}
		for _, o := range g.Settings[:i] {
			if o.Key == s.Key && cmp.Or(o.Dev, o.On) == cmp.Or(s.Dev, s.On) {
				t.Fatalf("group %s: %s and %s", g.Group, o, s)
			}
		}
	}
}

// The copy of Resolve shares nothing that either side may change.
func TestResolveCopies(t *testing.T) {
	sources, err := yamlform.Read("testdata/good/design.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse.Policy(sources)
	if err != nil {
		t.Fatal(err)
	}
	before := dump(p)
	resolved, problems := Policy(p, testHost())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	var spoil func(groups []*policy.Group)
	spoil = func(groups []*policy.Group) {
		for _, g := range groups {
			if g.Each != nil {
				g.Each.Engine = "spoilt"
			}
			for i := range g.Match {
				for j := range g.Match[i].Except {
					g.Match[i].Except[j].Exe = "spoilt"
				}
				g.Match[i].Exe = "spoilt"
			}
			for i := range g.Settings {
				g.Settings[i].Value = policy.Unlimited{}
			}
			spoil(g.Groups)
			g.Name = "spoilt"
		}
	}
	spoil(resolved.Groups)
	resolved.Sources[0].Text = "spoilt"
	if after := dump(p); after != before || p.Sources[0].Text == "spoilt" {
		t.Errorf("the policy changed with its copy:\n%s", after)
	}
	if again, _ := Policy(p, testHost()); reflect.DeepEqual(again, resolved) {
		t.Error("the copy was not spoilt")
	}
}

// Large files are read in reasonable time, whether they are good or all wrong.
func TestParseLarge(t *testing.T) {
	const groups = 5000
	var good, bad strings.Builder
	good.WriteString("version: 1\nclasses: {c: {cpu: {limit: 1}}}\ngroups:\n")
	bad.WriteString("version: 1\ngroups:\n")
	for i := range groups {
		fmt.Fprintf(&good, "  g%d: {class: c, tasks: 100, match: [{exe: x%d}]}\n", i, i)
		fmt.Fprintf(&bad, "  g%d: {class: nope, tasks: 0, cpu: {limits: 1}}\n", i)
	}
	start := time.Now()
	p, err := parse.Policy([]policy.Source{{Path: "good", Text: good.String()}})
	if err != nil || len(p.Groups) != groups {
		t.Fatal(err)
	}
	if _, problems := Policy(p, testHost()); len(problems) > 0 {
		t.Fatal(problems)
	}
	_, err = parse.Policy([]policy.Source{{Path: "bad", Text: bad.String()}})
	if problems := err.(policy.Problems); len(problems) != 3*groups {
		t.Errorf("%d problems, want %d", len(problems), 3*groups)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestParseNothing(t *testing.T) {
	if _, err := parse.Policy(nil); err == nil {
		t.Error("no source is taken for a policy")
	}
}

// Overrides are resolved one by one, and checked with the rest.
func TestResolveSettingAndCheck(t *testing.T) {
	facts := testHost()
	resolve := func(text, on string) policy.Settings {
		t.Helper()
		_, s, err := parse.Assignment(text, on)
		if err != nil {
			t.Fatal(err)
		}
		settings, problems := Setting(s, facts, testResolver())
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return settings
	}
	if got := resolve("a:memory.max=25%", ""); len(got) != 1 || got[0].Value != policy.Bytes(4<<30) ||
		got[0].Raw != "25%" {
		t.Errorf("25%% is %v", got)
	}
	if got := resolve("a:io.write.iops=5", "/dev/disk/by-id/wwn-2"); len(got) != 1 || got[0].Dev != "8:16" {
		t.Errorf("on a link: %v", got)
	}
	if got := resolve("a:io.write.iops=5", ""); len(got) != 4 {
		t.Errorf("on all devices: %v", got)
	}
	if got := resolve("a:cpu.numa=1", ""); len(got) != 1 || got[0].Key != policy.KeyCPUCPUs ||
		!policy.SameValue(got[0].Value, policy.IDs{Set: idset.New(1, 3)}) {
		t.Errorf("node 1: %v", got)
	}
	_, s, err := parse.Assignment("a:io.write.iops=5", "/tank")
	if err != nil {
		t.Fatal(err)
	}
	if _, problems := Setting(s, facts, testResolver()); len(problems) != 1 || !strings.Contains(problems[0].Msg,
		"zfs") {
		t.Errorf("on ZFS: %v", problems)
	}
	groups := []Limits{
		{Group: "a", Settings: resolve("a:cpu.limit=2", "")},
		{Group: "a/b", Parent: "a", Settings: resolve("a/b:cpu.limit=3", "")},
		{Group: "c", Settings: append(resolve("c:cpu.limit=5", ""), resolve("c:cpu.burst=1s", "")...)},
	}
	problems, _ := Check(facts, policy.HostPart{}, groups)
	var got []string
	for _, p := range problems {
		got = append(got, p.Msg)
	}
	want := []string{
		"cpu.limit 3 of a/b is beyond the 2 that a may use",
		"cpu.limit 5 is above the host's 4 CPUs",
		"cpu.burst 1s is more than cpu.limit 5 in 100ms",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
}

// Nodes without CPUs or without memory, as hot-plugged memory and some virtual machines make them.
func TestOddNodes(t *testing.T) {
	facts := testHost()
	facts.Nodes = append(facts.Nodes, host.Node{ID: 2, MemTotal: 1 << 30}, host.Node{ID: 3, CPUs: idset.New(3)})
	for numa, say := range map[string]string{"2": "NUMA node 2 has no CPUs",
		"3": "memory.numa: NUMA node 3 has no memory"} {
		p, err := parse.Policy([]policy.Source{{Path: "main", Text: "version: 1\ngroups: {a: {numa: " + numa + "}}\n"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, problems := Policy(p, facts); len(problems) != 1 || problems[0].Msg != say ||
			problems[0].Pos.String() != "main:2:20" {
			t.Errorf("numa %s: %v", numa, problems)
		}
	}
}

// resolvedLimits lists the groups of a policy.
func resolvedLimits(p *policy.Policy) []Limits {
	var all []Limits
	for _, g := range p.Groups {
		all = limitsOf(g, all, "")
	}
	return all
}

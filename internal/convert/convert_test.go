package convert_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/policy/parse"

	"github.com/rogpeppe/go-internal/txtar"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/berx"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
)

var update = flag.Bool("update", false, "write the golden files anew")

// archive reads the files of a fixture.
func archive(t testing.TB, file string) []policy.Source {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Files) == 0 || len(a.Comment) < 10 {
		t.Fatalf("%s: no files, or nothing that says what they are", file)
	}
	var sources []policy.Source
	for _, f := range a.Files {
		sources = append(sources, policy.Source{Path: f.Name, Text: string(f.Data)})
	}
	return sources
}

// fixtures runs an import on each fixture of a kind and holds what it gives to the golden file beside it.
func fixtures(t *testing.T, kind string, do func([]policy.Source) (*convert.Result, error)) {
	files, err := filepath.Glob(filepath.Join("testdata", kind, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures of %s: %v", kind, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			sources := archive(t, file)
			r, err := do(sources)
			hold(t, sources, r, err)
			golden(t, strings.TrimSuffix(file, ".txtar")+".golden", told(t, r, err))
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", file, got, want)
	}
}

// told is all that an import says.
func told(t testing.TB, r *convert.Result, err error) string {
	if err != nil {
		return err.Error() + "\n"
	}
	var b strings.Builder
	b.WriteString(r.Policy)
	for _, part := range []struct {
		title string
		all   []convert.Remark
	}{{"changed", r.Changed}, {"left", r.Left}} {
		for _, remark := range part.all {
			fmt.Fprintf(&b, "%s: %s\n", part.title, remark)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

// hold holds an import to what every import keeps: a policy that parses, or problems each of which has a place in the
// files.
func hold(t testing.TB, sources []policy.Source, r *convert.Result, err error) {
	t.Helper()
	if err != nil {
		problems, ok := err.(policy.Problems)
		if !ok || len(problems) == 0 {
			t.Fatalf("the error is %T: %v", err, err)
		}
		for _, p := range problems {
			place(t, sources, p.Pos)
			if p.Msg == "" || strings.HasSuffix(p.Msg, ".") {
				t.Errorf("%s: %q", p.Pos, p.Msg)
			}
		}
		return
	}
	if _, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: r.Policy}}); err != nil &&
		len(r.Policy) <= 4<<20 {
		t.Fatalf("the policy is not one: %v\n%s", err, r.Policy)
	}
	for _, remark := range append(r.Left, r.Changed...) {
		place(t, sources, remark.Pos)
		if remark.What == "" || remark.Why == "" {
			t.Errorf("a remark that says nothing: %+v", remark)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// place holds a position to be inside the files.
func place(t testing.TB, sources []policy.Source, at policy.Pos) {
	t.Helper()
	for _, s := range sources {
		if s.Path != at.File {
			continue
		}
		lines := strings.Split(s.Text, "\n")
		if at.Line < 1 || at.Line > len(lines) || at.Column < 1 || at.Column > len([]rune(lines[at.Line-1]))+1 {
			t.Fatalf("%s is not inside %q", at, s.Path)
		}
		return
	}
	t.Fatalf("%s is in no file", at)
}

func TestCgconfig(t *testing.T) {
	fixtures(t, "cgconfig", func(s []policy.Source) (*convert.Result, error) { return libcgroup.Import(s, nil) })
}

func FuzzCgconfig(f *testing.F) {
	seeds(f, "cgconfig")
	f.Fuzz(func(t *testing.T, text string) {
		sources := []policy.Source{{Path: "cgconfig.conf", Text: text}}
		r, err := libcgroup.Import(sources, nil)
		hold(t, sources, r, err)
		if err == nil {
			again(t, r)
		}
	})
}

// seeds adds every file of the fixtures of a kind.
func seeds(f *testing.F, kind string) {
	files, err := filepath.Glob(filepath.Join("testdata", kind, "*.txtar"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no fixtures of %s: %v", kind, err)
	}
	for _, file := range files {
		for _, s := range archive(f, file) {
			f.Add(s.Text)
		}
	}
}

// again exports an imported policy and holds an import of that to be the same policy.
func again(t testing.TB, r *convert.Result) {
	t.Helper()
	if len(r.Policy) > 4<<20 {
		return
	}
	p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: r.Policy}})
	if err != nil {
		t.Fatal(err)
	}
	back(t, p)
}

// failer is a test, or a check of one with drawn values.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// back holds import(export(p)) to be p, in every format.
func back(t failer, p *policy.Policy) {
	t.Helper()
	for _, format := range []struct {
		name string
		do   func() (*convert.Export, *convert.Result, error)
	}{
		{"cgconfig 1", func() (*convert.Export, *convert.Result, error) {
			x := libcgroup.Export(p, libcgroup.Options{})
			r, err := libcgroup.Import(x.Files, nil)
			return x, r, err
		}},
		{"cgconfig 2", func() (*convert.Export, *convert.Result, error) {
			x := libcgroup.Export(p, libcgroup.Options{Cgroup: 2})
			r, err := libcgroup.Import(x.Files, nil)
			return x, r, err
		}},
		{"slice", func() (*convert.Export, *convert.Result, error) {
			x := unitfile.Export(p)
			r, err := unitfile.Import(x.Files)
			return x, r, err
		}},
	} {
		x, r, err := format.do()
		if err != nil {
			t.Fatalf("%s: %v\n%s", format.name, err, textOf(x))
		}
		got, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: r.Policy}})
		if err != nil {
			t.Fatalf("%s: %v\n%s", format.name, err, r.Policy)
		}
		if want, have := convert.Flow(p), convert.Flow(got); want != have {
			t.Fatalf("%s gave\n%s\nfor\n%s\nexported as\n%s\nimported as\n%s", format.name, have, want, textOf(x),
				r.Policy)
		}
	}
}

func textOf(x *convert.Export) string {
	var b strings.Builder
	for _, f := range x.Files {
		fmt.Fprintf(&b, "-- %s --\n%s", f.Path, f.Text)
	}
	return b.String()
}

func TestCgrules(t *testing.T) { fixtures(t, "cgrules", libcgroup.ImportRules) }

func TestBerx(t *testing.T) { fixtures(t, "berx", berx.Import) }

// Groups and rules together: the first file is cgconfig.conf.
func TestCgconfigWithRules(t *testing.T) {
	fixtures(t, "cgboth", func(s []policy.Source) (*convert.Result, error) { return libcgroup.Import(s[:1], s[1:]) })
}

func FuzzCgrules(f *testing.F) {
	seeds(f, "cgrules")
	f.Fuzz(func(t *testing.T, text string) {
		sources := []policy.Source{{Path: "cgrules.conf", Text: text}}
		r, err := libcgroup.ImportRules(sources)
		hold(t, sources, r, err)
		if err == nil {
			again(t, r)
		}
	})
}

func FuzzBerx(f *testing.F) {
	seeds(f, "berx")
	f.Fuzz(func(t *testing.T, text string) {
		sources := []policy.Source{{Path: "cgconfig.json", Text: text}}
		r, err := berx.Import(sources)
		hold(t, sources, r, err)
		if err == nil {
			again(t, r)
		}
	})
}

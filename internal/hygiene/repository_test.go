package hygiene

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every package says what it owns, once.
func TestPackageComments(t *testing.T) {
	type pkg struct {
		name     string
		comments []string
		code     bool
	}
	packages := map[string]*pkg{}
	for _, s := range sources(t) {
		name := s.file.Name.Name
		if s.test && strings.HasSuffix(name, "_test") {
			continue
		}
		p := packages[s.dir]
		if p == nil {
			p = &pkg{name: name}
			packages[s.dir] = p
		}
		p.code = p.code || !s.test
		if s.file.Doc != nil {
			p.comments = append(p.comments, s.file.Doc.Text())
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		p := packages[dir]
		if !p.code && dir != "internal/hygiene" {
			continue // tests alone
		}
		if len(p.comments) != 1 {
			t.Errorf("%s: %d package comments, want one", dir, len(p.comments))
			continue
		}
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command " + filepath.Base(dir) + " "
		}
		if !strings.HasPrefix(p.comments[0], want) {
			t.Errorf("%s: the package comment begins %.30q, want %q", dir, p.comments[0], want)
		}
	}
}

func TestChangelog(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("\n## [Unreleased]\n")) {
		t.Error(`no "## [Unreleased]" section`)
	}
	entry := regexp.MustCompile(`^- \[(CHANGE|FEATURE|ENHANCEMENT|BUGFIX)\] [a-z/]+: `)
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "- ") && !entry.MatchString(line) {
			t.Errorf("line %d: want `- [TAG] component: text`, got %q", i+1, line)
		}
	}
}

// forbidden are words that say where this was written instead of what it is. They are split so that
// they do not stand here.
var forbidden = []*regexp.Regexp{
	regexp.MustCompile("/wo" + "rk/(main|shared|steering|\\.)"),
	regexp.MustCompile(`https?://(deb|proxy|security|registry|static|index|repo1?)\.`),
	regexp.MustCompile(`(?i)\b(chat` + `gpt|clau` + `de|co` + `pilot|language mo` + `del)\b`),
	regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
}

func TestForbiddenWords(t *testing.T) {
	for _, bad := range []string{"see /wo" + "rk/main/x", "https:" + "//deb.example", "// TO" + "DO: later"} {
		if !slices.ContainsFunc(forbidden, func(f *regexp.Regexp) bool { return f.MatchString(bad) }) {
			t.Errorf("%q passes", bad)
		}
	}
	files(t, func(path string, text []byte) {
		if strings.Contains(path, "testdata/fuzz/") {
			return // made by the fuzzer
		}
		for _, f := range forbidden {
			if at := f.FindIndex(text); at != nil {
				t.Errorf("%s:%d: %q has no place here", path, 1+bytes.Count(text[:at[0]], []byte("\n")),
					text[at[0]:at[1]])
			}
		}
	})
}

// Only what is needed: no module that was thrown out comes back through go.mod.
func TestModules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gopkg.in/yaml.v3", "stretchr/testify", "sirupsen/logrus", "pkg/errors"} {
		if bytes.Contains(text, []byte(name)) {
			t.Errorf("go.mod names %s", name)
		}
	}
}

// Every exported promise of the Makefile that others rely on is there.
func TestMakefileTargets(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"help", "build", "deps", "lint", "unit", "fuzz", "test-root", "scripts",
		"demo-smoke", "test", "test-long", "bench", "demo", "clean"} {
		if !regexp.MustCompile(`(?m)^` + target + `:.*## \S`).Match(text) {
			t.Errorf("target %q is not there or not documented", target)
		}
	}
	if ci, err := os.ReadFile(filepath.Join(top, ".ci/run")); !bytes.Contains(ci, []byte("make lint")) {
		t.Errorf(".ci/run does not run the linter: %v", err)
	}
	info, err := os.Stat(filepath.Join(top, ".ci/run"))
	if err != nil || info.Mode()&0o111 == 0 {
		t.Errorf(".ci/run cannot be run: %v", err)
	}
}

// No link between the documents leads nowhere.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	files(t, func(path string, text []byte) {
		if !strings.HasSuffix(path, ".md") {
			return
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			to := string(m[1])
			if strings.Contains(to, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(top, filepath.Dir(path), to)); err != nil {
				t.Errorf("%s links to %q: %v", path, to, err)
			}
		}
	})
}

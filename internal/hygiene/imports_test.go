package hygiene

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	update = flag.Bool("update", false, "write imports.txt anew; a new arrow is an error")
	raise  = flag.Bool("raise", false, "with -update: also take new arrows")
)

const importsFile = "imports.txt"

const importsHead = `# Which package may import which: the allowed arrows. Each line is a package below internal/ and
# those that its code (tests apart) imports. What a line does not name is forbidden, and a name that is not needed any
# more must go:
#
#     go test ./internal/hygiene -update
#
# does that. A new arrow needs -update -raise, and a reason in the commit. After a conflict of merges leave the markers
# in and run it. Test support (fakes, conformance suites, testhost) may be named by test support alone, and every
# package has a line.

`

// allowed are the packages that each package may import.
type allowed map[string][]string

// parseImports reads the file. With the markers of a merge in it what either side allows counts.
func parseImports(text string) (allowed, error) {
	a := allowed{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || isMarker(line) {
			continue
		}
		name, list, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("read %s: line %q: want a package, a colon and packages", importsFile, line)
		}
		names := append(a[name], strings.Fields(list)...)
		slices.Sort(names)
		a[name] = slices.Compact(names)
	}
	return a, nil
}

func (a allowed) String() string {
	var b strings.Builder
	b.WriteString(importsHead)
	for _, name := range sortedKeys(a) {
		b.WriteString(strings.TrimSpace(name+": "+strings.Join(a[name], " ")) + "\n")
	}
	return b.String()
}

// imported are the arrows that there are.
func imported(all []source) allowed {
	found := allowed{}
	for dir, files := range packages(all) {
		from, ok := strings.CutPrefix(dir, "internal/")
		if !ok {
			continue
		}
		to := map[string]bool{}
		for _, s := range files {
			for _, i := range s.file.Imports {
				if name, ok := strings.CutPrefix(importPath(i), "bulkhead/internal/"); ok {
					to[name] = true
				}
			}
		}
		found[from] = slices.Sorted(maps.Keys(to))
	}
	return found
}

// support recognises the packages that serve tests.
var support = regexp.MustCompile(`^test|fake$|test$|/conformance$`)

// check says which arrows are forbidden and which of the allowed ones are not used.
func (a allowed) check(found allowed) (forbidden, unused []string) {
	for _, from := range sortedKeys(found) {
		if _, ok := a[from]; !ok {
			forbidden = append(forbidden, fmt.Sprintf("internal/%s has no line in %s", from, importsFile))
		}
		for _, to := range found[from] {
			if !slices.Contains(a[from], to) {
				forbidden = append(forbidden, fmt.Sprintf("%s may not import %s", from, to))
			}
		}
	}
	for _, from := range sortedKeys(a) {
		if _, ok := found[from]; !ok {
			unused = append(unused, fmt.Sprintf("%s has no code", from))
			continue
		}
		for _, to := range a[from] {
			if !slices.Contains(found[from], to) {
				unused = append(unused, fmt.Sprintf("%s does not import %s any more", from, to))
			}
		}
	}
	return forbidden, unused
}

// neverAllowed says which arrows no list can allow.
func (a allowed) neverAllowed() (wrong []string) {
	for _, from := range sortedKeys(a) {
		for _, to := range a[from] {
			if support.MatchString(to) && !support.MatchString(from) {
				wrong = append(wrong, fmt.Sprintf("%s may not import %s, which serves tests", from, to))
			}
		}
	}
	return wrong
}

func TestImports(t *testing.T) {
	text, err := os.ReadFile(importsFile)
	if err != nil {
		t.Fatal(err)
	}
	stands, err := parseImports(string(text))
	if err != nil {
		t.Fatal(err)
	}
	found := imported(sources(t))
	for _, wrong := range found.neverAllowed() {
		t.Error(wrong)
	}
	forbidden, unused := stands.check(found)
	if *update {
		if len(forbidden) > 0 && !*raise {
			t.Fatalf("%s is left alone, as there are new arrows (-raise takes them):\n%s",
				importsFile, strings.Join(forbidden, "\n"))
		}
		if err := os.WriteFile(importsFile, []byte(found.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, f := range forbidden {
		t.Error(f)
	}
	for _, u := range unused {
		t.Error(u)
	}
	if !t.Failed() && string(text) != stands.String() {
		t.Errorf("%s is not as it is written", importsFile)
	}
	if t.Failed() {
		t.Log("hint: go test ./internal/hygiene -update, and with -raise if a new arrow is meant")
	}
}

func TestImportsAreChecked(t *testing.T) {
	stands, err := parseImports("# head\nhost:\n<<<<<<< ours\nplan: host\n=======\nplan: policy\n>>>>>>> x\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name              string
		files             [][2]string
		forbidden, unused int
	}{
		{"as allowed", [][2]string{
			{"internal/host/a.go", `package host`},
			{"internal/plan/a.go",
				`package plan; import (_ "bulkhead/internal/host"; _ "bulkhead/internal/policy"; _ "os")`},
			{"internal/plan/a_test.go", `package plan; import _ "bulkhead/internal/testhost"`},
			{"cmd/bulkhead/main.go", `package main; import _ "bulkhead/internal/cli"`},
		}, 0, 0},
		{"upwards, and less than allowed", [][2]string{
			{"internal/host/a.go", `package host; import _ "bulkhead/internal/plan"`},
			{"internal/plan/a.go", `package plan; import _ "bulkhead/internal/policy"`},
		}, 1, 1},
		{"a package that is not there", [][2]string{
			{"internal/host/fs/a.go", `package fs; import _ "bulkhead/internal/host"`},
			{"internal/host/a.go", `package host`},
		}, 2, 1},
	} {
		var all []source
		for _, f := range c.files {
			all = append(all, parse(t, f[0], f[1]))
		}
		forbidden, unused := stands.check(imported(all))
		if len(forbidden) != c.forbidden || len(unused) != c.unused {
			t.Errorf("%s: forbidden %q, unused %q", c.name, forbidden, unused)
		}
	}
	if wrong := (allowed{"plan": {"host/hosttest", "testhost"},
		"testhost": {"cgroup/cgroupfake"}}).neverAllowed(); len(wrong) != 2 {
		t.Errorf("test support in code: %q, want two", wrong)
	}
}

// isMarker recognises the lines that git puts around a conflict.
func isMarker(line string) bool {
	for _, m := range []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"} {
		if strings.HasPrefix(line, m) {
			return true
		}
	}
	return false
}

package lab

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the matrix of docs/supported.md from the records in docs/lab")

// The matrix in the docs is what the records say, no more and no less.
func TestSupportedMatrix(t *testing.T) {
	records, err := Records(os.DirFS("../../docs/lab"))
	if err != nil {
		t.Fatal(err)
	}
	const page = "../../docs/supported.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	split := func(systemd bool) []Mode {
		return slices.DeleteFunc(slices.Clone(Modes), func(m Mode) bool { return m.Systemd != systemd })
	}
	got := string(text)
	for mark, modes := range map[string][]Mode{"systemd": split(true), "plain": split(false)} {
		begin, end := "<!-- matrix "+mark+" -->\n", "<!-- /matrix "+mark+" -->"
		head, rest, found := strings.Cut(got, begin)
		_, tail, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s lacks the marks of the matrix %q", page, mark)
		}
		got = head + begin + Table(modes, records) + end + tail
	}
	if got == string(text) {
		return
	}
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not what docs/lab says; run go test ./test/lab -update and read the difference", page)
}

// A test of the matrix that is renamed would be "never run" from then on.
func TestMatrixNamesTests(t *testing.T) {
	for _, c := range Matrix {
		if len(c.Tests) == 0 {
			t.Errorf("%s: no test shows it", c.What)
		}
		for _, test := range c.Tests {
			pkg, name, _ := strings.Cut(test, ".")
			files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Errorf("%s: no tests in %s (%v)", c.What, pkg, err)
			}
			there := name == ""
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				there = there || regexp.MustCompile(`(?m)^func `+name+`\(`).Match(text)
			}
			if !there {
				t.Errorf("%s: there is no %s in %s", c.What, name, pkg)
			}
		}
	}
}

func TestCell(t *testing.T) {
	record := func(text string) Record {
		t.Helper()
		r, err := ReadRecord(strings.NewReader("Root tests in an emulated machine, mode unified.\n" + text))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	newer := record("2026-11-22; qemu\n\n== a: exit status 1\n=== RUN   TestX\n--- FAIL: TestX (0.1s)\n--- PASS: " +
		"TestY (1.0s)\n\n== b: exit status 0\nPASS\n== again/c: exit status 0\n--- PASS: TestZAfterReboot (1s)\n")
	older := record("2026-11-20; qemu\n== a: exit status 0\n--- PASS: TestX (0.1s)\n--- PASS: TestOld (0.1s)\n")
	records, mode := []Record{newer, older}, Mode{Name: "unified"}
	for _, c := range []struct {
		tests []string
		on    func(Mode) bool
		want  string
	}{
		{[]string{"a.TestX"}, nil, "failed 2026-11-22"},
		{[]string{"a.TestY"}, nil, "2026-11-22"},
		{[]string{"a.TestOld"}, nil, "2026-11-20"},
		{[]string{"a.TestY", "a.TestOld"}, nil, "2026-11-20"},
		{[]string{"a.TestY", "a.TestNever"}, nil, "never run"},
		{[]string{"a"}, nil, "failed 2026-11-22"},
		{[]string{"b"}, nil, "2026-11-22"},
		{[]string{"c.TestZAfterReboot"}, nil, "2026-11-22"},
		{[]string{"b"}, withSystemd, "–"},
	} {
		if got := (Capability{Tests: c.tests, On: c.on}).Cell(mode, records); got != c.want {
			t.Errorf("%v: %q, want %q", c.tests, got, c.want)
		}
	}
	if got := (Capability{Tests: []string{"b"}}).Cell(Mode{Name: "hybrid"}, records); got != "never run" {
		t.Errorf("another mode: %q", got)
	}
	if _, err := ReadRecord(strings.NewReader("nothing of that\n")); err == nil {
		t.Error("garbage is read as a record")
	}
}

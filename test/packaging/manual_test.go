package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const manuals = prefix + "/share/man"

// Each verb has a page, and there are no others.
func TestManualHasEveryVerb(t *testing.T) {
	verb := regexp.MustCompile(`(?m)^  ([a-z-]+) +\S`)
	want := map[string]bool{"bulkhead.8": true}
	var list func(...string)
	list = func(args ...string) {
		out, err := exec.Command(path(t, binary), append(args, "--help")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		_, text, found := strings.Cut(string(out), " VERB [flags]\n")
		text, _, _ = strings.Cut(text, "\nFlags:")
		if !found {
			return
		}
		for _, m := range verb.FindAllStringSubmatch(text, -1) {
			if m[1] != "help" && m[1] != "bulkhead" {
				names := append(append([]string(nil), args...), m[1])
				want["bulkhead-"+strings.Join(names, "-")+".8"] = true
				list(names...)
			}
		}
	}
	list()
	files, err := os.ReadDir(path(t, manuals+"/man8"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !want[f.Name()] {
			t.Errorf("%s is the page of no verb", f.Name())
		}
		delete(want, f.Name())
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
	if len(files) < 30 {
		t.Errorf("%d pages", len(files))
	}
}

// pagesFor are the pages, where there are programs that read them.
func pagesFor(t *testing.T, programs ...string) []string {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("there is no " + program + " here; scripts/deps installs it")
		}
	}
	pages, err := filepath.Glob(path(t, manuals) + "/man[58]/*")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	return pages
}

// Each line fits a terminal of 80 columns, also where lines stay as they are.
func TestManualFits(t *testing.T) {
	overstruck := regexp.MustCompile(".\b")
	for _, page := range pagesFor(t, "mandoc") {
		out, err := exec.Command("mandoc", "-T", "utf8", "-O", "width=78", page).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(overstruck.ReplaceAllString(string(out), "")) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("%s has %d columns: %s", filepath.Base(page), n, line)
			}
		}
	}
}

// mandoc has nothing to say of a page, and man finds it.
func TestManualIsClean(t *testing.T) {
	pages := pagesFor(t, "mandoc", "man")
	if out, err := exec.Command("mandoc", append([]string{"-T", "lint", "-W", "style"}, pages...)...).
		CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("mandoc: %v\n%s", err, out)
	}
	names := []string{"-M", path(t, manuals), "-w"}
	for _, page := range pages {
		base := filepath.Base(page)
		names = append(names, strings.TrimPrefix(filepath.Ext(base), "."), strings.TrimSuffix(base, filepath.Ext(base)))
	}
	out, err := exec.Command("man", names...).CombinedOutput()
	if found := strings.Fields(string(out)); err != nil || len(found) != len(pages) {
		t.Errorf("man finds %d pages of %d: %v\n%s", len(found), len(pages), err, out)
	}
}

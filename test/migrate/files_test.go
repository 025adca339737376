package migrate

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
)

// set are files that belong together: those of one host.
type set struct {
	name                 string
	config, rules, units []policy.Source
}

// shipped is where Debian's package has its samples.
const shipped = "/usr/share/doc/cgroup-tools/examples"

// sets gives the sets of files: those of MIGRATE, a directory, or else those of testdata and of libcgroup's package.
func sets(t *testing.T) (all []set) {
	t.Helper()
	if dir := os.Getenv("MIGRATE"); dir != "" {
		return ofDirectory(t, dir)
	}
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sets of files: %v", err)
	}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := set{name: strings.TrimSuffix(filepath.Base(file), ".txtar")}
		for _, f := range a.Files {
			if !s.add(policy.Source{Path: f.Name, Text: string(f.Data)}) {
				t.Fatalf("%s: what is %s?", file, f.Name)
			}
		}
		all = append(all, s)
	}
	if _, err := os.Stat(shipped); err == nil { // the lab's machines have no documentation
		all = append(all, ofDirectory(t, shipped)...)
	}
	return all
}

// ofDirectory gathers the files below a directory, those of one host in each directory.
func ofDirectory(t *testing.T, top string) (all []set) {
	t.Helper()
	byDir := map[string]*set{}
	err := filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		dir := filepath.Dir(file)
		if strings.HasSuffix(dir, ".d") {
			dir = filepath.Dir(dir)
		}
		if byDir[dir] == nil {
			byDir[dir] = &set{name: dir}
		}
		byDir[dir].add(policy.Source{Path: file, Text: string(text)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, s := range byDir {
		if len(s.config)+len(s.rules)+len(s.units) > 0 {
			all = append(all, *byDir[dir])
		}
	}
	slices.SortFunc(all, func(a, b set) int { return strings.Compare(a.name, b.name) })
	if len(all) == 0 {
		t.Fatalf("%s: there are no such files", top)
	}
	return all
}

// add puts a file where its name says that it belongs.
func (s *set) add(f policy.Source) bool {
	base, dir := filepath.Base(f.Path), filepath.Base(filepath.Dir(f.Path))
	conf := filepath.Ext(base) == ".conf"
	switch {
	case base == "cgconfig.conf", conf && dir == "cgconfig.d":
		s.config = append(s.config, f)
	case base == "cgrules.conf", conf && dir == "cgrules.d":
		s.rules = append(s.rules, f)
	case slices.Contains([]string{".slice", ".service", ".scope"}, filepath.Ext(base)),
		conf && strings.HasSuffix(dir, ".d") && (strings.Contains(dir, ".slice.") ||
			strings.Contains(dir, ".service.") || dir == "slice.d" || dir == "service.d"):
		s.units = append(s.units, f)
	default:
		return false
	}
	return true
}

// imports gives the imports of a set, by the verb that makes them.
func (s *set) imports() map[string]imported {
	all := map[string]imported{}
	add := func(verb string, sources []policy.Source, r *convert.Result, err error) {
		all[verb] = imported{sources, r, err}
	}
	if len(s.config) > 0 {
		r, err := libcgroup.Import(s.config, s.rules)
		add("cgconfig", slices.Concat(s.config, s.rules), r, err)
	} else if len(s.rules) > 0 {
		r, err := libcgroup.ImportRules(s.rules)
		add("cgrules", s.rules, r, err)
	}
	if len(s.units) > 0 {
		r, err := unitfile.Import(s.units)
		add("slice", s.units, r, err)
	}
	return all
}

// imported is what an import gave.
type imported struct {
	sources []policy.Source
	result  *convert.Result
	err     error
}

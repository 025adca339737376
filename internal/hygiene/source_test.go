// Package hygiene holds the house's rules in tests: what a reader may rely on wherever he looks.
package hygiene

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// top is the repository as seen from here.
const top = "../.."

// source is one Go file.
type source struct {
	path string // from the top of the repository
	dir  string // of path: "internal/host"
	test bool
	text []byte
	fset *token.FileSet
	file *ast.File
}

// lines is the number of lines of the file.
func (s source) lines() int { return bytes.Count(s.text, []byte("\n")) }

// shared knows the positions of all files.
var shared = token.NewFileSet()

// ours is the path of the file's package below internal: "host", "cgroup/conformance"; "" for others.
func (s source) ours() string {
	name, _ := strings.CutPrefix(s.dir, "internal/")
	if name == s.dir {
		return ""
	}
	return name
}

// at says where a node is.
func (s source) at(n ast.Node) string {
	p := s.fset.Position(n.Pos())
	return s.path + ":" + itoa(p.Line)
}

// in says whether the file belongs to one of these internal packages, or to one below them.
func (s source) in(packages ...string) bool {
	for _, p := range packages {
		if s.ours() == p || p != "" && strings.HasPrefix(s.ours(), p+"/") {
			return true
		}
	}
	return false
}

func parse(t testing.TB, path, text string) source {
	t.Helper()
	file, err := parser.ParseFile(shared, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parse %q: %v", path, err)
	}
	return source{
		path: path, dir: filepath.ToSlash(filepath.Dir(path)),
		// What is below test/ serves tests alone.
		test: strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/"),
		text: []byte(text), fset: shared, file: file,
	}
}

var parsed []source

// sources parses every Go file of the repository, once.
func sources(t testing.TB) []source {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	var all []source
	files(t, func(path string, text []byte) {
		if strings.HasSuffix(path, ".go") {
			all = append(all, parse(t, path, string(text)))
		}
	})
	if len(all) < 20 {
		t.Fatalf("found only %d Go files: looking in the wrong place", len(all))
	}
	parsed = all
	return all
}

// files gives every file of the repository that a person writes.
func files(t testing.TB, each func(path string, text []byte)) {
	t.Helper()
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err := filepath.Rel(top, name)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if d.IsDir() {
			if path == ".git" || path == "dist" {
				return fs.SkipDir
			}
			return nil
		}
		// ".git" is a file in a second work tree.
		if !d.Type().IsRegular() || path == ".git" || path == "bulkhead" || path == "go.sum" ||
			strings.HasSuffix(path, ".test") || strings.HasSuffix(path, ".prof") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		each(path, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Package hygiene holds the house's rules in tests: what a reader may rely on wherever he looks.
package hygiene

import (
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
	fset *token.FileSet
	file *ast.File
}

// ours is the name of the internal package the file is in, or below; "" for others.
func (s source) ours() string {
	rest, ok := strings.CutPrefix(s.dir+"/", "internal/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
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
		if s.ours() == p {
			return true
		}
	}
	return false
}

func parse(t testing.TB, path, text string) source {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parse %q: %v", path, err)
	}
	return source{
		path: path, dir: filepath.ToSlash(filepath.Dir(path)),
		// What is below test/ serves tests alone.
		test: strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/"),
		fset: fset, file: file,
	}
}

// sources parses every Go file of the repository.
func sources(t testing.TB) []source {
	t.Helper()
	var all []source
	files(t, func(path string, text []byte) {
		if strings.HasSuffix(path, ".go") {
			all = append(all, parse(t, path, string(text)))
		}
	})
	if len(all) < 20 {
		t.Fatalf("found only %d Go files: looking in the wrong place", len(all))
	}
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
		if !d.Type().IsRegular() || path == ".git" || path == "bulkhead" || path == "go.sum" || strings.HasSuffix(path, ".test") || strings.HasSuffix(path, ".prof") {
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

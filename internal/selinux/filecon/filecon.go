// Package filecon says which label the file contexts of a host give a path, as matchpathcon(8) does: the texts
// file_contexts, .homedirs and .local, and the equivalences of .subs and .subs_dist (selabel_file(5)). The last line
// that matches counts, and lines without wildcards come before all others. Parse reads the texts once; expressions are
// compiled when a path needs them, so a Table is for one goroutine.
package filecon

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// Table is the file contexts of a host.
type Table struct {
	specs           []*spec
	local, standard []substitution
}

type spec struct {
	text, prefix string
	class        string // "" is any
	context      string // "" is none
	exact        bool
	compiled     *regexp.Regexp
	broken       bool
}

type substitution struct{ from, to string }

// classes by what stands between expression and context.
var classes = map[string]string{"--": "file", "-d": "dir", "-s": "sock_file", "-l": "lnk_file", "-c": "chr_file",
	"-b": "blk_file", "-p": "fifo_file"}

const wildcards = `.^$?*+|[({`

// Parse reads the texts. Lines that it does not understand are left out.
func Parse(base, homes, local, subs, subsDist string) *Table {
	t := &Table{local: substitutions(subs), standard: substitutions(subsDist)}
	for _, text := range []string{base, homes, local} {
		for line := range strings.Lines(text) {
			if s := specOf(line); s != nil {
				t.specs = append(t.specs, s)
			}
		}
	}
	slices.SortStableFunc(t.specs, func(a, b *spec) int {
		return cmp.Compare(number(a.exact), number(b.exact))
	})
	return t
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

func specOf(line string) *spec {
	f := strings.Fields(line)
	if len(f) < 2 || len(f) > 3 || strings.HasPrefix(f[0], "#") {
		return nil
	}
	s := &spec{text: f[0], context: f[len(f)-1]}
	if len(f) == 3 {
		class, known := classes[f[1]]
		if !known {
			return nil
		}
		s.class = class
	}
	if s.context == "<<none>>" {
		s.context = ""
	}
	s.prefix, s.exact = literal(s.text)
	return s
}

// literal is what an expression begins with before its first wildcard, without backslashes; exact says that it has
// none.
func literal(text string) (prefix string, exact bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text):
			i++
			if next := text[i]; next >= 'a' && next <= 'z' || next >= 'A' && next <= 'Z' || next >= '0' && next <= '9' {
				return b.String(), false // a class, such as \d
			}
			b.WriteByte(text[i])
		case strings.IndexByte(wildcards, c) >= 0:
			before := b.String()
			// "?", "*" and "{" are of the letter before them, and a "|" makes even the beginning optional.
			if strings.IndexByte("?*{", c) >= 0 && before != "" {
				before = before[:len(before)-1]
			}
			if topLevelChoice(text) {
				before = ""
			}
			return before, false
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

// topLevelChoice says whether an expression has a "|" outside of parentheses.
func topLevelChoice(text string) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				return true
			}
		}
	}
	return false
}

func substitutions(text string) (all []substitution) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && !strings.HasPrefix(f[0], "#") {
			all = append(all, substitution{from: strings.TrimSuffix(f[0], "/"), to: strings.TrimSuffix(f[1], "/")})
		}
	}
	return all
}

func substitute(all []substitution, path string) string {
	for _, s := range all {
		if rest, is := strings.CutPrefix(path, s.from); is && (rest == "" || rest[0] == '/') {
			return s.to + rest
		}
	}
	return path
}

// Context is the context that a path of a class ("file", "dir", "sock_file") should have. Without one, none says that
// the file contexts say so ("<<none>>"), and otherwise no line matches.
func (t *Table) Context(path, class string) (context string, none bool) {
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
	}
	path = substitute(t.standard, substitute(t.local, path))
	for _, s := range slices.Backward(t.specs) {
		if s.class != "" && s.class != class || !strings.HasPrefix(path, s.prefix) || !s.matches(path) {
			continue
		}
		return s.context, s.context == ""
	}
	return "", false
}

func (s *spec) matches(path string) bool {
	if s.exact {
		return path == s.prefix
	}
	if s.compiled == nil && !s.broken {
		var err error
		s.compiled, err = regexp.Compile("^(?s:" + s.text + ")$")
		s.broken = err != nil
	}
	return !s.broken && s.compiled.MatchString(path)
}

// Pattern writes a path as a regular expression of file contexts.
func Pattern(name string) string {
	var b strings.Builder
	for _, r := range name {
		if strings.ContainsRune(`.^$?*+|[](){}\`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

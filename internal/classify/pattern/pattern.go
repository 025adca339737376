// Package pattern matches names, paths and control groups as the keys of a policy write them. Its values are never
// changed, and its functions keep nothing.
package pattern

import (
	"path"
	"regexp/syntax"
	"slices"
	"strings"
)

// Name is a name, or a glob as path.Match reads it: "*" stays within a path element.
type Name struct {
	Text  string
	Glob  bool
	Whole bool // holds a "/": compared with the path, not with its base name
}

// New reads one; path.ErrBadPattern says that it is malformed.
func New(text string) (Name, error) {
	p := Name{Text: text, Glob: strings.ContainsAny(text, `*?[\`), Whole: strings.Contains(text, "/")}
	_, err := path.Match(text, "")
	return p, err
}

// Matches compares the pattern with a path or, without a "/" in the pattern, with its base name.
func (p Name) Matches(name string) bool {
	if name == "" {
		return false
	}
	if !p.Whole {
		name = name[strings.LastIndexByte(name, '/')+1:]
	}
	if !p.Glob {
		return name == p.Text
	}
	ok, _ := path.Match(p.Text, name)
	return ok
}

// Program is a base name, a path, or the beginning of one.
type Program struct {
	Text  string
	Begin bool
}

// NewProgram reads one; a "*" at the end makes it the beginning of a path.
func NewProgram(text string) Program {
	text, begin := strings.CutSuffix(text, "*")
	return Program{text, begin}
}

// Matches compares it with the path of what a process runs, as libcgroup's daemon does.
func (p Program) Matches(name string) bool {
	if p.Begin {
		return name != "" && strings.HasPrefix(name, p.Text)
	}
	return name == p.Text || name[strings.LastIndexByte(name, '/')+1:] == p.Text && p.Text != ""
}

// May says whether it can match a process of which executable and arguments are known.
func (p Program) May(exe string, args []string) bool {
	return exe == "" || p == Program{} || p.Matches(exe) || slices.ContainsFunc(args, func(arg string) bool {
		first, _, _ := strings.Cut(arg, " ")
		return p.Begin && !strings.HasPrefix(arg, "/") && strings.Contains(arg, "/") || // below its directory
			path.Base(arg) == path.Base(p.Text) || path.Base(first) == path.Base(p.Text) || p.Matches(arg)
	})
}

// Cgroup is a glob over a cgroup path; one that ends in "/" matches that cgroup and all below.
type Cgroup struct {
	Name
	below bool
	depth int // path elements of a prefix
}

// NewCgroup reads one; path.ErrBadPattern says that it is malformed.
func NewCgroup(text string) (Cgroup, error) {
	prefix, below := strings.CutSuffix(text, "/")
	p, err := New(prefix)
	p.Whole = true
	return Cgroup{p, below, strings.Count(prefix, "/")}, err
}

// Matches compares it with the path of a control group.
func (p Cgroup) Matches(name string) bool {
	if !p.below {
		return p.Name.Matches(name)
	}
	if name == "/" {
		name = ""
	}
	// The first elements of the path, as many as the prefix has.
	end := 0
	for range p.depth {
		next := strings.IndexByte(name[min(end+1, len(name)):], '/')
		if next < 0 {
			end = len(name)
			break
		}
		end += 1 + next
	}
	if p.Text == "" {
		return true
	}
	return p.Name.Matches(name[:end])
}

// RequiredLiteral finds the longest text that every match of an expression holds. Looking for it first
// is many times faster than running the expression, which rarely matches.
func RequiredLiteral(expr string) string {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return ""
	}
	return literalIn(re.Simplify())
}

func literalIn(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return string(re.Rune)
		}
	case syntax.OpCapture, syntax.OpPlus:
		return literalIn(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return literalIn(re.Sub[0])
		}
	case syntax.OpConcat:
		longest := ""
		for _, sub := range re.Sub {
			if lit := literalIn(sub); len(lit) > len(longest) {
				longest = lit
			}
		}
		return longest
	}
	return ""
}

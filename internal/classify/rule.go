package classify

import (
	"fmt"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// compiled is a match with its patterns ready. It holds nothing of a host, so one serves many looks.
type compiled struct {
	match    policy.Match
	score    int
	server   *procfs.ID // the instance of the enclosing template: its main process
	instance bool       // asks which instance, without a server
	exe      pattern
	program  program
	ancestor pattern
	unit     pattern
	cgroup   cgroupPattern
	cmdline  *regexp.Regexp
	literal  string // stands in every command line that cmdline matches; "" if none is known
	except   []*compiled
}

// compile makes a match ready. inst is the instance of the enclosing template, nil outside of one.
func compile(m policy.Match, inst *engine.Instance) (*compiled, error) {
	c := &compiled{}
	if bound, ok := bind(m, inst); ok {
		m, c.server = bound, &inst.Main
	}
	var err error
	for _, p := range []struct {
		key, text string
		into      *pattern
	}{{"exe", m.Exe, &c.exe}, {"ancestor", m.Ancestor, &c.ancestor}, {"unit", unitName(m.Unit), &c.unit}} {
		if *p.into, err = newPattern(p.text); err != nil {
			return nil, fmt.Errorf("read %s %q: %w", p.key, p.text, err)
		}
	}
	if c.cgroup, err = newCgroupPattern(m.Cgroup); err != nil {
		return nil, fmt.Errorf("read cgroup %q: %w", m.Cgroup, err)
	}
	if m.Cmdline != "" {
		if c.cmdline, err = regexp.Compile(m.Cmdline); err != nil {
			return nil, fmt.Errorf("read cmdline %q: %w", m.Cmdline, err)
		}
		c.literal = requiredLiteral(m.Cmdline)
	}
	c.program = newProgram(m.Program)
	m.Except = slices.Clone(m.Except)
	for i := range m.Except {
		x, err := compile(m.Except[i], inst)
		if err != nil {
			return nil, err
		}
		c.except = append(c.except, x)
		m.Except[i] = x.match
	}
	c.match, c.score = m, score(&m)
	c.instance = c.server == nil && (m.Engine != "" || names(m))
	return c, nil
}

// unitName completes a unit name as systemctl does: without a type it is a service.
func unitName(name string) string {
	if name == "" || isUnit(name) {
		return name
	}
	return name + ".service"
}

func isUnit(name string) bool {
	return strings.HasSuffix(name, ".service") || strings.HasSuffix(name, ".scope") || strings.HasSuffix(name, ".slice")
}

// pattern is a name, or a glob as path.Match reads it: "*" stays within a path element.
type pattern struct {
	text  string
	glob  bool
	whole bool // holds a "/": compared with the path, not with its base name
}

func newPattern(text string) (pattern, error) {
	p := pattern{text: text, glob: strings.ContainsAny(text, `*?[\`), whole: strings.Contains(text, "/")}
	_, err := path.Match(text, "")
	return p, err
}

// matches compares the pattern with a path or, without a "/" in the pattern, with its base name.
func (p pattern) matches(name string) bool {
	if name == "" {
		return false
	}
	if !p.whole {
		name = name[strings.LastIndexByte(name, '/')+1:]
	}
	if !p.glob {
		return name == p.text
	}
	ok, _ := path.Match(p.text, name)
	return ok
}

// program is a base name, a path, or the beginning of one.
type program struct {
	text  string
	begin bool
}

func newProgram(text string) program {
	text, begin := strings.CutSuffix(text, "*")
	return program{text, begin}
}

// matches compares it with the path of what a process runs, as libcgroup's daemon does.
func (p program) matches(name string) bool {
	if p.begin {
		return name != "" && strings.HasPrefix(name, p.text)
	}
	return name == p.text || name[strings.LastIndexByte(name, '/')+1:] == p.text && p.text != ""
}

// may says whether it can match a process of which executable and arguments are known.
func (p program) may(exe string, args []string) bool {
	return exe == "" || p == program{} || p.matches(exe) || slices.ContainsFunc(args, func(arg string) bool {
		first, _, _ := strings.Cut(arg, " ")
		return p.begin && !strings.HasPrefix(arg, "/") && strings.Contains(arg, "/") || // below its directory
			path.Base(arg) == path.Base(p.text) || path.Base(first) == path.Base(p.text) || p.matches(arg)
	})
}

// cgroupPattern is a glob over a cgroup path; one that ends in "/" matches that cgroup and all below.
type cgroupPattern struct {
	pattern
	below bool
	depth int // path elements of a prefix
}

func newCgroupPattern(text string) (cgroupPattern, error) {
	prefix, below := strings.CutSuffix(text, "/")
	p, err := newPattern(prefix)
	p.whole = true
	return cgroupPattern{p, below, strings.Count(prefix, "/")}, err
}

func (p cgroupPattern) matches(name string) bool {
	if !p.below {
		return p.pattern.matches(name)
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
	if p.text == "" {
		return true
	}
	return p.pattern.matches(name[:end])
}

// requiredLiteral finds the longest text that every match of an expression holds. Looking for it first
// is many times faster than running the expression, which rarely matches.
func requiredLiteral(expr string) string {
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

package yamlform

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/policy"
)

// The bounds that keep the report on a bad file small and quick to make: a file of 4 MiB can hold hundreds of thousands
// of problems, all of them in one line.
const (
	maxProblems = 20000    // that are listed
	manyWords   = 1000     // among more the nearest is not looked for
	longLine    = 4 << 10  // lines up to here are always quoted
	longestLine = 64 << 10 // longer ones never; those between only with the first problems
	manyQuotes  = 100
)

// Report gathers the problems of a policy, with their source lines. It is for one goroutine.
type Report struct {
	sources  []policy.Source
	lines    Lines
	hidden   map[string]bool // files whose text must not be shown
	problems policy.Problems
	index    map[string]int // of problems, by place and message
	last     int            // index of the last one reported
	count    int
}

// NewReport returns a report on files.
func NewReport(sources []policy.Source) *Report {
	r := &Report{lines: Lines{}, hidden: map[string]bool{}, index: map[string]int{}}
	for _, s := range sources {
		r.Learn(s)
	}
	return r
}

// Learn adds a file that is reported on.
func (r *Report) Learn(s policy.Source) {
	r.sources, r.hidden[s.Path] = append(r.sources, s), s.Hidden
	maps.Copy(r.lines, NewLines([]policy.Source{s}))
}

// Fail reports a problem.
func (r *Report) Fail(at policy.Pos, hint, format string, args ...any) {
	r.Add(policy.Problem{Pos: at, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

// Add reports a problem, once: what a class asks is seen again in each of its groups. Those beyond maxProblems are
// counted and not kept.
func (r *Report) Add(p policy.Problem) {
	r.count++
	if r.hidden[p.Pos.File] {
		p = policy.Problem{
			Pos: policy.Pos{File: p.Pos.File},
			Msg: "this is no valid policy, and its text is not shown: the include is a symbolic link to a file " +
				"that not everybody may read",
			Hint: "look at it with `bulkhead check --policy FILE`, or include the file itself",
		}
	}
	id := p.Pos.String() + p.Msg
	if at, known := r.index[id]; known {
		r.last = at
		return
	}
	if len(r.problems) > maxProblems {
		return
	}
	if len(r.problems) == maxProblems {
		p = policy.Problem{Pos: p.Pos, Msg: fmt.Sprintf("there are more than %d problems; the others are not listed",
			maxProblems)}
	}
	p.Pos = r.lines.Inside(p.Pos)
	p.Source = cmp.Or(p.Source, r.lines.At(p.Pos))
	if length := len(p.Source); length > longestLine || length > longLine && len(r.problems) > manyQuotes {
		p.Source = ""
	}
	r.last, r.index[id] = len(r.problems), len(r.problems)
	r.problems = append(r.problems, p)
}

// Also names other places that take part in the last problem.
func (r *Report) Also(places ...policy.Pos) {
	last := &r.problems[r.last]
	for _, at := range places {
		if at != (policy.Pos{}) && !slices.Contains(last.Also, at) && len(last.Also) < maxProblems {
			last.Also = append(last.Also, at)
		}
	}
}

// Line is the source line of a place, "" when it is not known.
func (r *Report) Line(at policy.Pos) string { return r.lines.At(at) }

// Many says that there are so many problems that hints which take long to make are left out.
func (r *Report) Many() bool { return r.count > manyWords }

// Count is how often a problem was reported.
func (r *Report) Count() int { return r.count }

// Last is the message of the last problem; "" when there is none.
func (r *Report) Last() string {
	if r.count == 0 {
		return ""
	}
	return r.problems[r.last].Msg
}

// Problems returns what was reported, in file order; without files as it was reported.
func (r *Report) Problems() policy.Problems {
	if len(r.sources) == 0 {
		return r.problems
	}
	return r.problems.InOrder(r.sources)
}

// Lines gives the source lines of files by name, for problems. Files that are not text are left out.
type Lines map[string][]string

// At is the source line of a place, "" when it is not known.
func (l Lines) At(at policy.Pos) string {
	if file := l[at.File]; at.Line >= 1 && at.Line <= len(file) {
		return file[at.Line-1]
	}
	return ""
}

// Inside moves a place behind the last line, where a parser notices that something is missing, to the
// end of the last line that holds anything. In a file without known lines it moves nothing.
func (l Lines) Inside(at policy.Pos) policy.Pos {
	file, known := l[at.File]
	for known && at.Line > 1 && (at.Line > len(file) || strings.TrimSpace(file[at.Line-1]) == "") {
		at.Line--
		at.Column = utf8.RuneCountInString(strings.TrimRight(l.At(at), "\r")) + 1
	}
	return at
}

// NewLines splits sources into lines. Those that may not be shown, or are no text, have none.
func NewLines(sources []policy.Source) Lines {
	all := make(Lines, len(sources))
	for _, s := range sources {
		if CheckText(s) == nil && !s.Hidden {
			all[s.Path] = strings.Split(s.Text, "\n")
		}
	}
	return all
}

// DidYouMean is a hint for a misspelt word: the known one that is meant most likely, or else another hint.
func DidYouMean(word string, known []string, or string) string {
	if len(known) <= manyWords {
		if near := Nearest(word, known); near != "" {
			return fmt.Sprintf("did you mean %s?", near)
		}
	}
	return or
}

// Nearest finds the known word that a misspelt one most likely stands for; "" when none is close.
func Nearest(word string, known []string) string {
	if len(word) > 64 {
		return ""
	}
	best, bestDistance := "", max(1, len(word)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(word), k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// distance is the number of single-character insertions, deletions, substitutions and swaps of
// neighbours that turn a into b (optimal string alignment).
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			substitute := last[j-1]
			if a[i-1] != b[j-1] {
				substitute++
			}
			row[j] = min(substitute, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// JoinSome lists names for a hint, and not more than a line of them.
func JoinSome(names []string) string {
	const most = 12
	if len(names) > most {
		names = append(slices.Clone(names[:most]), "…")
	}
	return JoinWords(names)
}

// CheckText refuses what is not a text file, at its first bad byte. It goes before the YAML library,
// which gives no position for these.
func CheckText(s policy.Source) *policy.Problem {
	bad := func(offset int, msg, hint string) *policy.Problem {
		before := s.Text[:offset]
		line := strings.Count(before, "\n") + 1
		column := utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:]) + 1
		return &policy.Problem{Pos: policy.Pos{File: s.Path, Line: line, Column: column}, Msg: msg, Hint: hint}
	}
	if len(s.Text) > MaxFileSize {
		return bad(0, fmt.Sprintf("the file is larger than %s", policy.Bytes(MaxFileSize)),
			"a policy is a short text; is this the right file?")
	}
	if strings.TrimSpace(s.Text) == "" {
		return bad(0, "the file is empty",
			"a policy starts with `version: 1`; `bulkhead discover --as-policy` prints a starter policy")
	}
	const binary = "a policy is a UTF-8 text file; is this the right file?"
	for i, r := range s.Text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s.Text[i:], string(utf8.RuneError)):
			return bad(i, fmt.Sprintf("byte 0x%02x is not UTF-8 text", s.Text[i]), binary)
		case r == '\r' && !strings.HasPrefix(s.Text[i:], "\r\n"):
			return bad(i, "a line ends in CR alone", "end lines in LF, or in CR LF")
		case r < ' ' && r != '\t' && r != '\n' && r != '\r',
			r >= 0x7f && r <= 0x9f,   // DEL and C1
			r == 0x2028, r == 0x2029, // line breaks for YAML alone: line numbers would go astray
			r == 0xfffe, r == 0xffff:
			return bad(i, fmt.Sprintf("character U+%04X is not text", r), binary)
		}
	}
	return nil
}

// MaxFileSize is the largest policy file that is read. A thousand groups of a dozen settings are about half a megabyte.
const MaxFileSize = 4 << 20

// Annotate gives the problems found elsewhere (in groups made from the policy, on processes) their
// source line for the caret, and puts them all in file order.
func Annotate(ps policy.Problems, sources []policy.Source) policy.Problems {
	known := NewLines(sources)
	for i := range ps {
		if ps[i].Source == "" {
			ps[i].Source = known.At(ps[i].Pos)
		}
	}
	return ps.InOrder(sources)
}

// JoinWords lists words for a message.
func JoinWords(names []string) string { return strings.Join(names, ", ") }

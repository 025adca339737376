package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Pos is a place in a policy file. Line and Column count from 1, the column in characters.
type Pos struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// String is "file:line:column", or the file alone when the place inside it is not known.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one thing wrong with a policy.
type Problem struct {
	Pos    Pos    `json:"pos"`
	Msg    string `json:"message"`          // lower case, no full stop
	Hint   string `json:"hint,omitempty"`   // what to do next; may be empty
	Source string `json:"source,omitempty"` // the source line, for the caret; may be empty
	Also   []Pos  `json:"also,omitempty"`   // other places that take part, for a conflict
}

// Problems is every problem found, in file order. It is an error.
type Problems []Problem

// Error renders every problem: place and message, source line, caret, the other places, the hint.
func (ps Problems) Error() string {
	texts := make([]string, len(ps))
	for i, p := range ps {
		texts[i] = p.String()
	}
	return strings.Join(texts, "\n")
}

// OrNil keeps an empty Problems from becoming an error that is not nil.
func (ps Problems) OrNil() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

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
	sources  []Source
	lines    lines
	hidden   map[string]bool // files whose text must not be shown
	problems Problems
	index    map[string]int // of problems, by place and message
	last     int            // index of the last one reported
	count    int
}

// NewReport returns a report on files.
func NewReport(sources []Source) *Report {
	r := &Report{lines: lines{}, hidden: map[string]bool{}, index: map[string]int{}}
	for _, s := range sources {
		r.Learn(s)
	}
	return r
}

// Learn adds a file that is reported on.
func (r *Report) Learn(s Source) {
	r.sources, r.hidden[s.Path] = append(r.sources, s), s.Hidden
	maps.Copy(r.lines, newLines([]Source{s}))
}

// Fail reports a problem.
func (r *Report) Fail(at Pos, hint, format string, args ...any) {
	r.Add(Problem{Pos: at, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

// Add reports a problem, once: what a class asks is seen again in each of its groups. Those beyond maxProblems are
// counted and not kept.
func (r *Report) Add(p Problem) {
	r.count++
	if r.hidden[p.Pos.File] {
		p = Problem{
			Pos: Pos{File: p.Pos.File}, Msg: "this is no valid policy, and its text is not shown: the include is a symbolic link to a file that not everybody may read",
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
		p = Problem{Pos: p.Pos, Msg: fmt.Sprintf("there are more than %d problems; the others are not listed", maxProblems)}
	}
	p.Source = cmp.Or(p.Source, r.lines.of(p.Pos))
	if length := len(p.Source); length > longestLine || length > longLine && len(r.problems) > manyQuotes {
		p.Source = ""
	}
	r.last, r.index[id] = len(r.problems), len(r.problems)
	r.problems = append(r.problems, p)
}

// Also names other places that take part in the last problem.
func (r *Report) Also(places ...Pos) {
	last := &r.problems[r.last]
	for _, at := range places {
		if at != (Pos{}) && !slices.Contains(last.Also, at) && len(last.Also) < maxProblems {
			last.Also = append(last.Also, at)
		}
	}
}

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
func (r *Report) Problems() Problems {
	if len(r.sources) == 0 {
		return r.problems
	}
	return r.problems.inOrder(r.sources)
}

// String renders one problem over several lines, without a newline at the end.
func (p Problem) String() string {
	var b strings.Builder
	if p.Pos != (Pos{}) {
		fmt.Fprintf(&b, "%s: ", p.Pos)
	}
	b.WriteString(printable(p.Msg))
	if p.Source != "" && p.Pos.Column > 0 {
		line, caret := excerpt(p.Source, p.Pos.Column)
		fmt.Fprintf(&b, "\n    %s\n    %s^", line, caret)
	}
	for _, other := range p.Also {
		fmt.Fprintf(&b, "\n  see also %s", other)
	}
	if p.Hint != "" {
		fmt.Fprintf(&b, "\nhint: %s", printable(p.Hint))
	}
	return b.String()
}

// excerptWidth is how many characters are shown on either side of the caret: enough for any line a
// person writes, and no more than two terminal lines of one that a program wrote.
const excerptWidth = 70

// excerpt gives the part of a source line around a column, and the padding that puts a caret below
// that column. Tabs are kept in the padding, so that the two lines stay in step whatever a terminal
// takes a tab for; characters that take two cells get two spaces.
func excerpt(line string, column int) (text, padding string) {
	runes := []rune(strings.TrimRight(line, "\r\n"))
	at := min(column-1, len(runes))
	from, to := max(0, at-excerptWidth), min(len(runes), at+excerptWidth)
	if len(runes) <= 2*excerptWidth {
		from, to = 0, len(runes)
	}
	var pad strings.Builder
	if from > 0 {
		text, padding = "…", " "
	}
	for _, r := range runes[from:at] {
		switch width := cells(r); {
		case r == '\t':
			pad.WriteByte('\t')
		default:
			pad.WriteString(strings.Repeat(" ", width))
		}
	}
	text += printable(string(runes[from:to]))
	if to < len(runes) {
		text += "…"
	}
	return text, padding + pad.String()
}

// printable replaces what could steer the terminal (escape sequences, direction marks) and what is
// not text at all: a policy file comes from somebody else and is shown to root.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, s)
}

// wide holds the blocks whose characters take two terminal cells (Unicode Standard Annex 11, W and F).
var wide = [][2]rune{
	{0x1100, 0x115f}, {0x2e80, 0x303e}, {0x3041, 0xa4cf}, {0xa960, 0xa97f}, {0xac00, 0xd7a3},
	{0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1f64f},
	{0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd},
}

// cells is how many terminal cells a character takes.
func cells(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	for _, block := range wide {
		if r >= block[0] && r <= block[1] {
			return 2
		}
	}
	return 1
}

// lines gives the source lines of files by name, for problems. Files that are not text are left out.
type lines map[string][]string

func newLines(sources []Source) lines {
	all := make(lines, len(sources))
	for _, s := range sources {
		if checkText(s) == nil && !s.Hidden {
			all[s.Path] = strings.Split(s.Text, "\n")
		}
	}
	return all
}

// of is the source line of a place, "" when it is not known.
func (l lines) of(at Pos) string {
	if file := l[at.File]; at.Line >= 1 && at.Line <= len(file) {
		return file[at.Line-1]
	}
	return ""
}

// inside moves a place behind the last line, where a parser notices that something is missing, to the
// end of the last line that holds anything.
func (l lines) inside(at Pos) Pos {
	for file := l[at.File]; at.Line > 1 && (at.Line > len(file) || strings.TrimSpace(file[at.Line-1]) == ""); {
		at.Line--
		at.Column = utf8.RuneCountInString(strings.TrimRight(l.of(at), "\r")) + 1
	}
	return at
}

// inOrder sorts problems by file (in the order of the sources), line and column.
func (ps Problems) inOrder(sources []Source) Problems {
	rank := make(map[string]int, len(sources))
	for i, s := range sources {
		rank[s.Path] = i
	}
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(rank[a.Pos.File], rank[b.Pos.File]),
			cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Column, b.Pos.Column),
		)
	})
	return ps
}

// didYouMean is a hint for a misspelt word: the known one that is meant most likely, or else another hint.
func didYouMean(word string, known []string, or string) string {
	if len(known) <= manyWords {
		if near := nearest(word, known); near != "" {
			return fmt.Sprintf("did you mean %s?", near)
		}
	}
	return or
}

// nearest finds the known word that a misspelt one most likely stands for; "" when none is close.
func nearest(word string, known []string) string {
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

// Annotate gives the problems found elsewhere (in groups made from the policy, on processes) their
// source line for the caret, and puts them all in file order.
func (ps Problems) Annotate(sources []Source) Problems {
	known := newLines(sources)
	for i := range ps {
		if ps[i].Source == "" {
			ps[i].Source = known.of(ps[i].Pos)
		}
	}
	return ps.inOrder(sources)
}

// joinSome lists names for a hint, and not more than a line of them.
func joinSome(names []string) string {
	const most = 12
	if len(names) > most {
		names = append(slices.Clone(names[:most]), "…")
	}
	return joinWords(names)
}

func joinWords(names []string) string { return strings.Join(names, ", ") }

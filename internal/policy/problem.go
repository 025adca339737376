package policy

import (
	"cmp"
	"fmt"
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

// String is "file:line:column", or the file alone when the place inside it is not known. It is empty for a place inside
// an argument of the command line, which has only a column.
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

// String renders one problem over several lines, without a newline at the end.
func (p Problem) String() string {
	var b strings.Builder
	if place := p.Pos.String(); place != "" {
		b.WriteString(place + ": ")
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

// excerptWidth is how many characters of a source line are shown: what fits, behind four blanks and between two dots,
// into the 80 columns of a terminal.
const excerptWidth = 74

// excerpt gives the part of a source line around a column, and the padding that puts a caret below
// that column. Tabs are kept in the padding, so that the two lines stay in step whatever a terminal
// takes a tab for; characters that take two cells get two spaces.
func excerpt(line string, column int) (text, padding string) {
	runes := []rune(strings.TrimRight(line, "\r\n"))
	at := min(column-1, len(runes))
	to := min(len(runes), max(at+excerptWidth/3, excerptWidth))
	from := max(0, to-excerptWidth)
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

// InOrder sorts problems by file (in the order of the sources), line and column.
func (ps Problems) InOrder(sources []Source) Problems {
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

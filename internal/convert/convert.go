// Package convert holds what the imports and exports of a policy share: the report of what could not be carried over,
// the places in the files that are read, and the draft of the policy that comes out.
//
// An import reads its files strictly, as the policy's own parser does: everything wrong is reported at once, each with
// its place. What is sound becomes the text of a policy whose comments say where each line comes from. Each format has
// a package below this one: libcgroup (cgconfig.conf and cgrules.conf), unitfile (systemd's slices and services), berx
// (the JSON of the Oracle document's script) and inforce (the limits on a running host); kernelfile knows the files of
// control groups.
//
//	sources, err := convert.Read([]string{"/etc/cgconfig.conf"}, nil)
//	result, err := libcgroup.Import(sources, nil)
//
// Everything takes values and gives values, but for Read, which reads the files. A Report, a Draft and an Input belong
// to one goroutine.
package convert

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"

	"bulkhead/internal/policy"
)

// Result is what an import made of its files.
type Result struct {
	Policy string `json:"policy"` // the text of a policy file
	// Left is what could not be carried over, Changed what was carried over and is not quite the same.
	Left    []Remark `json:"left"`
	Changed []Remark `json:"changed"`
	// Notes are about the files as a whole.
	Notes []string `json:"notes,omitempty"`
}

// Remark is about one thing of what was imported.
type Remark struct {
	Pos     policy.Pos `json:"pos"`
	What    string     `json:"what"`              // as it stands there
	Why     string     `json:"why"`               // lower case, no full stop
	Instead string     `json:"instead,omitempty"` // what to do about it; may be empty
}

// String is a remark in one line.
func (r Remark) String() string {
	text := fmt.Sprintf("%s: %s: %s", r.Pos, r.What, r.Why)
	if r.Instead != "" {
		text += "; " + r.Instead
	}
	return text
}

// maxSize is the largest file that is read. A configuration of 10 MB has a hundred thousand groups.
const maxSize = 64 << 20

// NoKey is why a limit that a policy cannot hold is left out.
const NoKey = "a policy has no key for it"

// mostProblems is how many problems are reported. A file of another kind has one in each line.
const mostProblems = 200

// Report gathers what an import has to say.
type Report struct {
	Problems policy.Problems
	Left     []Remark
	changed  []Remark
	notes    []string
	noted    map[string]bool
	said     int
}

// Leave reports what was not carried over, and why; instead is what to do about it, or "".
func (r *Report) Leave(at policy.Pos, instead, what, format string, args ...any) {
	r.said++
	r.Left = append(r.Left, Remark{Pos: at, What: Clean(what), Why: fmt.Sprintf(format, args...), Instead: instead})
}

// Change reports what was carried over and is not quite the same.
func (r *Report) Change(at policy.Pos, what, format string, args ...any) {
	r.said++
	r.changed = append(r.changed, Remark{Pos: at, What: Clean(what), Why: fmt.Sprintf(format, args...)})
}

// Said is how often something was reported.
func (r *Report) Said() int { return r.said }

// Note reports something about the files as a whole, once.
func (r *Report) Note(format string, args ...any) {
	r.said++
	if text := fmt.Sprintf(format, args...); !r.noted[text] {
		if r.noted == nil {
			r.noted = map[string]bool{}
		}
		r.noted[text], r.notes = true, append(r.notes, text)
	}
}

// Fail reports a problem, once: whoever reads the files gets problems and no policy then.
func (r *Report) Fail(at policy.Pos, hint, format string, args ...any) {
	r.said++
	msg := fmt.Sprintf(format, args...)
	// one value may be read for two limits
	known := slices.ContainsFunc(r.Problems, func(p policy.Problem) bool { return p.Pos == at && p.Msg == msg })
	if len(r.Problems) < mostProblems && !known {
		r.Problems = append(r.Problems, policy.Problem{Pos: at, Msg: msg, Hint: hint})
	}
}

// FailWith is fail with another place that takes part.
func (r *Report) FailWith(at, other policy.Pos, hint, format string, args ...any) {
	before := len(r.Problems)
	r.Fail(at, hint, format, args...)
	if n := len(r.Problems); n > before {
		r.Problems[n-1].Also = []policy.Pos{other}
	}
}

// Result gives the policy of a draft, or every problem.
func (r *Report) Result(d *Draft, sources []policy.Source) (*Result, error) {
	if len(r.Problems) > 0 {
		if len(r.Problems) == mostProblems {
			last := &r.Problems[mostProblems-1]
			last.Hint = "this is the last problem that is told; there are more"
		}
		return nil, yamlform.Annotate(r.Problems, sources)
	}
	text := d.text(sources)
	for _, c := range d.naming {
		whole := text + c.Key + ": " + c.Text + "\n"
		if _, err := parse.Policy([]policy.Source{{Path: c.At.File, Text: whole}}); err != nil {
			r.Leave(c.At, "", c.Key, "what it says does not fit the groups any more")
		} else {
			text = whole
		}
	}
	res := &Result{Policy: text, Left: r.Left, Changed: r.changed, Notes: r.notes}
	if len(res.Policy) > mostPolicy {
		res.Notes = append(res.Notes, fmt.Sprintf(
			"the policy has %s, and bulkhead reads files of at most %s: split it, and include: the parts",
			policy.Bytes(len(res.Policy)).Human(), policy.Bytes(mostPolicy).Human()))
	}
	return res, nil
}

// mostPolicy is the largest policy file that bulkhead reads.
const mostPolicy = 4 << 20

// Input is one file that is being read, with the places in it.
type Input struct {
	*Report
	File    string
	Body    string // without a byte-order mark
	Starts  []int  // offsets of the lines
	runes   []int  // how many characters begin before every stretch of the text; made when a place is asked for
	comment func(line string) bool
}

// stretch is after how many bytes characters are counted anew: a line may be a whole file.
const stretch = 1 << 10

// Open begins to read a file. ok is false when it is not text. What stands in a line behind one for which comment says
// yes may have bytes that are not UTF-8; nil is for files without comments.
func (r *Report) Open(s policy.Source, comment func(line string) bool) (in *Input, ok bool) {
	in = &Input{Report: r, File: s.Path, Body: s.Text, Starts: []int{0}, comment: comment}
	if rest, marked := strings.CutPrefix(s.Text, "\ufeff"); marked {
		in.Body = rest
		r.Note("%s begins with a byte-order mark, which is skipped", s.Path)
	}
	for i := 0; ; {
		next := strings.IndexByte(in.Body[i:], '\n')
		if next < 0 {
			break
		}
		i += next + 1
		in.Starts = append(in.Starts, i)
	}
	return in, in.isText()
}

// isText refuses what is not text, at its first bad byte, and says when lines end as on another system.
func (in *Input) isText() bool {
	const hint = "this is not a text file; is it the right one?"
	if len(in.Body) > maxSize {
		in.Fail(policy.Pos{File: in.File, Line: 1, Column: 1}, hint, "the file is larger than %s",
			policy.Bytes(maxSize))
		return false
	}
	in.mendComments()
	for i := 0; i < len(in.Body); {
		c := in.Body[i]
		if c >= ' ' && c < 0x7f || c == '\t' || c == '\n' {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(in.Body[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			in.Fail(in.At(i), hint, "byte 0x%02x is not UTF-8 text", c)
			return false
		case c == '\r' && strings.HasPrefix(in.Body[i:], "\r\n"):
			in.Note("%s ends its lines in CR LF; they are read as any others", in.File)
		case c == '\r':
			in.Fail(in.At(i), "end lines in LF, or in CR LF", "a line ends in CR alone")
			return false
		case unicode.IsControl(r) || r == 0xfeff || r == 0xfffe || r == 0xffff || r == 0x2028 || r == 0x2029:
			in.Fail(in.At(i), hint, "character U+%04X is not text", r)
			return false
		}
		i += size
	}
	return true
}

// mendComments puts a ? in the place of each byte of a comment that is not UTF-8.
func (in *Input) mendComments() {
	if in.comment == nil || utf8.ValidString(in.Body) {
		return
	}
	mended, changed := []byte(in.Body), false
	for n, start := range in.Starts {
		end := len(mended)
		if n+1 < len(in.Starts) {
			end = in.Starts[n+1]
		}
		for i := start; i < end; {
			r, size := utf8.DecodeRune(mended[i:end])
			if r == utf8.RuneError && size == 1 && in.comment(in.Body[start:i]) {
				mended[i], changed = '?', true
			}
			i += size
		}
	}
	if changed {
		in.Body = string(mended)
		in.Note("%s has comments that are not UTF-8; they are read over", in.File)
	}
}

// LineComments are comments that take a whole line, which begins with one of these signs.
func LineComments(signs string) func(line string) bool {
	return func(line string) bool {
		line = strings.TrimLeft(line, " \t")
		return line != "" && strings.IndexByte(signs, line[0]) >= 0
	}
}

// At is the place of a byte.
func (in *Input) At(offset int) policy.Pos {
	for offset > 0 && offset < len(in.Body) && !utf8.RuneStart(in.Body[offset]) {
		offset-- // to the beginning of its character
	}
	line, found := slices.BinarySearch(in.Starts, offset)
	if !found {
		line--
	}
	return policy.Pos{File: in.File, Line: line + 1,
		Column: in.runesBefore(offset) - in.runesBefore(in.Starts[line]) + 1}
}

// runesBefore is how many characters begin before a byte.
func (in *Input) runesBefore(offset int) int {
	if in.runes == nil {
		in.runes = []int{0}
		for from, n := 0, 0; from+stretch <= len(in.Body); from += stretch {
			n += runeStarts(in.Body[from : from+stretch])
			in.runes = append(in.runes, n)
		}
	}
	at := offset / stretch
	return in.runes[at] + runeStarts(in.Body[at*stretch:offset])
}

// runeStarts counts the characters that begin in a text, which may begin or end inside one.
func runeStarts(text string) (n int) {
	for i := range len(text) {
		if utf8.RuneStart(text[i]) {
			n++
		}
	}
	return n
}

// Bad reports a problem at a byte.
func (in *Input) Bad(offset int, hint, format string, args ...any) {
	if len(in.Problems) < mostProblems { // places of a file that is all wrong are dear
		in.Fail(in.At(offset), hint, format, args...)
	}
}

// Clean makes text fit for one line of a comment or a report.
func Clean(text string) string {
	const most = 120
	if isPlain(text) && len(text) <= most {
		return text
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case !unicode.IsPrint(r):
			return utf8.RuneError
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return text
}

// isPlain says whether text is printable ASCII without a blank beside another one or at an end.
func isPlain(text string) bool {
	blank := true
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 0x7f || c == ' ' && blank {
			return false
		}
		blank = text[i] == ' '
	}
	return !blank
}

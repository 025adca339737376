// Package convert carries what a host has today into a policy, and a policy back: libcgroup's cgconfig.conf and
// cgrules.conf, systemd's slices, the JSON of the Oracle document's script, and the limits that are in force.
//
// An import reads its files strictly, as the policy's own parser does: everything wrong is reported at once, each with its
// place. What is sound becomes the text of a policy whose comments say where each line comes from, and a report of what
// could not be carried over and why. Everything is values in, values out, but for Read, which reads the files.
package convert

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
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

// mostProblems is how many problems are reported. A file of another kind has one in each line.
const mostProblems = 200

// report gathers what an import has to say.
type report struct {
	problems policy.Problems
	left     []Remark
	changed  []Remark
	notes    []string
}

func (r *report) leave(at policy.Pos, instead, what, format string, args ...any) {
	r.left = append(r.left, Remark{Pos: at, What: clean(what), Why: fmt.Sprintf(format, args...), Instead: instead})
}

func (r *report) change(at policy.Pos, what, format string, args ...any) {
	r.changed = append(r.changed, Remark{Pos: at, What: clean(what), Why: fmt.Sprintf(format, args...)})
}

func (r *report) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

func (r *report) fail(at policy.Pos, hint, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	known := slices.ContainsFunc(r.problems, func(p policy.Problem) bool { return p.Pos == at && p.Msg == msg }) // one value may be read for two limits
	if len(r.problems) < mostProblems && !known {
		r.problems = append(r.problems, policy.Problem{Pos: at, Msg: msg, Hint: hint})
	}
}

// failWith is fail with another place that takes part.
func (r *report) failWith(at, other policy.Pos, hint, format string, args ...any) {
	before := len(r.problems)
	r.fail(at, hint, format, args...)
	if n := len(r.problems); n > before {
		r.problems[n-1].Also = []policy.Pos{other}
	}
}

// result gives the policy of a draft, or every problem.
func (r *report) result(d *draft, sources []policy.Source) (*Result, error) {
	if len(r.problems) > 0 {
		if len(r.problems) == mostProblems {
			last := &r.problems[mostProblems-1]
			last.Hint = "this is the last problem that is told; there are more"
		}
		return nil, yamlform.Annotate(r.problems, sources)
	}
	text := d.text(sources)
	for _, c := range d.schedules {
		whole := text + "schedules: " + c.text + "\n"
		if _, err := parse.Policy([]policy.Source{{Path: c.at.File, Text: whole}}); err != nil {
			r.leave(c.at, "", "schedules", "they do not fit the groups any more")
			continue
		}
		text = whole
	}
	res := &Result{Policy: text, Left: r.left, Changed: r.changed, Notes: r.notes}
	if len(res.Policy) > mostPolicy {
		res.Notes = append(res.Notes, fmt.Sprintf("the policy has %s, and bulkhead reads files of at most %s: split it, and include: the parts",
			policy.Bytes(len(res.Policy)).Human(), policy.Bytes(mostPolicy).Human()))
	}
	return res, nil
}

// mostPolicy is the largest policy file that bulkhead reads.
const mostPolicy = 4 << 20

// input is one file that is being read, with the places in it.
type input struct {
	*report
	file   string
	body   string // without a byte-order mark
	starts []int  // offsets of the lines
}

// open begins to read a file. ok is false when it is not text.
func (r *report) open(s policy.Source) (in *input, ok bool) {
	in = &input{report: r, file: s.Path, body: s.Text, starts: []int{0}}
	if rest, marked := strings.CutPrefix(s.Text, "\ufeff"); marked {
		in.body = rest
		r.note("%s begins with a byte-order mark, which is skipped", s.Path)
	}
	for i := 0; ; {
		next := strings.IndexByte(in.body[i:], '\n')
		if next < 0 {
			break
		}
		i += next + 1
		in.starts = append(in.starts, i)
	}
	return in, in.isText()
}

// isText refuses what is not text, at its first bad byte, and says when lines end as on another system.
func (in *input) isText() bool {
	const hint = "this is not a text file; is it the right one?"
	if len(in.body) > maxSize {
		in.fail(policy.Pos{File: in.file, Line: 1, Column: 1}, hint, "the file is larger than %s", policy.Bytes(maxSize))
		return false
	}
	for i := 0; i < len(in.body); {
		c := in.body[i]
		if c >= ' ' && c < 0x7f || c == '\t' || c == '\n' {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(in.body[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			in.fail(in.at(i), hint, "byte 0x%02x is not UTF-8 text", c)
			return false
		case c == '\r' && strings.HasPrefix(in.body[i:], "\r\n"):
			in.note("%s ends its lines in CR LF; they are read as any others", in.file)
		case c == '\r':
			in.fail(in.at(i), "end lines in LF, or in CR LF", "a line ends in CR alone")
			return false
		case unicode.IsControl(r) || r == 0xfeff || r == 0xfffe || r == 0xffff || r == 0x2028 || r == 0x2029:
			in.fail(in.at(i), hint, "character U+%04X is not text", r)
			return false
		}
		i += size
	}
	return true
}

// at is the place of a byte.
func (in *input) at(offset int) policy.Pos {
	for offset > 0 && offset < len(in.body) && !utf8.RuneStart(in.body[offset]) {
		offset-- // to the beginning of its character
	}
	line, found := slices.BinarySearch(in.starts, offset)
	if !found {
		line--
	}
	return policy.Pos{File: in.file, Line: line + 1, Column: utf8.RuneCountInString(in.body[in.starts[line]:offset]) + 1}
}

// bad reports a problem at a byte.
func (in *input) bad(offset int, hint, format string, args ...any) {
	if len(in.problems) < mostProblems { // places of a file that is all wrong are dear
		in.fail(in.at(offset), hint, format, args...)
	}
}

// clean makes text fit for one line of a comment or a report.
func clean(text string) string {
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

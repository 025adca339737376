package manual

import (
	"fmt"
	"regexp"
	"strings"

	"bulkhead/internal/cli/usage"
)

// foot is what stands below each page: the day and the version of the program.
type foot struct{ day, version string }

// page is the text of one in man(7).
type page struct{ strings.Builder }

// newPage begins one with its names.
func newPage(name, section, short string, f foot) *page {
	p := &page{}
	p.WriteString(fmt.Sprintf(".TH %s %s %s \"%s\" \"bulkhead manual\"\n", escape(strings.ToUpper(name)), section,
		f.day, escape(f.version)))
	p.WriteString(".nh\n.ad l\n") // a name that is broken at the end of a line cannot be copied
	p.section("NAME")
	p.line(escape(name) + ` \- ` + escape(short))
	return p
}

func (p *page) section(title string) { p.WriteString(".SH " + title + "\n") }

// line adds text that is escaped already, in lines that fit an editor: man(7) fills them anew.
func (p *page) line(text string) {
	const width = 78
	column := 0
	for word := range strings.FieldsSeq(text) {
		// What begins with a point or an apostrophe would be a request.
		guarded := strings.HasPrefix(word, ".") || strings.HasPrefix(word, "'")
		switch {
		case column > 0 && column+1+len(word) > width:
			p.WriteByte('\n')
			column = 0
		case column > 0:
			p.WriteByte(' ')
			column++
		}
		if column == 0 && guarded {
			p.WriteString(`\&`)
			column += 2
		}
		p.WriteString(word)
		column += len(word)
	}
	p.WriteByte('\n')
}

// room is how many columns of a terminal's 80 a page leaves.
const room = 80 - 7

// verbatim adds lines as they are.
func (p *page) verbatim(lines []string) {
	p.WriteString(".nf\n")
	for _, line := range lines {
		if line = escape(line); strings.HasPrefix(line, ".") {
			line = `\&` + line
		}
		p.WriteString(line + "\n")
	}
	p.WriteString(".fi\n")
}

// indented adds lines as they are, indented.
func (p *page) indented(lines []string) {
	p.WriteString(".RS 4\n")
	p.verbatim(lines)
	p.WriteString(".RE\n")
}

// item adds a name, escaped already, with a text below it.
func (p *page) item(name, text string) {
	p.WriteString(".TP\n" + name + "\n")
	p.line(marked(text))
}

// prose adds text as `--help` has it: paragraphs, and lines that are indented, which stay as they are.
func (p *page) prose(text string) {
	var paragraph, lines []string
	first := true
	end := func() {
		if len(paragraph)+len(lines) > 0 && !first {
			p.WriteString(".PP\n")
		}
		if len(paragraph) > 0 {
			p.line(marked(strings.Join(paragraph, " ")))
			first = false
		}
		if len(lines) > 0 {
			p.indented(outdented(lines, room-4))
			first = false
		}
		paragraph, lines = nil, nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch indented := strings.HasPrefix(line, " "); {
		case line == "":
			end()
		case indented && len(paragraph) > 0, !indented && len(lines) > 0:
			end()
			fallthrough
		default:
			if indented {
				lines = append(lines, line)
			} else {
				paragraph = append(paragraph, line)
			}
		}
	}
	end()
}

// explained is a line with a text behind a command, or below one. A command alone is not folded: it is to be copied.
var explained = regexp.MustCompile(`^ +\S.* {2,}\S|^ {12,}\S`)

// outdented takes away the indentation that all lines have, and folds texts behind commands to a width.
func outdented(lines []string, width int) (out []string) {
	least := -1
	for _, line := range lines {
		if n := len(line) - len(strings.TrimLeft(line, " ")); least < 0 || n < least {
			least = n
		}
	}
	for _, line := range lines {
		if explained.MatchString(line) {
			line = strings.TrimSuffix(usage.Fold(line, width+least), "\n")
		}
		for part := range strings.SplitSeq(line, "\n") {
			out = append(out, part[least:])
		}
	}
	return out
}

var code = regexp.MustCompile("`[^`]+`")

// marked escapes text and sets what stands between backquotes in bold.
func marked(text string) string {
	var b strings.Builder
	at := 0
	for _, m := range code.FindAllStringIndex(text, -1) {
		b.WriteString(escape(text[at:m[0]]) + bold(text[m[0]+1:m[1]-1]))
		at = m[1]
	}
	return b.String() + escape(text[at:])
}

func bold(text string) string   { return `\fB` + escape(text) + `\fR` }
func italic(text string) string { return `\fI` + escape(text) + `\fR` }

var special = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, `"`, `\(dq`)

// escape writes text so that each character is shown, and copied from a page, as it is.
func escape(text string) string {
	var b strings.Builder
	for _, r := range special.Replace(text) {
		if r < 0x7f {
			b.WriteRune(r)
		} else {
			b.WriteString(fmt.Sprintf(`\[u%04X]`, r))
		}
	}
	return b.String()
}

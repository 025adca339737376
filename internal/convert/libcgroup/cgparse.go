package libcgroup

import (
	"strings"

	"bulkhead/internal/convert"
)

// The grammar is libcgroup's (cgconfig.conf(5) and its parser, 2.0.2 to 3.2): sections group, template, mount,
// namespace, default and systemd in any order, words of letters, digits and _-/.,%@\ or in double quotes, comments that
// start a line.

// cgFile is one cgconfig.conf as parsed.
type cgFile struct {
	*convert.Input
	groups, templates []*cgGroup
	mounts, names     []cgPair // names are those of the namespace section
	units             [][]cgPair
	defaults          *cgPerm
	exact             []cgPair // what an export of bulkhead's carried along in comments
}

// cgGroup is a group or a template.
type cgGroup struct {
	name     cgWord
	perm     *cgPerm
	sections []cgSection
}

// cgSection is what a group says to one controller.
type cgSection struct {
	controller cgWord
	pairs      []cgPair
}

// cgPair is `name = value;`.
type cgPair struct{ name, value cgWord }

// cgPerm is a perm section.
type cgPerm struct {
	offset      int
	task, admin []cgPair
}

type cgWord struct {
	text   string
	offset int
}

// cgKind is the kind of a token.
type cgKind byte

const (
	cgEnd     cgKind = iota
	cgID             // a word, or text in quotes
	cgKeyword        // a word that means something
	cgSign           // { } = ;
	cgOther          // what the grammar has no use for
)

type cgToken struct {
	kind   cgKind
	text   string
	offset int
}

var cgKeywords = map[string]bool{
	"mount": true, "task": true, "admin": true, "perm": true, "group": true, "namespace": true, "default": true,
	"template": true, "systemd": true,
}

// cgParser reads the tokens of one file.
type cgParser struct {
	*cgFile
	next  int // offset behind the current token
	token cgToken
	fresh bool // nothing but blanks stands before next on its line
}

// parseCgconfig reads a file; its problems are in the report.
func parseCgconfig(in *convert.Input) *cgFile {
	p := &cgParser{cgFile: &cgFile{Input: in}, fresh: true}
	p.advance()
	for p.token.kind != cgEnd {
		p.section()
	}
	return p.cgFile
}

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-/.,%@\\",
		c) >= 0
}

// advance reads the next token.
func (p *cgParser) advance() {
	for p.next < len(p.Body) {
		switch c := p.Body[p.next]; {
		case c == '\n':
			p.fresh = true
		case c == ' ' || c == '\t' || c == '\r':
		case p.fresh && (c == '#' || c == '*' && (p.next == 0 || p.Body[p.next-1] == '\n')):
			p.comment()
			continue
		default:
			p.fresh = false
			p.read(c)
			return
		}
		p.next++
	}
	p.token = cgToken{kind: cgEnd, offset: len(p.Body)}
}

// exactMark begins a comment in which an export says what libcgroup has no word for.
const exactMark = "#bulkhead "

// comment skips the rest of the line.
func (p *cgParser) comment() {
	start := p.next
	end := strings.IndexByte(p.Body[start:], '\n')
	if end < 0 {
		end = len(p.Body) - start
	}
	p.next = start + end
	line := strings.TrimRight(p.Body[start:p.next], "\r")
	if rest, ours := strings.CutPrefix(line, exactMark); ours {
		if key, text, ok := strings.Cut(rest, ": "); ok {
			p.exact = append(p.exact, cgPair{cgWord{key, start}, cgWord{text, start + len(exactMark) + len(key) + 2}})
		}
	}
}

// read reads a token that begins with c.
func (p *cgParser) read(c byte) {
	start := p.next
	switch {
	case strings.IndexByte("{}=;", c) >= 0:
		p.next++
		p.token = cgToken{cgSign, p.Body[start:p.next], start}
	case c == '"':
		end := strings.IndexByte(p.Body[start+1:], '"')
		if end < 0 {
			p.Bad(start, "close it with the same quote", "this quote is never closed")
			p.next = len(p.Body)
			p.token = cgToken{kind: cgEnd, offset: start}
			return
		}
		p.next = start + end + 2
		p.token = cgToken{cgID, p.Body[start+1 : p.next-1], start}
	case isWordByte(c):
		for p.next < len(p.Body) && isWordByte(p.Body[p.next]) {
			p.next++
		}
		p.token = cgToken{cgID, p.Body[start:p.next], start}
		if cgKeywords[p.token.text] {
			p.token.kind = cgKeyword
		}
	default:
		p.next++
		for p.next < len(p.Body) && p.Body[p.next]&0xc0 == 0x80 { // the rest of a character
			p.next++
		}
		p.token = cgToken{cgOther, p.Body[start:p.next], start}
	}
}

func (p *cgParser) is(sign string) bool { return p.token.kind == cgSign && p.token.text == sign }

func (p *cgParser) isWord(word string) bool { return p.token.kind == cgKeyword && p.token.text == word }

// unexpected reports the current token.
func (p *cgParser) unexpected(wanted, hint string) {
	switch {
	case p.token.kind == cgEnd:
		p.Bad(len(p.Body), hint, "the file ends where %s should be", wanted)
	case p.token.kind == cgOther && p.token.text == "#":
		p.Bad(p.token.offset, "put the comment on a line of its own",
			"a comment cannot follow something else on its line: libcgroup takes it for a part of that")
	default:
		p.Bad(p.token.offset, hint, "%q stands where %s should be", convert.Clean(p.token.text), wanted)
	}
}

// section reads one section at the top of the file.
func (p *cgParser) section() {
	start := p.token
	if start.kind != cgKeyword || start.text == "task" || start.text == "admin" || start.text == "perm" {
		switch {
		case p.is("}"):
			p.Bad(start.offset, "take it out, or open what it should close", "this } closes nothing")
			p.advance()
			return
		case start.kind == cgKeyword:
			p.Bad(start.offset, "write it inside a group", "%q cannot stand outside of a group", start.text)
		default:
			p.unexpected("a section", "sections are group, template, mount, namespace, default and systemd")
		}
		p.skipToSection()
		return
	}
	p.advance()
	switch start.text {
	case "group", "template":
		p.group(start)
	case "default":
		p.block(start, func() bool {
			if p.isWord("perm") {
				p.defaults = p.perm()
				return true
			}
			return false
		}, "perm")
	case "mount":
		p.mounts = append(p.mounts, p.pairs(start)...)
	case "namespace":
		p.names = append(p.names, p.pairs(start)...)
	case "systemd":
		p.units = append(p.units, p.pairs(start))
	}
}

// skipToSection goes on at the next word that begins a section, or at a } on the way there.
func (p *cgParser) skipToSection() {
	for depth := 0; ; p.advance() {
		switch {
		case p.token.kind == cgEnd:
			return
		case p.is("{"):
			depth++
		case p.is("}"):
			if depth--; depth <= 0 {
				p.advance()
				return
			}
		case depth == 0 && p.beginsSection():
			return
		}
	}
}

// beginsSection says whether a section begins here that cannot stand inside another.
func (p *cgParser) beginsSection() bool {
	if p.token.kind != cgKeyword {
		return false
	}
	switch p.token.text {
	case "group", "template", "mount", "namespace", "systemd", "default":
		return true
	}
	return false
}

// open reads the { of a block.
func (p *cgParser) open(what string) bool {
	if !p.is("{") {
		p.unexpected("the { of "+what, "")
		return false
	}
	p.advance()
	return true
}

// block reads what stands between { and }. entry reads one entry, or says that it cannot.
func (p *cgParser) block(start cgToken, entry func() bool, wanted string) {
	if !p.open(start.text) {
		p.skipToSection()
		return
	}
	for {
		switch {
		case p.is("}"):
			p.advance()
			return
		case p.token.kind == cgEnd || p.beginsSection():
			p.unclosed(start)
			return
		case entry():
		default:
			p.unexpected(wanted+" or a }", "")
			p.skipEntry()
		}
	}
}

// unclosed reports a block without its }, with the place where it began.
func (p *cgParser) unclosed(start cgToken) {
	p.FailWith(p.At(p.token.offset), p.At(start.offset), "", "a } is missing before this: %s of line %d is still open",
		start.text, p.At(start.offset).Line)
}

// skipEntry goes on behind the next ; or block, or at the } of this one.
func (p *cgParser) skipEntry() {
	for depth := 0; p.token.kind != cgEnd; p.advance() {
		switch {
		case p.is("{"):
			depth++
		case p.is("}") && depth == 0, depth == 0 && p.beginsSection():
			return
		case p.is("}"):
			if depth--; depth == 0 {
				p.advance()
				return
			}
		case p.is(";") && depth == 0:
			p.advance()
			return
		}
	}
}

// group reads a group or a template behind its word.
func (p *cgParser) group(start cgToken) {
	g := &cgGroup{name: cgWord{p.token.text, p.token.offset}}
	if p.token.kind != cgID && !p.isWord("default") {
		p.unexpected("the name of a "+start.text,
			"put a name that is a word of the grammar, or that has other characters, in double quotes")
		if p.token.kind != cgKeyword {
			p.skipToSection()
			return
		}
	}
	p.advance()
	p.block(start, func() bool { return p.groupEntry(g) }, "perm, a controller")
	if start.text == "group" {
		p.groups = append(p.groups, g)
	} else {
		p.templates = append(p.templates, g)
	}
}

// groupEntry reads perm or what is said to a controller.
func (p *cgParser) groupEntry(g *cgGroup) bool {
	switch {
	case p.isWord("perm"):
		at := p.token.offset
		perm := p.perm()
		if g.perm != nil {
			p.FailWith(p.At(at), p.At(g.perm.offset), "keep one of them", "perm is here twice")
			return true
		}
		g.perm = perm
	case p.token.kind == cgID:
		s := cgSection{controller: cgWord{p.token.text, p.token.offset}}
		start := p.token
		p.advance()
		s.pairs = p.pairs(start)
		g.sections = append(g.sections, s)
	default:
		return false
	}
	return true
}

// pairs reads a block of `name = value;`.
func (p *cgParser) pairs(start cgToken) (all []cgPair) {
	p.block(start, func() bool {
		if p.token.kind != cgID {
			return false
		}
		pair := cgPair{name: cgWord{p.token.text, p.token.offset}}
		p.advance()
		if !p.is("=") {
			p.unexpected("a = behind "+convert.Clean(pair.name.text), "")
			p.skipEntry()
			return true
		}
		p.advance()
		if p.token.kind != cgID && p.token.kind != cgKeyword || p.token.kind == cgKeyword && p.token.text == "group" {
			p.unexpected("the value of "+convert.Clean(pair.name.text),
				"put a value with blanks or other characters in double quotes")
			p.skipEntry()
			return true
		}
		if p.token.kind == cgKeyword {
			p.Bad(p.token.offset, "put it in double quotes", "%q is a word of the grammar, and no value", p.token.text)
		}
		pair.value = cgWord{p.token.text, p.token.offset}
		p.advance()
		if p.is(";") {
			p.advance()
		} else {
			p.unexpected("a ; behind the value of "+convert.Clean(pair.name.text), "")
			if p.token.kind == cgOther {
				p.skipEntry()
			}
		}
		all = append(all, pair)
		return true
	}, "a name = value;")
	return all
}

// perm reads perm { task { … } admin { … } }.
func (p *cgParser) perm() *cgPerm {
	perm := &cgPerm{offset: p.token.offset}
	start := p.token
	p.advance()
	p.block(start, func() bool {
		if !p.isWord("task") && !p.isWord("admin") {
			return false
		}
		inner := p.token
		p.advance()
		pairs := p.pairs(inner)
		if inner.text == "task" {
			perm.task = append(perm.task, pairs...)
		} else {
			perm.admin = append(perm.admin, pairs...)
		}
		return true
	}, "task, admin")
	return perm
}

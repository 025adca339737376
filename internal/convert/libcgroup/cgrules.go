package libcgroup

import (
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/policy"
)

// ImportRules imports libcgroup's cgrules.conf: groups that match, without limits. With its cgconfig.conf at hand
// Cgconfig makes one policy of both. The error is policy.Problems.
func ImportRules(sources []policy.Source) (*convert.Result, error) {
	r := &convert.Report{}
	d := convert.NewDraft(r)
	d.Head = append(d.Head, "Made by bulkhead import cgrules; a comment says which line each match comes from.")
	readRules(d, sources, nil)
	if len(d.Root.Children) == 0 && len(r.Problems) == 0 {
		r.Note("there is no rule in what was read")
	}
	return r.Result(d, sources)
}

// rule is one line of cgrules.conf with those that continue it.
type rule struct {
	at          policy.Pos
	what        string
	user        string // "peter", "@dba", "*"
	process     string // "" for any
	controllers []string
	destination string
	ignore      bool
	more        []rule // lines that begin with %
}

// ruleFields are the fields of a line with where they begin.
type ruleField struct {
	text   string
	offset int
	quoted bool
}

// rules reads one file. Its grammar is that of cgrules.conf(5): fields between blanks, of which the first and the third
// may stand in double quotes; a # begins a comment anywhere.
func readRuleLines(in *convert.Input) (all []rule) {
	for i, start := range in.Starts {
		end := len(in.Body)
		if i+1 < len(in.Starts) {
			end = in.Starts[i+1] - 1
		}
		line, _, _ := strings.Cut(strings.TrimSuffix(in.Body[start:end], "\r"), "#")
		fields, ok := fieldsOf(in, start, line)
		if !ok || len(fields) == 0 {
			continue
		}
		r, ok := ruleOf(in, fields)
		if !ok {
			continue
		}
		r.what = convert.Clean(line)
		switch {
		case r.user != "%":
			all = append(all, r)
		case len(all) == 0:
			in.Bad(fields[0].offset, "begin with a user, @group or *", "%% continues the rule above, and there is none")
		default:
			last := &all[len(all)-1]
			last.more = append(last.more, r)
		}
	}
	return all
}

// fields splits a line. A quote may begin inside a field, as in user:"a program".
func fieldsOf(in *convert.Input, start int, line string) (fields []ruleField, ok bool) {
	for i := 0; i < len(line); {
		if line[i] == ' ' || line[i] == '\t' {
			i++
			continue
		}
		f := ruleField{offset: start + i}
		for i < len(line) && line[i] != ' ' && line[i] != '\t' {
			if line[i] != '"' {
				run := strings.IndexAny(line[i:], " \t\"")
				if run < 0 {
					run = len(line) - i
				}
				f.text += line[i : i+run]
				i += run
				continue
			}
			end := strings.IndexByte(line[i+1:], '"')
			if end < 0 {
				in.Bad(start+i, "close it with the same quote", "this quote is never closed")
				return nil, false
			}
			f.text, f.quoted = f.text+line[i+1:i+1+end], true
			i += end + 2
		}
		fields = append(fields, f)
	}
	return fields, true
}

// ruleOptions are what may stand behind the destination.
var ruleOptions = []string{"ignore", "ignore_rt"}

// rule reads the fields of one line.
func ruleOf(in *convert.Input, fields []ruleField) (r rule, ok bool) {
	if len(fields) < 3 {
		in.Bad(fields[0].offset, "write USER CONTROLLERS GROUP, or USER:PROGRAM CONTROLLERS GROUP",
			"this rule has %d of three fields", len(fields))
		return r, false
	}
	if len(fields) > 4 {
		in.Bad(fields[4].offset, "put a name with blanks in double quotes", "%q is one field too many",
			convert.Clean(fields[4].text))
		return r, false
	}
	r.at = in.At(fields[0].offset)
	r.user, r.process, _ = strings.Cut(fields[0].text, ":")
	r.destination = fields[2].text
	switch {
	case r.user == "" || r.user == "@":
		in.Bad(fields[0].offset, "write a user, @group or *", "this rule names nobody")
		return r, false
	case r.user != "*" && r.user != "%" && strings.ContainsAny(strings.TrimPrefix(r.user, "@"), "*%/ ,{"):
		in.Bad(fields[0].offset, "write a user, @group or *", "%q is not a user", convert.Clean(r.user))
		return r, false
	}
	for name := range strings.SplitSeq(fields[1].text, ",") {
		if name != "*" && !strings.HasPrefix(name, "name=") && !slices.Contains(kernelfile.Controllers, name) {
			kernelfile.UnknownController(in, name, fields[1].offset)
		}
		r.controllers = append(r.controllers, name)
	}
	if len(fields) == 4 {
		for option := range strings.SplitSeq(fields[3].text, ",") {
			if !slices.Contains(ruleOptions, option) {
				in.Bad(fields[3].offset, "options are ignore and ignore_rt", "there is no option %q",
					convert.Clean(option))
			}
			r.ignore = r.ignore || option == "ignore"
		}
	}
	return r, true
}

// readRules puts what rules match into the groups that they name. im holds the groups and templates of a cgconfig.conf;
// nil without one.
func readRules(d *convert.Draft, sources []policy.Source, im *cgImport) {
	p := placer{Draft: d, cg: im, byUser: map[string][]*placed{}}
	for _, s := range sources {
		in, ok := d.Open(s)
		if !ok {
			continue
		}
		for _, r := range readRuleLines(in) {
			p.place(r)
		}
	}
}

// placer turns rules, of which the first that fits counts, into matches, of which the most specific does.
type placer struct {
	*convert.Draft
	cg     *cgImport
	byUser map[string][]*placed
	all    []*placed // of @groups and of everybody
	seen   int
}

// placed is a rule that has been read.
type placed struct {
	rule
	match policy.Match
	group string // "" when it takes processes out
}

// mostExceptions bounds what is taken out of one match. Only a file of very many rules that overlap reaches it.
const mostExceptions = 64

func (p *placer) place(r rule) {
	m := policy.Match{Exe: exeOf(r.process)}
	switch name, group := strings.CutPrefix(r.user, "@"); {
	case group:
		m.UnixGroup = name
	case r.user != "*":
		m.User = name
	}
	entry := &placed{rule: r, match: m}
	before := p.overlapping(entry)
	defer p.remember(entry)
	if r.ignore {
		return
	}
	if placeholder.MatchString(m.Exe) {
		p.Leave(r.at, "", r.what, "a policy takes %s for a property of an instance", placeholder.FindString(m.Exe))
		return
	}
	if isEmpty(m) || strings.Trim(m.Exe, "*?") == "" && m.Exe != "" {
		p.Leave(r.at, "what no rule matches stays where it is; give the other groups more weight", r.what,
			"a policy has no rule for every process")
		p.destination(r, m)
		return
	}
	to := p.destination(r, m)
	if to == nil {
		return
	}
	entry.group = to.Path
	for _, next := range r.more {
		if other := p.expand(next.destination, m); strings.Trim(other, "/") != strings.Trim(p.expand(r.destination, m),
			"/") {
			p.Leave(next.at, "limit the one group in both respects", next.what,
				"a process is in one group, here %s, and not in another one for %s", to.Path,
				strings.Join(next.controllers, ","))
		}
	}
	m, reached := p.without(m, before, to.Path)
	if !reached {
		p.Leave(r.at, "", r.what, "no process gets here: a rule above takes all that it matches")
		return
	}
	entryText := convert.Raw{Key: "match", Text: convert.MatchFlow(m), From: convert.From(r.at, r.what)}
	if !slices.ContainsFunc(to.Match, func(o convert.Raw) bool { return o.Text == entryText.Text }) {
		to.Match = append(to.Match, entryText)
	}
}

// exeOf is a process name of a rule as exe takes it; a * at its end stays, and other signs mean themselves.
func exeOf(process string) string {
	if process == "*" {
		return "" // every program
	}
	name, prefix := strings.CutSuffix(process, "*")
	var b strings.Builder
	for _, r := range name {
		if strings.ContainsRune(`*?[\`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	if prefix {
		b.WriteByte('*')
	}
	exe := b.String()
	if strings.ContainsAny(exe, " \t/") && !strings.HasPrefix(exe, "/") && !strings.HasPrefix(exe, "*") {
		return "*/" + exe // a name with a blank, or a part of a path: exe takes them as a glob over paths
	}
	return exe
}

// placeholder is what a policy fills with a property of an instance, and nothing else.
var placeholder = regexp.MustCompile(`\{[a-z]+\}`)

// overlapping gives the rules above that may take a process of this one.
func (p *placer) overlapping(e *placed) (found []*placed) {
	p.seen++
	candidates := p.all
	switch {
	case e.match.User != "":
		candidates = slices.Concat(p.byUser[e.match.User], p.all)
	case len(p.all) < p.seen-1:
		for _, list := range p.byUser {
			if len(candidates) > 4*mostExceptions {
				break
			}
			candidates = append(candidates[:len(candidates):len(candidates)], list...)
		}
	}
	for _, c := range candidates {
		if sharesProgram(c.match.Exe, e.match.Exe) {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b *placed) int {
		if a.at.File != b.at.File {
			return strings.Compare(a.at.File, b.at.File)
		}
		return a.at.Line - b.at.Line
	})
	return found
}

func (p *placer) remember(e *placed) {
	if e.match.User != "" {
		p.byUser[e.match.User] = append(p.byUser[e.match.User], e)
		return
	}
	p.all = append(p.all, e)
}

// sharesProgram says whether two executables may be one.
func sharesProgram(a, b string) bool {
	if a == "" || b == "" {
		return true
	}
	a, b = strings.TrimPrefix(a, "*/"), strings.TrimPrefix(b, "*/")
	base := func(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }
	if strings.Contains(a, "/") != strings.Contains(b, "/") {
		a, b = base(a), base(b)
	}
	prefixA, isA := strings.CutSuffix(a, "*")
	prefixB, isB := strings.CutSuffix(b, "*")
	switch {
	case isA && isB:
		return strings.HasPrefix(prefixA, prefixB) || strings.HasPrefix(prefixB, prefixA)
	case isA:
		return strings.HasPrefix(b, prefixA)
	case isB:
		return strings.HasPrefix(a, prefixB)
	}
	return a == b
}

// without takes out of a match what rules above it take, where a policy would not see that by itself: they are less
// specific, or as specific. reached is false when nothing is left.
func (p *placer) without(m policy.Match, before []*placed, group string) (policy.Match, bool) {
	for _, b := range before {
		narrower := specific(b.match) > specific(m) && b.group != ""
		switch {
		case b.group == group || isEmpty(b.match) && b.group != "" || narrower:
			continue
		case isEmpty(b.match), covers(b.match, m):
			return m, false
		}
		except := b.match
		if except.User != "" && except.User == m.User {
			except.User = "" // the entry says it already
		}
		if len(m.Except) == mostExceptions {
			p.Note("some rules overlap with more than %d above them; what they take is not all written down as "+
				"except:, and `bulkhead explain` shows who is claimed twice", mostExceptions)
			break
		}
		if !slices.ContainsFunc(m.Except,
			func(o policy.Match) bool { return convert.MatchFlow(o) == convert.MatchFlow(except) }) {
			m.Except = append(m.Except, except)
		}
	}
	return m, true
}

// specific ranks a match as a policy does: a program goes before a user, that before a Unix group.
func specific(m policy.Match) (rank int) {
	if m.Exe != "" {
		rank += 4
	}
	if m.User != "" {
		rank += 2
	}
	if m.UnixGroup != "" {
		rank++
	}
	return rank
}

// isEmpty says whether a rule is for every process.
func isEmpty(m policy.Match) bool { return m.User == "" && m.UnixGroup == "" && m.Exe == "" }

// covers says whether a match takes every process that another one takes.
func covers(a, b policy.Match) bool {
	return (a.User == "" || a.User == b.User) && (a.UnixGroup == "" || a.UnixGroup == b.UnixGroup) && (a.Exe == "" ||
		a.Exe == b.Exe)
}

// ruleTemplates are what stands for a property of a process in a destination.
var ruleTemplates = regexp.MustCompile(`%[uUgGpP]`)

// expand fills what a rule itself says of its processes: %u of a user, %g of a group, %p of a program.
func (p *placer) expand(destination string, m policy.Match) string {
	const escaped = "\x00"
	text := strings.ReplaceAll(destination, `\%`, escaped)
	for sign, value := range map[string]string{"%u": m.User, "%g": m.UnixGroup, "%p": programName(m.Exe)} {
		if value != "" {
			text = strings.ReplaceAll(text, sign, value)
		}
	}
	return strings.ReplaceAll(text, escaped, "%")
}

// programName is the name that %p stands for, where a rule names one program.
func programName(exe string) string {
	exe = strings.TrimPrefix(exe, "*/")
	if strings.ContainsAny(exe, `*\`) {
		return ""
	}
	return exe[strings.LastIndexByte(exe, '/')+1:]
}

// destination gives the group of a rule; nil when there can be none. One that would be made while processes start
// becomes the group above it.
func (p *placer) destination(r rule, m policy.Match) *convert.Group {
	name := strings.Trim(p.expand(r.destination, m), "/")
	open := ruleTemplates.FindString(strings.ReplaceAll(r.destination, `\%`, ""))
	if left := ruleTemplates.FindStringIndex(name); left != nil && open != "" {
		above := ""
		if i := strings.LastIndexByte(name[:left[0]], '/'); i >= 0 {
			above = name[:i]
		}
		if above == "" {
			p.Leave(r.at, "write a rule and a group for each", r.what, "a policy makes no group for each %s",
				name[left[0]:left[1]])
			return nil
		}
		p.Leave(r.at, "write a rule and a group for each that needs one", r.what,
			"a policy makes no group for each %s: they share %s", name[left[0]:left[1]], above)
		name = above
	}
	if name == "" || name == "." {
		p.Leave(r.at, "what no rule matches stays where it is", r.what, "it leads to the root of the hierarchy")
		return nil
	}
	g := p.Draft.Group(name, r.at)
	if g != nil && !g.Asked && p.cg != nil {
		p.cg.fromTemplate(r.destination, g)
	}
	return g
}

// fromTemplate gives a group the limits of the template that its rule names.
func (im *cgImport) fromTemplate(destination string, to *convert.Group) {
	for _, f := range im.parsed {
		for _, t := range f.templates {
			if strings.Trim(t.name.text, "/") != strings.Trim(destination, "/") || !strings.Contains(destination, "%") {
				continue
			}
			at := f.At(t.name.offset)
			im.used[t] = true
			im.Describe(to, at, convert.From(at, "template "+t.name.text))
			im.owners(f, t, to)
			im.fill(f, t, to, im.check(f, t))
			return
		}
	}
}

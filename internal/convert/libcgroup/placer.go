package libcgroup

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/convert"
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

// readRules puts what rules match into the groups that they name, and gives the rules that lead to each or below it, by
// its path. im holds the groups and templates of a cgconfig.conf; nil without one.
func readRules(d *convert.Draft, sources []policy.Source, im *cgImport) map[string][]led {
	p := placer{Draft: d, cg: im, matched: map[*convert.Group]map[string]bool{}, led: map[string][]led{}}
	for _, s := range sources {
		in, ok := d.Open(s, func(line string) bool { return strings.Contains(line, "#") })
		if !ok {
			continue
		}
		for _, r := range readRuleLines(in) {
			p.place(r)
		}
	}
	return p.led
}

// placer turns rules, of which the first that fits counts, into matches, of which the most specific does.
type placer struct {
	*convert.Draft
	cg      *cgImport
	above   above
	matched map[*convert.Group]map[string]bool // entries that a group has
	led     map[string][]led                   // the rules that lead to a group or below it, by its path
}

// place takes over one rule.
func (p *placer) place(r rule) {
	m := policy.Match{Program: r.process}
	switch name, group := strings.CutPrefix(r.user, "@"); {
	case group:
		m.UnixGroup = name
	case !strings.HasPrefix(r.user, "*"): // whatever stands behind it
		m.User = name
	}
	if _, err := strconv.Atoi(m.User + m.UnixGroup); err == nil {
		p.Change(r.at, r.what, "is the user or group of this number: libcgroup looks for one of this name, and skips "+
			"the rule where there is none")
	}
	if m.Program == "*" {
		m.Program = ""
	}
	if r.ignore || r.ignoreRT {
		p.ignore(r, m)
		return
	}
	if why := unmatched(m.Program); why != "" {
		p.Leave(r.at, "write `exe: "+m.Program+"` in a match of the group if programs of that name are meant", r.what,
			"no process gets here: %s", why)
		p.destination(r, m)
		return
	}
	if r.bare {
		p.Change(r.at, r.what, "means every program, as no program stands behind the colon")
	}
	if found := policy.Placeholder.FindString(m.Program); found != "" {
		p.Leave(r.at, "", r.what, "a policy takes %s for a property of an instance", found)
		return
	}
	entry := &placed{match: m}
	before, whole := p.above.overlapping(entry)
	defer p.above.remember(entry)
	if isEmpty(m) {
		p.everybody(r, m)
		entry.group = "/"
		return
	}
	to := p.destination(r, m)
	if to == nil {
		return
	}
	entry.group = to.Path
	controllers := p.controllers(r, m, to)
	m, reached := p.without(m, before, to.Path)
	if !whole {
		p.overlaps()
	}
	if !reached {
		p.Leave(r.at, "", r.what, "no process gets here: a rule above takes all that it matches")
		return
	}
	p.add(to, m, r)
	p.lead(to, r, controllers)
}

// controllers are those for which a rule leads to its group, with its % lines that lead there, too, each once. Lines
// that lead elsewhere are said.
func (p *placer) controllers(r rule, m policy.Match, to *convert.Group) (all []string) {
	here := strings.Trim(p.expand(r.destination, m), "/")
	for i, line := range append([]rule{r}, r.more...) {
		if i > 0 && strings.Trim(p.expand(line.destination, m), "/") != here {
			p.Leave(line.at, "limit the one group in both respects", line.what,
				"a process is in one group, here %s, and not in another one for %s", to.Path,
				strings.Join(line.controllers, ","))
			continue
		}
		for _, name := range line.controllers {
			if !strings.HasPrefix(name, "name=") && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// add gives a group an entry of match, once.
func (p *placer) add(to *convert.Group, m policy.Match, r rule) {
	entry := convert.Raw{Key: "match", Text: convert.MatchFlow(m), From: convert.From(r.at, r.what)}
	known := p.matched[to]
	if known == nil {
		known = map[string]bool{}
		for _, o := range to.Match {
			known[o.Text] = true
		}
		p.matched[to] = known
	}
	if !known[entry.Text] {
		known[entry.Text] = true
		to.Match = append(to.Match, entry)
	}
}

// everybody says what becomes of a rule for every process: its group holds nobody.
func (p *placer) everybody(r rule, m policy.Match) {
	instead := "`host: {others: {weight: 10}}` gathers what no rule matches, and shares the CPU with it"
	why := "a policy has no rule for every process; what no rule matches stays where it is"
	if g := p.destination(r, m); g != nil {
		if limits := g.Limits(); len(limits) > 0 {
			why += ", so that " + strings.Join(limits, ", ") + " of " + g.Path + " hold for nobody"
			instead += "; what else is to be limited needs rules that name it"
		}
	}
	p.Leave(r.at, instead, r.what, "%s", why)
}

// ignore remembers what a rule takes out of those below it: processes that are in its destination already, by the
// beginning of their path.
func (p *placer) ignore(r rule, m policy.Match) {
	path := strings.TrimSuffix(r.destination, "/")
	switch {
	case !r.ignore:
		p.Leave(r.at, "on cgroup v1 bulkhead moves no process with real-time threads into a group of the CPU", r.what,
			"ignore_rt takes real-time processes out of the rules below, and a policy has no match for these")
		return
	case m.Program != "" && !strings.HasPrefix(m.Program, "/"):
		p.Leave(r.at, "write the whole path", r.what,
			"libcgroup compares the program of an ignore rule with the whole path, so that it takes out nobody")
		return
	case path == "" || r.destination == "*": // in any group, or in the root of some hierarchy
	case strings.HasPrefix(path, "/"):
		p.Leave(r.at, "write it without the / in front", r.what,
			"libcgroup compares paths without the / in front, so that it takes out nobody")
		return
	case strings.HasSuffix(r.destination, "/"):
		m.Cgroup = "/" + globText(path) + "/"
	default:
		m.Cgroup = "/" + globText(path) + "*/"
	}
	p.Change(r.at, r.what, "takes its processes out of the rules below it")
	p.above.remember(&placed{match: m})
}

// globText is text that means itself in a glob.
func globText(text string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(text)
}

// unmatched says why a program of a rule is that of no process, "" where it may be: libcgroup compares it with the base
// name and with the whole path of what runs, and what stands before a * at its end with the beginning of the path.
func unmatched(program string) string {
	begin, wild := strings.CutSuffix(program, "*")
	switch {
	case strings.HasPrefix(program, "/") || program == "":
		return ""
	case wild:
		return "libcgroup compares " + strconv.Quote(begin) + " with the beginning of the whole path, which is a /"
	case strings.Contains(program, "/"):
		return "libcgroup compares it with the whole path, which begins with a /, and with the base name"
	}
	return ""
}

// overlaps says that not all exceptions could be written.
func (p *placer) overlaps() {
	p.Note("some rules overlap with more than %d above them; what they take is not all written down as "+
		"except:, and `bulkhead explain` shows who is claimed twice", mostExceptions)
}

// without takes out of a match what rules above it take, where a policy would not see that by itself: they are less
// specific, or as specific. reached is false when nothing is left.
func (p *placer) without(m policy.Match, before []*placed, group string) (policy.Match, bool) {
	known := map[string]bool{}
	for _, b := range before {
		if b.group == group {
			continue
		}
		if covers(b.match, m) {
			return m, false
		}
		except := b.match
		if except.User != "" && except.User == m.User {
			except.User = "" // the entry says it already
		}
		text := convert.MatchFlow(except)
		switch {
		case known[text]:
		case len(m.Except) == mostExceptions:
			p.overlaps()
			return m, true
		default:
			known[text] = true
			m.Except = append(m.Except, except)
		}
	}
	return m, true
}

// ruleTemplates are what stands for a property of a process in a destination.
var ruleTemplates = regexp.MustCompile(`%[uUgGpP]`)

// expand fills what a rule itself says of its processes: %u of a user, %g of a group, %p of a program.
func (p *placer) expand(destination string, m policy.Match) string {
	const escaped = "\x00"
	text := strings.ReplaceAll(destination, `\%`, escaped)
	for sign, value := range map[string]string{"%u": m.User, "%g": m.UnixGroup, "%p": programName(m.Program)} {
		if value != "" {
			text = strings.ReplaceAll(text, sign, value)
		}
	}
	return strings.ReplaceAll(text, escaped, "%")
}

// programName is the name that %p stands for, where a rule names one program.
func programName(program string) string {
	if strings.HasSuffix(program, "*") {
		return ""
	}
	return program[strings.LastIndexByte(program, '/')+1:]
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
	if name == "" || name == "." || name == "*" {
		p.Leave(r.at, "what no rule matches stays where it is", r.what, "it leads to the root of the hierarchy")
		return nil
	}
	g := p.Draft.Group(name, r.at)
	if g != nil && !g.Asked && p.cg != nil {
		p.cg.fromTemplate(r.destination, g)
	}
	return g
}

// fromTemplate gives a group the limits of the template that its rule names. It has no part in a default section:
// cgconfig.conf(5).
func (im *cgImport) fromTemplate(destination string, to *convert.Group) {
	if im.templates == nil {
		im.templates = map[string]templateOf{}
		for _, f := range im.parsed {
			for _, t := range f.templates {
				name := strings.Trim(t.name.text, "/")
				if _, earlier := im.templates[name]; !earlier {
					im.templates[name] = templateOf{f, t}
				}
			}
		}
	}
	t, there := im.templates[strings.Trim(destination, "/")]
	if !there || !strings.Contains(destination, "%") {
		return
	}
	im.used[t.group] = true
	at := t.file.At(t.group.name.offset)
	im.Describe(to, at, convert.From(at, "template "+t.group.name.text))
	im.owners(to, []permOf{{file: t.file, perm: t.group.perm}})
	var sections []sectionOf
	for _, s := range t.group.sections {
		sections = append(sections, sectionOf{t.file, s})
	}
	im.fill(to, sections, im.check(t.file, t.group))
}

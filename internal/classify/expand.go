package classify

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/classify/matchkey"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/policy"
)

// Expand turns the policy's groups into concrete ones: a template gives one group, with its children,
// per instance that it matches. Groups come in policy order, parents before children. A group that
// cannot be made is left out, with its children, and is among the problems.
//
// Of several instances that would make a group of the same name, one has it; the others are its Rivals.
// Instances in containers are not expanded. Neither is one that has neither port nor socket yet and is
// asked for them: it gets its group when it listens.
func Expand(p *policy.Policy, instances []engine.Instance) ([]Group, policy.Problems) {
	e := expander{byPath: make(map[string]*Group), rivals: make(map[string][]Rival)}
	for _, i := range instances {
		if !i.Container {
			e.instances = append(e.instances, i)
		}
	}
	slices.SortStableFunc(e.instances, func(a, b engine.Instance) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Port, b.Port), cmp.Compare(a.SID, b.SID),
			cmp.Compare(a.DataDir, b.DataDir), cmp.Compare(a.Main.PID, b.Main.PID))
	})
	e.checkParts(p.Groups)
	e.expand(p.Groups, "", nil)
	for i := range e.groups {
		e.groups[i].Rivals = e.rivals[e.groups[i].Path]
	}
	return e.groups, sortProblems(e.problems)
}

type expander struct {
	instances []engine.Instance
	groups    []Group
	byPath    map[string]*Group
	rivals    map[string][]Rival // by path of the group
	problems  policy.Problems
}

func (e *expander) problem(pos policy.Pos, hint, format string, args ...any) {
	e.problems = append(e.problems, policy.Problem{Pos: pos, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

// expand makes concrete groups of one level; inst is the instance of the enclosing template.
func (e *expander) expand(groups []*policy.Group, parent string, inst *engine.Instance) {
	for _, g := range groups {
		if g.Each == nil {
			e.group(g, parent, inst)
			continue
		}
		if key := matchkey.NotForEach(g.Each); key != "" {
			e.problem(g.Each.Pos,
				"each takes engine, port, socket, datadir, sid, instance, part, user and except; narrow the "+
					"group with match",
				"each cannot look at %s: it chooses instances, not processes", key)
			continue
		}
		for _, c := range e.elect(g) {
			e.group(g, parent, c.instance)
			if made := e.byPath[c.path(parent)]; made != nil {
				for _, r := range c.rivals {
					e.rivals[made.Path] = append(e.rivals[made.Path], Rival{r, r.Apart(*c.instance)})
				}
			}
		}
	}
}

// candidate is an instance that a template makes a group for, with those that would make one of the same
// name and get none.
type candidate struct {
	instance *engine.Instance
	name     string
	rivals   []engine.Instance
}

func (c candidate) path(parent string) string { return strings.TrimPrefix(parent+"/"+c.name, "/") }

// elect gives the instances that a template is for, one for each name. Of several, the one that is seen
// listening has it, else the one that was started first: a second server that claims the same port, by
// mistake or to do harm, must neither take the group nor keep the policy from holding.
func (e *expander) elect(g *policy.Group) []candidate {
	var all []candidate
	for i := range e.instances {
		inst := &e.instances[i]
		if !chosen(g.Each, inst) {
			continue
		}
		name, missing := substitute(g.Name, inst, nameText)
		same := slices.IndexFunc(all, func(c candidate) bool { return c.name == name })
		switch {
		case missing != "" || same < 0:
			all = append(all, candidate{instance: inst, name: name})
		case better(inst, all[same].instance):
			all[same].rivals = append(all[same].rivals, *all[same].instance)
			all[same].instance = inst
		default:
			all[same].rivals = append(all[same].rivals, *inst)
		}
	}
	return all
}

// better says which of two instances of one name has it.
func better(a, b *engine.Instance) bool {
	if a.Seen != b.Seen {
		return a.Seen
	}
	return cmp.Or(cmp.Compare(a.Main.Start, b.Main.Start), cmp.Compare(a.Main.PID, b.Main.PID)) < 0
}

// group makes one concrete group with its children.
func (e *expander) group(g *policy.Group, parent string, inst *engine.Instance) {
	name, missing := substitute(g.Name, inst, nameText)
	if missing != "" {
		e.missing(g.Pos, fmt.Sprintf("name %q", g.Name), missing, inst)
		return
	}
	full := strings.TrimPrefix(parent+"/"+name, "/")
	if why := policy.ReservedName(name); why != "" {
		e.problem(g.Pos, "choose another name", "name %q of %s: %s", g.Name, inst, why)
		return
	}
	if !validName.MatchString(name) {
		e.problem(g.Pos, `a name starts with a letter or digit and goes on with letters, digits, "_", "." or "-"`,
			"name %q of %s gives %q, which is no group name", g.Name, inst, name)
		return
	}
	made := Group{
		Path: full, Parent: parent, Role: g.Role, Class: g.Class, Pos: g.Pos,
		Settings: g.Settings, Inner: len(g.Groups) > 0, FromUnit: g.FromUnit, Adopt: g.Adopt, Slice: g.Slice,
		Owner: slices.Clone(g.Owner), Model: g.Model, Written: g.Path,
	}
	if g.SLO != nil {
		made.SLO = new(*g.SLO)
		if made.SLO.DSN, missing = substitute(g.SLO.DSN, inst, plainText); missing != "" {
			e.missing(g.SLO.Pos, "slo.dsn of group "+strconv.Quote(full), missing, inst)
			made.SLO = nil
		}
	}
	if inst != nil {
		made.Instance = inst.String()
	}
	if other, taken := e.byPath[full]; taken {
		e.collision(&made, other)
		return
	}
	e.rules(&made, g, inst)
	e.groups = append(e.groups, made)
	e.byPath[full] = &made
	e.expand(g.Groups, full, inst)
}

// collision reports two groups of one name.
func (e *expander) collision(g, other *Group) {
	what := func(g *Group) string {
		if g.Instance != "" {
			return "the template's for " + g.Instance
		}
		return "the one"
	}
	e.problems = append(e.problems, policy.Problem{
		Pos: g.Pos,
		Msg: fmt.Sprintf("two groups are called %q: %s at %s, and %s at %s", g.Path, what(other), other.Pos, what(g),
			g.Pos),
		Hint: "rename one; in a template's name {instance} tells instances apart, and {datadir} those of one port",
		Also: []policy.Pos{other.Pos},
	})
}

// rules makes the rules of a group. A template's group claims its instance's own processes first.
func (e *expander) rules(made *Group, g *policy.Group, inst *engine.Instance) {
	add := func(m policy.Match) {
		m, missing := substituteMatch(m, inst)
		if missing != "" {
			e.missing(m.Pos, "a match of group "+strconv.Quote(made.Path), missing, inst)
			return
		}
		c, err := compile(m, inst)
		if err != nil {
			e.problem(m.Pos, "", "%v", err)
			return
		}
		made.Rules = append(made.Rules, Rule{
			Group: made.Path, Index: len(made.Rules), Match: c.match, Text: matchkey.Text(&c.match), compiled: c,
		})
	}
	if g.Each != nil {
		add(policy.Match{Engine: inst.Engine, Part: g.Each.Part, Pos: g.Each.Pos})
	}
	for _, m := range g.Match {
		add(m)
	}
}

// missing reports a placeholder that an instance has no value for, unless it will have one soon.
func (e *expander) missing(pos policy.Pos, where, placeholder string, inst *engine.Instance) {
	switch {
	case inst == nil:
		e.problem(pos, "placeholders are for templates: give the group an `each`", "%s uses {%s} outside of a template",
			where, placeholder)
	case inst.Listening():
		e.problem(pos, "{instance} is there for every instance", "%s uses {%s}, and %s has none", where, placeholder,
			inst)
	}
}

// checkParts reports parts that no process can have, in templates without an instance too.
func (e *expander) checkParts(groups []*policy.Group) {
	for _, g := range groups {
		if g.Each != nil {
			e.checkPart(*g.Each, "")
		}
		for _, m := range g.Match {
			e.checkPart(m, "")
		}
		e.checkParts(g.Groups)
	}
}

func (e *expander) checkPart(m policy.Match, outer string) {
	kind := cmp.Or(m.Engine, outer)
	if strings.Contains(kind, "{") {
		kind = ""
	}
	if parts := recognise.Parts(kind); m.Part != "" && len(parts) > 0 && !slices.Contains(parts, m.Part) {
		e.problem(m.Pos, "the parts are "+strings.Join(parts, ", "), "%s has no part %q",
			cmp.Or(kind, "no engine here"), m.Part)
	}
	for _, x := range m.Except {
		e.checkPart(x, kind)
	}
}

// chosen says whether a template is for an instance.
func chosen(each *policy.Match, inst *engine.Instance) bool {
	if !inst.Matches(*each) || each.User != "" && each.User != inst.User {
		return false
	}
	return !slices.ContainsFunc(each.Except, func(x policy.Match) bool { return chosen(&x, inst) })
}

// bind ties a match inside a template to the template's instance when it asks for an engine, a part or a helper
// and says nothing about which instance.
func bind(m policy.Match, inst *engine.Instance) (policy.Match, bool) {
	if inst == nil || m.Engine == "" && m.Part == "" && m.Helper == "" || names(m) ||
		m.Engine != "" && m.Engine != inst.Engine && m.Engine != inst.Flavor {
		return m, false
	}
	m.Engine = cmp.Or(m.Engine, inst.Engine)
	switch {
	case inst.SID != "":
		m.SID = inst.SID
	case inst.Port != 0:
		m.Port = strconv.Itoa(inst.Port)
	case inst.Socket != "":
		m.Socket = inst.Socket
	case inst.DataDir != "":
		m.DataDir = inst.DataDir
	default:
		m.Instance = inst.Name()
	}
	return m, true
}

// names says whether a match names one instance.
func names(m policy.Match) bool {
	return m.Port != "" || m.Socket != "" || m.DataDir != "" || m.SID != "" || m.Instance != ""
}

var (
	validName   = regexp.MustCompile(`^[a-z0-9A-Z][a-zA-Z0-9_.-]*$`)
	badInName   = regexp.MustCompile(`[^a-zA-Z0-9_.-]+`)
	placeholder = regexp.MustCompile(`\{(port|socket|datadir|sid|engine|instance|user)\}`)
	globMeta    = regexp.MustCompile(`[*?\[\\]`)
)

// The ways in which a placeholder's value is put into a text.
func plainText(v string) string { return v }
func nameText(v string) string  { return strings.Trim(badInName.ReplaceAllString(v, "-"), "-") }
func globText(v string) string  { return globMeta.ReplaceAllString(v, `\$0`) }

// substitute fills in the placeholders of a text. missing is one that has no value.
func substitute(s string, inst *engine.Instance, quote func(string) string) (filled, missing string) {
	if !strings.Contains(s, "{") {
		return s, ""
	}
	var values map[string]string
	if inst != nil {
		values = inst.Placeholders()
	}
	filled = placeholder.ReplaceAllStringFunc(s, func(p string) string {
		name := strings.Trim(p, "{}")
		if values[name] == "" {
			missing = name
		}
		return quote(values[name])
	})
	return filled, missing
}

// substituteMatch fills in the placeholders of a match, of its exceptions too. A value stands for itself
// wherever it is put: it is quoted in expressions and globs.
func substituteMatch(m policy.Match, inst *engine.Instance) (filled policy.Match, missing string) {
	fill := func(s *string, quote func(string) string) {
		text, none := substitute(*s, inst, quote)
		*s, missing = text, cmp.Or(missing, none)
	}
	for _, s := range []*string{&m.Engine, &m.Port, &m.Socket, &m.DataDir, &m.SID, &m.Instance, &m.Part, &m.User,
		&m.UnixGroup, &m.Env, &m.Program} {
		fill(s, plainText)
	}
	for _, s := range []*string{&m.Exe, &m.Unit, &m.Cgroup, &m.Ancestor} {
		fill(s, globText)
	}
	fill(&m.Cmdline, regexp.QuoteMeta)
	m.Except = slices.Clone(m.Except)
	for i := range m.Except {
		var none string
		m.Except[i], none = substituteMatch(m.Except[i], inst)
		missing = cmp.Or(missing, none)
	}
	return m, missing
}

// sortProblems puts problems in file order and drops repeats: a template says the same for each instance.
func sortProblems(ps policy.Problems) policy.Problems {
	slices.SortStableFunc(ps, func(a, b policy.Problem) int {
		return cmp.Or(comparePos(a.Pos, b.Pos), cmp.Compare(a.Msg, b.Msg))
	})
	return slices.CompactFunc(ps, func(a, b policy.Problem) bool { return a.Pos == b.Pos && a.Msg == b.Msg })
}

func comparePos(a, b policy.Pos) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

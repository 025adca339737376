package scenario

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// What a scenario may ask of a run: it is a proof of minutes, not a load test of days.
const (
	maxRounds  = 100
	maxSeconds = 3600
	maxList    = 100
)

// Parse reads a scenario. The error is policy.Problems, each with its place in the file.
func Parse(s policy.Source) (*Scenario, error) {
	into := &Scenario{Digest: fmt.Sprintf("%.6x", sha256.Sum256([]byte(s.Text))), Rounds: 3, Seconds: 6,
		Settle: 2 * time.Second, Policies: map[string]Template{}, Peers: map[string]Peer{}}
	r := &reader{s: into, at: map[string]yamlform.Item{}}
	err := yamlform.ReadForm(s, "a scenario", r.whole(), into, r.check)
	if err != nil {
		return nil, hidePasswords(err)
	}
	return into, nil
}

// passwords are those of URLs. One that was written without being escaped goes up to the last @ of its word.
var passwords = regexp.MustCompile(`(://[^:/@\s]*:)(\S*)(@)`)

// hidePasswords takes them out of what problems quote, letter by letter, so that carets still point.
func hidePasswords(err error) error {
	hide := func(text string) string {
		return passwords.ReplaceAllStringFunc(text, func(s string) string {
			m := passwords.FindStringSubmatch(s)
			return m[1] + strings.Repeat("x", utf8.RuneCountInString(m[2])) + m[3]
		})
	}
	var problems policy.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for i, p := range problems {
		problems[i].Source, problems[i].Msg, problems[i].Hint = hide(p.Source), hide(p.Msg), hide(p.Hint)
	}
	return problems
}

// reader reads one file.
type reader struct {
	s    *Scenario
	uses []use                    // of names, which may stand before what they name
	at   map[string]yamlform.Item // of policies, by name
}

// use is a name in the file that must be known.
type use struct {
	item yamlform.Item
	kind string // "database", "neighbour", …
	name string
}

// word is how everything is named that expressions speak of: they know no hyphen.
var word = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]*$`)

// keys that read one kind of value; get says where it goes.

func text[T any](name string, get func(*T) *string) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		if t, ok := i.Text(); ok {
			*get(into) = strings.TrimSpace(t)
		}
	}}
}

func oneOf[T any](name string, get func(*T) *string, words ...string) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) { *get(into), _ = i.Word(words...) }}
}

func flag[T any](name string, get func(*T) *bool) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) { *get(into), _ = i.Flag() }}
}

func whole[T any](name string, most int64, get func(*T) *int) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		if n, ok := i.Number(name, 1, most); ok {
			*get(into) = int(n)
		}
	}}
}

// expression reads arithmetic over the machine and the scale.
func expression[T any](r *reader, name string, get func(*T) *Expression) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		if e, ok := r.expression(i); ok {
			*get(into) = e
			for _, n := range e.Names() {
				r.uses = append(r.uses, use{i, "quantity", n})
			}
		}
	}}
}

func (r *reader) expression(i yamlform.Item) (Expression, bool) {
	t, ok := i.Text()
	if !ok {
		return Expression{}, false
	}
	e, err := ParseExpression(strings.TrimSpace(t))
	if err != nil {
		i.Fail(`write arithmetic such as "max(16, 8*cpus)"`, "%s: %v", i.Name(), err)
		return Expression{}, false
	}
	return e, true
}

// refers reads a name of something else in the file.
func refers[T any](r *reader, name, kind string, get func(*T) *string) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		if t, ok := i.Text(); ok {
			*get(into) = t
			r.uses = append(r.uses, use{i, kind, t})
		}
	}}
}

// texts reads a list of texts; kind is what they name, or "".
func texts[T any](r *reader, name, kind string, get func(*T) *[]string) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		list := []string{}
		for _, item := range i.Items("write a list: [a, b]") {
			if t, ok := item.Text(); ok {
				list = append(list, t)
				if kind != "" {
					r.uses = append(r.uses, use{item, kind, t})
				}
			}
		}
		*get(into) = list
	}}
}

// named reads a block of the writer's own names, each one T.
func named[S, T any](name string, form yamlform.Form[T], put func(into *S, name string, t T)) yamlform.FormKey[S] {
	return yamlform.FormKey[S]{Name: name, Read: func(i yamlform.Item, into *S) {
		all := i.Named()
		if len(all) > maxList {
			i.Fail("", "%s: %d entries, more than %d", name, len(all), maxList)
			return
		}
		for _, n := range all {
			var t T
			if !word.MatchString(n.Name) {
				n.Item.Fail("use letters, digits and _: expressions speak of it", "%q is no name for an entry of %s",
					n.Name, name)
				continue
			}
			form.Read(n.Item, "", &t)
			put(into, n.Name, t)
		}
	}}
}

// listed reads a list of Ts.
func listed[S, T any](name string, form yamlform.Form[T], put func(into *S, t T)) yamlform.FormKey[S] {
	return yamlform.FormKey[S]{Name: name, Read: func(i yamlform.Item, into *S) {
		all := i.Items("write a list, each entry with a - before it")
		if len(all) > maxList {
			i.Fail("", "%s: %d entries, more than %d", name, len(all), maxList)
			return
		}
		for _, item := range all {
			var t T
			form.Read(item, "", &t)
			put(into, t)
		}
	}}
}

func (r *reader) whole() yamlform.Form[Scenario] {
	return yamlform.Form[Scenario]{Name: "the scenario", Keys: []yamlform.FormKey[Scenario]{
		{Name: "version", Read: func(i yamlform.Item, _ *Scenario) {
			if n, ok := i.Number("the version", 0, 1<<31); ok && n != 1 {
				i.Fail("this bulkhead reads version 1", "version %d is not known", n)
			}
		}},
		{Name: "name", Read: func(i yamlform.Item, s *Scenario) {
			t, ok := i.Text()
			if s.Name = t; ok && !Name(t) {
				i.Fail("use small letters, digits and -", "%q is no name for a scenario", t)
			}
		}},
		text("title", func(s *Scenario) *string { return &s.Title }),
		text("document", func(s *Scenario) *string { return &s.Document }),
		text("reports", func(s *Scenario) *string { return &s.Reports }),
		{Name: "mechanism", Read: func(i yamlform.Item, s *Scenario) { mechanism().Read(i, "", &s.Mechanism) }},
		whole("rounds", maxRounds, func(s *Scenario) *int { return &s.Rounds }),
		whole("seconds", maxSeconds, func(s *Scenario) *int { return &s.Seconds }),
		{Name: "scale", Read: r.scale},
		{Name: "needs", Read: func(i yamlform.Item, s *Scenario) { r.needs().Read(i, "", &s.Needs) }},
		flag("wire", func(s *Scenario) *bool { return &s.Wire }),
		expression(r, "swap", func(s *Scenario) *Expression { return &s.Swap }),
		flag("long", func(s *Scenario) *bool { return &s.Long }),
		{Name: "matrix", Read: func(i yamlform.Item, s *Scenario) {
			s.Matrix = new(Matrix)
			r.matrix().Read(i, "", s.Matrix)
		}},
		named("databases", r.database(),
			func(s *Scenario, name string, d Database) { d.Name = name; s.Databases = append(s.Databases, d) }),
		named("loads", r.load(), func(s *Scenario, name string,
			l Load) {
			l.Name = name
			s.Loads = append(s.Loads, l)
		}),
		named("neighbours", r.neighbour(),
			func(s *Scenario, name string, n Neighbour) { n.Name = name; s.Neighbours = append(s.Neighbours, n) }),
		{Name: "policies", Read: r.policies},
		named("peers", r.peer(), func(s *Scenario, name string, p Peer) { s.Peers[name] = p }),
		named("arms", r.arm(), func(s *Scenario, name string, a Arm) { a.Name = name; s.Arms = append(s.Arms, a) }),
		refers(r, "control", "arm", func(s *Scenario) *string { return &s.Control }),
		listed("shape", r.shape(), func(s *Scenario, x Shape) { s.Shape = append(s.Shape, x) }),
	}}
}

// scenarioName is how a scenario is called on the command line, and how files of its results begin.
var scenarioName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,40}$`)

// verbs are words that bulkhead bench itself knows.
var verbs = []string{"all", "list", "compare", "document", "hog", "forward", "exporter", "guard"}

// Name says whether a word can be the name of a scenario.
func Name(s string) bool {
	return scenarioName.MatchString(s) && !slices.Contains(verbs, s)
}

// scale reads the quantities; one may use those above it.
func (r *reader) scale(i yamlform.Item, s *Scenario) {
	for _, n := range i.Named() {
		if !word.MatchString(n.Name) || machineQuantity(n.Name) {
			n.Item.Fail("use letters, digits and _, and not the name of a quantity of the machine",
				"%q is no name for a quantity", n.Name)
			continue
		}
		q := Quantity{Name: n.Name}
		yamlform.Form[Quantity]{Name: "a quantity", Keys: []yamlform.FormKey[Quantity]{
			{Name: "is", Read: func(i yamlform.Item, q *Quantity) {
				e, ok := r.expression(i)
				if q.Formula = e; !ok {
					return
				}
				for _, used := range e.Names() {
					if !machineQuantity(used) && !r.hasQuantity(used) {
						i.Fail("of the machine there are "+strings.Join(machineQuantities,
							", ")+"; a quantity may use those above it", "quantity %q is not known here", used)
					}
				}
			}},
			text("unit", func(q *Quantity) *string { return &q.Unit }),
			text("document", func(q *Quantity) *string { return &q.Why }),
		}}.Read(n.Item, "", &q)
		if q.Formula.Empty() && !n.Item.Has("is") {
			n.Item.Fail(`write {is: "2*cpus"}`, "quantity %q has no formula", n.Name)
		}
		s.Scale = append(s.Scale, q)
	}
}

func (r *reader) hasQuantity(name string) bool {
	for _, q := range r.s.Scale {
		if q.Name == name {
			return true
		}
	}
	return false
}

func (r *reader) needs() yamlform.Form[Needs] {
	return yamlform.Form[Needs]{Name: "needs", Keys: []yamlform.FormKey[Needs]{
		whole("cpus", 4096, func(n *Needs) *int { return &n.CPUs }),
		whole("numa", 1024, func(n *Needs) *int { return &n.NUMA }),
		expression(r, "memory", func(n *Needs) *Expression { return &n.Memory }),
		expression(r, "disk", func(n *Needs) *Expression { return &n.Disk }),
		texts(r, "packages", "", func(n *Needs) *[]string { return &n.Packages }),
		texts(r, "programs", "", func(n *Needs) *[]string { return &n.Programs }),
		flag("swap", func(n *Needs) *bool { return &n.Swap }),
		flag("apart", func(n *Needs) *bool { return &n.Apart }),
	}}
}

func (r *reader) database() yamlform.Form[Database] {
	return yamlform.Form[Database]{Name: "a database", Keys: []yamlform.FormKey[Database]{
		{Name: "engine", Read: func(i yamlform.Item, d *Database) {
			if word, ok := i.Word(slices.Concat(engines, Releases())...); ok {
				*d = d.OfEngine(word)
			}
		}},
		text("dsn", func(d *Database) *string { return &d.DSN }),
		expression(r, "buffer", func(d *Database) *Expression { return &d.Buffer }),
		text("group", func(d *Database) *string { return &d.Group }),
		{Name: "options", Read: func(i yamlform.Item, d *Database) {
			for _, item := range i.Items("write a list: [a, b]") {
				if t, ok := r.template(item); ok {
					d.Options = append(d.Options, t.Text)
				}
			}
		}},
	}}
}

func (r *reader) load() yamlform.Form[Load] {
	return yamlform.Form[Load]{Name: "a load", Keys: []yamlform.FormKey[Load]{
		oneOf("program", func(l *Load) *string { return &l.Program }, Programs()...),
		refers(r, "on", "database", func(l *Load) *string { return &l.On }),
		text("script", func(l *Load) *string { return &l.Script }),
		expression(r, "threads", func(l *Load) *Expression { return &l.Threads }),
		expression(r, "tables", func(l *Load) *Expression { return &l.Tables }),
		expression(r, "rows", func(l *Load) *Expression { return &l.Rows }),
		expression(r, "rate", func(l *Load) *Expression { return &l.Rate }),
		text("group", func(l *Load) *string { return &l.Group }),
		texts(r, "options", "", func(l *Load) *[]string { return &l.Options }),
		flag("remote", func(l *Load) *bool { return &l.Remote }),
		text("block", func(l *Load) *string { return &l.Block }),
		expression(r, "size", func(l *Load) *Expression { return &l.Size }),
		expression(r, "jobs", func(l *Load) *Expression { return &l.Jobs }),
		expression(r, "depth", func(l *Load) *Expression { return &l.Depth }),
		flag("buffered", func(l *Load) *bool { return &l.Buffered }),
		oneOf("flow", func(l *Load) *string { return &l.Flow }, "out", "in"),
	}}
}

func (r *reader) neighbour() yamlform.Form[Neighbour] {
	return yamlform.Form[Neighbour]{Name: "a neighbour", Keys: []yamlform.FormKey[Neighbour]{
		oneOf("kind", func(n *Neighbour) *string { return &n.Kind }, "cpu", "memory", "disk", "backup", "query",
			"exporter"),
		refers(r, "on", "database", func(n *Neighbour) *string { return &n.On }),
		expression(r, "count", func(n *Neighbour) *Expression { return &n.Count }),
		{Name: "session", Read: func(i yamlform.Item, n *Neighbour) {
			w,
				_ := i.Word("own", "shared")
			n.Shared = w == "shared"
		}},
		expression(r, "bytes", func(n *Neighbour) *Expression { return &n.Bytes }),
		expression(r, "rate", func(n *Neighbour) *Expression { return &n.Rate }),
		expression(r, "block", func(n *Neighbour) *Expression { return &n.Block }),
		flag("random", func(n *Neighbour) *bool { return &n.Random }),
		flag("buffered", func(n *Neighbour) *bool { return &n.Buffered }),
		flag("mortal", func(n *Neighbour) *bool { return &n.Mortal }),
		text("sql", func(n *Neighbour) *string { return &n.SQL }),
		oneOf("program", func(n *Neighbour) *string { return &n.Program }, Exporters()...),
		expression(r, "every", func(n *Neighbour) *Expression { return &n.Every }),
		text("group", func(n *Neighbour) *string { return &n.Group }),
	}}
}

func (r *reader) arm() yamlform.Form[Arm] {
	phase := yamlform.Form[Phase]{Name: "a phase", Keys: []yamlform.FormKey[Phase]{
		text("name", func(p *Phase) *string { return &p.Name }),
		expression(r, "share", func(p *Phase) *Expression { return &p.Share }),
		refers(r, "policy", "policy or none", func(p *Phase) *string { return &p.Policy }),
	}}
	setting := yamlform.Form[Setting]{Name: "a setting", Keys: []yamlform.FormKey[Setting]{
		refers(r, "on", "database", func(s *Setting) *string { return &s.On }),
		text("set", func(s *Setting) *string { return &s.Set }),
		text("back", func(s *Setting) *string { return &s.Back }),
	}}
	return yamlform.Form[Arm]{Name: "an arm", Keys: []yamlform.FormKey[Arm]{
		text("text", func(a *Arm) *string { return &a.Text }),
		texts(r, "with", "neighbour", func(a *Arm) *[]string { return &a.With }),
		texts(r, "loads", "load", func(a *Arm) *[]string { return &a.Loads }),
		texts(r, "outside", "load", func(a *Arm) *[]string { return &a.Outside }),
		flag("agent", func(a *Arm) *bool { return &a.Agent }),
		refers(r, "policy", "policy", func(a *Arm) *string { return &a.Policy }),
		refers(r, "peer", "peer", func(a *Arm) *string { return &a.Peer }),
		listed("phases", phase, func(a *Arm, p Phase) { a.Phases = append(a.Phases, p) }),
		texts(r, "restart", "database", func(a *Arm) *[]string { return &a.Restart }),
		refers(r, "dies", "database", func(a *Arm) *string { return &a.Dies }),
		listed("settings", setting, func(a *Arm, s Setting) { a.Settings = append(a.Settings, s) }),
	}}
}

func (r *reader) peer() yamlform.Form[Peer] {
	return yamlform.Form[Peer]{Name: "a peer", Keys: []yamlform.FormKey[Peer]{
		text("text", func(p *Peer) *string { return &p.Text }),
		{Name: "groups", Read: func(i yamlform.Item, p *Peer) {
			for _, n := range i.Named() {
				g := PeerGroup{Name: n.Name}
				for _, set := range n.Item.Named() {
					if v, ok := r.template(set.Item); ok {
						g.Set = append(g.Set, Assignment{set.Name, v})
					}
				}
				p.Groups = append(p.Groups, g)
			}
		}},
		r.commands("commands", func(p *Peer) *[]Template { return &p.Commands }),
		r.commands("undo", func(p *Peer) *[]Template { return &p.Undo }),
	}}
}

// commands reads a list of commands of iproute2, the only programs that a peer may start by itself.
func (r *reader) commands(name string, get func(*Peer) *[]Template) yamlform.FormKey[Peer] {
	return yamlform.FormKey[Peer]{Name: name, Read: func(i yamlform.Item, p *Peer) {
		for _, item := range i.Items(`write a list: ["tc qdisc add …", …]`) {
			t, ok := r.template(item)
			if !ok {
				continue
			}
			if program, _, _ := strings.Cut(t.Text, " "); program != "tc" && program != "ip" {
				item.Fail("write a command of tc or ip: it works on the run's own wire", "%q is neither tc nor ip",
					program)
				continue
			}
			*get(p) = append(*get(p), t)
		}
	}}
}

func (r *reader) template(i yamlform.Item) (Template, bool) {
	t, ok := i.Text()
	if !ok {
		return Template{}, false
	}
	tpl, err := ParseTemplate(t)
	if err != nil {
		i.Fail("write ${name} or ${2*cpus}", "%s: %v", i.Name(), err)
		return Template{}, false
	}
	for _, n := range tpl.Names() {
		r.uses = append(r.uses, use{i, "value", n})
	}
	return tpl, true
}

func (r *reader) policies(i yamlform.Item, s *Scenario) {
	for _, n := range i.Named() {
		if tpl, ok := r.template(n.Item); ok {
			s.Policies[n.Name], r.at[n.Name] = tpl, n.Item
		}
	}
}

func (r *reader) shape() yamlform.Form[Shape] {
	bound := func(name string, get func(*Shape) *Expression) yamlform.FormKey[Shape] {
		return yamlform.FormKey[Shape]{Name: name, Read: func(i yamlform.Item, into *Shape) {
			if e, ok := r.expression(i); ok {
				*get(into), into.At = e, i.Pos()
				for _, n := range e.Names() {
					r.uses = append(r.uses, use{i, "figure", n})
				}
			}
		}}
	}
	return yamlform.Form[Shape]{Name: "a shape", Keys: []yamlform.FormKey[Shape]{
		text("what", func(s *Shape) *string { return &s.What }),
		text("reports", func(s *Shape) *string { return &s.Reports }),
		text("mechanism", func(s *Shape) *string { return &s.By }),
		bound("measure", func(s *Shape) *Expression { return &s.Measure }),
		bound("least", func(s *Shape) *Expression { return &s.Least }),
		bound("most", func(s *Shape) *Expression { return &s.Most }),
		bound("smoke_least", func(s *Shape) *Expression { return &s.Smoke }),
		bound("smoke_most", func(s *Shape) *Expression { return &s.SmokeMax }),
		text("unit", func(s *Shape) *string { return &s.Unit }),
		flag("noise", func(s *Shape) *bool { return &s.Noise }),
		bound("figure", func(s *Shape) *Expression { return &s.Claim.Figure }),
		bound("within", func(s *Shape) *Expression { return &s.Claim.Within }),
		{Name: "direction", Read: func(i yamlform.Item, s *Shape) {
			t, ok := i.Text()
			if s.Claim.Direction = t; ok && t != "more" && t != "less" {
				i.Fail("write more, or less", "%q is no direction", t)
			}
		}},
		expression(r, "beyond", func(s *Shape) *Expression { return &s.Beyond }),
		bound("none", func(s *Shape) *Expression { return &s.Claim.None }),
		text("because", func(s *Shape) *string { return &s.Claim.Because }),
	}}
}

func mechanism() yamlform.Form[Mechanism] {
	return yamlform.Form[Mechanism]{Name: "a mechanism", Keys: []yamlform.FormKey[Mechanism]{
		text("document", func(m *Mechanism) *string { return &m.Document }),
		text("ours", func(m *Mechanism) *string { return &m.Ours }),
		text("why", func(m *Mechanism) *string { return &m.Why }),
	}}
}

// describe is a name with what it should name, for messages.
func (u use) describe() string { return fmt.Sprintf("%s %q is not in this scenario", u.kind, u.name) }

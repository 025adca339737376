package rule

import (
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// File is what one file says.
type File struct {
	Rules   []*Rule
	Silence []Silence
}

// Silence keeps a rule quiet until a day.
type Silence struct {
	Rule, Reason string
	On           string // the disk, mount or instance; "" is all
	Until        string // the last day, "2027-03-31"
	Pos          policy.Pos
}

// Parse reads a file of rules. The area of its rules is the name of the file. The error is policy.Problems, each with
// its place.
func Parse(s policy.Source) (*File, error) {
	into := &File{}
	err := yamlform.ReadForm(s, "a file of rules", whole(), into, func(yamlform.Item) {})
	if err != nil {
		return nil, err
	}
	area := strings.TrimSuffix(s.Path[strings.LastIndex(s.Path, "/")+1:], ".yaml")
	for _, r := range into.Rules {
		r.Area = area
	}
	return into, nil
}

// knownID is the form of a rule's name.
var knownID = regexp.MustCompile(`^[A-Z][A-Z0-9]*-[0-9]+$`)

var day = regexp.MustCompile(`^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$`)

func whole() yamlform.Form[File] {
	return yamlform.Form[File]{Name: "a file of rules", Keys: []yamlform.FormKey[File]{
		{Name: "version", Read: func(i yamlform.Item, _ *File) {
			if n, ok := i.Number("the version", 0, 1<<31); ok && n != 1 {
				i.Fail("this bulkhead reads version 1", "version %d is not known", n)
			}
		}},
		{Name: "rules", Read: func(i yamlform.Item, f *File) {
			for _, item := range i.Items("write a list, each rule with a - before it") {
				r := &Rule{Scope: fact.Host, Pos: item.Pos()}
				if ruleForm().Read(item, "", r) {
					checkRule(item, r)
				}
				f.Rules = append(f.Rules, r)
			}
		}},
		{Name: "silence", Read: func(i yamlform.Item, f *File) {
			for _, item := range i.Items("write a list, each entry with a - before it") {
				s := Silence{Pos: item.Pos()}
				if silenceForm().Read(item, "", &s) && (s.Rule == "" || s.Reason == "" || s.Until == "") {
					item.Fail("say which rule, why, and until which day", "rule, reason and until are needed")
				}
				f.Silence = append(f.Silence, s)
			}
		}},
	}}
}

func silenceForm() yamlform.Form[Silence] {
	return yamlform.Form[Silence]{Name: "an entry of silence", Keys: []yamlform.FormKey[Silence]{
		text("rule", func(s *Silence) *string { return &s.Rule }),
		text("on", func(s *Silence) *string { return &s.On }),
		text("reason", func(s *Silence) *string { return &s.Reason }),
		{Name: "until", Read: func(i yamlform.Item, s *Silence) {
			t, ok := i.Text()
			if s.Until = t; ok && !day.MatchString(t) {
				i.Fail(`write the last day as "2027-03-31"`, "%q is no day", t)
			}
		}},
	}}
}

func ruleForm() yamlform.Form[Rule] {
	return yamlform.Form[Rule]{Name: "a rule", Keys: []yamlform.FormKey[Rule]{
		{Name: "id", Read: func(i yamlform.Item, r *Rule) {
			t, ok := i.Text()
			if r.ID = t; ok && !knownID.MatchString(t) {
				i.Fail("write it as SITE-01", "%q is no name for a rule", t)
			}
		}},
		text("title", func(r *Rule) *string { return &r.Title }),
		{Name: "scope", Read: func(i yamlform.Item, r *Rule) {
			word, _ := i.Word("host", "disk", "mount", "instance")
			r.Scope = fact.Scope(word)
		}},
		word("severity", Severities, func(r *Rule) *string { return &r.Severity }),
		texts("engines", func(r *Rule) *[]string { return &r.Engines }),
		condition("when", func(r *Rule) **Expression { return &r.When }),
		condition("ok", func(r *Rule) **Expression { return &r.OK }),
		text("knob", func(r *Rule) *string { return &r.Knob }),
		{Name: "wanted", Read: func(i yamlform.Item, r *Rule) {
			for _, item := range i.Items("write a list, each engine with a - before it") {
				var w Wanted
				if wantedForm().Read(item, "", &w) && (w.Engine == "" || w.OK == nil || w.Value == "") {
					item.Fail("", "engine, ok and value are needed")
				}
				r.Wanted = append(r.Wanted, w)
			}
		}},
		text("resolve", func(r *Rule) *string { return &r.Resolve }),
		text("want", func(r *Rule) *string { return &r.Want }),
		expression("value", cel.StringType, func(r *Rule) **Expression { return &r.Value }),
		{Name: "change", Read: func(i yamlform.Item, r *Rule) {
			yamlform.Form[Change]{Name: "a change", Keys: []yamlform.FormKey[Change]{
				word("class", classes, func(c *Change) *string { return &c.Class }),
				text("key", func(c *Change) *string { return &c.Key }),
				text("disk", func(c *Change) *string { return &c.Disk }),
			}}.Read(i, "", &r.Change)
		}},
		{Name: "apart", Read: func(i yamlform.Item, r *Rule) {
			a := new(Apart)
			r.Apart = a
			if apartForm().Read(i, "", a) && (a.Key == "" || a.When == nil || a.OK == nil || a.Value == nil) {
				i.Fail("", "key, when, ok and value are needed")
			}
		}},
		{Name: "means", Read: func(i yamlform.Item, r *Rule) {
			t, _ := i.Text()
			r.Means = strings.TrimSpace(t)
			for _, m := range Placeholder.FindAllStringSubmatch(t, -1) {
				if _, known := fact.Find(m[1]); !known {
					i.Fail("`bulkhead advise show` lists the facts of a rule", "there is no fact %q", m[1])
				}
			}
		}},
		text("why", func(r *Rule) *string { return &r.Why }),
		texts("wrong", func(r *Rule) *[]string { return &r.Wrong }),
		text("cost", func(r *Rule) *string { return &r.Cost }),
		text("source", func(r *Rule) *string { return &r.Source }),
		text("checked", func(r *Rule) *string { return &r.Checked }),
	}}
}

func wantedForm() yamlform.Form[Wanted] {
	return yamlform.Form[Wanted]{Name: "what an engine wants", Keys: []yamlform.FormKey[Wanted]{
		text("engine", func(w *Wanted) *string { return &w.Engine }),
		text("from", func(w *Wanted) *string { return &w.From }),
		text("below", func(w *Wanted) *string { return &w.Below }),
		condition("ok", func(w *Wanted) **Expression { return &w.OK }),
		text("value", func(w *Wanted) *string { return &w.Value }),
	}}
}

func apartForm() yamlform.Form[Apart] {
	return yamlform.Form[Apart]{Name: "what a unit has for itself", Keys: []yamlform.FormKey[Apart]{
		text("key", func(a *Apart) *string { return &a.Key }),
		condition("when", func(a *Apart) **Expression { return &a.When }),
		condition("ok", func(a *Apart) **Expression { return &a.OK }),
		expression("value", cel.StringType, func(a *Apart) **Expression { return &a.Value }),
	}}
}

// Placeholder is the value of a fact in a text.
var Placeholder = regexp.MustCompile(`\{([a-z_.]+)\}`)

// checkRule says what a rule lacks, and what does not go together.
func checkRule(i yamlform.Item, r *Rule) {
	if row, known := fact.Find(r.Change.Disk); r.Change.Disk != "" && (!known || row.Scope() != r.Scope) {
		i.Fail("name a fact of what the rule is asked of", "disk %q is no fact of scope %s", r.Change.Disk, r.Scope)
	}
	checkTexts(i, r)
	if (r.OK == nil) == (len(r.Wanted) == 0) {
		i.Fail("ok is for a rule that is the same for all, wanted for one that depends on the engine",
			"one of ok and wanted is needed, and not both")
	}
	if len(r.Wanted) > 0 {
		if _, known := fact.Find(r.Knob); !known || !strings.HasPrefix(r.Knob, "host.") {
			i.Fail("name the fact of the host that wanted is about", "knob %q is no fact of the host", r.Knob)
		}
		r.Scope = fact.Instance
	}
	if r.Apart != nil && len(r.Wanted) == 0 {
		i.Fail("", "apart is for a rule with wanted")
	}
	for _, name := range append(r.Reads(), r.Apart.Reads()...) {
		row, known := fact.Find(name)
		if known && row.Scope() != fact.Host && row.Scope() != r.Scope {
			i.Fail("a rule reads facts of the host and of its own scope", "%s is not a fact of scope %s", name, r.Scope)
		}
	}
	if len(r.Engines) > 0 && r.Scope != fact.Instance {
		i.Fail("", "engines is for rules of scope instance")
	}
}

// checkTexts says which texts of a rule are missing, and which facts its text cannot speak of.
func checkTexts(i yamlform.Item, r *Rule) {
	for _, need := range []struct{ name, is string }{{"id", r.ID}, {"title", r.Title}, {"severity", r.Severity},
		{"means", r.Means}, {"why", r.Why}, {"source", r.Source}, {"checked", r.Checked}, {"change", r.Change.Class}} {
		if need.is == "" {
			i.Fail("", "%s is needed", need.name)
		}
	}
	for _, m := range Placeholder.FindAllStringSubmatch(r.Means, -1) {
		if row, _ := fact.Find(m[1]); row.Scope() != fact.Host && row.Scope() != r.Scope {
			i.Fail("", "means speaks of %s, which is not a fact of scope %s", m[1], r.Scope)
		}
	}
}

func text[T any](name string, get func(*T) *string) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		if t, ok := i.Text(); ok {
			*get(into) = strings.TrimSpace(t)
		}
	}}
}

func word[T any](name string, known []string, get func(*T) *string) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) { *get(into), _ = i.Word(known...) }}
}

func texts[T any](name string, get func(*T) *[]string) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		for _, item := range i.Items("write a list: [a, b]") {
			if t, ok := item.Text(); ok {
				*get(into) = append(*get(into), strings.TrimSpace(t))
			}
		}
		*get(into) = slices.Clip(*get(into))
	}}
}

// condition reads an expression that says yes or no.
func condition[T any](name string, get func(*T) **Expression) yamlform.FormKey[T] {
	return expression(name, cel.BoolType, get)
}

// expression reads an expression and compiles it.
func expression[T any](name string, gives *cel.Type, get func(*T) **Expression) yamlform.FormKey[T] {
	return yamlform.FormKey[T]{Name: name, Read: func(i yamlform.Item, into *T) {
		t, ok := i.Text()
		if !ok {
			return
		}
		e, err := compile(strings.TrimSpace(t), gives)
		if err != nil {
			i.Fail("`bulkhead advise show` names the facts that rules read", "%s: %v", i.Name(), err)
			return
		}
		*get(into) = e
	}}
}

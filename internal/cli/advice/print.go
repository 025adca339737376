package advice

import (
	"cmp"
	"io"
	"strings"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/cli/render"
)

// printReport prints findings, what could not be decided, and with quiet what is kept.
func printReport(out io.Writer, r *advise.Report, quiet bool) {
	for _, f := range r.Findings {
		render.Printf(out, "%s  %s  %s\n", strings.ToUpper(f.Severity), f.Rule, f.Title)
		printOn(out, f.On)
		render.Printf(out, "  means   %s\n", f.Means)
		evidence(out, "  read    ", f.Evidence)
		render.Printf(out, "  change  %s\n", changeOf(f.Change))
		if f.Change.Cost != "" {
			render.Printf(out, "  cost    %s\n", f.Change.Cost)
		}
		for _, l := range f.Losers {
			render.Printf(out, "  loses   %s, which wants %s\n", l.Instance, l.Wants)
		}
		render.Println(out)
	}
	if len(r.Undecided) > 0 {
		render.Println(out, "NOT DECIDED, because a fact is missing")
		for _, u := range r.Undecided {
			printUndecided(out, "  ", u)
		}
		render.Println(out)
	}
	for _, n := range r.Notes {
		render.Printf(out, "note: %s\n", n)
	}
	for _, s := range r.Silenced {
		render.Printf(out, "silenced until %s: %s %s: %s\n", s.Until, s.Rule, render.ListOr(s.On, "the host"), s.Reason)
	}
	if quiet {
		render.Println(out, "KEPT")
		for _, p := range r.Passed {
			render.Printf(out, "  %s  not so: %s\n", p.Rule, p.Title)
			evidence(out, "          ", p.Evidence)
		}
		render.Println(out)
	}
	render.Printf(out, "%s; %d rules kept, %d not decided, %d for what is not on this host\n",
		render.Count(len(r.Findings), "finding", "findings"), len(r.Passed), len(r.Undecided), r.Apart)
	if len(r.Findings) > 0 {
		render.Println(out, "`bulkhead advise show RULE` says why, and when the advice is wrong")
	}
}

// printUndecided says which facts a rule lacks.
func printUndecided(out io.Writer, before string, u advise.Undecided) {
	for _, m := range u.Missing {
		render.Printf(out, "%s%s  %s%s: %s\n", before, u.Rule, onWhat(u.On), m.Fact, m.Reason)
	}
}

func printOn(out io.Writer, names []string) {
	if len(names) > 0 {
		render.Printf(out, "  on      %s\n", strings.Join(names, ", "))
	}
}

func onWhat(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.Join(names, ", ") + ": "
}

func evidence(out io.Writer, lead string, list []advise.Evidence) {
	for _, e := range list {
		render.Printf(out, "%s%s = %s (%s)\n", lead, e.Fact, e.Value, e.From)
	}
}

// changeOf says a change in one line.
func changeOf(c advise.Change) string {
	value := func(text string) string {
		if c.Value == "" {
			return text
		}
		return text + " = " + c.Value
	}
	switch c.Class {
	case rule.ClassSysctl:
		return value("sysctl " + c.Key)
	case rule.ClassQueue:
		if c.Disk != "" {
			return value("queue/" + c.Key + " of the disk " + c.Disk)
		}
		return value("queue/" + c.Key + " of the disk")
	case rule.ClassCmdline:
		if c.Value == "" {
			return "take " + c.Key + "= off the kernel command line"
		}
		return "add " + c.Value + " to the kernel command line"
	case rule.ClassMount:
		if c.Value == "" {
			return "in /etc/fstab: " + c.Key
		}
		return "option of the mount: " + c.Key
	case rule.ClassUnit:
		return value(c.Key) + " in " + cmp.Or(c.Unit, "the service that runs it")
	case rule.ClassEngine:
		return value("setting of the engine " + c.Key)
	case rule.ClassAdvice:
		return "no setting, but a decision of yours"
	}
	return value(c.Key)
}

// ruleLine is a rule in JSON, in a list.
type ruleLine struct {
	ID       string `json:"id"`
	Area     string `json:"area"`
	Severity string `json:"severity"`
	Scope    string `json:"scope"`
	Title    string `json:"title"`
}

// listOf is the list of rules for JSON.
func listOf(s *rule.Set) []ruleLine {
	list := []ruleLine{}
	for _, r := range s.Rules {
		list = append(list, lineOf(r))
	}
	return list
}

func lineOf(r *rule.Rule) ruleLine {
	return ruleLine{r.ID, r.Area, r.Severity, string(r.Scope), r.Title}
}

// printRules lists rules.
func printRules(out io.Writer, s *rule.Set) {
	const line = "%-8s %-11s %-8s  %s\n"
	render.Printf(out, line, "RULE", "AREA", "SEVERITY", "FOUND WHEN")
	for _, r := range s.Rules {
		render.Printf(out, line, r.ID, r.Area, r.Severity, r.Title)
	}
	render.Println(out)
	render.Println(out, "`bulkhead advise show RULE` says what one reads and wants, why, and when it is wrong")
}

// ruleJSON is a rule in JSON.
type ruleJSON struct {
	ruleLine
	Engines []string     `json:"engines"`
	When    string       `json:"when,omitempty"`
	OK      string       `json:"ok,omitempty"`
	Wanted  []wantedJSON `json:"wanted"`
	Apart   *apartJSON   `json:"apart,omitempty"`
	Reads   []factJSON   `json:"reads"`
	Class   string       `json:"class"`
	Key     string       `json:"key"`
	Value   string       `json:"value,omitempty"`
	Means   string       `json:"means"`
	Why     string       `json:"why"`
	Wrong   []string     `json:"wrong"`
	Cost    string       `json:"cost,omitempty"`
	Source  string       `json:"source"`
	Checked string       `json:"checked"`
}

type wantedJSON struct {
	Engine string `json:"engine"`
	From   string `json:"from,omitempty"`
	Below  string `json:"below,omitempty"`
	OK     string `json:"ok"`
	Value  string `json:"value"`
}

// apartJSON is what a unit can have for itself.
type apartJSON struct {
	Key   string `json:"key"`
	When  string `json:"when"`
	OK    string `json:"ok"`
	Value string `json:"value"`
}

type factJSON struct {
	Fact   string `json:"fact"`
	Doc    string `json:"doc"`
	Source string `json:"source"`
}

// ruleOf is a rule for JSON.
func ruleOf(r *rule.Rule) ruleJSON {
	v := ruleJSON{ruleLine: lineOf(r), Engines: render.OrEmpty(r.Engines), Wanted: []wantedJSON{}, Reads: []factJSON{},
		Class: r.Change.Class, Key: r.Change.Key, Value: r.Want, Means: r.Means, Why: r.Why,
		Wrong: render.OrEmpty(r.Wrong),
		Cost:  r.Cost, Source: r.Source, Checked: r.Checked}
	if r.When != nil {
		v.When = r.When.Text
	}
	if r.OK != nil {
		v.OK = r.OK.Text
	}
	for _, w := range r.Wanted {
		v.Wanted = append(v.Wanted, wantedJSON{w.Engine, w.From, w.Below, w.OK.Text, w.Value})
	}
	if a := r.Apart; a != nil {
		v.Apart = &apartJSON{a.Key, a.When.Text, a.OK.Text, a.Value.Text}
	}
	for _, name := range append(r.Reads(), r.Apart.Reads()...) {
		row, _ := fact.Find(name)
		v.Reads = append(v.Reads, factJSON{name, row.Doc, row.Source})
	}
	return v
}

// printRule prints all of a rule.
func printRule(out io.Writer, v ruleJSON) {
	render.Printf(out, "%s  %s\n\n", v.ID, v.Title)
	render.Printf(out, "severity  %s\n", v.Severity)
	render.Printf(out, "asked of  %s\n", map[string]string{"host": "the host", "disk": "each disk",
		"mount":    "each mount",
		"instance": "each instance"}[v.Scope])
	if len(v.Engines) > 0 {
		render.Printf(out, "engines   %s\n", strings.Join(v.Engines, ", "))
	}
	if v.When != "" {
		render.Printf(out, "applies   %s\n", v.When)
	}
	if v.OK != "" {
		render.Printf(out, "kept      %s\n", v.OK)
	}
	for _, w := range v.Wanted {
		name := w.Engine
		if w.From != "" {
			name += " from " + w.From
		}
		if w.Below != "" {
			name += " below " + w.Below
		}
		render.Printf(out, "kept      %s: %s; else %s is wanted\n", name, w.OK, w.Value)
	}
	if a := v.Apart; a != nil {
		render.Printf(out, "apart     %s of its unit where %s; kept %s; else %s\n", a.Key, a.When, a.OK, a.Value)
	}
	render.Println(out, "reads")
	for _, f := range v.Reads {
		render.Printf(out, "  %s: %s (%s)\n", f.Fact, f.Doc, f.Source)
	}
	render.Printf(out, "change    %s\n", changeOf(advise.Change{Class: v.Class, Key: v.Key, Value: v.Value}))
	if v.Cost != "" {
		render.Printf(out, "cost      %s\n", v.Cost)
	}
	render.Printf(out, "why       %s\n", v.Why)
	for _, w := range v.Wrong {
		render.Printf(out, "wrong if  %s\n", w)
	}
	read := " (read " + v.Checked + ")"
	if v.Checked == "-" {
		read = ""
	}
	render.Printf(out, "source    %s%s\n", v.Source, read)
}

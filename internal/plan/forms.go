package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/linux/tunable/service"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitfiles"
)

// Render prints a plan for people: the steps by group, each with its number in the order of execution,
// then what is not enforced, what to know, what is refused, and what CPU each group can count on.
func Render(p Plan, o RenderOptions) string {
	r := renderer{plan: p, options: o}
	if len(p.Steps) == 0 && len(p.Refusals) == 0 {
		r.line("nothing to do: the host already is as the policy says")
	} else if len(p.Steps) > 0 {
		r.changes()
	}
	if o.Form == FormLong || o.Form == FormBrief {
		r.notes("void: asked for, and without effect", func(n Note) bool { return n.Void })
		r.notes("not enforced on this host", Note.Broken)
		r.notes("warnings: with this the host may be worse off than without a policy",
			func(n Note) bool { return n.Harm })
		r.notes("notes", func(n Note) bool { return !n.Void && !n.Broken() && !n.Harm })
	}
	r.refusals()
	if o.Form == FormLong || o.Form == FormBrief {
		r.shares()
	}
	return r.b.String()
}

// changes prints the steps in the form that is asked for.
func (r *renderer) changes() {
	switch r.options.Form {
	case FormDiff:
		r.diff()
		return
	case FormSummary:
		r.line("%s", r.total())
		r.summary()
		return
	case FormBrief:
		r.line("%s; `--long` shows each", r.total())
	default:
		r.line("%s; the numbers give the order", r.total())
	}
	groups, byGroup := r.byGroup()
	for _, group := range groups {
		r.heading(r.groupTitle(group))
		steps := byGroup[group]
		if r.options.Form == FormBrief {
			r.brief(steps)
			continue
		}
		for len(steps) > 0 {
			n := r.run(steps)
			r.step(steps[:n])
			steps = steps[n:]
		}
	}
}

// briefLine is one line about a group.
type briefLine struct{ what, change, why string }

// brief prints what changes of one group.
func (r *renderer) brief(steps []int) {
	lines := r.briefLines(steps)
	what, change := 0, 0
	for _, l := range lines {
		what = max(what, utf8.RuneCountInString(l.what))
		if n := utf8.RuneCountInString(l.change); n <= widestChange {
			change = max(change, n)
		}
	}
	for _, l := range lines {
		r.line("  %-*s  %-*s  %s", what, l.what, change, l.change, l.why)
	}
}

// widestChange is up to what width a value before and after has a column.
const widestChange = 40

// briefLines are those of one group: what several steps do for the same reason is one line.
func (r *renderer) briefLines(steps []int) (lines []briefLine) {
	type same struct{ op, why, text string }
	counts, moved := map[same]int{}, map[same][]string{}
	seen := map[procfs.ID]bool{}
	var order []same
	count := func(s Step, text string) same {
		id := same{flat.Op(s.Change), s.Reason, text}
		if counts[id] == 0 {
			order = append(order, id)
		}
		counts[id]++
		return id
	}
	for _, i := range steps {
		switch s := r.plan.Steps[i]; {
		case s.Moves() && seen[s.PID()]:
		case s.Moves():
			id := count(s, "")
			seen[s.PID()], moved[id] = true, append(moved[id], s.Name)
		case s.Kind == procfs.KindScore:
			count(s, s.New)
		case s.Kind == cgroup.KindDir:
			count(s, "")
		default:
			count(s, r.briefChange(s))
			lines = append(lines, r.risks(s)...)
		}
	}
	risks := lines
	lines = nil
	for _, id := range order {
		n := counts[id]
		switch id.op {
		case "mkdir":
			lines = append(lines, briefLine{"directories", fmt.Sprintf("%d made", n), id.why})
		case "rmdir":
			lines = append(lines, briefLine{"directories", fmt.Sprintf("%d removed", n), id.why})
		case "move":
			lines = append(lines, briefLine{"processes", fmt.Sprintf("%d moved (%s)", n, commands(moved[id])), id.why})
		case string(procfs.KindScore):
			text := fmt.Sprintf("%s -> %s", policy.Counted(n, "process"), id.text)
			lines = append(lines, briefLine{"oom_score_adj", text, source(id.why)})
		default:
			what, text, _ := strings.Cut(id.text, "\t")
			lines = append(lines, briefLine{what, text, source(id.why)})
		}
	}
	return append(lines, risks...)
}

// source is the reason of a value without the setting that it begins with.
func source(reason string) string {
	_, from, _ := strings.Cut(reason, ", ")
	return cmp.Or(from, reason)
}

// risks are what there is to know of a step before it is done.
func (r *renderer) risks(s Step) (lines []briefLine) {
	add := func(text string) { lines = append(lines, briefLine{"  " + r.briefName(s), text, ""}) }
	if s.Risk != knob.RiskNone {
		add("risk: " + string(s.Risk))
	}
	if s.Reclaim != nil && s.Risk != knob.RiskSlow {
		add(s.Reclaim.String())
	}
	if s.Final != "" {
		add("cannot be wholly undone: " + s.Final)
	}
	return lines
}

// briefName is what a step changes, in a word.
func (r *renderer) briefName(s Step) string {
	switch op := flat.Op(s.Change); op {
	case "write", "set":
		return cmp.Or(string(s.Setting), s.File().Name, string(s.Kind))
	default:
		return op
	}
}

// briefChange is what a step changes, a tab, and its value before and after.
func (r *renderer) briefChange(s Step) string {
	text := cmp.Or(s.Old, "none") + " -> " + cmp.Or(s.New, "none")
	switch file, is := cgroup.NamedFile(s.Target); {
	case s.Kind == cgroup.KindOwner:
		text = file.Name
	case is:
		text, _, _ = strings.Cut(r.change(s), " (\"")
	case s.Kind == unitfiles.KindOverrides, s.Kind == unitfiles.KindDropIn:
		text = s.Addr
	case s.Kind == request.Kind:
		text = s.New
	case s.Kind == service.KindLimit:
		text = service.Unit(s.Target) + ", its running process: " + text
	case s.Kind == mounted.KindListed:
		text = mounted.Point(s.Target) + ", at boot: " + text
	case s.Kind == mounted.KindMounted:
		text = mounted.Point(s.Target) + ", as it is mounted: " + text
	case s.Kind == sepolicy.KindLabels:
		text = s.Addr + ": " + sepolicy.Human(s.Old) + " -> " + sepolicy.Human(s.New)
	case s.Kind == tunable.KindBootFile:
		text = s.Addr + ": " + tunable.Human(s.Old) + " -> " + tunable.Human(s.New)
	default:
		text = s.Addr + ": " + text
	}
	return r.briefName(s) + "\t" + strings.ReplaceAll(text, "\n", ", ")
}

// commands names the programs of processes, those of most processes first.
func commands(all []string) string {
	counts := map[string]int{}
	var names []string
	for _, comm := range all {
		if counts[comm]++; counts[comm] == 1 {
			names = append(names, comm)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return counts[b] - counts[a] })
	const most = 3
	if len(names) > most {
		names = append(names[:most], "…")
	}
	return strings.Join(names, ", ")
}

// summary prints how much changes of each group.
func (r *renderer) summary() {
	groups, byGroup := r.byGroup()
	var table [][]string
	for _, group := range groups {
		counts, moved := map[string]int{}, map[procfs.ID]bool{}
		for _, i := range byGroup[group] {
			switch s := r.plan.Steps[i]; {
			case s.Moves():
				moved[s.PID()] = true
			case s.Makes():
				counts["new"]++
			case s.Removes():
				counts["removed"]++
			default:
				counts["values"]++
			}
		}
		var words []string
		for _, word := range []string{"new", "removed"} {
			if counts[word] > 0 {
				words = append(words, word)
			}
		}
		if n := counts["values"]; n > 0 {
			words = append(words, policy.Counted(n, "value"))
		}
		if n := len(moved); n > 0 {
			words = append(words, policy.Counted(n, "process")+" moved")
		}
		table = append(table, []string{r.groupTitle(group), strings.Join(words, ", ")})
	}
	r.columns(table, 2)
}

package policy

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"bulkhead/internal/calendar"
)

// Schedule is settings that hold while a window is open.
type Schedule struct {
	Name    string
	Windows calendar.Windows
	Zone    string // as written; "" is the host's own
	Set     []Scheduled
	Pos     Pos

	whenPos, lengthPos, setPos Pos
}

// Scheduled is what a schedule asks for a group.
type Scheduled struct {
	Group    string // path, as an instance of a template has it
	Settings Settings
	Pos      Pos
}

// Open gives the schedules whose windows are open at a time, in file order. Where two ask for the same of a group, the later one decides.
func (p *Policy) Open(at time.Time) []Schedule {
	var open []Schedule
	for _, s := range p.Schedules {
		if _, _, is := s.Windows.Open(at); is {
			open = append(open, s)
		}
	}
	return open
}

// NextSwitch is when a window opens or closes next after a time; ok is false when none does within years.
func (p *Policy) NextSwitch(after time.Time) (at time.Time, ok bool) {
	for _, s := range p.Schedules {
		next, found := s.Next(after)
		if found && (!ok || next.Before(at)) {
			at, ok = next, true
		}
	}
	return at, ok
}

// Next is when a window of the schedule opens or closes next after a time.
func (s Schedule) Next(after time.Time) (at time.Time, ok bool) {
	at, ok = s.Windows.Next(after)
	if _, until, open := s.Windows.Open(after); open && (!ok || until.Before(at)) {
		return until, true
	}
	return at, ok
}

// schedules reads `schedules:`.
func (w *walker) schedules(v value, o object[Schedule]) []Schedule {
	var all []Schedule
	for _, item := range w.items(v, "write a list: `schedules: [{name: nightly, when: \"0 22 * * *\", for: 6h, set: {…}}]`") {
		s := Schedule{Pos: w.at(item.Node)}
		if !o.read(w, item, "schedules.", &s) {
			continue
		}
		missing := ""
		switch {
		case s.Name == "":
			missing = "name: nightly"
		case s.Windows.When == (calendar.Cron{}):
			missing = "when: \"0 22 * * *\""
		case s.Windows.Length == 0:
			missing = "for: 6h"
		case len(s.Set) == 0 && s.setPos == (Pos{}):
			missing = "set: {GROUP: {cpu: {limit: 4}}}"
		}
		if missing != "" {
			w.fail(item.Node, "add `"+missing+"`", "this schedule is not whole")
			continue
		}
		if before := slices.IndexFunc(all, func(o Schedule) bool { return o.Name == s.Name }); before >= 0 {
			w.fail(item.Node, "give one of them another name", "schedule %q is defined twice", s.Name)
			w.also(all[before].Pos)
			continue
		}
		if first, second, overlap := s.Windows.Overlap(); overlap {
			const clock = "Mon 2 Jan 15:04"
			w.problems = append(w.problems, Problem{
				Pos: s.lengthPos, Source: w.lines.of(s.lengthPos), Also: []Pos{s.whenPos}, Hint: "shorten `for`, or let windows begin more seldom",
				Msg: fmt.Sprintf("schedule %s: a window is longer than its period: the one of %s would still be open when the next begins, %s", s.Name, first.Format(clock), second.Format(clock)),
			})
			continue
		}
		all = append(all, s)
	}
	return all
}

// scheduleObject is one schedule.
func scheduleObject() object[Schedule] {
	set := scheduledObject()
	return object[Schedule]{
		name:      "a schedule",
		elsewhere: map[string]string{"cron": "did you mean when?", "length": "did you mean for?", "groups": "did you mean set?"},
		fields: []field[Schedule]{
			{
				name: "name", doc: "What it is called in status and history.", schema: schema{"type": "string", "pattern": namePattern},
				read: func(w *walker, v value, s *Schedule) {
					if name, ok := w.text(v); ok && !validName(name) {
						w.fail(v.Node, nameHint, "%q is not a name", name)
					} else {
						s.Name = name
					}
				},
			},
			whenField(),
			{
				name: "zone", doc: "Time zone of when, by its IANA name; the host's own unless named.", schema: schema{"type": "string", "examples": []any{"Europe/Vienna"}},
				read: func(w *walker, v value, s *Schedule) {
					text, ok := w.text(v)
					if !ok {
						return
					}
					s.Zone = text
					if _, err := calendar.LoadZone(text); err != nil {
						w.fail(v.Node, "write the name of a zone, such as Europe/Vienna or UTC", "schedules.zone: there is no time zone %q", text)
					}
				},
			},
			lengthField(),
			{
				name: "except", doc: "Days on which no window opens: dates, dates of every year, days of the week.",
				schema: listOf(schema{"type": "string", "examples": []any{"2026-12-24", "12-24", "sun"}}),
				read: func(w *walker, v value, s *Schedule) {
					const hint = "write a list of days: [2026-12-24, 12-31, sun]"
					for _, item := range w.items(v, hint) {
						text, ok := w.text(item)
						if !ok {
							continue
						}
						day, err := calendar.ParseDay(text)
						if err != nil {
							w.fail(item.Node, hint, "schedules.except: %v", err)
						}
						s.Windows.Except = append(s.Windows.Except, day)
					}
				},
			},
			{
				name: "set", doc: "What holds while a window is open, by group.", schema: mapOf(groupPathPattern, set.schema()),
				read: func(w *walker, v value, s *Schedule) {
					s.setPos = w.at(v.Node)
					s.Set = w.scheduled(v, set)
				},
			},
		},
	}
}

// whenField is when windows open.
func whenField() field[Schedule] {
	return field[Schedule]{
		name: "when", doc: "When windows open: minute, hour, day of the month, month and day of the week, as in crontab(5).",
		schema: schema{"type": "string", "examples": []any{"0 22 28-31 * *"}},
		read: func(w *walker, v value, s *Schedule) {
			s.whenPos = w.at(v.Node)
			text, ok := w.text(v)
			if !ok {
				return
			}
			var err error
			if s.Windows.When, err = calendar.ParseCron(text); err != nil {
				w.fail(v.Node, "write minute, hour, day of the month, month and day of the week: \"0 22 28-31 * *\"", "schedules.when: %v", err)
			}
		},
	}
}

// lengthField is how long they stay open.
func lengthField() field[Schedule] {
	return field[Schedule]{
		name: "for", doc: "How long a window stays open: 90m, 6h.", schema: schema{"type": "string", "examples": []any{"6h"}},
		read: func(w *walker, v value, s *Schedule) {
			s.lengthPos = w.at(v.Node)
			text, ok := w.text(v)
			if !ok {
				return
			}
			length, err := time.ParseDuration(text)
			switch {
			case err != nil:
				w.fail(v.Node, "write hours and minutes: 6h, 90m, 1h30m", "schedules.for: %q is not a length of time", text)
			case length < time.Minute || length%time.Minute != 0 || length > calendar.MaxLength:
				w.fail(v.Node, "write hours and minutes: 6h, 90m, 1h30m", "schedules.for: %s is not a number of minutes between one and those of a year", text)
			default:
				s.Windows.Length = length
			}
		},
	}
}

// schedulesSchema is the schema of one schedule.
func schedulesSchema(o object[Schedule]) schema {
	s := o.schema()
	s["required"] = []any{"name", "when", "for", "set"}
	return s
}

// groupPathPattern is the path of a group.
const groupPathPattern = `^[a-z0-9A-Z][a-zA-Z0-9_.-]*(/[a-z0-9A-Z][a-zA-Z0-9_.-]*)*$`

var groupPathRegexp = regexp.MustCompile(groupPathPattern)

// scheduled reads `set:` of a schedule.
func (w *walker) scheduled(v value, o object[Scheduled]) []Scheduled {
	var all []Scheduled
	for _, e := range w.entries(v, "") {
		s := Scheduled{Group: e.key.Value, Pos: w.at(e.key)}
		if !groupPathRegexp.MatchString(s.Group) {
			w.fail(e.key, "write it as `bulkhead status` prints it: mysql3306 or mysql3306/backup", "%q is not the name of a group", s.Group)
			continue
		}
		o.read(w, e.value, "", &s)
		s.Settings = s.Settings.settle("schedule")
		if len(s.Settings) == 0 && e.value.Kind != 0 && len(e.value.Content) == 0 {
			w.fail(e.key, "write what is to hold: {cpu: {limit: 4}}", "the schedule asks nothing of group %s", s.Group)
		}
		all = append(all, s)
	}
	return all
}

// scheduledObject is what a schedule may ask of a group: every limit, and nothing of what makes a group.
func scheduledObject() object[Scheduled] {
	const ofGroup = "this belongs to the group itself: a schedule changes limits alone"
	o := object[Scheduled]{
		name:      "what a schedule sets",
		elsewhere: map[string]string{"role": ofGroup, "match": ofGroup, "each": ofGroup, "groups": ofGroup, "class": ofGroup, "slice": ofGroup, "owner": ofGroup, "adopt": ofGroup},
	}
	for _, f := range settingFields(func(s *Scheduled) (*Settings, *Role) { return &s.Settings, new(Role) }) {
		if f.name != "role" {
			o.fields = append(o.fields, f)
		}
	}
	return o
}

// settleSchedules finishes the schedules of a policy: their zones, and who asks; and finds those that are for no group.
func settleSchedules(schedules []Schedule, groups []*Group) ([]Schedule, Problems) {
	var problems Problems
	known, patterns := groupPaths(groups)
	for i := range schedules {
		s := &schedules[i]
		s.Windows.Zone, _ = calendar.LoadZone(s.Zone) // read when it was checked
		for j := range s.Set {
			set := &s.Set[j]
			for k := range set.Settings {
				set.Settings[k].From = "schedule " + s.Name
			}
			if p := unknownGroup(set.Group, "schedule "+s.Name, set.Pos, known, patterns); p != nil {
				problems = append(problems, *p)
			}
		}
	}
	return schedules, problems
}

// groupPaths lists the paths of groups, and patterns for those that templates make.
func groupPaths(groups []*Group) (known []string, patterns []*regexp.Regexp) {
	for _, g := range groups {
		if braces.MatchString(g.Path) {
			text, last := "", 0
			for _, at := range placeholder.FindAllStringIndex(g.Path, -1) {
				text += regexp.QuoteMeta(g.Path[last:at[0]]) + `[a-zA-Z0-9_.-]+`
				last = at[1]
			}
			if p, err := regexp.Compile("^" + text + regexp.QuoteMeta(g.Path[last:]) + "$"); err == nil {
				patterns = append(patterns, p)
			}
		}
		known = append(known, g.Path)
		below, more := groupPaths(g.Groups)
		known, patterns = append(known, below...), append(patterns, more...)
	}
	return known, patterns
}

// schedules fits the settings of schedules to the host, and looks for what can never work while a window is open.
func (r *resolution) schedules(p *Policy, host HostPart, all []Limits) []Schedule {
	var out []Schedule
	for _, s := range p.Schedules {
		s.Set = slices.Clone(s.Set)
		laid := slices.Clone(all)
		for i, set := range s.Set {
			set.Settings = r.settings(set.Settings, set.Group)
			s.Set[i] = set
			for j := range laid {
				if laid[j].Group != set.Group {
					continue
				}
				for _, one := range set.Settings {
					if p := Overlaps(set.Group, laid[j].Settings, one); p != nil {
						p.Hint = "name the target as the group does"
						r.problems = append(r.problems, *p)
					}
				}
				laid[j].Settings = set.Settings.Over(laid[j].Settings)
			}
		}
		r.check(host, laid)
		out = append(out, s)
	}
	return out
}

// Asked is what a policy asks of a group while these windows are open.
func (p *Policy) Asked(group string, key Key, on string, open []Schedule) (s Setting, ok bool) {
	var walk func(groups []*Group)
	walk = func(groups []*Group) {
		for _, g := range groups {
			if g.Path == group {
				s, ok = g.Settings.Get(key, on)
			}
			walk(g.Groups)
		}
	}
	walk(p.Groups)
	for _, window := range open {
		for _, set := range window.Set {
			if one, asks := set.Settings.Get(key, on); asks && set.Group == group {
				s, ok = one, true
			}
		}
	}
	return s, ok
}

// Switch is a window that opens or closes.
type Switch struct {
	At       time.Time
	Schedule string
	Opens    bool
}

// Switches lists every switch after a time and up to another one, in order; of one moment what closes comes first.
func (p *Policy) Switches(after, to time.Time) []Switch {
	var all []Switch
	for _, s := range p.Schedules {
		_, _, open := s.Windows.Open(after)
		for at, ok := s.Next(after); ok && !at.After(to); at, ok = s.Next(at) {
			_, _, now := s.Windows.Open(at)
			if now != open { // else one closes as the next opens
				all = append(all, Switch{at, s.Name, now})
			}
			open = now
		}
	}
	slices.SortStableFunc(all, func(a, b Switch) int {
		switch {
		case a.Opens == b.Opens || !a.At.Equal(b.At):
			return a.At.Compare(b.At)
		case a.Opens:
			return 1
		}
		return -1
	})
	return all
}

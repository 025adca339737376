package policy

import (
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
func readSchedules(v Item, o Form[Schedule]) []Schedule {
	items := v.Items("write a list: `schedules: [{name: nightly, when: \"0 22 * * *\", for: 6h, set: {…}}]`")
	if len(items) > maxSchedules {
		items[maxSchedules].Fail("one schedule can set limits of many groups", "a policy has at most %d schedules", maxSchedules)
		return nil
	}
	var all []Schedule
	seen := map[string]Pos{}
	disjoint := map[string]bool{} // Overlap takes milliseconds, and many schedules share their times
	for _, item := range items {
		s := Schedule{Pos: item.Pos()}
		if !o.Read(item, "schedules.", &s) {
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
			item.Fail("add `"+missing+"`", "this schedule is not whole")
			continue
		}
		if before, twice := seen[s.Name]; twice {
			item.Fail("give one of them another name", "schedule %q is defined twice", s.Name)
			item.Also(before)
			continue
		}
		seen[s.Name] = s.Pos
		times := s.Windows.When.String() + " " + s.Windows.Length.String()
		if disjoint[times] {
			all = append(all, s)
			continue
		}
		if first, second, overlap := s.Windows.Overlap(); overlap {
			const clock = "Mon 2 Jan 15:04"
			item.FailAt(s.lengthPos, "shorten `for`, or let windows begin more seldom",
				"schedule %s: a window is longer than its period: the one of %s would still be open when the next begins, %s", s.Name, first.Format(clock), second.Format(clock))
			item.Also(s.whenPos)
			continue
		}
		disjoint[times] = true
		all = append(all, s)
	}
	return all
}

// scheduleForm is one schedule.
func scheduleForm() Form[Schedule] {
	set := scheduledForm()
	return Form[Schedule]{
		Name:      "a schedule",
		Elsewhere: map[string]string{"cron": "did you mean when?", "length": "did you mean for?", "groups": "did you mean set?"},
		Keys: []FormKey[Schedule]{
			{
				Name: "name", Doc: "What it is called in status and history.", Schema: JSONSchema{"type": "string", "pattern": namePattern},
				Read: func(v Item, s *Schedule) {
					if name, ok := v.Text(); ok && !validName(name) {
						v.Fail(nameHint, "%q is not a name", name)
					} else {
						s.Name = name
					}
				},
			},
			whenField(),
			{
				Name: "zone", Doc: "Time zone of when, by its IANA name; the host's own unless named.", Schema: JSONSchema{"type": "string", "examples": []any{"Europe/Vienna"}},
				Read: func(v Item, s *Schedule) {
					text, ok := v.Text()
					if !ok {
						return
					}
					s.Zone = text
					if _, err := calendar.LoadZone(text); err != nil {
						v.Fail("write the name of a zone, such as Europe/Vienna or UTC", "schedules.zone: there is no time zone %q", text)
					}
				},
			},
			lengthField(),
			{
				Name: "except", Doc: "Days on which no window opens: dates, dates of every year, days of the week.",
				Schema: listOf(JSONSchema{"type": "string", "examples": []any{"2026-12-24", "12-24", "sun"}}),
				Read: func(v Item, s *Schedule) {
					const hint = "write a list of days: [2026-12-24, 12-31, sun]"
					for _, item := range v.Items(hint) {
						text, ok := item.Text()
						if !ok {
							continue
						}
						day, err := calendar.ParseDay(text)
						if err != nil {
							item.Fail(hint, "schedules.except: %v", err)
						}
						s.Windows.Except = append(s.Windows.Except, day)
					}
				},
			},
			{
				Name: "set", Doc: "What holds while a window is open, by group.", Schema: mapOf(groupPathPattern, set.Schema()),
				Read: func(v Item, s *Schedule) {
					s.setPos = v.Pos()
					s.Set = readScheduled(v, set)
				},
			},
		},
	}
}

// whenField is when windows open.
func whenField() FormKey[Schedule] {
	return FormKey[Schedule]{
		Name: "when", Doc: "When windows open: minute, hour, day of the month, month and day of the week, as in crontab(5).",
		Schema: JSONSchema{"type": "string", "examples": []any{"0 22 28-31 * *"}},
		Read: func(v Item, s *Schedule) {
			s.whenPos = v.Pos()
			text, ok := v.Text()
			if !ok {
				return
			}
			var err error
			if s.Windows.When, err = calendar.ParseCron(text); err != nil {
				v.Fail("write minute, hour, day of the month, month and day of the week: \"0 22 28-31 * *\"", "schedules.when: %v", err)
			}
		},
	}
}

// lengthField is how long they stay open.
func lengthField() FormKey[Schedule] {
	return FormKey[Schedule]{
		Name: "for", Doc: "How long a window stays open: 90m, 6h.", Schema: JSONSchema{"type": "string", "examples": []any{"6h"}},
		Read: func(v Item, s *Schedule) {
			s.lengthPos = v.Pos()
			text, ok := v.Text()
			if !ok {
				return
			}
			length, err := time.ParseDuration(text)
			switch {
			case err != nil:
				v.Fail("write hours and minutes: 6h, 90m, 1h30m", "schedules.for: %q is not a length of time", text)
			case length < time.Minute || length%time.Minute != 0 || length > calendar.MaxLength:
				v.Fail("write hours and minutes: 6h, 90m, 1h30m", "schedules.for: %s is not a number of minutes between one and those of a year", text)
			default:
				s.Windows.Length = length
			}
		},
	}
}

// schedulesSchema is the schema of one schedule.
func schedulesSchema(o Form[Schedule]) JSONSchema {
	s := o.Schema()
	s["required"] = []any{"name", "when", "for", "set"}
	return s
}

// groupPathPattern is the path of a group.
const groupPathPattern = `^[a-z0-9A-Z][a-zA-Z0-9_.-]*(/[a-z0-9A-Z][a-zA-Z0-9_.-]*)*$`

var groupPathRegexp = regexp.MustCompile(groupPathPattern)

// scheduled reads `set:` of a schedule.
func readScheduled(v Item, o Form[Scheduled]) []Scheduled {
	var all []Scheduled
	for _, e := range v.Entries("") {
		s := Scheduled{Group: e.Name, Pos: e.Key.Pos()}
		if !groupPathRegexp.MatchString(s.Group) {
			e.Key.Fail("write it as `bulkhead status` prints it: mysql3306 or mysql3306/backup", "%q is not the name of a group", s.Group)
			continue
		}
		o.Read(e.Item, "", &s)
		s.Settings = s.Settings.settle("schedule")
		if len(s.Settings) == 0 && e.Item.Len() == 0 {
			e.Key.Fail("write what is to hold: {cpu: {limit: 4}}", "the schedule asks nothing of group %s", s.Group)
		}
		all = append(all, s)
	}
	return all
}

// scheduledForm is what a schedule may ask of a group: every limit, and nothing of what makes a group.
func scheduledForm() Form[Scheduled] {
	const ofGroup = "this belongs to the group itself: a schedule changes limits alone"
	o := Form[Scheduled]{
		Name:      "what a schedule sets",
		Elsewhere: map[string]string{"role": ofGroup, "match": ofGroup, "each": ofGroup, "groups": ofGroup, "class": ofGroup, "slice": ofGroup, "owner": ofGroup, "adopt": ofGroup},
	}
	for _, f := range settingFields(func(s *Scheduled) (*Settings, *Role) { return &s.Settings, new(Role) }) {
		if f.Name != "role" {
			o.Keys = append(o.Keys, f)
		}
	}
	return o
}

// settleSchedules finishes the schedules of a policy: their zones, and who asks; and finds those that are for no group.
func settleSchedules(schedules []Schedule, groups []*Group, r *Report) []Schedule {
	paths := newPaths(groups)
	for i := range schedules {
		s := &schedules[i]
		s.Windows.Zone, _ = calendar.LoadZone(s.Zone) // read when it was checked
		for j := range s.Set {
			set := &s.Set[j]
			for k := range set.Settings {
				set.Settings[k].From = "schedule " + s.Name
			}
			paths.check(set.Group, "schedule "+s.Name, set.Pos, r)
		}
	}
	return schedules
}

// paths are the paths that groups of a policy can have: those written, and patterns for those that templates make.
type paths struct {
	known    []string
	set      map[string]bool
	patterns []*regexp.Regexp
}

func newPaths(groups []*Group) paths {
	p := paths{set: map[string]bool{}}
	eachGroup(groups, func(g *Group) {
		p.known, p.set[g.Path] = append(p.known, g.Path), true
		if !braces.MatchString(g.Path) {
			return
		}
		text, last := "", 0
		for _, at := range placeholder.FindAllStringIndex(g.Path, -1) {
			text += regexp.QuoteMeta(g.Path[last:at[0]]) + `[a-zA-Z0-9_.-]+`
			last = at[1]
		}
		if re, err := regexp.Compile("^" + text + regexp.QuoteMeta(g.Path[last:]) + "$"); err == nil {
			p.patterns = append(p.patterns, re)
		}
	})
	return p
}

// check reports a name that no group of the policy can have.
func (p paths) check(group, where string, at Pos, r *Report) {
	if p.set[group] || slices.ContainsFunc(p.patterns, func(re *regexp.Regexp) bool { return re.MatchString(group) }) {
		return
	}
	hint := ""
	if !r.Many() {
		hint = didYouMean(group, p.known, "the groups are "+joinSome(p.known))
	}
	r.Fail(at, hint, "%s: there is no group %q", where, group)
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
						r.Add(*p)
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

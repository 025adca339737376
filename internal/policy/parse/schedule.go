package parse

import (
	"regexp"
	"slices"
	"time"

	"bulkhead/internal/calendar"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// maxSchedules is how many schedules one policy may have.
const maxSchedules = 500

// schedules reads `schedules:`.
func readSchedules(v yamlform.Item, o yamlform.Form[policy.Schedule]) []policy.Schedule {
	items := v.Items("write a list: `schedules: [{name: nightly, when: \"0 22 * * *\", for: 6h, set: {…}}]`")
	if len(items) > maxSchedules {
		items[maxSchedules].Fail("one schedule can set limits of many groups", "a policy has at most %d schedules",
			maxSchedules)
		return nil
	}
	var all []policy.Schedule
	seen := map[string]policy.Pos{}
	disjoint := map[string]bool{} // Overlap takes milliseconds, and many schedules share their times
	for _, item := range items {
		s := policy.Schedule{Pos: item.Pos()}
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
		case len(s.Set) == 0 && s.SetPos == (policy.Pos{}):
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
			item.FailAt(s.LengthPos, "shorten `for`, or let windows begin more seldom",
				"schedule %s: a window is longer than its period: the one of %s would still be open when the "+
					"next begins, %s", s.Name, first.Format(clock), second.Format(clock))
			item.Also(s.WhenPos)
			continue
		}
		disjoint[times] = true
		all = append(all, s)
	}
	return all
}

// scheduleForm is one schedule.
func scheduleForm() yamlform.Form[policy.Schedule] {
	set := scheduledForm()
	return yamlform.Form[policy.Schedule]{
		Name: "a schedule",
		Elsewhere: map[string]string{"cron": "did you mean when?", "length": "did you mean for?",
			"groups": "did you mean set?"},
		Keys: []yamlform.FormKey[policy.Schedule]{
			{
				Name: "name", Doc: "What it is called in status and history.",
				Schema: policy.JSONSchema{"type": "string", "pattern": policy.NamePattern},
				Read: func(v yamlform.Item, s *policy.Schedule) {
					if name, ok := v.Text(); ok && !policy.ValidName(name) {
						v.Fail(policy.NameHint, "%q is not a name", name)
					} else {
						s.Name = name
					}
				},
			},
			whenField(),
			{
				Name: "zone", Doc: "Time zone of when, by its IANA name; the host's own unless named.",
				Schema: policy.JSONSchema{"type": "string", "examples": []any{"Europe/Vienna"}},
				Read: func(v yamlform.Item, s *policy.Schedule) {
					text, ok := v.Text()
					if !ok {
						return
					}
					s.Zone = text
					if _, err := calendar.LoadZone(text); err != nil {
						v.Fail("write the name of a zone, such as Europe/Vienna or UTC",
							"schedules.zone: there is no time zone %q", text)
					}
				},
			},
			lengthField(),
			{
				Name: "except", Doc: "Days on which no window opens: dates, dates of every year, days of the week.",
				Schema: yamlform.ListOf(policy.JSONSchema{"type": "string",
					"examples": []any{"2026-12-24", "12-24", "sun"}}),
				Read: func(v yamlform.Item, s *policy.Schedule) {
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
				Name: "set", Doc: "What holds while a window is open, by group.",
				Schema: yamlform.MapOf(policy.GroupPathPattern, set.Schema()),
				Read: func(v yamlform.Item, s *policy.Schedule) {
					s.SetPos = v.Pos()
					s.Set = readScheduled(v, set)
				},
			},
		},
	}
}

// whenField is when windows open.
func whenField() yamlform.FormKey[policy.Schedule] {
	return yamlform.FormKey[policy.Schedule]{
		Name:   "when",
		Doc:    "When windows open: minute, hour, day of the month, month and day of the week, as in crontab(5).",
		Schema: policy.JSONSchema{"type": "string", "examples": []any{"0 22 28-31 * *"}},
		Read: func(v yamlform.Item, s *policy.Schedule) {
			s.WhenPos = v.Pos()
			text, ok := v.Text()
			if !ok {
				return
			}
			var err error
			if s.Windows.When, err = calendar.ParseCron(text); err != nil {
				v.Fail("write minute, hour, day of the month, month and day of the week: \"0 22 28-31 * *\"",
					"schedules.when: %v", err)
			}
		},
	}
}

// lengthField is how long they stay open.
func lengthField() yamlform.FormKey[policy.Schedule] {
	return yamlform.FormKey[policy.Schedule]{
		Name: "for", Doc: "How long a window stays open: 90m, 6h.",
		Schema: policy.JSONSchema{"type": "string", "examples": []any{"6h"}},
		Read: func(v yamlform.Item, s *policy.Schedule) {
			s.LengthPos = v.Pos()
			text, ok := v.Text()
			if !ok {
				return
			}
			length, err := time.ParseDuration(text)
			switch {
			case err != nil:
				v.Fail("write hours and minutes: 6h, 90m, 1h30m", "schedules.for: %q is not a length of time", text)
			case length < time.Minute || length%time.Minute != 0 || length > calendar.MaxLength:
				v.Fail("write hours and minutes: 6h, 90m, 1h30m",
					"schedules.for: %s is not a number of minutes between one and those of a year", text)
			default:
				s.Windows.Length = length
			}
		},
	}
}

// schedulesSchema is the schema of one schedule.
func schedulesSchema(o yamlform.Form[policy.Schedule]) policy.JSONSchema {
	s := o.Schema()
	s["required"] = []any{"name", "when", "for", "set"}
	return s
}

// scheduled reads `set:` of a schedule.
func readScheduled(v yamlform.Item, o yamlform.Form[policy.Scheduled]) []policy.Scheduled {
	var all []policy.Scheduled
	for _, e := range v.Entries("") {
		s := policy.Scheduled{Group: e.Name, Pos: e.Key.Pos()}
		if !policy.GroupPathRegexp.MatchString(s.Group) {
			e.Key.Fail("write it as `bulkhead status` prints it: mysql3306 or mysql3306/backup",
				"%q is not the name of a group", s.Group)
			continue
		}
		o.Read(e.Item, "", &s)
		s.Settings = s.Settings.Settle("schedule")
		if len(s.Settings) == 0 && e.Item.Len() == 0 {
			e.Key.Fail("write what is to hold: {cpu: {limit: 4}}", "the schedule asks nothing of group %s", s.Group)
		}
		all = append(all, s)
	}
	return all
}

// scheduledForm is what a schedule may ask of a group: every limit, and nothing of what makes a group.
func scheduledForm() yamlform.Form[policy.Scheduled] {
	const ofGroup = "this belongs to the group itself: a schedule changes limits alone"
	o := yamlform.Form[policy.Scheduled]{
		Name: "what a schedule sets",
		Elsewhere: map[string]string{"role": ofGroup, "match": ofGroup, "each": ofGroup, "groups": ofGroup,
			"class": ofGroup, "slice": ofGroup, "owner": ofGroup, "adopt": ofGroup},
	}
	for _, f := range settingFields(func(s *policy.Scheduled) (*policy.Settings, *policy.Role) {
		return &s.Settings,
			new(policy.Role)
	}) {
		if f.Name != "role" {
			o.Keys = append(o.Keys, f)
		}
	}
	return o
}

// settleSchedules finishes the schedules of a policy: their zones, and who asks; and finds those that are for no group.
func settleSchedules(schedules []policy.Schedule, groups []*policy.Group, r *yamlform.Report) []policy.Schedule {
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

func newPaths(groups []*policy.Group) paths {
	p := paths{set: map[string]bool{}}
	policy.EachGroup(groups, func(g *policy.Group) {
		p.known, p.set[g.Path] = append(p.known, g.Path), true
		if !policy.Braces.MatchString(g.Path) {
			return
		}
		text, last := "", 0
		for _, at := range policy.Placeholder.FindAllStringIndex(g.Path, -1) {
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
func (p paths) check(group, where string, at policy.Pos, r *yamlform.Report) {
	if p.set[group] || slices.ContainsFunc(p.patterns, func(re *regexp.Regexp) bool { return re.MatchString(group) }) {
		return
	}
	hint := ""
	if !r.Many() {
		hint = yamlform.DidYouMean(group, p.known, "the groups are "+yamlform.JoinSome(p.known))
	}
	r.Fail(at, hint, "%s: there is no group %q", where, group)
}

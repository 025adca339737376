// Package calendar says when the windows of a schedule are open: a cron expression for their beginnings on the wall
// clock of a time zone, a length, and days on which none begins. It is pure: it knows no clock and changes nothing.
//
// A window lasts for its length of real time, whatever the wall clock does meanwhile. When clocks go forward, a
// beginning that the wall clock jumps over comes at the jump. When they go back, a wall-clock time that comes twice
// begins a window once, the first time, unless the expression names every hour (*, */2): such a schedule goes by, hour
// for hour, as cron(8) of Debian does it.
package calendar

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a host need not have the zones

	"github.com/adhocore/gronx"
)

// Cron is when windows begin, as crontab(5) writes it: minute, hour, day of the month, month, day of the week.
type Cron struct {
	text   string
	hourly bool // the hour is no list of hours
}

func (c Cron) String() string { return c.text }

// ParseCron reads five fields. Where the day of the month and that of the week are both given, either is enough
// (crontab(5)). The error says what is wrong with the text.
func ParseCron(text string) (Cron, error) {
	fields := strings.Fields(text)
	switch {
	case len(fields) != 5:
		return Cron{}, fmt.Errorf("%d fields, not minute, hour, day of the month, month and day of the week",
			len(fields))
	case strings.ContainsAny(text,
		"LW#?@"): // what crontab(5) does not know; the L of JUL is written in small letters here
		return Cron{}, errors.New("only numbers, names in small letters and * , - / are known")
	}
	for i, name := range []string{"minute", "hour", "day of the month", "month", "day of the week"} {
		if err := checkField(i, strings.ToUpper(fields[i])); err != nil {
			return Cron{}, fmt.Errorf("the %s %q: %w", name, fields[i], err)
		}
	}
	c := Cron{text: strings.ToUpper(strings.Join(fields, " ")), hourly: strings.HasPrefix(fields[1], "*")}
	if !gronx.IsValid(c.text) {
		return Cron{}, errors.New("this is no cron expression")
	}
	if _, found := c.next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); !found {
		return Cron{}, errors.New("this day never comes")
	}
	c.text = strings.Join(fields, " ")
	return c, nil
}

// bounds are the least and the largest number of each field, and the names that stand for numbers.
var bounds = [5]struct {
	least, most int
	names       []string
}{
	{0, 59, nil}, {0, 23, nil}, {1, 31, nil},
	{1, 12, []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}},
	{0, 7, []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}},
}

// checkField holds one field against crontab(5), which is stricter than the library.
func checkField(i int, field string) error {
	for part := range strings.SplitSeq(field, ",") {
		span, step, stepped := strings.Cut(part, "/")
		if n, err := strconv.Atoi(step); stepped && (err != nil || n < 1 || n > bounds[i].most) {
			return fmt.Errorf("%q is no step", step)
		}
		if span == "*" {
			continue
		}
		from, to, ranged := strings.Cut(span, "-")
		if stepped && !ranged {
			return fmt.Errorf("a step needs * or a range before it, not %q", span)
		}
		low, err := number(i, from)
		if err != nil {
			return err
		}
		if !ranged {
			continue
		}
		high, err := number(i, to)
		if err != nil {
			return err
		}
		if high < low {
			return fmt.Errorf("%q runs backwards", span)
		}
	}
	return nil
}

func number(i int, text string) (int, error) {
	b := bounds[i]
	if at := slices.Index(b.names, text); at >= 0 {
		return at + b.least, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < b.least || n > b.most || len(text) > 2 {
		return 0, fmt.Errorf("%q is not between %d and %d", text, b.least, b.most)
	}
	return n, nil
}

// next is the next beginning at or after a time of a wall clock that never changes. Found is false when none comes for
// years.
func (c Cron) next(wall time.Time) (time.Time, bool) {
	at, err := gronx.NextTickAfter(strings.ToUpper(c.text), wall, true)
	return at, err == nil && !at.Before(wall)
}

// Day is one that is left out: a date, a date of every year, or a day of the week.
type Day struct {
	year, day int // 0: any
	month     time.Month
	weekday   time.Weekday
	weekly    bool
	text      string
}

func (d Day) String() string { return d.text }

// ParseDay reads 2026-12-24, 12-24 or sat.
func ParseDay(text string) (Day, error) {
	if at := slices.Index(bounds[4].names, strings.ToUpper(text)); at >= 0 && strings.ToLower(text) == text {
		return Day{weekday: time.Weekday(at), weekly: true, text: text}, nil
	}
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return Day{year: t.Year(), month: t.Month(), day: t.Day(), text: text}, nil
	}
	if t, err := time.Parse(time.DateOnly, "2000-"+text); err == nil { // a leap year
		return Day{month: t.Month(), day: t.Day(), text: text}, nil
	}
	return Day{}, fmt.Errorf("%q is not a day", text)
}

func (d Day) is(t time.Time) bool {
	if d.weekly {
		return t.Weekday() == d.weekday
	}
	return t.Month() == d.month && t.Day() == d.day && (d.year == 0 || d.year == t.Year())
}

// LoadZone finds a time zone by its IANA name; "" is the host's own.
func LoadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.Local, nil
	}
	if name == "Local" {
		return nil, errors.New("unknown time zone Local")
	}
	return time.LoadLocation(name)
}

// Windows are those of one schedule.
type Windows struct {
	When   Cron
	Zone   *time.Location
	Length time.Duration
	Except []Day // on the wall clock of the zone, at the beginning of a window
}

// MaxLength is the longest that a window may be.
const MaxLength = 366 * 24 * time.Hour

// Overlap finds two windows of which the second would begin, on the wall clock, before the first one ends; ok is false
// when there are none. The days left out do not count: they change from year to year.
func (w Windows) Overlap() (first, second time.Time, ok bool) {
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	end := begin.AddDate(29, 0, 0) // then dates and days of the week come as they came before
	switch f := strings.Fields(w.When.text); {
	case f[2] == "*" && f[3] == "*":
		end = begin.AddDate(0, 0, 14) // every week is like the one before
	case f[4] == "*":
		end = begin.AddDate(5, 0, 0) // a leap year comes every four years
	}
	at, found := w.When.next(begin)
	for range 1500 { // a day of each year, or each minute of a day
		if !found || at.After(end) {
			break
		}
		var next time.Time
		if next, found = w.When.next(at.Add(time.Minute)); found && next.Before(at.Add(w.Length)) {
			return at, next, true
		}
		at = next
	}
	return first, second, false
}

// Open says whether a window is open at a time, since when, and until when.
func (w Windows) Open(at time.Time) (since, until time.Time, open bool) {
	starts := w.starts(at.Add(-w.Length), at)
	if len(starts) == 0 {
		return since, until, false
	}
	since = starts[len(starts)-1]
	until = since.Add(w.Length)
	return since, until, at.Before(until)
}

// horizons are how far the next window is looked for, one after the other: what comes often is found cheaply.
var horizons = []time.Duration{3 * time.Hour, 3 * 24 * time.Hour, 62 * 24 * time.Hour, 2 * 366 * 24 * time.Hour,
	12 * 366 * 24 * time.Hour}

// Next is when the next window begins after a time; ok is false when none does within years.
func (w Windows) Next(after time.Time) (start time.Time, ok bool) {
	from := after
	for _, far := range horizons {
		to := after.Add(far)
		for _, s := range w.starts(from, to) {
			if s.After(after) {
				return s, true
			}
		}
		from = to
	}
	return start, false
}

// aroundJump is how far a wall clock can be off what it says some time before or after: a zone that changed its date by
// a day is the most there was (Pacific/Apia, 2011).
const aroundJump = 26 * time.Hour

// starts are the beginnings of windows from one time to another, both included, in order.
func (w Windows) starts(from, to time.Time) []time.Time {
	first, last := wallOf(from.In(w.Zone)), wallOf(to.In(w.Zone))
	if jumps(from, w.Zone) {
		first = first.Add(-aroundJump)
	}
	if jumps(to, w.Zone) {
		last = last.Add(aroundJump)
	}
	var all []time.Time
	for wall, found := w.When.next(first); found && !wall.After(last); wall,
		found = w.When.next(wall.Add(time.Minute)) {
		for _, t := range w.instants(wall) {
			if !t.Before(from) && !t.After(to) &&
				!slices.ContainsFunc(w.Except, func(d Day) bool { return d.is(wall) }) {
				all = append(all, t)
			}
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return slices.CompactFunc(all, time.Time.Equal)
}

// wallOf is what the clock on the wall shows, to the minute, as a time in UTC; the minute that has begun counts.
func wallOf(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC)
}

// jumps says whether the wall clock of a zone changes near a time.
func jumps(t time.Time, zone *time.Location) bool {
	start, end := t.In(zone).ZoneBounds()
	return !start.IsZero() && t.Sub(start) < aroundJump || !end.IsZero() && end.Sub(t) < aroundJump
}

// instants are the moments at which the wall clock shows a time: one, two when it goes back over it, and the moment of
// the jump when it goes forward over it.
func (w Windows) instants(wall time.Time) []time.Time {
	var all []time.Time
	var before time.Time // as if the clock had not jumped
	for _, near := range []time.Duration{-aroundJump, 0, aroundJump} {
		_, offset := wall.Add(near).In(w.Zone).Zone()
		t := wall.Add(-time.Duration(offset) * time.Second)
		if before.IsZero() {
			before = t
		}
		if wallOf(t.In(w.Zone)).Equal(wall) && !slices.ContainsFunc(all, t.Equal) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	switch {
	case len(all) == 0:
		jump, _ := before.In(w.Zone).ZoneBounds()
		return []time.Time{jump}
	case len(all) > 1 && !w.When.hourly:
		return all[:1]
	}
	return all
}

package calendar

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := LoadZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func cron(t testing.TB, text string) Cron {
	t.Helper()
	c, err := ParseCron(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return c
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestParseCron(t *testing.T) {
	for _, text := range []string{"0 22 28-31 * *", "*/15 8-17 * * mon-fri", "30 2 29 2 *", "0 0 * jan,jul 7",
		"5,10-20/5 * 1 1-12/3 *", " 0  1 * * *  "} {
		if c := cron(t, text); c.String() != strings.Join(strings.Fields(text), " ") {
			t.Errorf("%q is %q", text, c)
		}
	}
	for text, want := range map[string]string{
		"":                "0 fields",
		"* * * *":         "4 fields",
		"0 0 0 * * *":     "6 fields",
		"@daily":          "1 fields",
		"0 0 L * *":       "only numbers",
		"0 0 * * MON#2":   "only numbers",
		"60 0 * * *":      `"60" is not between 0 and 59`,
		"0 24 * * *":      `"24" is not between 0 and 23`,
		"0 0 0 * *":       `"0" is not between 1 and 31`,
		"0 0 * 13 *":      `"13" is not between 1 and 12`,
		"0 0 * * 8":       `"8" is not between 0 and 7`,
		"0 0 * * mun":     `"MUN" is not between`,
		"0 0 * fri *":     `"FRI" is not between`,
		"5-1 0 * * *":     "runs backwards",
		"*/0 * * * *":     `"0" is no step`,
		"*/x * * * *":     `"X" is no step`,
		"5/10 * * * *":    "a step needs",
		"1,,2 * * * *":    `"" is not between`,
		"0 0 30 2 *":      "this day never comes",
		"-1 * * * *":      `"" is not between`,
		"0 0 31 4,6,9 *":  "this day never comes",
		"000 0 * * *":     `"000" is not between`,
		"0 0 * * * extra": "6 fields",
	} {
		if c, err := ParseCron(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", text, c, err, want)
		}
	}
}

func FuzzParseCron(f *testing.F) {
	for _, text := range []string{"0 22 28-31 * *", "*/15 8-17 * * mon-fri", "@daily", "60 0 * * *", "0 0 30 2 *",
		"1-2-3 * * * *"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCron(text)
		if err != nil {
			return
		}
		again, err := ParseCron(c.String())
		if err != nil || again != c {
			t.Fatalf("%q: %q, %v", text, again, err)
		}
		if at, ok := (Windows{When: c, Zone: time.UTC, Length: time.Minute}).Next(time.Date(2026, 11, 22, 12, 0, 0, 0,
			time.UTC)); !ok || at.Second() != 0 {
			t.Fatalf("%q never comes: %v", text, at)
		}
	})
}

func TestParseDay(t *testing.T) {
	monday, christmas := instant(t, "2026-11-23T00:00:00Z"), instant(t, "2026-12-24T00:00:00Z")
	for text, want := range map[string][2]bool{"mon": {true, false}, "thu": {false, true}, "2026-12-24": {false, true},
		"2025-12-24": {false, false}, "12-24": {false, true}, "02-29": {false, false}} {
		d, err := ParseDay(text)
		if err != nil || d.is(monday) != want[0] || d.is(christmas) != want[1] || d.String() != text {
			t.Errorf("%q: %v %v", text, d, err)
		}
	}
	for _, text := range []string{"", "MON", "monday", "24.12.", "2026-02-29", "13-01", "12-32", "2026-1-1", "0"} {
		if d, err := ParseDay(text); err == nil {
			t.Errorf("%q is %v", text, d)
		}
	}
}

func TestLoadZone(t *testing.T) {
	if z, err := LoadZone(""); err != nil || z != time.Local {
		t.Errorf("%v, %v", z, err)
	}
	for _, name := range []string{"Local", "Europe/Wien", "CET+1", "../etc/passwd"} {
		if z, err := LoadZone(name); err == nil {
			t.Errorf("%s is %v", name, z)
		}
	}
}

// Clocks in Vienna go forward at 02:00 on 2026-03-29 and back at 03:00 on 2026-10-25.
func TestDaylightSaving(t *testing.T) {
	vienna := zone(t, "Europe/Vienna")
	for _, test := range []struct {
		name, when, from, to string
		want                 []string
	}{
		{"an ordinary night", "30 2 * * *", "2026-11-22T12:00:00Z", "2026-11-23T12:00:00Z",
			[]string{"2026-11-23T02:30:00+01:00"}},
		{"jumped over", "30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"twice", "30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"every hour when clocks go back", "0 * * * *", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"}},
		{"every hour when they go forward", "0 * * * *", "2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z",
			[]string{"2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		{"at the jump itself", "0 3 * * *", "2026-03-29T00:59:00Z", "2026-03-29T01:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := Windows{When: cron(t, test.when), Zone: vienna, Length: time.Minute}
			var got []string
			for _, s := range w.starts(instant(t, test.from), instant(t, test.to)) {
				got = append(got, s.In(vienna).Format(time.RFC3339))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

// A window lasts for its length, whatever the clock on the wall does.
func TestOpenAcrossAJump(t *testing.T) {
	vienna := zone(t, "Europe/Vienna")
	w := Windows{When: cron(t, "0 22 * * *"), Zone: vienna, Length: 6 * time.Hour}
	for _, test := range []struct {
		at, until string
		open      bool
	}{
		{"2026-03-28T22:00:00+01:00", "2026-03-29T05:00:00+02:00", true},
		{"2026-03-29T04:59:59+02:00", "2026-03-29T05:00:00+02:00", true},
		{"2026-03-29T05:00:00+02:00", "2026-03-29T05:00:00+02:00", false},
		{"2026-10-24T22:00:00+02:00", "2026-10-25T03:00:00+01:00", true},
		{"2026-10-25T03:00:00+01:00", "2026-10-25T03:00:00+01:00", false},
		{"2026-10-24T21:59:59+02:00", "", false},
	} {
		_, until, open := w.Open(instant(t, test.at))
		if open != test.open || test.open && !until.Equal(instant(t, test.until)) {
			t.Errorf("at %s: open %t until %v, want %t until %s", test.at, open, until.In(vienna), test.open,
				test.until)
		}
	}
}

func TestExcept(t *testing.T) {
	day := func(text string) Day {
		d, err := ParseDay(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	w := Windows{When: cron(t, "0 22 * * *"), Zone: zone(t, "Europe/Vienna"), Length: 6 * time.Hour,
		Except: []Day{day("sat"), day("2026-11-23"), day("12-31")}}
	next, ok := w.Next(instant(t, "2026-11-22T22:30:00+01:00"))
	if want := instant(t, "2026-11-24T22:00:00+01:00"); !ok || !next.Equal(want) {
		t.Errorf("next %v, want %v", next, want)
	}
	// The window of Friday goes on into Saturday, and none begins there.
	if _, _, open := w.Open(instant(t, "2026-11-28T01:00:00+01:00")); !open {
		t.Error("the window of Friday is closed")
	}
	if _, _, open := w.Open(instant(t, "2026-11-28T23:00:00+01:00")); open {
		t.Error("a window is open on Saturday")
	}
	var all []Day
	for _, text := range []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} {
		all = append(all, day(text))
	}
	w.Except = all
	if next, ok := w.Next(instant(t, "2026-11-22T22:30:00Z")); ok {
		t.Errorf("a window begins at %v", next)
	}
}

func TestOverlap(t *testing.T) {
	for _, test := range []struct {
		when   string
		length time.Duration
		want   bool
	}{
		{"0 22 * * *", 24 * time.Hour, false},
		{"0 22 * * *", 24*time.Hour + time.Minute, true},
		{"0 22 28-31 * *", 6 * time.Hour, false},
		{"0 0 1 * *", 28 * 24 * time.Hour, false},
		{"0 0 1 * *", 29 * 24 * time.Hour, true},
		{"0,50 * * * *", 10 * time.Minute, false},
		{"0,50 * * * *", 11 * time.Minute, true},
		{"* * * * *", time.Minute, false},
		{"0 0 29 2 *", 366 * 24 * time.Hour, false},
		{"0 0 * * fri", 7 * 24 * time.Hour, false},
		{"0 0 * * fri", 7*24*time.Hour + time.Minute, true},
		{"0 0 * * fri,tue", 3*24*time.Hour + time.Minute, true}, // three days from Tuesday to Friday
		{"0 0 * * mon,fri", 3 * 24 * time.Hour, false},
	} {
		first, second, got := (Windows{When: cron(t, test.when), Zone: time.UTC, Length: test.length}).Overlap()
		if got != test.want || got && !second.Before(first.Add(test.length)) {
			t.Errorf("%s for %v: %t (%v, %v), want %t", test.when, test.length, got, first, second, test.want)
		}
	}
}

func TestDayOfMonthOrOfWeek(t *testing.T) {
	w := Windows{When: cron(t, "0 0 13 * fri"), Zone: time.UTC, Length: time.Hour}
	var got []int
	for _, s := range w.starts(instant(t, "2026-11-01T00:00:00Z"), instant(t, "2026-11-30T00:00:00Z")) {
		got = append(got, s.Day())
	}
	if want := []int{6, 13, 20, 27}; !slices.Equal(got, want) {
		t.Errorf("days %v, want %v: either is enough", got, want)
	}
	w.When = cron(t, "0 0 15 * fri")
	if starts := w.starts(instant(t, "2026-11-14T00:00:00Z"), instant(t, "2026-11-16T00:00:00Z")); len(starts) != 1 {
		t.Errorf("%v", starts)
	}
}

// What the calendar says is what a walk through all minutes finds.
func TestStartsAreThoseOfEveryMinute(t *testing.T) {
	zones := []*time.Location{}
	for _, name := range []string{"UTC", "Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu",
		"Pacific/Apia", "America/St_Johns"} {
		zones = append(zones, zone(t, name))
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"30 2 * * *", "0 * * * *", "15,45 1-3 * * *", "*/20 2 * * *", "0 0 * * *",
			"*/40 */2 * * sun", "59 23 30,31 * *"}).Draw(t, "when")
		c, err := ParseCron(text)
		if err != nil {
			t.Fatal(err)
		}
		w := Windows{When: c, Zone: rapid.SampledFrom(zones).Draw(t, "zone"), Length: time.Minute}
		begin := time.Date(2011, 12, 29, 0, 0, 0, 0, time.UTC) // Apia has no 30 December
		if rapid.Bool().Draw(t, "at a change of clocks") {
			_, end := time.Date(2026, time.Month(rapid.SampledFrom([]int{1, 6}).Draw(t, "half")), 1, 0, 0, 0, 0,
				time.UTC).In(w.Zone).ZoneBounds()
			if !end.IsZero() {
				begin = end.Add(-12 * time.Hour).UTC().Truncate(time.Minute)
			}
		}
		from := begin.Add(time.Duration(rapid.IntRange(0, 23*60).Draw(t, "minutes")) * time.Minute)
		to := from.Add(time.Duration(rapid.IntRange(0, 30*60).Draw(t, "more")) * time.Minute)
		want := byEveryMinute(w, from, to)
		if got := w.starts(from, to); !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("%s in %s from %v to %v:\n%v\nwant\n%v", text, w.Zone, from, to, got, want)
		}
	})
}

func byEveryMinute(w Windows, from, to time.Time) (all []time.Time) {
	seen := map[time.Time]bool{}
	last := wallOf(from.Add(-aroundJump).In(w.Zone))
	for t := from.Add(-aroundJump); !t.After(to); t = t.Add(time.Minute) {
		wall := wallOf(t.In(w.Zone))
		due := func(at time.Time) bool { next, ok := w.When.next(at); return ok && next.Equal(at) }
		begins := due(wall) && (!seen[wall] || w.When.hourly)
		for skipped := last.Add(time.Minute); skipped.Before(wall); skipped = skipped.Add(time.Minute) {
			begins = begins || due(skipped)
		}
		seen[wall], last = true, wall
		if begins && !t.Before(from) {
			all = append(all, t)
		}
	}
	return all
}

func BenchmarkOpen(b *testing.B) {
	w := Windows{When: cron(b, "0 22 28-31 * *"), Zone: zone(b, "Europe/Vienna"), Length: 6 * time.Hour}
	at := instant(b, "2026-11-22T12:00:00Z")
	for b.Loop() {
		w.Open(at)
		w.Next(at)
	}
}

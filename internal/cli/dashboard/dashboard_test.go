package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
)

var update = flag.Bool("update", false, "write testdata anew")

// captured reads what the tests of the record captured, between two times.
func captured(_ context.Context, from, to time.Time) (ticks []record.Tick, err error) {
	text, err := os.ReadFile("../../observe/record/testdata/host.record")
	if err == nil {
		err = record.Walk(bytes.NewReader(text), from, to, func(t record.Tick) error {
			ticks = append(ticks, t)
			return nil
		})
	}
	return ticks, err
}

// busiest is a time in it at which the batch group is held back.
var busiest = time.Date(2026, 11, 25, 19, 17, 30, 0, time.UTC)

// utc has times shown as UTC until the test ends.
func utc(t *testing.T) {
	was := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = was })
}

// press gives keys to a model, and runs what it begins.
func press(m *Model, keys ...string) {
	for _, k := range keys {
		msg := tea.KeyPressMsg(tea.Key{Text: k, Code: []rune(k)[0]})
		for name, code := range map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft,
			"right": tea.KeyRight, "pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "end": tea.KeyEnd,
			"enter": tea.KeyEnter, "esc": tea.KeyEscape,
			"backspace": tea.KeyBackspace} {
			if k == name {
				msg = tea.KeyPressMsg(tea.Key{Code: code})
			}
		}
		_, cmd := m.Update(msg)
		do(m, cmd)
		m.View()
	}
}

// do runs a command, and those that follow.
func do(m *Model, cmd tea.Cmd) {
	for cmd != nil {
		_, cmd = m.Update(cmd())
	}
}

// past is a model of the captured record.
func past(t *testing.T, at time.Time) *Model {
	t.Helper()
	m := New(t.Context(), Options{Load: captured, At: at})
	do(m, m.Init())
	m.View()
	return m
}

// screen is what stands on it, without colours.
func screen(m *Model) string {
	var b strings.Builder
	for _, l := range m.draw(m.width, m.height) {
		b.WriteString(strings.TrimRight(l.text, " ") + "\n")
	}
	return b.String()
}

// night is what a busy host with a tree of groups recorded in twelve seconds: a database that waits for a disk, its
// backup that reads from that at its limit, reports that their CPU limit holds back, and a group with a limit not in
// force.
func night(context.Context, time.Time, time.Time) (ticks []record.Tick, err error) {
	for i := range int64(12) {
		s := &observe.Sample{At: busiest.Add(time.Duration(i) * time.Second), Devices: map[string]string{"8:0": "sda"}}
		for _, p := range observe.Parts {
			s.Collectors = append(s.Collectors, observe.Reading{Name: p, On: true, Told: true})
		}
		s.Host = observe.Host{CPUs: 8, Busy: time.Duration(i) * 5 * time.Second,
			Idle: time.Duration(i) * 3 * time.Second, Load: 9.5,
			Memory:   map[string]int64{"MemTotal": 64 << 30, "MemAvailable": 5 << 30},
			Pressure: map[string]metrics.Pressure{"io": {Some: &metrics.Stall{Total: i * 400_000}}},
			Figures:  []observe.Figure{{Name: "disk_busy_seconds", Labels: []string{"sda"}, Value: 0.98 * float64(i)}}}
		wave := []int64{2, 3, 5, 8, 9, 7, 4, 2, 1, 2, 4, 6}[i] * 100_000
		s.Groups = []observe.Group{
			using("mysql3306", "database", i*2_000_000+wave, i*400_000, 40<<30, i*90<<20, i*20<<20),
			using("mysql3306/backup", "helper", i*300_000, i*900_000, 300<<20, i*80<<20, 0),
			using("reports", "batch", i*490_000+wave/8, i*20_000, 900<<20, 0, i<<20),
			using("idle", "", 0, 0, 0, 0, 0),
		}
		disk, cpu, off := &s.Groups[1], &s.Groups[2], &s.Groups[3]
		disk.Limits = []observe.Limit{limit("io.read.bandwidth", 80<<20), limit("io.weight", 100), limit("tasks", 500)}
		disk.Limits[0].Device = "sda"
		cpu.Limits = []observe.Limit{limit("cpu.limit", 0.5), limit("cpu.period", 0.1), limit("memory.max", 1<<30)}
		cpu.Usage.CPU.Periods, cpu.Usage.CPU.ThrottledPeriods = new(i*10), new(i*9)
		off.Limits = []observe.Limit{limit("memory.max", 1<<30)}
		off.Limits[0].Held, off.Limits[0].InForce = new(2.0*(1<<30)), false
		ticks = append(ticks, record.TickOf(s, observe.Parts))
	}
	return ticks, nil
}

func limit(key string, v float64) observe.Limit {
	return observe.Limit{Key: key, Asked: &v, Held: &v, InForce: true}
}

// using is a group that has used so much, in microseconds and bytes.
func using(name, role string, cpu, waited, memory, read, written int64) observe.Group {
	g := observe.Group{Group: name, Role: role, Limits: []observe.Limit{}, Traffic: &metrics.Traffic{Counted: true}}
	g.Usage.CPU.Total, g.Usage.Memory.Current, g.Usage.Tasks.Current = &cpu, &memory, new(int64(12))
	g.Usage.IO = []metrics.IO{{Device: "8:0", ReadBytes: read, WrittenBytes: written}}
	g.Usage.Pressure = map[string]metrics.Pressure{"io": {Some: &metrics.Stall{Total: waited}}}
	g.Traffic.Out.Bytes = uint64(cpu) * 3
	return g
}

// The screens in windows of 80 by 24 and of 120 by 40 characters.
func TestScreens(t *testing.T) {
	utc(t)
	for name, keys := range map[string][]string{
		"groups": nil, "why": {"down", "w"}, "limits": {"down", "down", "l"}, "help": {"?"},
		"filter": {"/", "r", "e", "p"}, "disk": {"down", "down", "w"}, "off": {"l"}, "folded": {"s", "s", "enter"},
	} {
		for _, size := range []tea.WindowSizeMsg{{Width: 80, Height: 24}, {Width: 120, Height: 40}} {
			m := New(t.Context(), Options{Load: night, At: busiest.Add(time.Minute), Of: "db7"})
			do(m, m.Init())
			m.Update(size)
			m.View()
			press(m, keys...)
			lines := m.draw(m.width, m.height)
			if len(lines) != size.Height {
				t.Errorf("%s has %d lines", name, len(lines))
			}
			for _, l := range lines {
				if n := utf8.RuneCountInString(l.text); n > size.Width {
					t.Errorf("%s has a line of %d characters: %s", name, n, l.text)
				}
			}
			got := screen(m)
			file := fmt.Sprintf("testdata/%s-%dx%d.txt", name, size.Width, size.Height)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(file); err != nil || string(want) != got {
				t.Errorf("%s is not %s (%v): go test ./internal/cli/dashboard -update\n%s", name, file, err, got)
			}
		}
	}
}

// What colours say stands in marks and words, too: without any the screen is another where something is wrong.
func TestColourNeverAlone(t *testing.T) {
	m := New(t.Context(), Options{Load: night, At: busiest.Add(time.Minute)})
	do(m, m.Init())
	m.View()
	press(m, "l")
	alarms := 0
	for _, l := range m.draw(m.width, m.height) {
		if l.style == alarm {
			alarms++
			if l.text[1] != '!' && !strings.Contains(l.text, "BITES") && !strings.Contains(l.text, "DIFFERS") {
				t.Errorf("by its colour alone something is wrong with %q", l.text)
			}
		}
		if l.style == chosen && l.text[0] != '>' {
			t.Errorf("by its colour alone it is chosen: %q", l.text)
		}
	}
	if alarms < 3 {
		t.Errorf("%d lines are alarms", alarms)
	}
}

// The arrow keys go from sample to sample, a minute, and over the ends of what was read.
func TestTime(t *testing.T) {
	utc(t)
	all, err := captured(t.Context(), time.Time{}, busiest.AddDate(1, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for i, tick := range all {
		if !tick.At.After(busiest) {
			at = i
		}
	}
	m := past(t, busiest)
	want := func(what string, i int) {
		t.Helper()
		if got := m.reel.State(m.at).At; !got.Equal(all[i].At) || !strings.Contains(screen(m), "RECORDED") {
			t.Errorf("%s shows %v, want %v\n%s", what, got, all[i].At, screen(m))
		}
	}
	want("the begin", at)
	press(m, "left")
	want("left", at-1)
	press(m, "right", "right")
	want("right twice", at+1)
	press(m, "left", "[")
	minute := at
	for all[minute].At.After(all[at].At.Add(-time.Minute)) {
		minute--
	}
	want("[", minute)
	press(m, "]")
	if got := m.reel.State(m.at).At.Sub(all[minute].At); got < 55*time.Second || got > time.Minute {
		t.Errorf("] goes on by %v", got)
	}
	m = past(t, all[1].At)
	want("near the begin", 1)
	press(m, "left")
	want("left", 0)
	press(m, "left")
	want("left of the begin", 0)
	if !strings.Contains(screen(m), "! the record begins here") {
		t.Errorf("at the begin it says\n%s", screen(m))
	}
	press(m, "{")
	want("an hour before the begin", 0)
	if !strings.Contains(screen(m), "! nothing is recorded at 2026-11-25 18:") {
		t.Errorf("before the begin it says\n%s", screen(m))
	}
	m = past(t, all[len(all)-1].At.Add(time.Minute))
	want("after the end", len(all)-1)
	press(m, "right")
	want("right of the end", len(all)-1)
	if !strings.Contains(screen(m), "! the record ends here") {
		t.Errorf("at the end it says\n%s", screen(m))
	}
	m = past(t, all[0].At.Add(-time.Hour))
	if m.reel.Len() != 0 || !strings.Contains(screen(m), "nothing is recorded at 2026-11-25 18:09:31") {
		t.Errorf("before the begin it shows\n%s", screen(m))
	}
	press(m, "left", "right", "w", "s", "enter", "down") // nothing happens
	m = New(t.Context(), Options{At: busiest, Load: func(context.Context, time.Time, time.Time) ([]record.Tick, error) {
		return nil, errors.New("no such record")
	}})
	do(m, m.Init())
	if !strings.Contains(screen(m), "no such record") {
		t.Errorf("without a record it shows\n%s", screen(m))
	}
}

func TestSortFilterFold(t *testing.T) {
	m := past(t, busiest)
	first := func() string { screen(m); return m.rows[0].Name }
	if first() != "clients" {
		t.Errorf("by name %s is first", first())
	}
	press(m, "s")
	if m.view.Sort != "cpu" || first() != "reports" {
		t.Errorf("by %s %s is first", m.view.Sort, first())
	}
	press(m, "r")
	if first() == "reports" {
		t.Error("the other way round it is the same")
	}
	press(m, "r", "S")
	if m.view.Sort != "" {
		t.Errorf("back it is by %s", m.view.Sort)
	}
	press(m, "/", "q", "u", "x", "backspace", "i", "enter")
	if screen(m); len(m.rows) != 2 {
		t.Errorf("the filter %q lets %d groups through", m.view.Filter, len(m.rows))
	}
	press(m, "down")
	if m.group() != "quiet2" {
		t.Errorf("chosen is %s", m.group())
	}
	press(m, "down", "up", "up", "up")
	if m.group() != "quiet1" {
		t.Errorf("chosen is %s", m.group())
	}
	press(m, "esc")
	if screen(m); len(m.rows) != 6 || m.group() != "quiet1" {
		t.Errorf("without it there are %d groups, and chosen is %s", len(m.rows), m.group())
	}
}

// nothing is recorded.
func nothing(context.Context, time.Time, time.Time) ([]record.Tick, error) { return nil, nil }

// sample is one of a running agent; a letter escape is in the name of its group.
func sample(i int) *observe.Sample {
	s := &observe.Sample{At: busiest.Add(time.Duration(i) * time.Second), Groups: []observe.Group{{Group: "a\x1b[31m",
		Role: "database"}}}
	s.Groups[0].Usage.CPU.Total = new(int64(i) * 500_000)
	s.Groups[0].Usage.Tasks.Current = new(int64(i))
	for _, p := range []observe.Part{observe.CPU, observe.Tasks} {
		s.Collectors = append(s.Collectors, observe.Reading{Name: p, On: true, Told: true, Age: time.Millisecond})
	}
	return s
}

// It follows the agent, stands still when frozen, and goes on. What an agent or a record calls a group is shown as
// text.
func TestLive(t *testing.T) {
	next, failing, back := 0, false, false
	live := func(_ context.Context, after time.Time) (*observe.Sample, error) {
		if failing {
			return nil, errors.New("the agent went away")
		}
		next++
		if s := sample(next); !s.At.After(after) && !back {
			t.Errorf("asked for one after %v, there is %v", after, s.At)
		}
		return sample(next), nil
	}
	m := New(t.Context(), Options{Load: nothing, Live: live})
	_, follow := m.Update(m.Init()())
	step := func() { // one sample
		t.Helper()
		if follow == nil {
			t.Fatal("it does not follow the agent")
		}
		_, follow = m.Update(follow())
	}
	step()
	step()
	step()
	text := screen(m)
	if m.at != 2 || !strings.Contains(text, "live") || !strings.Contains(text, "0.50") {
		t.Errorf("after three samples it shows\n%s", text)
	}
	if strings.Contains(m.View().Content, "a\x1b[31m") || !strings.Contains(text, `a\x1b[31m`) {
		t.Errorf("the name of a group steers the terminal: %q", text)
	}
	press(m, "f")
	step()
	step()
	if m.at != 2 || !strings.Contains(screen(m), "FROZEN") {
		t.Errorf("frozen, it shows state %d\n%s", m.at, screen(m))
	}
	press(m, "f")
	if m.at != 4 || !m.live {
		t.Errorf("it goes on with state %d", m.at)
	}
	press(m, "left")
	if m.at != 3 || m.live {
		t.Errorf("left shows state %d", m.at)
	}
	press(m, "right", "right")
	if m.at != 4 || !m.live {
		t.Errorf("right of the end shows state %d", m.at)
	}
	failing = true
	step()
	if !strings.Contains(screen(m), "the agent went away") || follow == nil {
		t.Errorf("without an agent it shows\n%s", screen(m))
	}
	failing = false
	_, follow = m.Update(sampled{}) // after a while
	step()
	if m.at != 5 || strings.Contains(screen(m), "away") {
		t.Errorf("with the agent again it shows state %d\n%s", m.at, screen(m))
	}
	next, back = 0, true // the clock is set back
	step()
	if at := m.reel.State(m.at).At; !at.Equal(sample(1).At) || strings.Contains(screen(m), "OLD FIGURES") {
		t.Errorf("after the clock was set back it shows state %d of %s\n%s", m.at, at, screen(m))
	}
}

// Whatever is pressed in windows of whatever size, no line is too long, and no screen too high.
func TestAnyKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys := strings.Fields("up down pgup pgdown left right [ ] { } end enter s S r / f w l ? esc a backspace h")
	m := past(t, busiest)
	for i := range 400 {
		key := keys[random.IntN(len(keys))]
		if i%7 == 0 {
			m.Update(tea.WindowSizeMsg{Width: 1 + random.IntN(150), Height: 1 + random.IntN(40)})
		}
		press(m, key)
		lines := m.draw(m.width, m.height)
		if len(lines) > max(m.height, 6) {
			t.Fatalf("%d: after %s there are %d lines in %d", i, key, len(lines), m.height)
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l.text); n > max(m.width, 45) {
				t.Fatalf("%d: after %s a line has %d characters in %d: %s", i, key, n, m.width, l.text)
			}
		}
		if m.reel.Len() > 0 && (m.at < 0 || m.at >= m.reel.Len()) {
			t.Fatalf("after %s it shows state %d of %d", key, m.at, m.reel.Len())
		}
	}
}

// Without a terminal there is the table once, with every column, as text and as JSON.
func TestOnce(t *testing.T) {
	utc(t)
	once, err := Take(t.Context(), Options{Load: captured, At: busiest, View: top.View{Sort: "cpu"}})
	if err != nil {
		t.Fatal(err)
	}
	text := once.Text()
	for i := range top.Columns {
		if !strings.Contains(text, " "+top.Columns[i].Title) {
			t.Errorf("it lacks %s", top.Columns[i].Title)
		}
	}
	if lines := strings.Split(text, "\n"); len(lines) != 9 || !strings.HasPrefix(lines[3], " !reports") ||
		strings.Contains(text, "\x1b") {
		t.Errorf("it is\n%s", text)
	}
	b, err := json.Marshal(once)
	var got Once
	if err == nil {
		err = json.Unmarshal(b, &got)
	}
	if err != nil || len(got.Groups) != 6 || got.Groups[0].Group != "reports" ||
		got.Groups[0].Shown["held"] != "85%" || got.Groups[0].Values["cpu"] == 0 {
		t.Errorf("as JSON: %s, %v", b, err)
	}
	if _, err := Take(t.Context(), Options{Load: captured, At: busiest.AddDate(1, 0, 0)}); err == nil {
		t.Error("a year later there is something")
	}
	live := 0
	once, err = Take(t.Context(), Options{Load: nothing,
		Live: func(_ context.Context, after time.Time) (*observe.Sample, error) {
			s := sample(live)
			s.At = s.At.Add(456 * time.Microsecond) // as an agent's
			if !s.At.After(after) {
				live++
				s = sample(live)
			}
			return s, nil
		}})
	if err != nil || once.Groups[0].Shown["cpu"] != "0.50" {
		t.Errorf("of a running agent: %+v, %v", once, err)
	}
}

func TestWrap(t *testing.T) {
	for _, width := range []int{8, 10, 20} {
		for _, l := range wrap("bulkhead set mysql3306:io.read.bandwidth=75MB/s --for 1h --on /dev/sda", width) {
			if utf8.RuneCountInString(l) > width {
				t.Errorf("in %d characters there is %q", width, l)
			}
		}
	}
	if got := fmt.Sprint(wrap("a b", 8), wrap("aaaa bbbb cc", 9)); got != "[a b] [aaaa bbbb   cc]" {
		t.Errorf("%s", got)
	}
}

package top

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
	"bulkhead/internal/observe/record"
)

// host makes samples as an agent does: collectors of three tiers, groups that come and go, counters that begin anew,
// collectors that are switched off for a while, and times in which the quick ones read every second.
type host struct {
	random *rand.Rand
	now    time.Time
	tick   int
	groups []observe.Group
	read   map[observe.Part]time.Time
	value  map[observe.Part]*observe.Sample // of the last reading
}

func newHost() *host {
	return &host{random: rand.New(rand.NewPCG(3, 4)), now: time.UnixMilli(1_795_000_000_000).UTC(),
		read: map[observe.Part]time.Time{}, value: map[observe.Part]*observe.Sample{}}
}

func (h *host) grow(n *int64, most int64) *int64 {
	if n == nil {
		return new(h.random.Int64N(most))
	}
	if h.random.IntN(200) == 0 {
		return new(h.random.Int64N(most)) // its group was made again
	}
	return new(*n + h.random.Int64N(most))
}

// use lets a group do something.
func (h *host) use(g *observe.Group) {
	u := &g.Usage
	for _, n := range []**int64{&u.CPU.Total, &u.CPU.User, &u.CPU.System, &u.CPU.Throttled} {
		*n = h.grow(*n, 9_999_999)
	}
	for _, n := range []**int64{&u.CPU.Periods, &u.CPU.ThrottledPeriods, &u.Memory.LimitHits, &u.Memory.HighHits,
		&u.Tasks.LimitHits} {
		*n = h.grow(*n, 50)
	}
	for _, n := range []**int64{&u.Memory.Current, &u.Memory.Anonymous, &u.Memory.File, &u.Tasks.Current} {
		*n = new(h.random.Int64N(1 << 33))
	}
	u.Pressure = map[string]metrics.Pressure{}
	for _, resource := range metrics.Resources {
		u.Pressure[resource] = metrics.Pressure{Some: &metrics.Stall{Total: h.random.Int64N(5e6) + int64(h.tick)*5e6},
			Full: &metrics.Stall{Total: h.random.Int64N(1e6) + int64(h.tick)*1e6}}
	}
	u.IO = slices.Clone(u.IO)
	for i := range u.IO {
		u.IO[i].ReadBytes += h.random.Int64N(1e8)
		u.IO[i].WrittenBytes += h.random.Int64N(1e8)
		u.IO[i].Reads += h.random.Int64N(1e4)
	}
	load := metrics.Load{float64(h.random.IntN(9000)) / 1000}
	g.Load, g.Tasks = &load, &metrics.TaskStates{Running: h.random.IntN(9), Blocked: h.random.IntN(3)}
	g.Traffic = &metrics.Traffic{Counted: true}
	g.Traffic.Out.Bytes, g.Traffic.In.Bytes = uint64(h.tick)*1e6+h.random.Uint64N(1e6), uint64(h.tick)*7e5
}

// sample is the next sample, and what is new in it.
func (h *host) sample() (*observe.Sample, []observe.Part) {
	hot := h.tick/60%3 == 1
	step := observe.High.Every(hot)
	h.now = h.now.Add(step + time.Duration(h.random.IntN(20))*time.Millisecond)
	h.tick++
	if len(h.groups) < 12 && h.random.IntN(5) == 0 {
		name := fmt.Sprint("g", len(h.groups))
		if len(h.groups) > 3 && h.random.IntN(2) == 0 {
			name = h.groups[h.random.IntN(3)].Group + "/" + name
		}
		h.groups = slices.DeleteFunc(h.groups, func(g observe.Group) bool { return g.Group == name })
		h.groups = append(h.groups, observe.Group{Group: name, Role: []string{"database", "batch"}[h.random.IntN(2)],
			Limits: []observe.Limit{{Key: "cpu.limit", Asked: new(1.5), Held: new(1.5), InForce: true},
				{Key: "io.read.bandwidth", Device: "8:0", Asked: new(5e7), Held: new(5e7)}}})
		h.groups[len(h.groups)-1].Usage.IO = []metrics.IO{{Device: "8:0"}, {Device: "8:16"}}
	}
	if len(h.groups) > 6 && h.random.IntN(100) == 0 {
		h.groups = slices.Delete(h.groups, 5, 6)
	}
	for i := range h.groups {
		h.use(&h.groups[i])
	}
	s := &observe.Sample{At: h.now, Groups: slices.Clone(h.groups), Devices: map[string]string{"8:0": "sda"}}
	s.Host = observe.Host{CPUs: 8, Busy: time.Duration(h.tick) * 7 * time.Second,
		Idle: time.Duration(h.tick) * time.Second, Load: float64(h.random.IntN(900)) / 100,
		Memory: map[string]int64{"MemTotal": 1 << 34, "MemAvailable": h.random.Int64N(1 << 33)}}
	var fresh []observe.Part
	for _, c := range observe.Collectors {
		every := c.Tier.Every(hot)
		if c.Name == observe.IO && h.tick/97%2 == 1 {
			continue // it is switched off for a while
		}
		if h.now.Sub(h.read[c.Name]) >= every-50*time.Millisecond {
			h.read[c.Name] = h.now.Add(-time.Duration(h.random.IntN(40_000)) * time.Microsecond)
			fresh = append(fresh, c.Name)
		}
		age := h.now.Sub(h.read[c.Name])
		s.Collectors = append(s.Collectors, observe.Reading{Name: c.Name, On: true, Told: true, Tier: c.Tier,
			Every: every, Age: age})
	}
	return h.settle(s, fresh), fresh
}

// settle gives the sample what each collector read the last time, as an agent's samples have it.
func (h *host) settle(s *observe.Sample, fresh []observe.Part) *observe.Sample {
	for _, p := range fresh {
		h.value[p] = s
	}
	one := *s
	one.Groups = nil
	for _, g := range s.Groups {
		was := func(p observe.Part) *observe.Group {
			if from := h.value[p]; from != nil {
				for i := range from.Groups {
					if from.Groups[i].Group == g.Group {
						return &from.Groups[i]
					}
				}
			}
			return &observe.Group{}
		}
		now := observe.Group{Group: g.Group, Role: g.Role, Engine: g.Engine, Limits: g.Limits}
		now.Usage.CPU, now.Usage.Pressure = was(observe.CPU).Usage.CPU, was(observe.Pressure).Usage.Pressure
		now.Usage.IO, now.Usage.Tasks = was(observe.IO).Usage.IO, was(observe.Tasks).Usage.Tasks
		now.Usage.Memory = was(observe.Memory).Usage.Memory
		stat := was(observe.MemoryStat).Usage.Memory
		now.Usage.Memory.Anonymous, now.Usage.Memory.File = stat.Anonymous, stat.File
		now.Traffic = was(observe.Network).Traffic
		now.Load, now.Tasks = was(observe.Tasks).Load, was(observe.Tasks).Tasks
		one.Groups = append(one.Groups, now)
	}
	one.Host.Busy, one.Host.Idle = h.value[observe.Stat].Host.Busy, h.value[observe.Stat].Host.Idle
	one.Host.Load, one.Host.Memory = h.value[observe.LoadAverage].Host.Load, h.value[observe.MemInfo].Host.Memory
	return &one
}

// travelled is the sample as it comes out of the agent's socket.
func travelled(t *testing.T, s *observe.Sample) *observe.Sample {
	t.Helper()
	text, err := json.Marshal(s)
	got := &observe.Sample{}
	if err == nil {
		err = json.Unmarshal(text, got)
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// shown is what stands on the screen at a tick.
type shown struct {
	at    time.Time
	rows  []Row
	host  Host
	texts []string // why, and limits, of each group
}

func show(s *State) shown {
	var v View
	now := shown{at: s.At, rows: v.Rows(s, Columns), host: s.Host()}
	for _, g := range s.Groups() {
		now.texts = append(now.texts, s.Why(g.Name)...)
		now.texts = append(now.texts, fmt.Sprint(s.Limits(g.Name)))
	}
	return now
}

// What top shows of the record is what it showed live: a thousand random cells, and all other text of those moments.
func TestReplayIsWhatWasShown(t *testing.T) {
	const ticks = 600
	h, dir := newHost(), t.TempDir()
	recorder := record.New(record.Options{Dir: dir})
	var live Reel
	var all []shown
	for i := range ticks {
		s, fresh := h.sample()
		recorder.Take(record.TickOf(s, fresh))
		live.AppendSample(travelled(t, s))
		if i%13 == 7 {
			all = append(all, show(live.State(live.Len()-1)))
		}
	}
	random := rand.New(rand.NewPCG(5, 6))
	cells, known := 0, 0
	for cells < 1000 || known < 700 && cells < 2000 { // what is off says nothing
		want := all[random.IntN(len(all))]
		segments, err := record.Open(dir, want.at.Add(-record.Before), want.at)
		if err != nil {
			t.Fatal(err)
		}
		var replay Reel
		if err := record.Walk(segments, want.at.Add(-record.Before), want.at, func(tick record.Tick) error {
			replay.Append(tick)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		_ = segments.Close()
		got := show(replay.State(replay.Find(want.at)))
		if !got.at.Equal(want.at) || len(got.rows) != len(want.rows) {
			t.Fatalf("at %v there are %d groups of %v, want %d", got.at, len(got.rows), want.at, len(want.rows))
		}
		if !reflect.DeepEqual(got.host, want.host) || !slices.Equal(got.texts, want.texts) {
			t.Errorf("at %v it says %+v %q,\nand said %+v %q", want.at, got.host, got.texts, want.host, want.texts)
		}
		for i := range 50 {
			if len(want.rows) == 0 {
				break
			}
			row, column := random.IntN(len(want.rows)), random.IntN(len(Columns))
			g, w := got.rows[row], want.rows[row]
			if g.Name != w.Name || g.Cells[column] != w.Cells[column] {
				t.Errorf("cell %d at %v: %s %s is %+v, and was %+v", i, want.at, g.Name, Columns[column].Name,
					g.Cells[column], w.Cells[column])
			}
			if cells++; w.Cells[column].Known {
				known++
			}
		}
	}
	if known < 700 {
		t.Errorf("of %d cells %d say something", cells, known)
	}
}

// A counter that is lower than before has no rate: where a group has several units, and one is started again, the rest
// of the sum is not what was used since. What is not read any more is not shown for long.
func TestAnewAndGone(t *testing.T) {
	var s *State
	take := func(second int, parts ...record.Part) {
		at := time.Unix(int64(1000+second), 0)
		for i := range parts {
			parts[i].Read = at
		}
		s = s.Next(record.Tick{At: at, Parts: parts})
	}
	cpu := func(seconds float64) record.Part {
		return record.Part{Name: observe.CPU, Figures: []record.Figure{{Key: record.KeyOf(cpuTime, "a", "", ""),
			Value: seconds}}}
	}
	text := func() string { return Columns[0].Cell(s, "a").Text }
	for i, c := range []struct {
		seconds float64
		want    string
	}{{100, "-"}, {105, "1.00"}, {51, "-"}, {53.5, "0.50"}} {
		if take(5*i, cpu(c.seconds)); text() != c.want {
			t.Errorf("reading %d: %s, want %s", i, text(), c.want)
		}
	}
	other := record.Part{Name: observe.Stat}
	if take(15+30, other); text() != "0.50" {
		t.Errorf("after 30 s: %s", text())
	}
	if take(15+31, other); text() != "-" || len(s.Groups()) != 0 {
		t.Errorf("after 31 s: %s", text())
	}
	if take(60, cpu(100)); text() != "-" {
		t.Errorf("read once again: %s", text())
	}
}

// A group that comes as another one goes is another one, though there are as many figures as before.
func TestOneComesAsOneGoes(t *testing.T) {
	var s *State
	for i, group := range []string{"a", "b", "b"} {
		at := time.Unix(int64(1000+5*i), 0)
		s = s.Next(record.Tick{At: at, Parts: []record.Part{{Name: observe.CPU, Read: at, Figures: []record.Figure{
			{Key: record.KeyOf(cpuTime, group, "", ""), Value: float64(100 + 5*i)}}}}})
		want := []string{"-", "-", "1.00"}[i]
		groups := s.Groups()
		if len(groups) != 1 || groups[0].Name != group || Columns[0].Cell(s, group).Text != want {
			t.Errorf("reading %d: %+v with %s, want %s with %s", i, groups, Columns[0].Cell(s, groups[0].Name).Text,
				group, want)
		}
	}
}

// busy are two readings, five seconds apart, of a database that its CPU limit and a disk limit hold back, beside a
// batch group on the same disk.
func busy(t *testing.T) *State {
	t.Helper()
	var r Reel
	for i := range int64(2) {
		s := observetest.Sample(t)
		s.At = s.At.Add(time.Duration(i) * 5 * time.Second)
		db, batch := &s.Groups[0], &s.Groups[1]
		db.Usage.CPU.Total = new(*db.Usage.CPU.Total + i*7_500_000)
		db.Usage.CPU.Periods = new(*db.Usage.CPU.Periods + i*50)
		db.Usage.CPU.ThrottledPeriods = new(*db.Usage.CPU.ThrottledPeriods + i*20)
		db.Usage.IO[0].ReadBytes += i * 240_000_000
		p := db.Usage.Pressure["io"]
		p.Some.Total += i * 1_250_000
		c := db.Usage.Pressure["cpu"]
		c.Some.Total += i * 3_500_000
		batch.Group = "reports"
		batch.Usage.CPU.Total = new(*batch.Usage.CPU.Total + i*2_500_000)
		batch.Usage.IO = []metrics.IO{{Device: "8:0", ReadBytes: 1e9 + i*500<<20}}
		s.Host.Busy += time.Duration(i) * 38 * time.Second
		s.Host.Idle += time.Duration(i) * 2 * time.Second
		r.AppendSample(s)
	}
	return r.State(1)
}

// The figures of the table, worked out by hand.
func TestCells(t *testing.T) {
	s := busy(t)
	want := map[string]string{"cpu": "1.50", "wait": "70%c", "held": "40%", "memory": "3.9M", "read": "45.8M",
		"write": "0", "net": "0", "tasks": "1119", "limits": "1 not", "ops": "0", "used": "0%", "run": "3",
		"blocked": "2", "load": "2.50", "work": "0", "slack": "25%"}
	for i := range Columns {
		if got := Columns[i].Cell(s, "mysql3306"); got.Text != want[Columns[i].Name] {
			t.Errorf("%s is %q, want %q", Columns[i].Name, got.Text, want[Columns[i].Name])
		}
		for _, metric := range Columns[i].From {
			if observe.RowOf(metric) == nil {
				t.Errorf("%s is from %s, which is no row of the table", Columns[i].Name, metric)
			}
		}
	}
	h := s.Host()
	for name, want := range map[string]string{"busy": "95%", "cpus": "8", "used": "7.0G", "memory": "16.0G",
		"filled": "13.0G", "load": "3.25"} {
		if got := h.Cells()[name].Text; got != want {
			t.Errorf("the host's %s is %q, want %q", name, got, want)
		}
	}
}

func TestWhy(t *testing.T) {
	s := busy(t)
	got := strings.Join(s.Why("mysql3306"), "\n")
	end := *observetest.Sample(t).Groups[0].SLO.Held[0].Ends
	want := `A task of it waits for: CPU 70%, memory 0%, disks 25% of the time.
It is promised heartbeat 20ms, and has 15ms; 2 limits of other groups lowered for it, the last of them ends about ` +
		api.Moment(end, s.At) + ". `bulkhead status`" + ` says what was done.
Its own limit cpu.limit (1.50, of which it uses 1.50): held back in 40% of the periods.
Its own limit io.read.bandwidth on sda (47.7M, of which it uses 45.8M): 96% of it is used.
ZFS: tank/mysql3306/data holds 25 GiB in 10 GiB of its pool (ratio 2.50); its snapshots hold 1 GiB more.
CPUs: the host is 95% busy. Cores in use: others reports 0.50.
Disk sda: it reads 45.8M/s and writes 0/s. The disk is busy for 0% of the time. Bytes a second: others reports 100M.
A limit of it is not in force as asked: ` + "`bulkhead status mysql3306` says which, and why."
	if got != want {
		t.Errorf("it says\n%s\nwant\n%s", got, want)
	}
	if got := s.Why("reports"); len(got) != 2 || !strings.Contains(got[1], "Nothing that is counted") {
		t.Errorf("of one that does not wait: %q", got)
	}
}

func TestLimits(t *testing.T) {
	all := busy(t).Limits("mysql3306")
	keys, commands := []string{}, []string{}
	for _, l := range all {
		if l.Bites {
			keys, commands = append(keys, l.Key), append(commands, l.Command)
		}
	}
	if want := []string{"cpu.limit", "io.read.bandwidth"}; !slices.Equal(keys, want) || all[0].Key != "cpu.limit" {
		t.Errorf("these bite: %q", keys)
	}
	if want := []string{"bulkhead set mysql3306:cpu.limit=2.3 --for 1h",
		"bulkhead set mysql3306:io.read.bandwidth=75MB/s --for 1h --on /dev/sda"}; !slices.Equal(commands, want) {
		t.Errorf("commands: %q", commands)
	}
	for _, l := range all {
		if l.Key == "tasks" && (l.Asked != "500" || l.Held != "600" || l.Used != "1119") {
			t.Errorf("tasks: %+v", l)
		}
	}
}

// What is suggested is half as much again, and what was counted stands there as a person writes it.
func TestSuggestions(t *testing.T) {
	for held, want := range map[float64]string{0.2: "0.3", 0.4: "0.6", 0.5: "0.8", 1: "1.5", 2.2: "3.3"} {
		if got := knobs["cpu.limit"].set(1.5 * held); got != want {
			t.Errorf("for a limit of %v CPUs: %s, want %s", held, got, want)
		}
	}
	for grown, want := range map[float64]string{1: "0.2", 10: "2", 6170: "1234", 2e6: "400k"} {
		var s *State
		for i, hits := range []float64{0, grown} {
			at := time.Unix(int64(1000+5*i), 0)
			s = s.Next(record.Tick{At: at, Parts: []record.Part{{Name: observe.Memory, Read: at,
				Figures: []record.Figure{{Key: record.KeyOf(limitHits, "a", "", ""), Value: hits}}}}})
		}
		got := knobs["memory.max"].bites(s, "a", "", 0)
		if got != "reached "+want+" times a second" {
			t.Errorf("%v in 5 s: %s", grown, got)
		}
	}
}

func TestRows(t *testing.T) {
	tick := record.Tick{At: time.UnixMilli(1000),
		Parts: []record.Part{{Name: observe.Tasks, Read: time.UnixMilli(1000)}}}
	for i, name := range []string{"b", "b/db", "b/backup", "a", "c/only/child", "reports"} {
		tick.Parts[0].Figures = append(tick.Parts[0].Figures, record.Figure{
			Key: record.KeyOf(threads, name, []string{"database", "batch"}[i/5], ""), Value: float64(i)})
	}
	var s *State
	s = s.Next(tick)
	for _, c := range []struct {
		view View
		want string
	}{
		{View{}, "a b+ .backup .db c/only/child reports"},
		{View{Sort: "tasks"}, "reports c/only/child a b+ .backup .db"},
		{View{Sort: "tasks", Reverse: true}, "b+ .db .backup a c/only/child reports"},
		{View{Filter: "BACK"}, "b+ .backup"},
		{View{Filter: "batch"}, "reports"},
		{View{Folded: map[string]bool{"b": true}}, "a b- c/only/child reports"},
	} {
		var got []string
		for _, r := range c.view.Rows(s, Columns[:1]) {
			text := strings.Repeat(".", r.Depth) + r.Title
			switch {
			case r.Folded:
				text += "-"
			case r.Parent:
				text += "+"
			}
			got = append(got, text)
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%+v: %s, want %s", c.view, text, c.want)
		}
	}
	if n := len(Fitting(80 - 18 - 9)); n != 8 {
		t.Errorf("into 80 characters fit %d columns", n)
	}
}

func TestTexts(t *testing.T) {
	for text, got := range map[string]string{
		"0": size(0), "1023": size(1023), "1.0K": size(1024), "1.0M": size(1<<20 - 1), "100M": size(100 << 20),
		"12.3G": size(12.3 * (1 << 30)), "0.00": cores(0), "99.90": cores(99.9), "128.0": cores(128),
		"0.5%": percent(0.005),
		"100%": percent(1), "10%": percent(0.0999), "123k": count(123_400), "1.2M": count(1_234_567), "0%": percent(0),
	} {
		if got != text {
			t.Errorf("%s, want %s", got, text)
		}
	}
	if got := Bars([]float64{0, 1, 2, 4}, 0, false) + Bars([]float64{0, 1}, 8, true); got != "▁▃▅█_." {
		t.Errorf("bars: %s", got)
	}
}

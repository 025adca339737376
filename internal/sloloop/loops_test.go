package sloloop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
	"bulkhead/internal/state"
)

// plant is a host of two CPUs with a database, and a batch that takes what it gets and makes the database wait for as
// much.
type plant struct {
	now    time.Time
	limit  float64 // of the batch
	free   float64 // the same where nothing is held
	demand float64 // of the database, cores
	harm   float64 // the part of what the batch uses that the database waits
	ran    map[string]time.Duration
	waited time.Duration

	trial   bool
	fail    error
	calls   int
	looks   int // at the host that were asked for
	want    []state.Override
	history []journal.Entry
	fired   chan struct{}
	guards  int // that are there

	off     map[observe.Part]bool
	back    time.Duration        // by which the clock of samples was set back
	reads   map[observe.Part]int // that were asked for
	deaf    bool                 // nothing is read for that
	rate    float64              // statements in a second; 0: the database is not asked
	did     [4]float64           // by buckets
	said    [4]float64           // the same, as the database said when it was asked
	asked   time.Time
	changed []time.Time // when the limit was
}

func newPlant() *plant {
	return &plant{now: time.Unix(1_700_000_000, 0), limit: 2, free: 2, demand: 0.5, harm: 0.2,
		ran: map[string]time.Duration{}, fired: make(chan struct{}), reads: map[observe.Part]int{}}
}

func (p *plant) Gone() <-chan struct{} { return p.fired }
func (p *plant) Done()                 { p.guards-- }

func (p *plant) ReadNow(part observe.Part) {
	if p.reads[part]++; part == observe.Databases && !p.deaf {
		p.said, p.asked = p.did, p.now
	}
}

// pass lets time pass. Of what the batch uses a fifth is waiting of the database, and it slows a fifth of the
// statements down with each core, and the more it uses the more.
func (p *plant) pass(d time.Duration) {
	batch := min(p.limit, 2-p.demand)
	of := func(cores float64) time.Duration { return time.Duration(cores * float64(d)) }
	p.now = p.now.Add(d)
	p.ran["mysql1"] += of(p.demand)
	p.ran["reports"] += of(batch)
	p.waited += of(p.harm * p.demand * batch)
	slow := 0.2 * batch
	p.did[0] += (1 - slow) * p.rate * d.Seconds()
	p.did[1+min(2, int(2*batch))] += slow * p.rate * d.Seconds()
	if p.now.Sub(p.asked) >= 10*time.Second {
		p.said, p.asked = p.did, p.now
	}
}

func (p *plant) Last() *observe.Sample {
	s := &observe.Sample{At: p.now.Add(-p.back), Host: observe.Host{CPUs: 2}}
	for _, name := range []string{"mysql1", "reports"} {
		us := p.ran[name].Microseconds()
		g := observe.Group{Group: name, Role: map[string]string{"mysql1": "database", "reports": "batch"}[name],
			Usage: metrics.Usage{CPU: metrics.CPU{Total: &us}}, CPUs: idset.Set{0, 1},
			EachCPU: map[int]time.Duration{0: p.ran[name] / 2, 1: p.ran[name] / 2},
			Threads: &observe.Switching{Waited: new(time.Duration)}}
		if name == "mysql1" {
			g.Threads.Waited = new(p.waited)
			g.Work = &observe.Work{}
			for i, bound := range []time.Duration{5, 30, 100, 200} {
				g.Work.Statements = append(g.Work.Statements, observe.Statements{UpTo: bound * time.Millisecond,
					Calls: uint64(p.said[i])})
			}
		}
		g.Usage.Tasks.Current = new(int64(4))
		s.Groups = append(s.Groups, g)
	}
	s.Host.EachCPU = map[int]time.Duration{0: (p.ran["mysql1"] + p.ran["reports"]) / 2,
		1: (p.ran["mysql1"] + p.ran["reports"]) / 2}
	for _, part := range []observe.Part{observe.CPU, observe.Threads, observe.EachCPU, observe.Stat, observe.Tasks} {
		s.Collectors = append(s.Collectors, observe.Reading{Name: part, On: !p.off[part], Told: !p.off[part]})
	}
	if p.rate > 0 {
		s.Collectors = append(s.Collectors, observe.Reading{Name: observe.Databases, On: true, Told: true,
			Age: p.now.Sub(p.asked)})
	}
	return s
}

// squeeze keeps what is wanted, and puts it in force.
func (p *plant) squeeze(_ context.Context, want []state.Override, tell ...journal.Entry) error {
	if p.calls++; p.fail != nil {
		return p.fail
	}
	was := p.limit
	p.want, p.history, p.limit = want, append(p.history, tell...), p.free
	for _, o := range want {
		_, text, _ := strings.Cut(o.Text, "=")
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		p.limit = v
	}
	if p.limit != was {
		p.changed = append(p.changed, p.now)
	}
	return nil
}

func (p *plant) loops() *Loops {
	return New(Options{Sampler: p, Squeeze: p.squeeze, Changed: func() { p.looks++ },
		OnTrial: func() bool { return p.trial },
		Guard:   func(context.Context) (Guard, error) { p.guards++; return p, nil },
		Log:     slog.New(slog.DiscardHandler)})
}

// hostWith is what the policy says: the batch may be lowered for the database.
func hostWith(mode slo.Mode) *host {
	c := candidate{}
	c.Knob, c.Role, c.Ceiling = slo.Knob{Group: "reports", Key: policy.KeyCPULimit}, policy.RoleBatch, 2
	return &host{mode: mode, knobs: []candidate{c},
		targets: []target{{"mysql1", policy.SLO{Signal: "waits", Value: 0.1}}}}
}

// run runs loops for a time.
func (p *plant) run(t *testing.T, l *Loops, d time.Duration) {
	t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.pass(time.Second)
		l.Tick(t.Context(), p.now)
		for _, o := range p.want {
			if o.Group != "reports" || o.Key != policy.KeyCPULimit || !o.IsSLO() || o.Ends.Sub(p.now) > lasts ||
				o.Ends.Before(p.now.Add(lasts-renewed-2*time.Second)) {
				t.Fatalf("%s: override %+v", p.now, o)
			}
		}
	}
}

// A batch is held while the database would wait too long, and gets everything back after; all that is one line of
// history, with a guard as long as anything is held.
func TestLoopsActAndGiveBack(t *testing.T) {
	p := newPlant()
	l := p.loops()
	l.watch(hostWith(slo.Act))
	p.run(t, l, 2*time.Minute)
	told := l.Told()["mysql1"]
	if len(p.want) != 1 || told.Value == nil || *told.Slack < 0 || len(told.Held) != 1 || p.guards != 1 ||
		p.looks < len(p.changed) || p.looks > p.calls/2 {
		t.Fatalf("wants %+v, tells %s, %d guards, %d full looks", p.want, told.Text(), p.guards,
			p.looks)
	}
	if len(p.history) != 0 || told.Missed == 0 || told.Windows < 15 || told.Windows > 24 {
		t.Errorf("history %+v, tells %s", p.history, told.Text())
	}
	p.demand = 0.01 // at night the database does nothing, and waits for nothing
	l.host.targets[0].slo.Value, l.all["mysql1"].Target.Value = 1, 1
	p.run(t, l, 75*time.Minute) // it has so many changes in an hour
	if len(p.want) != 0 || p.guards != 0 || len(p.history) != 1 {
		t.Fatalf("wants %+v, history %+v, %d guards", p.want, p.history, p.guards)
	}
	e := p.history[0]
	for _, want := range []string{"reports:cpu.limit no limit > ", " > policy", "waits", "windows of", "missed"} {
		if !strings.Contains(e.Text, want) {
			t.Errorf("the history says %q, not %q", e.Text, want)
		}
	}
	calls := p.calls
	if p.run(t, l, time.Minute); p.calls != calls {
		t.Errorf("with nothing held %d changes are made", p.calls-calls)
	}
}

// It looks each second as long as the target is missed and after a change, and has collectors read for that; else it
// has nothing read.
func TestLoopsLookCloser(t *testing.T) {
	p := newPlant()
	l := p.loops()
	l.watch(hostWith(slo.Act))
	l.all["mysql1"].Target.Value = 1 // kept
	p.run(t, l, time.Minute)
	if len(p.reads) > 0 {
		t.Errorf("the target is kept, and these were read: %v", p.reads)
	}
	l.all["mysql1"].Target.Value, p.demand = 0.1, 0.9
	missed := p.now
	p.run(t, l, 20*time.Second)
	if n := len(p.changed); n == 0 || p.changed[n-1].Sub(missed) > 12*time.Second {
		t.Errorf("the limit was changed at %v, after %s", p.changed, missed)
	}
	if n := p.reads[observe.Threads]; n < 8 || p.reads[observe.Databases] > 0 || p.reads[observe.CPU] != n {
		t.Errorf("the target is missed, and these were read: %v", p.reads)
	}
	p.run(t, l, time.Minute)
	clear(p.reads)
	if p.run(t, l, time.Minute); len(p.reads) > 0 && len(p.changed) < 4 {
		t.Errorf("the target is kept again, and these were read: %v", p.reads)
	}
}

// A p95 of statements is asked for with each look where the loop acts, and never for advice. It is of so many
// statements as it takes, and after a change of such that were asked after it.
func TestLoopsAskForStatements(t *testing.T) {
	for _, c := range []struct {
		rate        float64
		least, most time.Duration // between two changes
	}{{1000, 2 * time.Second, 4 * time.Second}, {100, 2 * time.Second, 5 * time.Second},
		{30, 7 * time.Second, 10 * time.Second}} {
		p := newPlant()
		p.rate, p.limit, p.free = c.rate, 0.1, 0.1
		l := p.loops()
		h := hostWith(slo.Advise)
		h.targets[0].slo = policy.SLO{Signal: "p95", Value: 0.02}
		l.watch(h)
		p.run(t, l, time.Minute)
		if told := l.Told()["mysql1"]; p.reads[observe.Databases] > 0 || told.Value == nil || *told.Slack < 0.5 {
			t.Errorf("%g/s, advise: read %v, tells %s", c.rate, p.reads, told.Text())
		}
		h.mode = slo.Act
		l.watch(h)
		p.run(t, l, time.Minute)
		if n := p.reads[observe.Databases]; n < 11 || n > 13 {
			t.Errorf("%g/s, kept: it was asked %d times in a minute", c.rate, n)
		}
		p.limit, p.free = 2, 2
		missed := p.now
		p.run(t, l, 40*time.Second)
		if n := len(p.changed); n < 2 || p.changed[0].Sub(missed) > 9*time.Second ||
			p.changed[1].Sub(p.changed[0]) < c.least || p.changed[1].Sub(p.changed[0]) > c.most {
			t.Errorf("%g/s: missed from %s on, the limit was changed at %v", c.rate, missed, p.changed)
		}
		if told := l.Told()["mysql1"]; told.Slack == nil || *told.Slack < 0 {
			t.Errorf("%g/s: tells %s", c.rate, told.Text())
		}
	}
}

// What a collector told that was switched off, or before a clock was set back, is not gone by.
func TestLoopsForgetOldReadings(t *testing.T) {
	p := newPlant()
	l := p.loops()
	l.watch(hostWith(slo.Advise))
	p.run(t, l, time.Minute)
	before := *l.Told()["mysql1"].Value
	p.back, p.demand = time.Hour, 0.01
	p.run(t, l, time.Minute)
	told := l.Told()["mysql1"]
	if told.Value == nil || *told.Value > before/2 {
		t.Errorf("it waited for %v of its time, then for little, and tells %s", before, told.Text())
	}
	p.off = map[observe.Part]bool{observe.Threads: true}
	p.run(t, l, 10*time.Second)
	windows := l.Told()["mysql1"].Windows
	p.run(t, l, time.Minute)
	if told = l.Told()["mysql1"]; told.Value != nil || told.Windows > windows {
		t.Errorf("who waits is counted no more, and it tells %s", told.Text())
	}
}

// The same reading once more is no second look.
func TestLoopsWaitForReadings(t *testing.T) {
	p := newPlant()
	p.rate, p.limit, p.free, p.deaf = 1000, 0.1, 0.1, true
	l := p.loops()
	h := hostWith(slo.Act)
	h.targets[0].slo = policy.SLO{Signal: "p95", Value: 0.15}
	l.watch(h)
	p.run(t, l, time.Minute)
	p.limit, p.free = 2, 2
	missed := p.now
	if p.run(t, l, time.Minute); len(p.changed) == 0 || p.changed[0].Sub(missed) < 20*time.Second {
		t.Errorf("missed by little from %s on, the limit was changed at %v", missed, p.changed)
	}
}

// In advise nothing is held, and what would be is told.
func TestLoopsAdvise(t *testing.T) {
	p := newPlant()
	l := p.loops()
	l.watch(hostWith(slo.Advise))
	p.run(t, l, 5*time.Minute)
	if told := l.Told()["mysql1"]; len(p.want) > 0 || p.guards > 0 || !strings.Contains(told.Did,
		"would lower reports:cpu.limit from no limit to 0.59") {
		t.Errorf("wants %+v, tells %s", p.want, told.Text())
	}
	if len(p.history) != 1 || !strings.Contains(p.history[0].Text, "would lower") {
		t.Errorf("history %+v", p.history)
	}
}

func TestLoopsLetGo(t *testing.T) {
	for name, c := range map[string]struct {
		what func(*plant, *Loops)
		took time.Duration
	}{
		"a promise that is no more":  {func(_ *plant, l *Loops) { l.watch(&host{mode: slo.Act}) }, 6 * time.Second},
		"mode advise":                {func(_ *plant, l *Loops) { l.watch(hostWith(slo.Advise)) }, 5 * time.Second},
		"mode off":                   {func(_ *plant, l *Loops) { l.watch(hostWith(slo.Off)) }, 6 * time.Second},
		"a change on trial":          {func(p *plant, _ *Loops) { p.trial = true }, 70 * time.Second},
		"a guard that is gone":       {func(p *plant, _ *Loops) { close(p.fired) }, time.Second},
		"a group that may no longer": {func(_ *plant, l *Loops) { l.host.knobs = nil }, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlant()
			l := p.loops()
			l.watch(hostWith(slo.Act))
			p.run(t, l, time.Minute)
			if len(p.want) != 1 {
				t.Fatalf("wants %+v", p.want)
			}
			c.what(p, l)
			p.run(t, l, c.took)
			if len(p.want) != 0 || p.guards != 0 || len(p.history) != 1 {
				t.Errorf("wants %+v, history %+v, %d guards", p.want, p.history, p.guards)
			}
		})
	}
}

// What cannot be put in force is told, and tried again.
func TestLoopsTryAgain(t *testing.T) {
	p := newPlant()
	p.fail = errors.New("no room on the disk")
	l := p.loops()
	l.watch(hostWith(slo.Act))
	p.run(t, l, 40*time.Second)
	if told := l.Told()["mysql1"]; !strings.Contains(told.Text(), "NOT IN FORCE: no room on the disk") {
		t.Errorf("tells %s", told.Text())
	}
	p.fail = nil
	p.run(t, l, 2*time.Second)
	if told := l.Told()["mysql1"]; len(p.want) != 1 || told.Error != "" {
		t.Errorf("wants %+v, tells %s", p.want, told.Text())
	}
}

// What cannot be put in force for long is not held: the loop begins anew.
func TestLoopsGiveUp(t *testing.T) {
	p := newPlant()
	l := p.loops()
	l.watch(hostWith(slo.Act))
	p.run(t, l, time.Minute)
	p.fail = errors.New("no room on the disk")
	p.demand = 0.9 // it has to be lowered more
	for range 180 {
		p.pass(time.Second)
		l.Tick(t.Context(), p.now)
	}
	if told := l.Told()["mysql1"]; len(told.Held) > 0 || told.Value != nil ||
		!strings.Contains(told.Unknown, "no room on the disk") {
		t.Errorf("it cannot be put in force for 3 minutes: tells %s", told.Text())
	}
	p.fail = nil
	p.run(t, l, time.Minute)
	if told := l.Told()["mysql1"]; len(p.want) != 1 || told.Error != "" {
		t.Errorf("wants %+v, tells %s", p.want, told.Text())
	}
}

// A database that hardly waits is slow for something else, whoever has a part in the little that it waits.
func TestLoopsDoNotSqueezeBlindly(t *testing.T) {
	p := newPlant()
	p.rate, p.harm = 1000, 0.005
	l := p.loops()
	h := hostWith(slo.Act)
	h.targets[0].slo = policy.SLO{Signal: "p95", Value: 0.02}
	l.watch(h)
	p.run(t, l, time.Minute)
	if told := l.Told()["mysql1"]; len(p.changed) > 0 || told.Slack == nil || *told.Slack > 0 ||
		!strings.Contains(told.Did, "no group that can be squeezed has a part in it") {
		t.Errorf("changed at %v, tells %s", p.changed, told.Text())
	}
}

func TestStatements(t *testing.T) {
	l := &Loops{host: &host{}}
	begun := time.Unix(1_700_000_000, 0)
	hear := func(at time.Duration, why string, all ...observe.Statements) {
		l.hear(&observe.Sample{At: begun.Add(at), Collectors: []observe.Reading{{Name: observe.Databases, Told: true}},
			Groups: []observe.Group{{Group: "a", Work: &observe.Work{Statements: all, Error: why}}}})
	}
	ms := func(n int, calls uint64) observe.Statements {
		return observe.Statements{UpTo: time.Duration(n) * time.Millisecond, Calls: calls}
	}
	for i, c := range []struct {
		why  string
		all  []observe.Statements
		want float64
		says string
	}{
		{"", []observe.Statements{ms(1, 1000), ms(8, 1000)}, 0, "too few"},
		{"", []observe.Statements{ms(1, 1900), ms(8, 1100)}, 0.006, ""}, // half of the slow ones are in 95 %
		{"", []observe.Statements{ms(1, 1900), ms(8, 1100)}, 0.006, ""}, // of 20 s
		{"", []observe.Statements{ms(1, 1900), ms(8, 1100)}, 0, "too few"},
		{"", []observe.Statements{ms(1, 2900), ms(8, 1100)}, 0.000975, ""},
		{"timeout", nil, 0, "timeout"},
		{"", []observe.Statements{ms(1, 2900), ms(8, 1100)}, 0, "too few"}, // and not of all since its start
		{"", []observe.Statements{ms(1, 2900), ms(8, 1100), {Calls: 500}}, 0.016, ""},
		{"", []observe.Statements{ms(1, 10)}, 0, "counts anew"},
		{"no plugin", nil, 0, "no plugin"},
	} {
		hear(time.Duration(i)*10*time.Second, c.why, c.all...)
		got, _, why := l.works["a"].p95()
		if fmt.Sprintf("%.6f", got) != fmt.Sprintf("%.6f", c.want) || !strings.Contains(why, c.says) ||
			(why == "") != (c.says == "") {
			t.Errorf("%d: %v, %q, want %v, %q", i, got, why, c.want, c.says)
		}
	}
	if _, _, why := l.works["b"].p95(); !strings.Contains(why, "not asked yet") {
		t.Error(why)
	}
}

func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		key  policy.Key
		v    float64
		want string
	}{
		{policy.KeyCPULimit, 1.4, "1.4"}, {policy.KeyCPULimit, 0.0501, "0.05"}, {policy.KeyCPULimit, 0.98001, "0.98"},
		{policy.KeyIOReadBandwidth, 35e6, "35MB/s"}, {policy.KeyIOReadIOPS, 349.6, "350"},
	} {
		if got := amount(c.key, c.v); got != c.want {
			t.Errorf("%s %v is %q", c.key, c.v, got)
		}
	}
	s := api.SLO{Group: "a", Mode: "act", Signal: "heartbeat", Target: 0.02, Unknown: "why"}
	if text := s.Text(); text != "slo of a (act): heartbeat not known (why), target 20ms" {
		t.Error(text)
	}
	s.Held = []api.SLOHeld{{Limit: "a/backup:cpu.limit", Value: "0.5", Policy: "2", Ends: new(time.Now()),
		Read: new(0.62), Of: "/data"}, {Limit: "reports:cpu.limit", Value: "1", Policy: "no limit", Unknown: "why"}}
	if text := s.Text(); !strings.HasSuffix(text, "; holds a/backup:cpu.limit=0.5 (policy: 2; ends about "+
		time.Now().Format("15:04")+", 62 % of /data read), reports:cpu.limit=1 (policy: no limit; when it ends is not "+
		"known: why)") {
		t.Error(text)
	}
}

func (l *Loops) watch(h *host) { l.take(context.Background(), h) }

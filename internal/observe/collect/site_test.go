package collect

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/observe"
)

// site is a runner in a bubble of synctest, whose collectors read nothing and say when they did. The test has its lock
// from start on, but for while time passes: then its collectors have it.
type site struct {
	sync.Mutex

	t    *testing.T
	r    *Runner
	log  log
	read map[observe.Part][]time.Time
	// samples are when which collectors were in a sample.
	samples []taken
	kept    Choice
	hang    map[observe.Part]chan struct{} // a collector waits for its channel, whatever ctx says
	fail    map[observe.Part]error
	cost    map[observe.Part]time.Duration // of a CPU
	saves   error
	disk    chan struct{} // where keeping a choice waits
	panics  observe.Part
	end     func() // of the runner
}

// log is a text that the runner's goroutines write.
type log struct {
	sync.Mutex

	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.Lock()
	defer l.Unlock()
	return l.text.String()
}

type taken struct {
	at    time.Time
	told  []observe.Part
	fresh []observe.Part
}

func newSite(t *testing.T) *site {
	return &site{t: t, read: map[observe.Part][]time.Time{}, hang: map[observe.Part]chan struct{}{},
		fail: map[observe.Part]error{}, cost: map[observe.Part]time.Duration{}}
}

// start starts the runner until the test ends.
func (s *site) start(choice Choice) {
	o := Options{Choice: choice, Sources: map[observe.Part]Source{},
		Log:   slog.New(slog.NewTextHandler(&s.log, nil)),
		clock: func() (int, time.Duration) { return 1, 0 },
		Save: func(c Choice) error {
			if s.disk != nil {
				<-s.disk
			}
			if s.saves == nil {
				s.kept = c
			}
			return s.saves
		},
		Taken: func(one *observe.Sample, fresh []observe.Part) {
			told := []observe.Part{}
			for _, c := range one.Collectors {
				if c.Told {
					told = append(told, c.Name)
				}
			}
			s.Lock()
			defer s.Unlock()
			s.samples = append(s.samples, taken{one.At, told, fresh})
		}}
	for _, p := range observe.Parts {
		o.Sources[p] = func(_ context.Context, m *Meter) (Put, error) {
			s.Lock()
			s.read[p] = append(s.read[p], time.Now())
			hang, fails, panics := s.hang[p], s.fail[p], s.panics == p
			m.used += s.cost[p]
			s.Unlock()
			if hang != nil {
				<-hang
			}
			if panics {
				panic("no such line")
			}
			return func(*observe.Sample) {}, fails
		}
	}
	s.r = New(o)
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.r.Run(ctx); close(done) }()
	s.end = func() { s.meanwhile(func() { end(); <-done; synctest.Wait() }) }
	s.t.Cleanup(s.end)
	synctest.Wait()
	s.Lock()
}

// pass lets time pass.
func (s *site) pass(d time.Duration) { s.meanwhile(func() { time.Sleep(d); synctest.Wait() }) }

// meanwhile lets the collectors read.
func (s *site) meanwhile(wait func()) {
	s.Unlock()
	defer s.Lock()
	wait()
}

// on are the collectors that the runner says are on.
func (s *site) on() (all []observe.Part) {
	for _, c := range s.r.Readings() {
		if c.On {
			all = append(all, c.Name)
		}
	}
	return all
}

func (s *site) reading(p observe.Part) observe.Reading {
	for _, c := range s.r.Readings() {
		if c.Name == p {
			return c
		}
	}
	s.t.Fatalf("there is no %s", p)
	return observe.Reading{}
}

// gaps are the times between readings of a collector.
func (s *site) gaps(p observe.Part) (all []time.Duration) {
	for i, at := range s.read[p][1:] {
		all = append(all, at.Sub(s.read[p][i]))
	}
	return all
}

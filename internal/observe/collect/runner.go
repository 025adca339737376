// Package collect runs the collectors of observe.Collectors, each on its own clock, and puts what they read together
// into samples. They are switched on and off while it runs.
//
// Each collector reads in a goroutine of its own: one that hangs keeps no other from reading. Readings lie on a grid of
// time that begins when the runner does, so that those of several collectors meet, and switching one moves none of the
// others. Methods of a Runner are safe for concurrent use; Run is called once.
package collect

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"bulkhead/internal/linux/scheduling"
	"bulkhead/internal/observe"
)

// Put puts what a collector has read into a sample. It may be called several times, with different samples.
type Put func(*observe.Sample)

// Source reads what one collector tells. It is called by one goroutine at a time. It should end early when ctx does,
// which is after the collector's Limit.
type Source func(ctx context.Context, m *Meter) (Put, error)

// Options of a Runner. Zero values are the defaults.
type Options struct {
	Sources map[observe.Part]Source
	// Begin puts into a sample what is there without a reading: the groups.
	Begin func(*observe.Sample)
	// Taken is called with each sample and with the collectors whose readings are new in it, in the goroutine of Run.
	Taken func(s *observe.Sample, fresh []observe.Part)
	// Choice is which collectors are on at first, and Save keeps what it became.
	Choice Choice
	Save   func(Choice) error
	// Every is the time between two readings of a tier, where that is not Tier.Every.
	Every map[observe.Tier]time.Duration
	Log   *slog.Logger
	// clock tells the thread and its CPU time; tests have another one.
	clock func() (int, time.Duration)
}

const (
	// grace is how long a sample waits for readings that are under way.
	grace = 250 * time.Millisecond
	// hotFor is for how long the quick collectors read every second after the last reason to.
	hotFor = time.Minute
	// tooDear is how many readings in a row may be over budget, and slowest how many times as long as it should be the
	// time between two readings becomes for that at most.
	tooDear, slowest = 3, 8
	// soonest is the part of the time between two readings after which a collector may be asked to read again.
	soonest = 20
	// staleAfter is how many times the time between two readings one may be old and still be in a sample.
	staleAfter = 3
	// usually is the time between two samples when no collector is on.
	usually = 10 * time.Second
)

// collector is one collector with what it did.
type collector struct {
	observe.Collector

	source Source
	on     bool
	until  time.Time // of a switch of limited duration
	next   time.Time // when it is to read

	running    time.Time     // since when it reads; zero: it does not
	put        Put           // of the last reading that succeeded; nil: none
	read       time.Time     // when that began
	span       time.Duration // from then to the next one, as it was meant then
	fresh      bool          // it is in no sample yet
	took, used time.Duration
	skipped    int64
	err        error
	remark     string
	dear       int  // readings over budget in a row
	slower     int  // how many times as long the time between two readings is
	late       bool // the log says that it takes too long
}

// Runner runs collectors.
type Runner struct {
	o     Options
	wake  chan struct{}
	ended chan struct{} // a reading ended

	changing sync.Mutex // held while a change is kept: the disk may take long, and nobody else waits for it

	mu     sync.Mutex // guards what follows; choice is written with both held
	all    []*collector
	choice Choice
	begun  time.Time // the begin of the grid
	hot    time.Time // until when it is hot
	last   *observe.Sample
	newer  chan struct{} // closed with the next sample, and at the end
	over   bool          // there is no next one
	anew   bool          // a switch has changed what a sample has
}

// New makes a runner of the collectors that have a source.
func New(o Options) *Runner {
	if o.Begin == nil {
		o.Begin = func(*observe.Sample) {}
	}
	if o.Taken == nil {
		o.Taken = func(*observe.Sample, []observe.Part) {}
	}
	if o.Save == nil {
		o.Save = func(Choice) error { return nil }
	}
	if o.clock == nil {
		o.clock = scheduling.ThreadTime
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Runner{o: o, choice: o.Choice, begun: time.Now(), wake: make(chan struct{}, 1),
		ended: make(chan struct{}, 1), newer: make(chan struct{})}
	for _, c := range observe.Collectors {
		if source := o.Sources[c.Name]; source != nil {
			r.all = append(r.all, &collector{Collector: c, source: source, slower: 1})
		}
	}
	r.turn(r.begun)
	return r
}

// Run reads and samples until ctx ends. A reading that hangs then is left behind.
func (r *Runner) Run(ctx context.Context) {
	defer r.stop()
	for ctx.Err() == nil {
		if busy, due := r.begin(ctx, time.Now()); due {
			r.await(ctx, busy)
			r.sample(time.Now())
		}
		rest := time.NewTimer(r.rest(time.Now()))
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-rest.C:
		}
		rest.Stop()
	}
}

// stop lets go who waits for a sample: no other one comes.
func (r *Runner) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	close(r.newer)
}

// Change switches collectors. It is in effect with the next sample, which is taken at once. An unknown name, or a
// choice that cannot be kept, changes nothing.
func (r *Runner) Change(change Change) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	next, err := r.choice.With(change, time.Now())
	if err == nil {
		err = r.o.Save(next)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.choice = next
	r.turn(time.Now())
	r.stir()
	return nil
}

// warm has the quick collectors read every second for the next minute.
func (r *Runner) warm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heat(time.Now())
	r.stir()
}

// ReadNow has a collector that is on read at once, and a sample taken with that; one that has read just now after a
// twentieth of its usual time, which is longer for one that costs too much. It reads after that when it would have.
func (r *Runner) ReadNow(p observe.Part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, c := range r.all {
		soon := now
		rest := c.Tier.Every(false) * time.Duration(c.slower) / soonest
		if rested := c.read.Add(rest); rested.After(now) {
			soon = rested
		}
		if c.on && c.Name == p && soon.Before(c.next) {
			c.next = soon
		}
	}
	r.stir()
}

// Last is the last sample, with the time since then; nil before the first one.
func (r *Runner) Last() *observe.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return nil
	}
	one := *r.last
	one.Age = time.Since(one.At)
	return &one
}

// Newer waits for a sample that was taken after a time, and gives the last one; the same again when ctx or Run ends
// before. While somebody waits so, the host is hot.
func (r *Runner) Newer(ctx context.Context, after time.Time) *observe.Sample {
	r.warm()
	for {
		r.mu.Lock()
		last, newer, over := r.last, r.newer, r.over
		r.mu.Unlock()
		if over || last != nil && last.At.After(after) {
			return r.Last()
		}
		select {
		case <-newer:
		case <-ctx.Done():
			return r.Last()
		}
	}
}

// Readings says of each collector how it is switched and what it did.
func (r *Runner) Readings() []observe.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	all := make([]observe.Reading, 0, len(r.all))
	for _, c := range r.all {
		all = append(all, r.reading(c, now))
	}
	return all
}

// stir ends the rest of Run.
func (r *Runner) stir() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// turn switches collectors as the choice says. The caller holds the lock.
func (r *Runner) turn(now time.Time) {
	for _, c := range r.all {
		on, until := r.choice.On(c.Name, now)
		c.until = until
		switch {
		case on && !c.on:
			c.next, c.put, c.err, c.dear, c.slower, c.late, c.remark = now, nil, nil, 0, 1, false, ""
			r.anew = true
		case !on && c.on:
			c.put, c.fresh, r.anew = nil, false, true
		}
		c.on = on
	}
}

// heat makes the runner hot. The caller holds the lock.
func (r *Runner) heat(now time.Time) {
	cold := !r.hot.After(now)
	r.hot = now.Add(hotFor)
	if cold {
		r.align(now)
	}
}

// align has each collector read at its next point of the grid. The caller holds the lock.
func (r *Runner) align(now time.Time) {
	for _, c := range r.all {
		if next := r.grid(now, r.every(c, now)); c.on && next.Before(c.next) {
			c.next = next
		}
	}
}

// every is the time between two readings of a collector. The caller holds the lock.
func (r *Runner) every(c *collector, now time.Time) time.Duration {
	every := c.Tier.Every(r.hot.After(now))
	if given := r.o.Every[c.Tier]; given > 0 {
		every = given
	}
	return every * time.Duration(c.slower)
}

// grid is the first point of the grid after now.
func (r *Runner) grid(now time.Time, every time.Duration) time.Time {
	return r.begun.Add((now.Sub(r.begun)/every + 1) * every)
}

// begin begins the readings that are due. It says which collectors read now, and whether a sample is due.
func (r *Runner) begin(ctx context.Context, now time.Time) (busy []*collector, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	due, r.anew = r.anew, false
	on := false
	for _, c := range r.all {
		on = on || c.on
		if !c.on || c.next.After(now) {
			continue
		}
		due = true
		c.next = r.grid(now, r.every(c, now))
		if !c.running.IsZero() {
			c.skipped++
			if !c.late {
				c.late = true
				r.o.Log.Warn("a collector takes too long; its readings are skipped until it is done",
					"collector", c.Name, "since", c.running)
			}
			continue
		}
		c.running = now
		go r.take(ctx, c)
		busy = append(busy, c)
	}
	if !on && (r.last == nil || now.Sub(r.last.At) >= usually) {
		due = true
	}
	return busy, due
}

// take takes one reading.
func (r *Runner) take(ctx context.Context, c *collector) {
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	m := NewMeter(r.o.clock)
	began := time.Now()
	put, err := c.attempt(ctx, m)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("it took longer than %s: %w", c.Limit, err)
	}
	r.mu.Lock()
	r.end(c, put, err, began, m)
	r.mu.Unlock()
	select {
	case r.ended <- struct{}{}:
	default:
	}
}

// attempt reads. What a source panics with is an error of its collector: one line of the kernel that nobody thought of
// ends no agent.
func (c *collector) attempt(ctx context.Context, m *Meter) (put Put, err error) {
	defer func() {
		m.stop()
		if why := recover(); why != nil {
			err = fmt.Errorf("it failed by a defect of its own: %v", why)
		}
	}()
	m.start()
	return c.source(ctx, m)
}

// end takes in what a reading told. The caller holds the lock.
func (r *Runner) end(c *collector, put Put, err error, began time.Time, m *Meter) {
	now, used := time.Now(), m.used
	c.running, c.took, c.used = time.Time{}, now.Sub(began), used
	if c.late && c.on {
		c.late = false
		r.o.Log.Info("the collector reads again", "collector", c.Name)
	}
	switch {
	case !c.on:
		return
	case err != nil:
		if c.err == nil || c.err.Error() != err.Error() {
			r.o.Log.Warn("a collector could not read; trying again", "collector", c.Name, "err", err)
		}
		c.err = err
		return
	}
	c.put, c.read, c.span, c.fresh, c.err, c.remark = put, began, r.every(c, now), true, nil, m.remark
	if c.dear++; used <= c.Budget {
		c.dear = 0
	}
	if c.dear >= tooDear && c.slower < slowest {
		c.dear, c.slower = 0, 2*c.slower
		r.o.Log.Warn("a collector uses more CPU than it may, and reads half as often",
			"collector", c.Name, "used", used, "budget", c.Budget, "every", r.every(c, now))
	}
}

// await waits for readings, but not long.
func (r *Runner) await(ctx context.Context, busy []*collector) {
	late := time.NewTimer(grace)
	defer late.Stop()
	for r.underWay(busy) {
		select {
		case <-r.ended:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (r *Runner) underWay(busy []*collector) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range busy {
		if !c.running.IsZero() {
			return true
		}
	}
	return false
}

// sample puts a sample together.
func (r *Runner) sample(now time.Time) {
	one := &observe.Sample{At: now, Groups: []observe.Group{}, Collectors: []observe.Reading{}}
	r.o.Begin(one)
	r.mu.Lock()
	var fresh []observe.Part
	began := now
	for _, c := range r.all {
		one.Skipped += c.skipped
		if !c.on {
			continue
		}
		at := r.reading(c, now)
		one.Every = min(cmp.Or(one.Every, at.Every), at.Every)
		if at.Told {
			c.put(one)
		}
		if c.fresh {
			c.fresh, fresh = false, append(fresh, c.Name)
			if c.read.Before(began) {
				began = c.read
			}
		}
		one.Collectors = append(one.Collectors, at)
	}
	one.Every = cmp.Or(one.Every, usually)
	one.Took, one.Hot = now.Sub(began).Round(time.Microsecond), r.hot.After(now)
	if Waits(r.last, one) {
		r.heat(now)
	}
	r.last = one
	close(r.newer)
	r.newer = make(chan struct{})
	r.mu.Unlock()
	r.o.Taken(one, fresh)
}

// reading says what a collector did. The caller holds the lock.
func (r *Runner) reading(c *collector, now time.Time) observe.Reading {
	at := observe.Reading{Name: c.Name, On: c.on, Tier: c.Tier, Help: c.Help, Every: r.every(c, now), Slower: c.slower,
		Took: c.took.Round(time.Microsecond), Used: c.used, Skipped: c.skipped, Remark: c.remark}
	if !c.until.IsZero() {
		at.Until = new(c.until)
	}
	if c.put != nil {
		at.Age = now.Sub(c.read)
		at.Told = at.Age <= staleAfter*max(at.Every, c.span)+c.Limit
	}
	if !c.running.IsZero() && now.Sub(c.running) > c.Limit {
		at.Waiting = now.Sub(c.running)
	}
	if c.err != nil {
		at.Error = c.err.Error()
	}
	return at
}

// rest is how long nothing is to be done.
func (r *Runner) rest(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := now.Add(usually)
	for _, c := range r.all {
		if c.on && c.next.Before(next) {
			next = c.next
		}
	}
	if ends := r.choice.Ends(now); !ends.IsZero() && ends.Before(next) {
		next = ends
	}
	return next.Sub(now)
}

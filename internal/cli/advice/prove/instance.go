package prove

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"bulkhead/internal/advise/proved"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/bench/progress"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/dbstat"
	"bulkhead/internal/proof"
)

// Instance measures a database that runs under the load that it has: how much it does by its own counter, without the
// questions for that, and how long it takes to answer those, which are asked every askEvery.
type Instance struct {
	Name     string
	Login    *dblogin.Login
	Seconds  int
	Progress io.Writer
	Terminal bool
	// Has says whether it has at once what is written into an option file of bulkhead's.
	Has func(file string) bool
}

const (
	askEvery = 100 * time.Millisecond
	askTime  = 10 * time.Second // one answer
)

// Estimate is about how long all of it takes.
func (i Instance) Estimate(rounds int) time.Duration {
	return time.Duration(2*rounds+1) * (time.Duration(i.Seconds)*time.Second + time.Second)
}

// Open connects to the database.
func (i Instance) Open(ctx context.Context, do func(context.Context, Subject) error) (err error) {
	s, err := dbstat.Of(i.Login)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := progress.New(i.Progress, i.Terminal)
	defer p.Close()
	ctx, stop := process.UntilSignal(ctx, func() { p.Note("taking the change back, please wait") })
	defer stop()
	err = do(ctx, Subject{
		Text: "instance " + i.Name + " under its own load",
		Rows: []proved.Row{{Key: "work", Name: s.Counter, Unit: "/s"},
			{Key: "p50", Name: "an answer, median latency", Unit: "ms", Latency: true},
			{Key: "p99", Name: "an answer, p99 latency", Unit: "ms", Latency: true}},
		Longest: time.Duration(i.Seconds)*time.Second + askTime,
		Idle: "the database did nothing while it was measured, beside answering bulkhead: give it the load that " +
			"it is to be measured under",
		Apart: func(name string) string { return cmp.Or(ofPool(name), ofOption(name, i.Has)) },
		Measure: func(ctx context.Context, text string, done, of int) (proved.Sample, error) {
			p.Arm(done, of)
			p.Phase(text)
			return window(ctx, s.Work, time.Duration(i.Seconds)*time.Second)
		},
	})
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return errors.Join(cause, err)
	}
	return err
}

// window is one measurement of so long.
func window(ctx context.Context, ask func(context.Context) (int64, error), length time.Duration) (proved.Sample,
	error) {
	var answers []float64
	var first, last int64
	own := int64(-1) // questions that the counter has of this one since the first
	began := time.Now()
	var from, to time.Time
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for n := 0; time.Since(began) < length || n < 2; n++ {
		asked := time.Now()
		limited, stop := context.WithTimeout(ctx, askTime)
		work, err := ask(limited)
		stop()
		if err != nil {
			return nil, err
		}
		answers = append(answers, float64(time.Since(asked).Microseconds())/1000)
		if n == 0 {
			first, from = work, time.Now()
		}
		if work < last {
			return nil, errors.New("the database counts from nothing again: it was started anew in the midst of it")
		}
		last, to = work, time.Now()
		own++
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
	all := proof.Distribute(answers)
	return proved.Sample{"work": float64(max(last-first-own, 0)) / to.Sub(from).Seconds(), "p50": float64(all.P50),
		"p99": float64(all.P99)}, nil
}

package sloloop

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"bulkhead/internal/dbstat"
	"bulkhead/internal/slo"
)

const (
	// heartbeat is the time between two questions whose duration is the signal, and question that where the work is.
	heartbeat, question = 200 * time.Millisecond, time.Second
	// quick is the time between two questions whose duration is the signal while the loop is hot.
	quick = 100 * time.Millisecond
	// span is the time of which the p95 of heartbeats is, and fewest how many there must be. While the loop is hot it
	// is of hotSpan, or of as long as it takes to have the fewest.
	span, fewest, hotSpan = 10 * time.Second, 10, 2 * time.Second
	// workSpan is the time of which work is counted while the loop is hot.
	workSpan = 3 * time.Second
	// patience is how long an answer may take.
	patience = 2 * time.Second
	// again is the pause after a question that failed.
	again = time.Second
)

// ask has each database asked that is to be.
func (l *Loops) ask(ctx context.Context) {
	wanted := map[string]time.Duration{}
	for _, t := range l.host.targets {
		if t.slo.DSN == "" || t.slo.Signal == string(slo.P95) || l.host.mode == slo.Off {
			continue
		}
		every := question
		if t.slo.Signal == string(slo.Heartbeat) {
			every = heartbeat
		}
		wanted[t.slo.DSN] = every
	}
	for dsn, a := range l.askers {
		if wanted[dsn] != a.every {
			a.stop()
			delete(l.askers, dsn)
		}
	}
	for dsn, every := range wanted {
		if l.askers[dsn] == nil {
			l.askers[dsn] = askEvery(ctx, dsn, every, l.o.Log)
		}
	}
}

// askEvery asks a database until it is stopped.
func askEvery(ctx context.Context, dsn string, every time.Duration, log *slog.Logger) *asker {
	ctx, stop := context.WithCancel(ctx)
	a := &asker{stop: stop, every: every, pace: every}
	db, err := dbstat.Parse(dsn)
	if err != nil {
		a.fail = err
		return a
	}
	go func() {
		defer db.Close() // nothing was written
		a.run(ctx, db.Work, log)
	}()
	return a
}

func (a *asker) run(ctx context.Context, ask func(context.Context) (int64, error), log *slog.Logger) {
	said := ""
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, patience)
		begun := time.Now()
		work, err := ask(within)
		cancel()
		took := time.Since(begun)
		if err != nil && err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			log.Warn("a database does not say how it does; trying again", "err", err)
		}
		if err == nil {
			said = ""
		}
		a.take(answer{at: begun.Add(took), took: took, work: work, late: errors.Is(err, context.DeadlineExceeded) ||
			took >= patience}, err)
		pause := a.pause() - took
		if err != nil {
			pause = again
		}
		timer := time.NewTimer(max(0, pause))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// hurry has questions whose duration is the signal be asked more often, or as before.
func (a *asker) hurry(hot bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pace = a.every; hot {
		a.pace = min(a.every, max(quick, a.every/2))
	}
}

func (a *asker) pause() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pace
}

// take keeps an answer.
func (a *asker) take(one answer, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = err
	if err == nil || one.late {
		a.all = append(a.all, one)
	}
	for len(a.all) > 0 && one.at.Sub(a.all[0].at) > span {
		a.all = a.all[1:]
	}
}

// tell is the value of a signal, and of which time before now it is; why says why it is not known. An answer that did
// not come in time counts only where the database is known to wait for something: else it may be the way to it that is
// slow.
func (a *asker) tell(signal string, now time.Time, hot, waits bool) (value float64, of time.Duration, why string) {
	if a == nil {
		return 0, 0, "the database is not asked yet"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	failed := "it was asked too seldom so far"
	if a.fail != nil {
		failed = "the database does not answer: " + a.fail.Error()
	}
	if signal == string(slo.Work) {
		return a.worked(now, hot, failed)
	}
	var took []time.Duration
	late := false
	for _, one := range slices.Backward(a.all) {
		age := now.Sub(one.at)
		if age > span || hot && age > hotSpan && len(took) >= fewest {
			break
		}
		if one.late && !waits {
			continue
		}
		took, late, of = append(took, one.took), late || one.late, max(of, age+one.took)
	}
	if len(took) < fewest && !late { // one that is late has few beside it
		return 0, 0, failed
	}
	slices.Sort(took)
	return took[(len(took)*95+99)/100-1].Seconds(), of, ""
}

// worked is how much was done in a second. The caller holds the lock.
func (a *asker) worked(now time.Time, hot bool, failed string) (value float64, of time.Duration, why string) {
	var first, last *answer
	longest := span
	if hot {
		longest = workSpan
	}
	for i := range a.all {
		one := &a.all[i]
		if one.late || now.Sub(one.at) > longest+question/2 {
			continue
		}
		if first == nil {
			first = one
		}
		last = one
	}
	if first == nil || last.at.Sub(first.at) < 2*question || last.work < first.work {
		return 0, 0, failed
	}
	return float64(last.work-first.work) / last.at.Sub(first.at).Seconds(), now.Sub(first.at), ""
}

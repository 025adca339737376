package sampling

import (
	"context"
	"errors"
	"sync"

	"bulkhead/internal/dbstat"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// databases asks databases what they have done. Each has a connection that stays open. A source is called by one
// goroutine at a time, and so is each of its databases.
type databases struct {
	open map[string]*dbstat.Source // by data source name
}

func newDatabases() *databases { return &databases{open: map[string]*dbstat.Source{}} }

// source asks all databases at once, so that one which does not answer holds up none of the others.
func (d *databases) source(k *Kernel) collect.Source {
	return func(ctx context.Context, _ *collect.Meter) (collect.Put, error) {
		names := k.watched.Load().databases
		d.keep(names)
		said := make(map[string]*observe.Work, len(d.open))
		var mu sync.Mutex
		var wait sync.WaitGroup
		for dsn, db := range d.open {
			wait.Go(func() {
				work := ask(ctx, db)
				mu.Lock()
				defer mu.Unlock()
				said[dsn] = work
			})
		}
		wait.Wait()
		return func(s *observe.Sample) {
			for i := range s.Groups {
				s.Groups[i].Work = said[names[s.Groups[i].Group]]
			}
		}, nil
	}
}

// keep closes the connections to databases that are no longer asked, and makes those that are missing.
func (d *databases) keep(names map[string]string) {
	wanted := map[string]bool{}
	for _, dsn := range names {
		wanted[dsn] = true
		if d.open[dsn] != nil {
			continue
		}
		if db, err := dbstat.Parse(dsn); err == nil { // the policy was checked
			d.open[dsn] = db
		}
	}
	for dsn, db := range d.open {
		if !wanted[dsn] {
			_ = db.Close() // nothing was written
			delete(d.open, dsn)
		}
	}
}

// ask asks one database.
func ask(ctx context.Context, db *dbstat.Source) *observe.Work {
	done, err := db.Work(ctx)
	if err != nil {
		return &observe.Work{Error: err.Error()}
	}
	w := &observe.Work{Counter: db.Counter, Done: done}
	buckets, err := db.Times(ctx)
	var none *dbstat.NoTimesError
	switch {
	case errors.As(err, &none):
		w.Error = none.Reason + ": " + none.Hint
	case err != nil:
		w.Error = err.Error()
	}
	for _, b := range buckets {
		s := observe.Statements{UpTo: b.UpTo, Calls: b.Calls, Took: b.Took}
		if b.UpTo == dbstat.Longest {
			s.UpTo = 0
		}
		w.Statements = append(w.Statements, s)
	}
	return w
}

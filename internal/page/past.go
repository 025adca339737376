package page

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
)

const (
	// mostRange is the longest time that a chart may have, and points how many intervals it is divided into at most.
	mostRange = 7 * 24 * time.Hour
	points    = 300
	// stale is how old what was recorded last may be at a moment that somebody wants to see.
	stale = 2 * time.Minute
	// pastTime is how long an answer about the past may take.
	pastTime = 90 * time.Second
	// mostChanges is how many changes are marked in a chart at most.
	mostChanges = 200
)

// archive answers about what was recorded.
type archive struct {
	segments func(ctx context.Context, from, to time.Time) (io.ReadCloser, error)
	hint     hint
	reading  chan struct{} // has one place: the record is read for one at a time
}

// states gives what was known at the end of each interval of this width in which something was recorded, from a time
// before from on, so that all that was known at from is known. Counters then tell rates over the interval, and other
// figures are the last ones in it. damaged says that a part of the record cannot be read.
func (a *archive) states(ctx context.Context, from, to time.Time, width time.Duration, do func(*top.State)) (
	damaged bool, err error) {
	select {
	case a.reading <- struct{}{}:
		defer func() { <-a.reading }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	segments, err := a.segments(ctx, from.Add(-record.Before), to)
	if err != nil {
		return false, err
	}
	defer segments.Close()
	var last *top.State
	var pending record.Tick
	number := func(at time.Time) int64 { return at.UnixMilli() / width.Milliseconds() }
	flush := func() {
		if len(pending.Parts) > 0 && (last == nil || pending.At.After(last.At)) {
			last = last.Next(pending)
			do(last)
		}
		pending = record.Tick{}
	}
	err = record.Segments(segments, from.Add(-record.Before), to, func(s *record.Segment) error {
		for i := 0; i < s.Ticks && ctx.Err() == nil; {
			end := i + 1
			for end < s.Ticks && number(s.At(end)) == number(s.At(i)) {
				end++
			}
			if at := s.At(end - 1); !at.Before(from.Add(-record.Before)) && !at.After(to) {
				if number(at) != number(pending.At) {
					flush()
				}
				pending = pending.With(s.Last(i, end))
			}
			i = end
		}
		return ctx.Err()
	})
	flush()
	if errors.Is(err, record.ErrDamaged) {
		return true, nil
	}
	return false, err
}

// last gives what was recorded last; nil where there is nothing, or it is old.
func (a *archive) last(ctx context.Context) (last *top.State) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	now := time.Now()
	_, err := a.states(ctx, now, now, time.Second, func(s *top.State) { last = s })
	if err != nil || last == nil || now.Sub(last.At) > stale {
		return nil
	}
	return last
}

// at answers with what was known at a moment.
func (a *archive) at(w http.ResponseWriter, r *http.Request) {
	group, err := groupOf(r)
	at, wrong := moment(r, "at")
	if err = errors.Join(err, wrong); err != nil {
		a.hint.answer(w, nil, err)
		return
	}
	ctx, cancel := patient(w, r)
	defer cancel()
	var last *top.State
	if _, err := a.states(ctx, at, at, time.Second, func(s *top.State) { last = s }); err != nil {
		a.hint.answer(w, nil, err)
		return
	}
	if last == nil || at.Sub(last.At) > stale {
		a.hint.answer(w, nil, fmt.Errorf("%w at that time, or in the two minutes before", errNothing))
		return
	}
	a.hint.answer(w, viewOf(last, group), nil)
}

// patient gives an answer about the past more time than others.
func patient(w http.ResponseWriter, r *http.Request) (context.Context, context.CancelFunc) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pastTime + 10*time.Second))
	return context.WithTimeout(r.Context(), pastTime)
}

// numbers are figures one after the other; NaN is null in JSON.
type numbers []float64

// MarshalJSON writes them, with as many digits as a chart can show.
func (n numbers) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendFloat(b, v, 'g', 7, 64)
		}
	}
	return append(b, ']'), nil
}

// series are figures over time: all of one group, or some of the outermost groups.
type series struct {
	From    int64                         `json:"from"` // milliseconds of Unix time, as all times here
	To      int64                         `json:"to"`
	Step    int64                         `json:"step_ms"`
	Times   []int64                       `json:"times"`
	Host    map[string]numbers            `json:"host"`
	Groups  map[string]map[string]numbers `json:"groups"`
	Changes []top.Change                  `json:"changes"`
	Waiting *top.Waiting                  `json:"waiting,omitempty"` // of the group
	More    int                           `json:"more,omitempty"`    // changes that are left out
	Damaged bool                          `json:"damaged,omitempty"`
}

// inOverview are the figures of groups that stand beside each other.
var inOverview = []string{"cpu", "wait", "memory", "read", "write", "work", "slack"}

// add adds a point; a nil state is a gap.
func (all *series) add(at time.Time, s *top.State, group string) {
	n := len(all.Times)
	all.Times = append(all.Times, at.UnixMilli())
	put := func(into map[string]numbers, name string, value float64) {
		column := into[name]
		for len(column) < n {
			column = append(column, math.NaN())
		}
		into[name] = append(column, value)
	}
	if s == nil {
		return
	}
	h := s.Host()
	for name, v := range h.Named().Values {
		put(all.Host, name, v)
	}
	of := func(group string) map[string]numbers {
		if all.Groups[group] == nil {
			all.Groups[group] = map[string]numbers{}
		}
		return all.Groups[group]
	}
	cells := func(name string, which func(column string) bool) {
		for i := range top.Columns {
			c := &top.Columns[i]
			if !which(c.Name) {
				continue
			}
			if cell := c.Cell(s, name); cell.Known {
				put(of(name), c.Name, cell.Value)
			}
		}
	}
	if group == "" {
		for _, g := range s.Outermost() {
			cells(g.Name, func(column string) bool { return slices.Contains(inOverview, column) })
		}
		return
	}
	cells(group, func(string) bool { return true })
	for name, v := range s.Waits(group).Values {
		put(of(group), name, v)
	}
	for _, l := range s.Limits(group) {
		if l.Measured {
			put(of(group), "may "+l.Name(), l.Value)
		}
	}
}

// even makes all columns as long as the times.
func (all *series) even() {
	fill := func(of map[string]numbers) {
		for name := range of {
			for len(of[name]) < len(all.Times) {
				of[name] = append(of[name], math.NaN())
			}
		}
	}
	fill(all.Host)
	for _, of := range all.Groups {
		fill(of)
	}
}

// span reads from when to when somebody wants to see something.
func span(r *http.Request) (from, to time.Time, err error) {
	from, wrong := moment(r, "from")
	to, err = moment(r, "to")
	err = errors.Join(wrong, err)
	switch {
	case err != nil:
	case !from.Before(to):
		err = fmt.Errorf("%w: from is not before to", errAsked)
	case to.Sub(from) > mostRange:
		err = fmt.Errorf("%w: a chart has seven days at most", errAsked)
	}
	return from, to, err
}

// widthOf is how long each interval of a chart is, in whole seconds.
func widthOf(span time.Duration) time.Duration {
	return max((span+points*time.Second-1)/points, time.Second).Truncate(time.Second)
}

// series answers with figures over time.
func (a *archive) series(w http.ResponseWriter, r *http.Request) {
	group, err := groupOf(r)
	from, to, wrong := span(r)
	if err = errors.Join(err, wrong); err != nil {
		a.hint.answer(w, nil, err)
		return
	}
	width := widthOf(to.Sub(from))
	all := series{From: from.UnixMilli(), To: to.UnixMilli(), Step: width.Milliseconds(), Times: []int64{},
		Host: map[string]numbers{}, Groups: map[string]map[string]numbers{}, Changes: []top.Change{}}
	ctx, cancel := patient(w, r)
	defer cancel()
	if group != "" {
		all.Waiting = top.NewWaiting(group, gapFrom(width))
	}
	var before *top.State
	all.Damaged, err = a.states(ctx, from, to, width, func(s *top.State) {
		if !s.At.Before(from) {
			if before != nil && len(all.Times) > 0 {
				if gap := s.At.Sub(before.At); gap > gapFrom(width) {
					all.add(before.At.Add(gap/2), nil, group)
				}
				all.note(top.Changes(before, s), group)
			}
			all.add(s.At, s, group)
			if all.Waiting != nil {
				all.Waiting.Add(s)
			}
		}
		before = s
	})
	all.even()
	a.hint.answer(w, &all, err)
}

// gapFrom is how much time between two points of a chart is a gap: of old times one reading a minute is there.
func gapFrom(width time.Duration) time.Duration { return max(2*width+30*time.Second, 2*time.Minute) }

// concerns says whether a change is told where a group is shown: "" is all.
func concerns(c top.Change, group string) bool {
	return group == "" || c.Group == "" || c.Group == group
}

// note takes in what happened, with a group to that and to the host.
func (all *series) note(changes []top.Change, group string) {
	for _, c := range changes {
		switch {
		case !concerns(c, group):
		case len(all.Changes) >= mostChanges:
			all.More++
		default:
			all.Changes = append(all.Changes, c)
		}
	}
}

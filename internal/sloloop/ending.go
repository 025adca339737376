package sloloop

import (
	"context"
	"fmt"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
)

const (
	// paceFor is the time of which the pace is by which an end is told, and paceFrom the least.
	paceFor, paceFrom = time.Minute, 10 * time.Second
	// sizing is how long it may take to see how much a data directory has.
	sizing = time.Minute
)

// directories are the data directories of the instances that groups of role helper are below, by the groups.
func directories(v *transaction.View, helpers []string) map[string]string {
	data, several := map[string]string{}, map[string]bool{}
	for _, m := range v.Members {
		for i := range v.Instances {
			if one := &v.Instances[i]; one.Main == m.Process.ID && one.DataDir != "" {
				top, _, _ := strings.Cut(m.Group, "/")
				several[top] = several[top] || data[top] != "" && data[top] != one.DataDir
				data[top] = one.DataDir
			}
		}
	}
	all := map[string]string{}
	for _, group := range helpers {
		if top, _, below := strings.Cut(group, "/"); below && data[top] != "" && !several[top] {
			all[group] = data[top]
		}
	}
	return all
}

// follow takes in how much groups have read.
func (l *Loops) follow(s *observe.Sample) {
	var at time.Time
	for _, c := range s.Collectors {
		if c.Name == observe.Threads && c.Told {
			at = s.At.Add(-c.Age)
		}
	}
	now := map[string]*copying{}
	for i := range s.Groups {
		g := &s.Groups[i]
		directory := l.host.directories[g.Group]
		if directory == "" || at.IsZero() || g.Threads == nil {
			continue
		}
		one := l.copies[g.Group]
		if one == nil || one.directory != directory {
			one = &copying{directory: directory}
		}
		one.take(point{at, g.Threads.ReadBytes}, g.Threads.Living == 0)
		now[g.Group] = one
	}
	l.copies = now
}

// take takes in how much was read; none says that the group has no process.
func (c *copying) take(p point, none bool) {
	switch n := len(c.points); {
	case none:
		*c = copying{directory: c.directory, whole: true, base: p.read}
	case n == 0 || p.at.Sub(c.points[n-1].at) > observe.Apart:
		c.points = append(c.points, p)
		for len(c.points) > 2 && p.at.Sub(c.points[0].at) > paceFor+observe.Apart {
			c.points = c.points[1:]
		}
	}
}

// anew has the pace be that from now on: a limit was changed. c may be nil.
func (c *copying) anew() {
	if c != nil && len(c.points) > 0 {
		c.points = c.points[len(c.points)-1:]
	}
}

// ends says in h when a group would end that is lowered.
func (l *Loops) ends(ctx context.Context, h *api.SLOHeld, group string, now time.Time) {
	c := l.copies[group]
	switch {
	case l.host.directories[group] == "":
		h.Unknown = "how much it has to read is known only of a helper below an instance"
	case c == nil:
		h.Unknown = "how much it reads is not counted"
	case !c.whole:
		h.Unknown = "it ran already when the agent began to count"
	case !c.sized(ctx, l.o.Size):
		h.Unknown = "the size of " + c.directory + " is being read"
	case c.told.err != nil:
		h.Unknown = "the size of " + c.directory + " is not known: " + c.told.err.Error()
	default:
		h.Of = c.directory
		h.Ends, h.Read, h.Unknown = c.end(now)
	}
}

// sized says whether the size of the directory is known, and has it read once.
func (c *copying) sized(ctx context.Context, read func(context.Context, string) (int64, error)) bool {
	if c.size == nil {
		answer, directory := make(chan size, 1), c.directory
		c.size = answer
		go func() {
			ctx, cancel := context.WithTimeout(ctx, sizing)
			defer cancel()
			bytes, err := read(ctx, directory)
			answer <- size{bytes, err}
		}()
	}
	select {
	case c.told = <-c.size:
	default:
	}
	return c.told != size{}
}

// end is when everything would be read at the pace of the last minute, and which part is read.
func (c *copying) end(now time.Time) (at *time.Time, part *float64, why string) {
	if len(c.points) == 0 {
		return nil, nil, "it has no process now"
	}
	first, last := c.points[0], c.points[len(c.points)-1]
	read := last.read - min(last.read, c.base)
	whole := uint64(max(0, c.told.bytes))
	if read > whole {
		return nil, nil, fmt.Sprintf("it has read more than there is: %s of %s", policy.Bytes(read),
			policy.Bytes(whole))
	}
	part = new(float64(read) / float64(max(1, whole)))
	took := last.at.Sub(first.at)
	switch {
	case took < paceFrom:
		return nil, part, "its pace since the last change is not known yet"
	case last.read <= first.read:
		return nil, part, fmt.Sprintf("it has read nothing from a disk for %s", took.Round(time.Second))
	}
	left := float64(whole-read) / float64(last.read-first.read) * took.Seconds()
	return new(now.Add(time.Duration(min(left, mostLeft.Seconds()) * float64(time.Second)))), part, ""
}

// mostLeft is the longest time that an end is told to be away.
const mostLeft = 1000 * time.Hour

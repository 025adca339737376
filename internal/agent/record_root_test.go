//go:build root

package agent

import (
	"context"
	"os"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/sampling"
)

// reach waits for a record of which something is true.
func (s *site) reach(what string, is func(*record.Reach) bool) (at *record.Reach) {
	s.t.Helper()
	soon(s.t, what, func() bool {
		var err error
		at, err = s.client.Record(context.Background())
		return err == nil && is(at)
	})
	return at
}

// The agent records from its first sample on, without a policy too; the policy bounds the record, and a restart goes
// on with it. Its segments come over the socket.
func TestRecord(t *testing.T) {
	s := newSite(t)
	options := Options{Every: every, Full: 200 * time.Millisecond, Sample: 100 * time.Millisecond}
	s.startWith(options)
	first := s.reach("a record without a policy", func(r *record.Reach) bool { return r.Ticks > 3 })
	if first.Most != 256<<20 || first.Age != 30*24*time.Hour || first.Off || first.Error != "" {
		t.Errorf("without a policy it has %+v", first)
	}
	const groups = "groups:\n  a: {match: [{exe: no-such-program}], cpu: {limit: 1}}\n"
	s.apply("agent: {record: {size: 8MiB, age: 2d}}\n" + groups)
	s.reach("the policy's bounds", func(r *record.Reach) bool {
		return r.Most == 8<<20 && r.Age == 48*time.Hour && r.From.Equal(first.From)
	})
	s.stop()
	s.startWith(options)
	last := s.reach("samples after a restart", func(r *record.Reach) bool { return r.Segments > 1 })
	if !last.From.Equal(first.From) || last.Most != 8<<20 {
		t.Errorf("after a restart it has %+v", last)
	}
	segments, err := s.client.Segments(context.Background(), last.From, last.To)
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	ticks, limits := 0, 0
	err = record.Walk(segments, last.From, last.To, func(tick record.Tick) error {
		ticks++
		for _, p := range tick.Parts {
			for _, f := range p.Figures {
				if f.Key == record.KeyOf("bulkhead_group_limit", "a", "", "", "cpu.limit", "") && f.Value == 1 {
					limits++
				}
			}
		}
		return nil
	})
	if err != nil || ticks != last.Ticks || limits == 0 {
		t.Errorf("%d ticks of %d come, %d with the limit: %v", ticks, last.Ticks, limits, err)
	}
	s.must(api.Request{Verb: "release", All: true})
	s.stop()
	s.startWith(options)
	s.reach("the policy's bounds, also released", func(r *record.Reach) bool {
		return r.Segments > last.Segments && r.Most == 8<<20 && r.Age == 48*time.Hour
	})
	s.apply("agent: {record: {size: 0}}\n" + groups)
	s.reach("nothing", func(r *record.Reach) bool { return r.Off && r.Ticks == 0 })
	if files, err := os.ReadDir(sampling.RecordIn(s.state)); err != nil || len(files) > 0 {
		t.Errorf("%d files are left: %v", len(files), err)
	}
	s.apply(groups)
	s.reach("a record again", func(r *record.Reach) bool { return !r.Off && r.Ticks > 0 && r.Most == 256<<20 })
}

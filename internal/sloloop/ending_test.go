package sloloop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe"
)

// When a group that copies a data directory ends is told by what it has read of it, and why that is not known.
func TestEnds(t *testing.T) {
	begun := time.Unix(1_700_000_000, 0)
	whole := int64(1000)
	var failed error
	l := &Loops{host: &host{directories: map[string]string{"a/backup": "/data"}},
		o: Options{Size: func(context.Context, string) (int64, error) { return whole, failed }}}
	says := func(group string, at time.Duration) string {
		h := api.SLOHeld{Limit: group, Value: "1", Policy: "2"}
		l.ends(t.Context(), &h, group, begun.Add(at))
		if h.Ends != nil {
			return fmt.Sprintf("in %s, %.2f of %s", h.Ends.Sub(begun.Add(at)).Round(time.Second), *h.Read, h.Of)
		}
		return h.Unknown
	}
	sees := func(at time.Duration, tasks int, read uint64) {
		g := observe.Group{Group: "a/backup", Threads: &observe.Switching{Living: tasks, ReadBytes: read}}
		l.follow(&observe.Sample{At: begun.Add(at), Groups: []observe.Group{g},
			Collectors: []observe.Reading{{Name: observe.Threads, Told: true}}})
	}
	answered := func() {
		for c := l.copies["a/backup"]; len(c.size) == 0 && c.told == (size{}); { // or was taken already
			time.Sleep(time.Millisecond)
		}
	}
	for i, c := range []struct {
		group string
		tasks int
		read  uint64
		want  string
	}{
		{"reports", 1, 100, "known only of a helper below an instance"},
		{"a/backup", 1, 100, "it ran already"},
		{"a/backup", 0, 100, "the size of /data is being read"},
		{"a/backup", 0, 100, "it has no process now"},
		{"a/backup", 2, 200, "its pace since the last change is not known yet"},
		{"a/backup", 2, 300, "in 1m20s, 0.20 of /data"},
		{"a/backup", 2, 400, "in 1m10s, 0.30 of /data"},
		{"a/backup", 2, 400, "in 1m45s, 0.30 of /data"},
		{"a/backup", 2, 1100, "in 0s, 1.00 of /data"},
		{"a/backup", 2, 1200, "it has read more than there is: 1100B of 1kB"},
		{"a/backup", 0, 1200, "it has no process now"},
		{"a/backup", 2, 1300, "its pace"},
		{"a/backup", 2, 1300, "it has read nothing from a disk for 10s"},
	} {
		at := time.Duration(10*i) * time.Second
		sees(at, c.tasks, c.read)
		if i == 3 || i == 10 { // it is asked for anew for each copy
			says(c.group, at)
			answered()
		}
		got := says(c.group, at)
		if !strings.Contains(got, c.want) {
			t.Errorf("%d: %q, not %q", i, got, c.want)
		}
	}
	l.copies["a/backup"].anew()
	if got := says("a/backup", 0); !strings.Contains(got, "its pace") {
		t.Errorf("after a change: %q", got)
	}
	failed = errors.New("permission denied")
	sees(1000*time.Second, 0, 0)
	says("a/backup", 0)
	answered()
	if got := says("a/backup", 0); got != "the size of /data is not known: permission denied" {
		t.Errorf("%q", got)
	}
}

package sloloop

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestHeartbeats(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	answers := func(n int, took time.Duration, late bool) *asker {
		a := &asker{}
		for i := range n {
			at := now.Add(time.Duration(i-n) * heartbeat)
			a.take(answer{at: at, took: took, work: int64(100 * i), late: late && i >= n/2}, nil)
		}
		return a
	}
	for _, c := range []struct {
		name   string
		a      *asker
		signal string
		waits  bool
		want   float64
		why    string
	}{
		{"all alike", answers(40, 5*time.Millisecond, false), "heartbeat", false, 0.005, ""},
		{"too few", answers(3, time.Millisecond, false), "heartbeat", false, 0, "too seldom"},
		{"late, and it waits", answers(40, patience, true), "heartbeat", true, patience.Seconds(), ""},
		{"late, and it waits for nothing", answers(10, patience, true), "heartbeat", false, 0, "too seldom"},
		{"work", answers(40, time.Millisecond, false), "work", false, 500, ""},
		{"nobody is asked", nil, "work", false, 0, "not asked yet"},
		{"it does not answer", &asker{fail: errors.New("refused")}, "work", false, 0, "refused"},
	} {
		got, _, why := c.a.tell(c.signal, now, false, c.waits)
		if fmt.Sprintf("%.6f", got) != fmt.Sprintf("%.6f", c.want) || !strings.Contains(why, c.why) ||
			(why == "") != (c.why == "") {
			t.Errorf("%s: %v, %q", c.name, got, why)
		}
	}
}

// While the loop is hot the last seconds count, or as many as it takes to have enough answers.
func TestHeartbeatsWhileHot(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		every, of time.Duration
		want      float64
	}{{quick, 2 * time.Second, 0.005}, {time.Second, 9 * time.Second, 0.5}} {
		a := &asker{}
		for at := 15 * time.Second; at > 0; at -= c.every {
			took := 5 * time.Millisecond
			if at > 3*time.Second {
				took = 500 * time.Millisecond
			}
			a.take(answer{at: now.Add(-at), took: took}, nil)
		}
		got, of, why := a.tell("heartbeat", now, true, false)
		if got != c.want || of < c.of || of > c.of+2*time.Second || why != "" {
			t.Errorf("every %s: %v of %s, %q", c.every, got, of, why)
		}
	}
	a := &asker{every: heartbeat}
	if a.hurry(true); a.pause() != quick {
		t.Errorf("hot it pauses %s", a.pause())
	}
	if a.hurry(false); a.pause() != heartbeat {
		t.Errorf("cold it pauses %s", a.pause())
	}
}

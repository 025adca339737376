package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// After an error it tries again a minute later, and at once when the clock was set back meanwhile.
func TestTriesAgain(t *testing.T) {
	fails := true
	r := New(Options{Dir: t.TempDir(), write: func(f *os.File, b []byte) (int, error) {
		if fails {
			return 0, errors.New("no")
		}
		return f.Write(b)
	}})
	r.Take(plain(start, 1))
	fails = false
	r.Take(plain(start.Add(retryAfter-time.Second), 1))
	if at := reach(t, r); at.Ticks != 0 || at.Lost != 2 {
		t.Errorf("too early it has %+v", at)
	}
	r.Take(plain(start.Add(-time.Hour), 1))
	if at := reach(t, r); at.Ticks != 1 || at.Lost != 2 {
		t.Errorf("with the clock set back it has %+v", at)
	}
}

// A file does not become larger than one that is read, however much there is in a quarter of an hour.
func TestManyFigures(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	const ticks = 5
	for i := range ticks { // each with names that are new
		at := start.Add(time.Duration(i) * time.Second)
		p := Part{Name: "cpu", Read: at}
		for n := range 100 {
			p.Figures = append(p.Figures, Figure{KeyOf("m", fmt.Sprint(i, n, strings.Repeat("x", 15_000))), 1})
		}
		r.Take(Tick{At: at, Parts: []Part{p}})
	}
	if sealed, err := filepath.Glob(filepath.Join(dir, "*"+sealedEnd)); err != nil || len(sealed) == 0 {
		t.Errorf("%d files are sealed: %v", len(sealed), err)
	}
	if open, err := filepath.Glob(filepath.Join(dir, "*"+openEnd)); err != nil || len(open) != 1 {
		t.Errorf("%d files are open: %v", len(open), err)
	} else if info, err := os.Stat(open[0]); err != nil || info.Size() > mostOpen+mostTick {
		t.Errorf("the open one has %d bytes: %v", info.Size(), err)
	}
	if got := all(t, dir); len(got) != ticks {
		t.Errorf("%d ticks of %d are read", len(got), ticks)
	}
}

// A crash between sealing a file and taking the open one away leaves both: each tick is read once, and the open one
// goes.
func TestCrashBehindSealing(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	for i := range 3 {
		r.Take(plain(start.Add(time.Duration(i)*time.Second), 1))
	}
	r.Close()
	open := filepath.Join(dir, nameOf(start.UnixMilli(), openEnd))
	text, err := os.ReadFile(open)
	if err != nil {
		t.Fatal(err)
	}
	New(Options{Dir: dir}).Take(plain(start.Add(time.Minute), 1))
	if err := os.WriteFile(open, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := all(t, dir); len(got) != 4 {
		t.Errorf("%d ticks of 4 are read", len(got))
	}
	New(Options{Dir: dir}).Take(plain(start.Add(2*time.Minute), 1))
	if _, err := os.Stat(open); !errors.Is(err, os.ErrNotExist) || len(all(t, dir)) != 5 {
		t.Errorf("there are %d ticks of 5, and the open file: %v", len(all(t, dir)), err)
	}
}

// A time within a file is read of it.
func TestFromWithin(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	for i := range 60 {
		r.Take(plain(start.Add(time.Duration(i)*time.Minute), 1))
	}
	if got := between(t, dir, start.Add(20*time.Minute), start.Add(22*time.Minute)); len(got) != 3 {
		t.Errorf("of two minutes there are %d ticks of 3", len(got))
	}
}

// How long the bytes last goes by the time in which something was recorded.
func TestLasts(t *testing.T) {
	r := Reach{From: start, To: start.Add(10 * time.Hour), Bytes: 1 << 20, Most: 4 << 20, Age: defaultAge,
		Gaps: []Gap{{start.Add(time.Hour), start.Add(9 * time.Hour)}}}
	if got := r.Lasts(); got != 8*time.Hour {
		t.Errorf("two hours in a quarter of the room: it lasts %v", got)
	}
	r.Most = 1 << 40
	if got := r.Lasts(); got != defaultAge {
		t.Errorf("with much room: it lasts %v", got)
	}
	r.Gaps[0].From = start.Add(time.Minute)
	r.Gaps[0].To = start.Add(9*time.Hour + 30*time.Minute)
	if got := r.Lasts(); got != 0 {
		t.Errorf("of less than an hour: it lasts %v", got)
	}
}

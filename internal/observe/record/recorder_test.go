package record

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plain is a tick with n figures that change.
func plain(at time.Time, n int) Tick {
	p := Part{Name: "cpu", Read: at}
	for i := range n {
		p.Figures = append(p.Figures, Figure{KeyOf("bulkhead_group_cpu_seconds_total", fmt.Sprint("g", i)),
			Canonical(float64(rand.New(rand.NewPCG(uint64(at.UnixMilli()), uint64(i))).Int64N(1e9)) / 1e6)})
	}
	return Tick{At: at, Parts: []Part{p}}
}

// between reads the ticks of a record between two times.
func between(t *testing.T, name string, from, to time.Time) (ticks []Tick) {
	t.Helper()
	segments, err := Open(name, from, to)
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	err = Walk(segments, from, to, func(tick Tick) error {
		ticks = append(ticks, tick)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ticks
}

// all reads every tick of a record.
func all(t *testing.T, dir string) []Tick {
	t.Helper()
	return between(t, dir, time.Time{}, time.Now().AddDate(100, 0, 0))
}

func reach(t *testing.T, r *Recorder) Reach {
	t.Helper()
	at, err := r.Reach()
	if err != nil {
		t.Fatal(err)
	}
	return at
}

var start = time.UnixMilli(1_795_000_000_000).UTC()

// What is recorded over hours, with a restart and a clock that is set back, is read in the order in which it came.
func TestRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "observe/record")
	r := New(Options{Dir: dir})
	var want []Tick
	take := func(at time.Time) {
		want = append(want, plain(at, 5))
		r.Take(want[len(want)-1])
	}
	for i := range 1000 {
		take(start.Add(time.Duration(i) * 5 * time.Second))
	}
	r.Close()
	r = New(Options{Dir: dir})
	end := start.Add(2 * time.Hour)
	for i := range 500 {
		take(end.Add(time.Duration(i) * time.Second))
	}
	got := all(t, dir)
	if len(got) != len(want) {
		t.Fatalf("%d ticks of %d are read", len(got), len(want))
	}
	for i := range got {
		if err := same(got[i], want[i]); err != nil {
			t.Fatalf("tick %d: %v", i, err)
		}
	}
	at := reach(t, r)
	if !at.From.Equal(start) || !at.To.Equal(end.Add(499*time.Second)) || at.Ticks != 1500 || at.Figures != 7500 ||
		at.Error != "" || at.Most != defaultSize || at.Age != defaultAge {
		t.Errorf("it says that it reaches %+v", at)
	}
	if gap := (Gap{start.Add(999 * 5 * time.Second), end}); len(at.Gaps) != 1 || at.Gaps[0] != gap {
		t.Errorf("it says that nothing was written from %v", at.Gaps)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != at.Segments {
		t.Errorf("%d files: %v", len(files), err)
	}
	for _, f := range files[:len(files)-1] {
		if filepath.Ext(f.Name()) != sealedEnd {
			t.Errorf("%s is not sealed", f.Name())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the mode of the directory is %v: %v", info.Mode(), err)
	}
	minute := between(t, dir, start.Add(time.Hour), start.Add(time.Hour+time.Minute))
	if len(minute) != 13 || !minute[0].At.Equal(start.Add(time.Hour)) {
		t.Errorf("of one minute there are %d ticks: %v", len(minute), minute)
	}
	segments, err := Open(dir, start.Add(time.Hour), start.Add(time.Hour+time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	if text, err := io.ReadAll(segments); err != nil || int64(len(text)) > at.Bytes {
		t.Errorf("for one minute %d bytes of %d are read: %v", len(text), at.Bytes, err)
	}
	before := len(want)
	take(start.Add(time.Minute)) // the clock was set back by more than two hours
	take(start.Add(time.Minute + time.Second))
	if got := all(t, dir); len(got) != before+2 {
		t.Errorf("after the clock was set back %d ticks of %d are read", len(got), before+2)
	}
}

// A clock that is wrong for a while takes nothing of what was recorded away, also when the recorder begins again later.
func TestClockLeaps(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	r.Bound(Bound{})
	n := 0
	take := func(at time.Time) {
		r.Take(plain(at, 5))
		n++
	}
	for i := range 60 {
		take(start.Add(time.Duration(i) * time.Minute))
	}
	for i := range 10 {
		take(start.AddDate(20, 0, 0).Add(time.Duration(i) * time.Second))
	}
	for i := range 60 {
		if i%40 == 20 {
			r.Close()
			r = New(Options{Dir: dir})
			r.Bound(Bound{})
		}
		take(start.Add(time.Duration(60+i) * time.Minute))
	}
	if got := all(t, dir); len(got) != n {
		t.Errorf("%d ticks of %d are left", len(got), n)
	}
}

// A gap of a few minutes is told, too: the host slept, or every collector was off.
func TestGaps(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	want := []Gap{}
	at := start
	for _, pause := range []time.Duration{time.Second, gapFrom - time.Second, gapFrom, time.Second, 5 * time.Minute} {
		r.Take(plain(at, 5))
		next := at.Add(pause)
		if pause >= gapFrom {
			want = append(want, Gap{at, next})
		}
		at = next
	}
	r.Take(plain(at, 5))
	if got := reach(t, r); !slices.Equal(got.Gaps, want) || got.Ticks != 6 {
		t.Errorf("of %d ticks there are gaps %v, want %v", got.Ticks, got.Gaps, want)
	}
}

// The record never has more bytes than it may, but for the segment that is being sealed; the oldest go first. What is
// too old goes although there is room.
func TestBound(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	const most = 200_000
	r.Bound(Bound{Size: most})
	largest := int64(0)
	for i := range 3000 {
		r.Take(plain(start.Add(time.Duration(i)*5*time.Second), 20))
		size := int64(0)
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if info, err := f.Info(); err == nil {
				size += info.Size()
			}
		}
		largest = max(largest, size)
	}
	at := reach(t, r)
	if largest > most || at.Bytes > most || at.Bytes < most/2 || !at.To.Equal(start.Add(2999*5*time.Second)) ||
		at.To.Sub(at.From) < time.Hour {
		t.Errorf("it had %d bytes at most and has %+v", largest, at)
	}
	r.Bound(Bound{Age: time.Hour})
	for i := range 200 {
		r.Take(plain(at.To.Add(time.Duration(i+1)*5*time.Second), 20))
	}
	now := reach(t, r)
	if age := now.To.Sub(now.From); age < time.Hour || age > time.Hour+3*sealAfter {
		t.Errorf("with an hour to keep it reaches back %v", age)
	}
	r.Bound(Bound{Off: true})
	r.Take(plain(now.To.Add(time.Minute), 20))
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 || !reach(t, r).Off {
		t.Errorf("switched off, it has %d files, and says %+v: %v", len(files), reach(t, r), err)
	}
}

// A disk that is full costs ticks and nothing else: what was written stays, it is said once, and the record goes on
// later.
func TestFullDisk(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	left := 1 << 30
	r := New(Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil)),
		write: func(f *os.File, b []byte) (int, error) {
			if left >= len(b) {
				left -= len(b)
				return f.Write(b)
			}
			n, _ := f.Write(b[:left]) // the kernel writes what fits
			left = 0
			return n, syscall.ENOSPC
		}})
	now, wrote := start, 0
	take := func(n int) {
		for range n {
			now = now.Add(5 * time.Second)
			before := r.lost
			r.Take(plain(now, 50))
			if r.lost == before {
				wrote++
			}
		}
	}
	take(100)
	left = 1000
	take(100)
	at := reach(t, r)
	if got := len(all(t, dir)); got != wrote || at.Ticks != wrote || wrote < 100 || wrote > 110 {
		t.Errorf("%d ticks were written, %d are read, and it says %d", wrote, got, at.Ticks)
	}
	if !strings.Contains(at.Error, "no space left") || at.Lost != int64(200-wrote) || at.Since.Before(start) {
		t.Errorf("it says %+v", at)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("a full disk has %d files: %v", len(files), err)
	}
	if n := strings.Count(log.String(), "is not written"); n != 1 {
		t.Errorf("said %d times: %s", n, &log)
	}
	left = 1 << 30
	take(100)
	if at := reach(t, r); at.Error != "" || len(all(t, dir)) != wrote || wrote < 180 {
		t.Errorf("with room again it has written %d ticks, and says %+v", wrote, at)
	}
}

// While others fill the file system the record does not grow, and has the newest ticks all the same.
func TestLittleRoom(t *testing.T) {
	dir := t.TempDir()
	free := uint64(1 << 40)
	r := New(Options{Dir: dir, Space: func(string) (uint64, uint64, error) { return 1 << 40, free, nil }})
	r.Bound(Bound{})
	now := start
	take := func(n int) {
		for range n {
			now = now.Add(5 * time.Second)
			r.Take(plain(now, 50))
		}
	}
	take(2000)
	before := reach(t, r)
	free = leastFree
	take(2000)
	at := reach(t, r)
	if !at.To.Equal(now) || at.Lost > 0 || at.Error != "" {
		t.Errorf("with little room it has %+v", at)
	}
	// The segment that is open is not compressed yet.
	if at.Bytes > before.Bytes || at.Bytes < before.Bytes/2 || !at.From.After(before.From) {
		t.Errorf("it had %d bytes from %v on, and has %d from %v on", before.Bytes, before.From, at.Bytes, at.From)
	}
	free = 63 << 20
	empty := New(Options{Dir: t.TempDir(), Space: r.o.Space})
	empty.Take(plain(now, 1))
	if at := reach(t, empty); at.Bytes > 0 || at.Lost != 1 || !strings.Contains(at.Error, "63 MiB left") {
		t.Errorf("without room and without old files it has %+v", at)
	}
}

// A disk that does not answer holds up nobody but who writes: bounds are set, ticks are counted.
func TestHungDisk(t *testing.T) {
	hangs, goes := make(chan bool), make(chan bool)
	r := New(Options{Dir: t.TempDir(), write: func(f *os.File, b []byte) (int, error) {
		close(hangs)
		<-goes
		return f.Write(b)
	}})
	ended := make(chan bool)
	go func() {
		r.Take(plain(start, 1))
		close(ended)
	}()
	<-hangs
	r.Bound(Bound{Size: 1 << 20})
	r.Lose()
	if at := reach(t, r); at.Most != 1<<20 || at.Lost != 1 {
		t.Errorf("it says %+v", at)
	}
	close(goes)
	<-ended
	if at := reach(t, r); at.Ticks != 1 {
		t.Errorf("then it has %+v", at)
	}
}

// Somebody takes the record away while it is written: it begins anew.
func TestTakenAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "record")
	r := New(Options{Dir: dir})
	for i := range 1000 {
		if i == 100 {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		r.Take(plain(start.Add(time.Duration(i)*5*time.Second), 1))
	}
	if at := reach(t, r); at.Error != "" || at.Ticks < 700 || at.Ticks != len(all(t, dir)) {
		t.Errorf("it has %+v", at)
	}
}

// Nothing is taken away before it was said how much is kept.
func TestBoundNotSaid(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	r.Take(plain(start, 1))
	r.Close()
	late := start.Add(2 * defaultAge)
	r = New(Options{Dir: dir})
	r.Take(plain(late, 1))
	if at := reach(t, r); !at.From.Equal(start) {
		t.Errorf("it reaches back to %v", at.From)
	}
	r.Bound(Bound{})
	for i := range 3 { // of which two are files
		r.Take(plain(late.Add(time.Duration(i+1)*sealAfter), 1))
	}
	if at := reach(t, r); !at.From.Equal(late) {
		t.Errorf("with a bound it reaches back to %v", at.From)
	}
}

// Who kills it at any moment loses one tick at most, and what was there before not at all.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	kept := 0
	for round := range 50 {
		c := exec.Command(os.Args[0], "-test.run=^TestRecorderInACopy$")
		c.Env = append(os.Environ(), "BULKHEAD_TEST_RECORD="+dir, fmt.Sprint("BULKHEAD_TEST_RECORD_FROM=", kept))
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		said, lines := kept, bufio.NewScanner(out)
		for lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "taken %d", &said); err == nil && said >= kept+3+7*round%40 {
				break
			}
		}
		_ = c.Process.Kill()
		for lines.Scan() { // what it had said before
			_, _ = fmt.Sscanf(lines.Text(), "taken %d", &said)
		}
		_ = c.Wait()
		ticks := all(t, dir)
		if len(ticks) != said && len(ticks) != said+1 {
			t.Fatalf("round %d: it had taken %d ticks, and %d are there", round, said, len(ticks))
		}
		for i, tick := range ticks {
			if err := same(tick, plain(start.Add(time.Duration(i)*time.Second), 3)); err != nil {
				t.Fatalf("round %d: tick %d: %v", round, i, err)
			}
		}
		kept = len(ticks)
	}
	if kept < 50 {
		t.Errorf("%d ticks were recorded", kept)
	}
}

// TestRecorderInACopy is the recorder that TestKill kills; on its own it has nothing to do.
func TestRecorderInACopy(t *testing.T) {
	dir := os.Getenv("BULKHEAD_TEST_RECORD")
	if dir == "" {
		return
	}
	from := 0
	_, _ = fmt.Sscan(os.Getenv("BULKHEAD_TEST_RECORD_FROM"), &from)
	r := New(Options{Dir: dir})
	for i := from; i < from+100_000; i++ {
		r.Take(plain(start.Add(time.Duration(i)*time.Second), 3))
		fmt.Println("taken", i+1)
	}
}

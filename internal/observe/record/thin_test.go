package record

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// When there are too many bytes old segments keep a reading a minute, the last one, of each collector, and nothing of
// the last two days is thinned. So the record reaches further back than the same bytes do otherwise.
func TestThin(t *testing.T) {
	const step = 15 * time.Second
	dir, start := t.TempDir(), start.Truncate(time.Minute)
	r := New(Options{Dir: dir})
	most := int64(0)
	var want []Tick
	for i := range int(4 * 24 * time.Hour / step) {
		at := start.Add(time.Duration(i) * step)
		if at.Sub(start) == 60*time.Hour {
			most = reach(t, r).Bytes
			r.Bound(Bound{Size: most})
		}
		tick := plain(at, 5)
		if i%2 == 0 { // it is not in the last tick of each minute
			tick.Parts = append(tick.Parts, Part{Name: "memory", Read: at, Figures: []Figure{
				{KeyOf("bulkhead_group_memory_charged_bytes", "g"), float64(i)}}})
		}
		want = append(want, tick)
		r.Take(tick)
	}
	at := reach(t, r)
	if at.Bytes > most || at.Damaged > 0 || at.To.Sub(at.From) < 75*time.Hour || len(at.Gaps) > 0 {
		t.Errorf("with %d bytes it has %+v: %v", most, at, at.To.Sub(at.From))
	}
	if whole := at.To.Sub(at.Whole); whole < thinFrom || whole > thinFrom+10*time.Hour {
		t.Errorf("every reading of the last %v is there", whole)
	}
	got := all(t, dir)
	if !got[0].At.Equal(at.From) || len(got) != at.Ticks {
		t.Fatalf("%d ticks from %v on are read", len(got), got[0].At)
	}
	byTime := map[int64]Tick{}
	for i, tick := range want {
		byTime[tick.At.UnixMilli()] = tick
		if next := i + 1; tick.At.Before(at.Whole) && next < len(want) &&
			want[next].At.Unix()/60 == tick.At.Unix()/60 {
			want[next] = tick.With(want[next])
		}
	}
	before := got[0].At.Add(-time.Minute)
	for _, tick := range got {
		if err := same(tick, byTime[tick.At.UnixMilli()]); err != nil {
			t.Fatalf("at %v: %v", tick.At, err)
		}
		if gone := tick.At.Sub(before); tick.At.Before(at.Whole) && gone != time.Minute && gone > step ||
			tick.At.After(at.Whole) && gone != step {
			t.Fatalf("at %v: the one before is of %v", tick.At, before)
		}
		before = tick.At
	}
}

// A file that was thinned when the agent was killed is read once; one that cannot be thinned stays, and goes as the
// oldest.
func TestThinIsCutOff(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	r.Take(plain(start, 3))
	r.Take(plain(start.Add(time.Second), 3))
	r.Take(plain(start.Add(72*time.Hour), 3)) // seals the one before
	r.Close()
	sealed := nameOf(start.UnixMilli(), sealedEnd)
	text, err := os.ReadFile(dir + "/" + sealed)
	if err == nil {
		text, err = thinText(text)
	}
	if err == nil {
		err = os.WriteFile(dir+"/"+nameOf(start.UnixMilli(), thinEnd), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := all(t, dir); len(got) != 2 || got[0].At.Equal(start) {
		t.Errorf("beside each other %d ticks are read, the first of %v", len(got), got[0].At)
	}
	r = New(Options{Dir: dir})
	r.Take(plain(start.Add(73*time.Hour), 3))
	if _, err := os.Stat(dir + "/" + sealed); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", sealed, err)
	}
	if got := reach(t, r); got.Ticks != 3 || got.Damaged > 0 {
		t.Errorf("it has %+v", got)
	}

	dir = t.TempDir()
	r = New(Options{Dir: dir})
	for i := range 4 {
		r.Take(plain(start.Add(time.Duration(i)*30*time.Hour), 3))
		r.Take(plain(start.Add(time.Duration(i)*30*time.Hour+time.Second), 3))
	}
	if err := os.WriteFile(dir+"/"+sealed, []byte(magic), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Bound(Bound{Size: reach(t, r).Bytes})
	r.Take(plain(start.Add(121*time.Hour), 3))
	r.Take(plain(start.Add(151*time.Hour), 3))
	if got := reach(t, r); got.Damaged > 0 || got.From.Equal(start) || got.Error != "" {
		t.Errorf("it has %+v", got)
	}
}

// While no thinned segment can be written the oldest ones go; when one can be again, those that are left are thinned.
func TestThinLater(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	at := func(i int) time.Time { return start.AddDate(0, 0, i) }
	take := func(i int) {
		for k := range 20 {
			r.Take(plain(at(i).Add(time.Duration(k)*time.Second), 5))
		}
	}
	inTheWay := func(i int) string { return filepath.Join(dir, nameOf(at(i).UnixMilli(), newEnd)) }
	for i := range 16 {
		if take(i); os.MkdirAll(filepath.Join(inTheWay(i-1), "x"), 0o700) != nil {
			t.Fatal("no directory can be made")
		}
	}
	r.Bound(Bound{Size: reach(t, r).Bytes * 3 / 4})
	take(16)
	left := reach(t, r)
	thinned := func() int {
		names, _ := filepath.Glob(filepath.Join(dir, "*"+thinEnd))
		return len(names)
	}
	if thinned() != 0 || left.Segments < 5 || left.Segments > 15 {
		t.Fatalf("%d are thinned, and there are %+v", thinned(), left)
	}
	for i := range 16 {
		if err := os.RemoveAll(inTheWay(i - 2)); err != nil {
			t.Fatal(err)
		}
	}
	r.Bound(Bound{Size: left.Bytes * 4 / 5})
	take(17)
	oldest := filepath.Join(dir, nameOf(left.From.UnixMilli(), thinEnd))
	if _, err := os.Stat(oldest); err != nil || reach(t, r).Damaged > 0 {
		t.Errorf("the oldest is not thinned: %v; there are %+v", err, reach(t, r))
	}
}

// Of a record whose bound was lowered a few segments are thinned with each tick, so that no tick waits for all of them;
// none is taken away for that, and in the end the bound holds.
func TestThinAFewAtATime(t *testing.T) {
	const days = 40
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	r.Bound(Bound{Age: 1000 * 24 * time.Hour})
	for i := range days {
		for k := range 20 {
			r.Take(plain(start.AddDate(0, 0, i).Add(time.Duration(k)*time.Second), 5))
		}
	}
	thinned := func() int {
		names, _ := filepath.Glob(filepath.Join(dir, "*"+thinEnd))
		return len(names)
	}
	before := reach(t, r)
	most := before.Bytes * 4 / 5
	r.Bound(Bound{Size: most, Age: 1000 * 24 * time.Hour})
	last := start.AddDate(0, 0, days)
	for ticks := 0; reach(t, r).Bytes > most; ticks++ {
		had := thinned()
		r.Take(plain(last.Add(time.Duration(ticks)*time.Second), 5))
		if now := thinned(); now-had > 2*mostThinned || now == had { // with the bound, and with the tick
			t.Fatalf("tick %d: %d segments were thinned, %d are now", ticks, had, now)
		}
	}
	if now := reach(t, r); now.Segments < days || !now.From.Equal(start.Add(19*time.Second)) || now.Damaged > 0 {
		t.Errorf("it has %d segments from %v on", now.Segments, now.From)
	}
	if thinned() <= 2*mostThinned {
		t.Errorf("%d segments had to be thinned, too few for this test", thinned())
	}
}

// A clock that is set back to the very begin of a thinned segment loses nothing.
func TestBackToThinned(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	r.Take(plain(start, 3))
	r.Take(plain(start.Add(72*time.Hour), 3)) // seals the one before
	r.Close()
	if err := os.Rename(filepath.Join(dir, nameOf(start.UnixMilli(), sealedEnd)),
		filepath.Join(dir, nameOf(start.UnixMilli(), thinEnd))); err != nil {
		t.Fatal(err)
	}
	r = New(Options{Dir: dir})
	r.Take(plain(start, 3))
	r.Take(plain(start.Add(time.Second), 3))
	r.Close()
	if got := all(t, dir); len(got) != 4 {
		t.Errorf("of 4 ticks %d are read", len(got))
	}
}

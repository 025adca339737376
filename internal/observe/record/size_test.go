package record

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"
)

// captured are the ticks of a machine with two CPUs and kernel 6.18 over twelve minutes: six groups, of which one is a
// MariaDB under sysbench, one a Redis under redis-benchmark, one compresses files below a CPU limit, and two do
// nothing.
func captured(t *testing.T) (ticks []Tick) {
	t.Helper()
	text, err := os.ReadFile("testdata/host.record")
	if err == nil {
		err = Walk(bytes.NewReader(text), time.Time{}, time.Now().AddDate(1000, 0, 0), func(tick Tick) error {
			ticks = append(ticks, tick)
			return nil
		})
	}
	if err != nil || len(ticks) < 200 {
		t.Fatalf("%d ticks: %v", len(ticks), err)
	}
	return ticks
}

// A figure takes 0.8 bytes at most, the names of figures and all else included. Each figure counts for as often as it
// was read.
func TestBytesOfAFigure(t *testing.T) {
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	ticks := captured(t)
	for _, tick := range ticks {
		r.Take(tick)
	}
	r.end()
	r.sealAll()
	at := reach(t, r)
	if at.Ticks != len(ticks) || at.Segments != 1 {
		t.Fatalf("it has %+v", at)
	}
	each := float64(at.Bytes) / float64(at.Figures)
	t.Logf("%d figures in %d bytes: %.3f each", at.Figures, at.Bytes, each)
	if each > 0.8 {
		t.Errorf("a figure takes %.3f bytes", each)
	}
	got := all(t, dir)
	for i, tick := range ticks {
		if err := same(got[i], tick); err != nil {
			t.Fatalf("tick %d: %v", i, err)
		}
	}
	// What never changes takes next to nothing, and so says little: without it a figure still takes less than
	// Prometheus needs.
	first, changes := map[Key]float64{}, map[Key]bool{}
	for _, tick := range ticks {
		for _, p := range tick.Parts {
			for _, f := range p.Figures {
				if v, there := first[f.Key]; there && v != f.Value {
					changes[f.Key] = true
				}
				first[f.Key] = f.Value
			}
		}
	}
	only := slices.Clone(ticks)
	n := 0
	for i := range only {
		only[i].Parts = slices.Clone(only[i].Parts)
		for j := range only[i].Parts {
			p := &only[i].Parts[j]
			p.Figures = slices.DeleteFunc(slices.Clone(p.Figures), func(f Figure) bool { return !changes[f.Key] })
			n += len(p.Figures)
		}
	}
	sealed, err := sealText(text(only))
	if err != nil {
		t.Fatal(err)
	}
	each = float64(len(sealed)) / float64(n)
	t.Logf("of those that change %d figures in %d bytes: %.3f each", n, len(sealed), each)
	if each > 1.6 {
		t.Errorf("a figure that changes takes %.3f bytes", each)
	}
}

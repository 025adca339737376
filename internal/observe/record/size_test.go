package record

import (
	"bytes"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/observe"
)

// captured are the ticks of a machine with two CPUs and kernel 6.18 over twelve minutes: six groups, of which one is a
// MariaDB under sysbench, one a Redis under redis-benchmark, one compresses files below a CPU limit, and two do
// nothing.
func captured(t testing.TB) (ticks []Tick) {
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

// BenchmarkRecord is what the record costs of a host with fifty groups, for each quarter of an hour of which a segment
// is made, cold (every 5 s) and hot (every second): in percent of a core, and in bytes for each figure when it is
// sealed.
func BenchmarkRecord(b *testing.B) {
	ticks := captured(b)
	for name, every := range map[string]time.Duration{"cold": 5 * time.Second, "hot": time.Second} {
		b.Run(name, func(b *testing.B) {
			r := New(Options{Dir: b.TempDir()})
			c := crowd{of: ticks, readings: map[observe.Part]int{}}
			took, at := time.Duration(0), start
			for b.Loop() {
				for range sealAfter / every {
					tick := c.tick(at, every)
					began := time.Now()
					r.Take(tick)
					took += time.Since(began)
					at = at.Add(every)
				}
			}
			began := time.Now()
			r.end()
			r.sealAll()
			took += time.Since(began)
			reach, err := r.Reach()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(100*float64(took)/float64(at.Sub(start)), "%core")
			b.ReportMetric(float64(reach.Bytes)/float64(reach.Figures), "B/figure")
			b.ReportMetric(float64(reach.Figures)/float64(at.Sub(start)/time.Second), "figures/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// crowd makes ticks of a host with fifty groups of captured ones: of each group there are several, which are at other
// places of what was captured, and do more or less than it did.
type crowd struct {
	of       []Tick
	parts    map[observe.Part][]Part
	readings map[observe.Part]int
}

func (c *crowd) tick(at time.Time, every time.Duration) Tick {
	t := Tick{At: at}
	for _, collector := range observe.Collectors {
		if at.Sub(start)%max(every, collector.Tier.Every(every == time.Second)) != 0 {
			continue
		}
		p := Part{Name: collector.Name, Read: at.Add(-time.Duration(len(c.readings)) * time.Millisecond)}
		reading := c.readings[p.Name]
		c.readings[p.Name]++
		for k := range 9 {
			for _, f := range c.reading(p.Name, reading+37*k).Figures {
				metric, labels := f.Key.Split()
				if !strings.HasPrefix(metric, "bulkhead_group_") {
					if k == 0 {
						p.Figures = append(p.Figures, f)
					}
					continue
				}
				labels[0] += strconv.Itoa(k)
				p.Figures = append(p.Figures, Figure{KeyOf(metric, labels...), scaledBy(f.Value, 1+float64(k)/7)})
			}
		}
		t.Parts = append(t.Parts, p)
	}
	return t
}

// reading is one reading of a collector, counted around.
func (c *crowd) reading(name observe.Part, n int) (part Part) {
	if c.parts == nil {
		c.parts = map[observe.Part][]Part{}
		for _, t := range c.of {
			for _, p := range t.Parts {
				c.parts[p.Name] = append(c.parts[p.Name], p)
			}
		}
	}
	if all := c.parts[name]; len(all) > 0 {
		part = all[n%len(all)]
	}
	return part
}

// scaledBy multiplies a figure, which stays as fine as it is.
func scaledBy(v, by float64) float64 {
	n, scale := whole(v, 0)
	if scale < 0 {
		return v * by
	}
	return math.Round(float64(n)*by) / scales[scale]
}

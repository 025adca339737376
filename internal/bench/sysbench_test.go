package bench

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The captured outputs are of sysbench 1.0.20 against MariaDB 10.11 on Debian 12, alone and beside 16 busy shells.
func captured(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParseLoad(t *testing.T) {
	var live []float64
	l, err := parseLoad(bytes.NewReader(captured(t, "sysbench-alone.txt")), func(tps float64) { live = append(live, tps) })
	if err != nil {
		t.Fatal(err)
	}
	text := string(captured(t, "sysbench-alone.txt"))
	if !slices.Equal(live, l.perSecond) || len(live) < 3 {
		t.Errorf("live rates %v, kept rates %v: want the same, one a second", live, l.perSecond)
	}
	if total := countOf(l); total != l.transactions || total == 0 {
		t.Errorf("the histogram holds %d transactions, the totals say %d", total, l.transactions)
	}
	// sysbench's own figures are in the text: our percentile must round to its.
	if want := "99th percentile:                        " + fixed(l.percentile(99)); !strings.Contains(text, want) {
		t.Errorf("p99 is %v, which sysbench did not print: %q", l.percentile(99), want)
	}
	if want := 4560.33; math.Abs(l.rate()-want) > want/1000 {
		t.Errorf("rate is %v, sysbench says %v", l.rate(), want)
	}
	if p50, p95, p99 := l.percentile(50), l.percentile(95), l.percentile(99); p50 > p95 || p95 > p99 || p50 < 0.1 {
		t.Errorf("p50 %v, p95 %v, p99 %v: want them in order", p50, p95, p99)
	}
}

func TestParseLoadBesideHogs(t *testing.T) {
	alone, err := parseLoad(bytes.NewReader(captured(t, "sysbench-alone.txt")), nil)
	if err != nil {
		t.Fatal(err)
	}
	hogs, err := parseLoad(bytes.NewReader(captured(t, "sysbench-hogs.txt")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if hogs.rate() > alone.rate()/2 || hogs.percentile(95) < 10*alone.percentile(95) {
		t.Errorf("beside hogs %.0f/s with a p95 of %.2f ms, alone %.0f/s with %.2f ms", hogs.rate(), hogs.percentile(95), alone.rate(), alone.percentile(95))
	}
}

func TestParseLoadRefused(t *testing.T) {
	_, err := parseLoad(bytes.NewReader(captured(t, "sysbench-refused.txt")), nil)
	if err == nil || !strings.Contains(err.Error(), "Can't connect to local server through socket '/nonexistent'") {
		t.Errorf("error is %v, want sysbench's own reason", err)
	}
}

func TestParseLoadBad(t *testing.T) {
	whole := string(captured(t, "sysbench-alone.txt"))
	tests := map[string]struct{ text, want string }{
		"empty":            {"", "without totals"},
		"cut off":          {whole[:len(whole)/3], "without totals"},
		"no histogram":     {strings.ReplaceAll(whole, "|", " "), "without totals"},
		"bad transactions": {strings.Replace(whole, "transactions:                        ", "transactions: x", 1), "is not a count"},
		"bad time":         {strings.Replace(whole, "total time:                          ", "total time: x", 1), "is not a duration"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parseLoad(strings.NewReader(tt.text), nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A percentile is the smallest bound that enough transactions did not exceed.
func TestPercentile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 20).Draw(t, "counts")
		p := rapid.Float64Range(0.1, 100).Draw(t, "p")
		var l load
		var total int64
		for i, c := range counts {
			l.histogram = append(l.histogram, bucket{ms: float64(i + 1), count: c})
			total += c
		}
		got := l.percentile(p)
		if total == 0 {
			if !math.IsNaN(got) {
				t.Fatalf("percentile of nothing is %v", got)
			}
			return
		}
		var upTo, before int64
		for _, b := range l.histogram {
			if b.ms <= got {
				upTo += b.count
			}
			if b.ms < got {
				before += b.count
			}
		}
		need := float64(total) * p / 100
		if float64(upTo) < need-0.5 || float64(before) > need+0.5 {
			t.Fatalf("p%v of %v is %v: %d up to it, %d before it, %v needed", p, counts, got, upTo, before, need)
		}
	})
}

func FuzzParseLoad(f *testing.F) {
	for _, name := range []string{"sysbench-alone.txt", "sysbench-hogs.txt", "sysbench-refused.txt"} {
		f.Add(captured(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLoad(bytes.NewReader(text), func(tps float64) {
			if math.IsNaN(tps) || tps < 0 {
				t.Fatalf("live rate %v", tps)
			}
		})
		if err != nil {
			return
		}
		if r := l.rate(); math.IsNaN(r) || math.IsInf(r, 0) || r < 0 {
			t.Errorf("rate is %v", r)
		}
		if p := l.percentile(99); p < 0 || countOf(l) > 0 && math.IsNaN(p) {
			t.Errorf("p99 is %v of %d transactions", p, countOf(l))
		}
	})
}

func TestGeneratorCommand(t *testing.T) {
	g := generator{program: "/usr/bin/sysbench", socket: "/x/s", threads: 3}
	run := strings.Join(g.command("run", 90*time.Second), " ")
	if !strings.HasSuffix(run, "--threads=3 --time=90 --report-interval=1 --percentile=99 --histogram run") {
		t.Errorf("run is %q", run)
	}
	if prepare := strings.Join(g.command("prepare", 0), " "); strings.Contains(prepare, "--time") || !strings.HasSuffix(prepare, " prepare") {
		t.Errorf("prepare is %q", prepare)
	}
}

func countOf(l load) (n int64) {
	for _, b := range l.histogram {
		n += b.count
	}
	return n
}

func fixed(x float64) string { return strings.TrimSuffix(milliseconds(x), " ms") }

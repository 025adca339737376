package load

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/proof"
)

// Lines as pgbench 15 prints them, with one complaint.
const pgbenchProgress = `pgbench (15.14 (Debian 15.14-0+deb12u1))
progress: 1.0 s, 5012.3 tps, lat 0.396 ms stddev 0.110, 0 failed
progress: 2.0 s, 4900.0 tps, lat 0.410 ms stddev 0.120, 0 failed
`

func TestParsePgbench(t *testing.T) {
	var live []float64
	o, err := parsePgbench(strings.NewReader(pgbenchProgress), func(tps float64) { live = append(live, tps) })
	if err != nil || len(o.Seconds) != 2 || o.Seconds[1] != (proof.Second{At: 2, TPS: 4900, Latency: 0.41}) ||
		len(live) != 2 {
		t.Errorf("%+v, %v, live %v", o, err, live)
	}
	if _, err := parsePgbench(strings.NewReader("pgbench: error: connection to server failed\n"), nil); err == nil ||
		!strings.Contains(err.Error(), "connection to server failed") {
		t.Errorf("its complaint: %v", err)
	}
	if _, err := parsePgbench(strings.NewReader("progress: soon\n"), nil); err == nil {
		t.Error("progress without figures was read")
	}
}

func TestPgbenchLogs(t *testing.T) {
	dir := t.TempDir()
	prefix := filepath.Join(dir, "load-client-of-db")
	logs := map[string]string{".1": "0 1 1000 0 1700000000 1000\n0 2 3000 0 1700000001 0\n",
		".1.1": "1 1 failed 0 1700000001 5\n1 2 50000 0 1700000002 0\n"}
	for name, text := range logs {
		if err := os.WriteFile(prefix+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var o Outcome
	if err := readPgbenchLogs(prefix, &o); err != nil {
		t.Fatal(err)
	}
	if o.Transactions != 3 || o.Elapsed != 2*time.Second {
		t.Errorf("%d transactions in %v, want 3 in 2 s", o.Transactions, o.Elapsed)
	}
	if max := proof.Percentile(o.Histogram, 100); max < 50 || max > 51 {
		t.Errorf("the longest took %v ms, want 50 to a bucket", max)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("its logs are still there: %v", left)
	}
	if err := readPgbenchLogs(prefix, &Outcome{}); err == nil {
		t.Error("no log was read as one")
	}
	if err := os.WriteFile(prefix+".2", []byte("0 1 x 0 1 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := readPgbenchLogs(prefix, &Outcome{}); err == nil {
		t.Error("a damaged log was read")
	}
}

// The captured output is of redis-benchmark 7.0 on Debian 12, ended after three seconds.
// quarters is a clock that goes on by a quarter of a second with each look, as redis-benchmark's live lines come.
func quarters() func() time.Time {
	at := time.Unix(0, 0)
	return func() time.Time { at = at.Add(250 * time.Millisecond); return at }
}

func TestParseRedis(t *testing.T) {
	var live []float64
	text := captured(t, "redis-set.txt")
	o, err := parseRedis(bytes.NewReader(text), quarters(), func(tps float64) { live = append(live, tps) })
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Seconds) != 2 || len(live) != len(o.Seconds) {
		t.Errorf("%d seconds, %d live", len(o.Seconds), len(live))
	}
	for _, s := range o.Seconds {
		if !(s.Latency > 0) || s.TPS <= 0 {
			t.Errorf("second %+v", s)
		}
	}
	// Whole batches of 5000 are in the histogram; the one that was cut off is in the count alone.
	whole := int64(5000 * bytes.Count(text, []byte("5000 requests completed")))
	if n := countOf(o); n != whole || o.Transactions < whole || o.Transactions > whole+5000 {
		t.Errorf("%d in the histogram, %d counted, %d in whole batches", n, o.Transactions, whole)
	}
	// The percentiles lie between the best and the worst that redis-benchmark prints for a batch.
	for _, want := range []struct {
		percent   float64
		low, high float64
	}{{50, 0.03, 0.09}, {99, 0.15, 1}, {99.9, 0.3, 4}} {
		if p := proof.Percentile(o.Histogram, want.percent); !(p >= want.low && p <= want.high) {
			t.Errorf("p%v is %v ms, want it between %v and %v", want.percent, p, want.low, want.high)
		}
	}
	for _, bad := range []string{"Could not connect to Redis\n", "", "SET: rps=1.0 (overall: 1.0) avg_msec=1.0\r"} {
		if _, err := parseRedis(strings.NewReader(bad), quarters(), nil); err == nil {
			t.Errorf("%q was read as a run", bad)
		}
	}
}

// The captured output is of fio 3.33 on Debian 12, two jobs of 40 writes a second; fields that are not read are cut.
func TestParseFio(t *testing.T) {
	o, err := parseFio(bytes.NewReader(captured(t, "fio-write.json")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if o.Transactions != 160 || o.Elapsed != 2191*time.Millisecond || len(o.Seconds) != 2 {
		t.Errorf("%d writes in %v, %d seconds; want what fio says", o.Transactions, o.Elapsed, len(o.Seconds))
	}
	if want := 160 * 65536 / 2.191; math.Abs(o.bytes-want) > 1 {
		t.Errorf("%.0f bytes a second, want %.0f", o.bytes, want)
	}
	if countOf(o) != 160 {
		t.Errorf("the histogram holds %d writes", countOf(o))
	}
	for name, text := range map[string]string{"nothing": "", "cut off": string(captured(t, "fio-write.json"))[:300],
		"no job": `{"jobs":[]}`, "no JSON": "fio: failed"} {
		if _, err := parseFio(strings.NewReader(text), nil); err == nil {
			t.Errorf("%s was read as a run", name)
		}
	}
}

func FuzzParseLoads(f *testing.F) {
	f.Add([]byte(pgbenchProgress))
	f.Add(captured(f, "redis-set.txt"))
	f.Add(captured(f, "fio-write.json"))
	f.Add(captured(f, "iperf3.txt"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, parse := range []func() (Outcome, error){
			func() (Outcome, error) { return parsePgbench(bytes.NewReader(text), nil) },
			func() (Outcome, error) { return parseRedis(bytes.NewReader(text), quarters(), nil) },
			func() (Outcome, error) { return parseFio(bytes.NewReader(text), nil) },
			func() (Outcome, error) { return parseIperf(bytes.NewReader(text), false, nil) },
		} {
			o, err := parse()
			for _, s := range o.Seconds {
				if err == nil && (math.IsNaN(s.TPS) || math.IsInf(s.TPS, 0)) {
					t.Errorf("a rate of %v", s.TPS)
				}
			}
		}
	})
}

package load

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
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

func TestParseSysbench(t *testing.T) {
	var live []float64
	l, err := parseSysbench(bytes.NewReader(captured(t, "sysbench-alone.txt")),
		func(tps float64) { live = append(live, tps) })
	if err != nil {
		t.Fatal(err)
	}
	text := string(captured(t, "sysbench-alone.txt"))
	for i, s := range l.Seconds {
		if len(live) != len(l.Seconds) || s.TPS != live[i] || s.At != float64(i+1) || !(s.Latency > 0) {
			t.Errorf("live rates %v, kept %+v: want the same, one a second, each with its latency", live, l.Seconds)
			break
		}
	}
	if len(live) < 3 {
		t.Errorf("%d seconds", len(live))
	}
	if total := countOf(l); total != l.Transactions || total == 0 {
		t.Errorf("the histogram holds %d transactions, the totals say %d", total, l.Transactions)
	}
	// sysbench's own figures are in the text: our percentile must round to its.
	if want := fmt.Sprintf("99th percentile:                        %.2f",
		proof.Percentile(l.Histogram, 99)); !strings.Contains(text, want) {
		t.Errorf("p99 is %v, which sysbench did not print: %q", proof.Percentile(l.Histogram, 99), want)
	}
	if want := 4560.33; math.Abs(l.Rate()-want) > want/1000 {
		t.Errorf("rate is %v, sysbench says %v", l.Rate(), want)
	}
	if p50, p95, p99 := proof.Percentile(l.Histogram, 50), proof.Percentile(l.Histogram,
		95), proof.Percentile(l.Histogram, 99); p50 > p95 || p95 > p99 || p50 < 0.1 {
		t.Errorf("p50 %v, p95 %v, p99 %v: want them in order", p50, p95, p99)
	}
}

func TestParseSysbenchBesideHogs(t *testing.T) {
	alone, err := parseSysbench(bytes.NewReader(captured(t, "sysbench-alone.txt")), nil)
	if err != nil {
		t.Fatal(err)
	}
	hogs, err := parseSysbench(bytes.NewReader(captured(t, "sysbench-hogs.txt")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if hogs.Rate() > alone.Rate()/2 || proof.Percentile(hogs.Histogram, 95) < 10*proof.Percentile(alone.Histogram, 95) {
		t.Errorf("beside hogs %.0f/s with a p95 of %.2f ms, alone %.0f/s with %.2f ms", hogs.Rate(),
			proof.Percentile(hogs.Histogram, 95), alone.Rate(), proof.Percentile(alone.Histogram, 95))
	}
}

func TestParseSysbenchRefused(t *testing.T) {
	_, err := parseSysbench(bytes.NewReader(captured(t, "sysbench-refused.txt")), nil)
	if err == nil || !strings.Contains(err.Error(), "Can't connect to local server through socket '/nonexistent'") {
		t.Errorf("error is %v, want sysbench's own reason", err)
	}
}

func TestParseSysbenchBad(t *testing.T) {
	whole := string(captured(t, "sysbench-alone.txt"))
	tests := map[string]struct{ text, want string }{
		"empty":        {"", "without totals"},
		"cut off":      {whole[:len(whole)/3], "without totals"},
		"no histogram": {strings.ReplaceAll(whole, "|", " "), "without totals"},
		"bad transactions": {strings.Replace(whole, "transactions:                        ", "transactions: x", 1),
			"is not a count"},
		"bad time": {strings.Replace(whole, "total time:                          ", "total time: x", 1),
			"is not a duration"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parseSysbench(strings.NewReader(tt.text), nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

func FuzzParseSysbench(f *testing.F) {
	for _, name := range []string{"sysbench-alone.txt", "sysbench-hogs.txt", "sysbench-refused.txt"} {
		f.Add(captured(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseSysbench(bytes.NewReader(text), func(tps float64) {
			if math.IsNaN(tps) || tps < 0 {
				t.Fatalf("live rate %v", tps)
			}
		})
		if err != nil {
			return
		}
		if r := l.Rate(); math.IsNaN(r) || math.IsInf(r, 0) || r < 0 {
			t.Errorf("rate is %v", r)
		}
		if p := proof.Percentile(l.Histogram, 99); p < 0 || countOf(l) > 0 && math.IsNaN(p) {
			t.Errorf("p99 is %v of %d transactions", p, countOf(l))
		}
	})
}

func TestSysbenchCommand(t *testing.T) {
	in := &database.Instance{Database: scenario.Database{Name: "db", Engine: "mariadb"}, Kind: database.MariaDB,
		Socket: "/x/s", Account: database.Account{User: "root", Database: "sbtest"}}
	d := &Driver{Load: scenario.Load{Name: "load", Program: "sysbench"}, Database: in, Loader: sysbench,
		Path: "/usr/bin/sysbench", Threads: 3, Tables: 2, Rows: 9, Dir: t.TempDir()}
	run := strings.Join(sysbench.command(d, 90*time.Second), " ")
	if want := "/usr/bin/sysbench oltp_read_only --db-driver=mysql --mysql-socket=/x/s --mysql-user=root " +
		"--mysql-db=sbtest --tables=2 --table-size=9 --threads=3 --time=90 --report-interval=1 --percentile=95 " +
		"--histogram run"; run != want {
		t.Errorf("run is\n%q want\n%q", run, want)
	}
	// A password of a database that exists is in a file that only root reads, and on no command line.
	in.DSN = "mysql://me:secret@db.example/shop"
	if err := errors.Join(in.ReadDSN(), d.Accounts()); err != nil {
		t.Fatal(err)
	}
	run = strings.Join(sysbench.command(d, time.Second), " ")
	if strings.Contains(run, "secret") || !strings.Contains(run, "--mysql-user=me --mysql-db=bulkhead_bench") {
		t.Errorf("run is %q", run)
	}
	text, err := os.ReadFile(d.file("sysbench-client-of-db"))
	if err != nil || !strings.Contains(string(text), "mysql-password=secret\n") ||
		!strings.Contains(run, d.file("sysbench-client-of-db")) {
		t.Errorf("%q, %v", text, err)
	}
	info, err := os.Stat(d.file("sysbench-client-of-db"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the password: %v, %v", info, err)
	}
}

func countOf(l Outcome) (n int64) {
	for _, b := range l.Histogram {
		n += b.Count
	}
	return n
}

// The latency of a second in which nothing was answered is not known: the generators print 0.
func TestSecondsWithoutAnswers(t *testing.T) {
	second, is := intervalLine("[ 2s ] thds: 2 tps: 0.00 qps: 0.00 (r/w/o: 0/0/0) lat (ms,95%): 0.00 err/s: 0.00")
	if !is || second.TPS != 0 || !math.IsNaN(float64(second.Latency)) {
		t.Errorf("sysbench: %+v, %v", second, is)
	}
	o, err := parsePgbench(strings.NewReader("progress: 1.0 s, 0.0 tps, lat 0.000 ms stddev 0.000, 0 failed\n"), nil)
	if err != nil || len(o.Seconds) != 1 || !math.IsNaN(float64(o.Seconds[0].Latency)) {
		t.Errorf("pgbench: %+v, %v", o.Seconds, err)
	}
}

package bench

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// bucket is one line of sysbench's latency histogram.
type bucket struct {
	ms    float64 // upper bound, milliseconds
	count int64
}

// load is what one sysbench run measured.
type load struct {
	transactions int64
	elapsed      time.Duration
	perSecond    []float64 // transactions per second, one per report interval
	histogram    []bucket
}

// rate is transactions per second over the whole run.
func (l load) rate() float64 {
	if l.elapsed <= 0 {
		return 0
	}
	return float64(l.transactions) / l.elapsed.Seconds()
}

// percentile is the latency in milliseconds that p percent of the transactions did not exceed: the
// bound of the histogram's bucket, 1.8 % apart from its neighbours. It is NaN without transactions.
func (l load) percentile(p float64) float64 {
	var total int64
	for _, b := range l.histogram {
		total += b.count
	}
	if total == 0 {
		return math.NaN()
	}
	need := max(1, int64(float64(total)*p/100+0.5)) // rounded as sysbench rounds
	var seen int64
	for _, b := range l.histogram {
		if seen += b.count; seen >= need {
			return b.ms
		}
	}
	return l.histogram[len(l.histogram)-1].ms
}

// parseLoad reads the output of `sysbench --report-interval=1 --histogram run` (sysbench 1.0). Each
// interval's rate is handed to live as soon as its line is there; live may be nil. A run that reports
// no total is an error that carries sysbench's own FATAL lines.
func parseLoad(r io.Reader, live func(tps float64)) (load, error) {
	var l load
	var fatal []string
	section := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "FATAL:"):
			fatal = append(fatal, line)
		case strings.HasPrefix(line, "["):
			if tps, ok := intervalRate(line); ok {
				l.perSecond = append(l.perSecond, tps)
				if live != nil {
					live(tps)
				}
			}
		case strings.HasPrefix(line, "Latency histogram"):
			section = "histogram"
		case strings.HasPrefix(line, "SQL statistics"):
			section = "totals"
		case section == "histogram":
			if b, ok := histogramLine(line); ok {
				l.histogram = append(l.histogram, b)
			}
		case section == "totals":
			if err := l.total(line); err != nil {
				return load{}, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return load{}, fmt.Errorf("read sysbench's output: %w", err)
	}
	if len(fatal) > 0 {
		return load{}, fmt.Errorf("run sysbench: %s", strings.Join(fatal, "; "))
	}
	if l.elapsed <= 0 || len(l.histogram) == 0 {
		return load{}, fmt.Errorf("read sysbench's output: it ended without totals")
	}
	return l, nil
}

// intervalRate reads "[ 1s ] thds: 2 tps: 5012.33 qps: …".
func intervalRate(line string) (float64, bool) {
	_, rest, ok := strings.Cut(line, " tps: ")
	if !ok {
		return 0, false
	}
	word, _, _ := strings.Cut(rest, " ")
	tps, err := strconv.ParseFloat(word, 64)
	if err != nil || math.IsNaN(tps) || math.IsInf(tps, 0) || tps < 0 {
		return 0, false
	}
	return tps, true
}

// histogramLine reads "0.354 |************   2436".
func histogramLine(line string) (bucket, bool) {
	value, rest, ok := strings.Cut(line, "|")
	if !ok {
		return bucket{}, false
	}
	ms, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || math.IsNaN(ms) || math.IsInf(ms, 0) || ms < 0 {
		return bucket{}, false
	}
	count, err := strconv.ParseInt(strings.TrimSpace(strings.TrimLeft(rest, "* ")), 10, 64)
	if err != nil || count < 0 {
		return bucket{}, false
	}
	return bucket{ms: ms, count: count}, true
}

// total reads the two lines of the closing statistics that a rate is made from.
func (l *load) total(line string) error {
	name, rest, ok := strings.Cut(line, ":")
	if !ok {
		return nil
	}
	word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	switch name {
	case "transactions":
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("read sysbench's output: transactions %q is not a count", word)
		}
		l.transactions = n
	case "total time":
		d, err := time.ParseDuration(word)
		if err != nil || d < 0 {
			return fmt.Errorf("read sysbench's output: total time %q is not a duration", word)
		}
		l.elapsed = d
	}
	return nil
}

// generator is sysbench as the demo uses it: read-only transactions of 14 queries over a few tables.
type generator struct {
	program string
	socket  string
	threads int
}

// tables and rows fit in the server's buffer pool, so the load is bound by CPU.
const (
	generatorTables = 2
	generatorRows   = 50_000
)

// command is the argument list of one sysbench command, "prepare" or "run".
func (g generator) command(verb string, length time.Duration) []string {
	args := []string{
		g.program, "oltp_read_only", "--mysql-socket=" + g.socket, "--mysql-user=root", "--mysql-db=" + demoDatabase,
		fmt.Sprintf("--tables=%d", generatorTables), fmt.Sprintf("--table-size=%d", generatorRows),
		fmt.Sprintf("--threads=%d", g.threads),
	}
	if verb == "run" {
		args = append(args, fmt.Sprintf("--time=%d", int(length/time.Second)), "--report-interval=1", "--percentile=99", "--histogram")
	}
	return append(args, verb)
}

package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/proof"
)

// redisBenchmark loads Redis. It knows a number of requests and no time, so it is told to loop and ended when its time is over:
// its live lines carry the rate and the mean latency, four a second; percentiles it has none to give before it ends.
var redisBenchmark = &loader{
	programs: []program{{name: "redis-benchmark", pkg: "redis-tools"}},
	endless:  true,
	command: func(d *driver, _ time.Duration) []string {
		args := []string{
			d.path, "-t", cmp.Or(d.Script, "get"), "-c", strconv.Itoa(d.threads), "-r", strconv.Itoa(max(d.rows, 1)), "-n", "2000000000",
		}
		if d.in.host != "" {
			args = append(args, "-h", d.in.host, "-p", strconv.Itoa(d.in.port))
		} else {
			args = append(args, "-s", d.in.socket)
		}
		return append(args, d.Options...)
	},
	parse: func(_ *driver, r io.Reader, live func(float64)) (outcome, error) { return parseRedis(r, live) },
}

// parseRedis reads "SET: rps=101234.5 (overall: 100000.1) avg_msec=0.250 (overall: 0.260)", which end in a carriage return and
// come every quarter of a second.
func parseRedis(r io.Reader, live func(tps float64)) (outcome, error) {
	var o outcome
	lines := bufio.NewScanner(r)
	lines.Split(splitReturns)
	t := tally{}
	var quarter []proof.Second
	for lines.Scan() {
		rps, ok := after(lines.Text(), "rps=")
		if !ok {
			continue
		}
		ms, measured := after(lines.Text(), "avg_msec=")
		if !measured { // before the first answer
			continue
		}
		quarter = append(quarter, proof.Second{TPS: rps, Latency: proof.Figure(ms)})
		t.add(ms, int64(rps/4))
		if len(quarter) < 4 {
			continue
		}
		s := proof.Second{At: float64(len(o.seconds) + 1)}
		for _, q := range quarter {
			s.TPS += q.TPS / 4
			s.Latency += q.Latency / 4
		}
		quarter = quarter[:0]
		o.seconds, o.transactions = append(o.seconds, s), o.transactions+int64(s.TPS)
		if live != nil {
			live(s.TPS)
		}
	}
	if err := lines.Err(); err != nil {
		return outcome{}, fmt.Errorf("read redis-benchmark's output: %w", err)
	}
	if len(o.seconds) == 0 {
		return outcome{}, errors.New("read redis-benchmark's output: it reports no rate")
	}
	o.elapsed, o.histogram = time.Duration(len(o.seconds))*time.Second, t.buckets()
	return o, nil
}

// splitReturns makes lines of what ends in a newline or a carriage return.
func splitReturns(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// after reads the number behind a word.
func after(line, word string) (float64, bool) {
	_, rest, found := strings.Cut(line, word)
	if !found {
		return 0, false
	}
	text, _, _ := strings.Cut(rest, " ")
	x, err := strconv.ParseFloat(text, 64)
	return x, err == nil && finite(x)
}

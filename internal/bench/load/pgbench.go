package load

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
)

// pgbench loads PostgreSQL with its built-in scripts. Its progress is on stderr, every response time in its log.
var pgbench = &loader{
	Programs: []process.Program{{Name: "pgbench", Package: "postgresql"}},
	fill: func(ctx context.Context, d *Driver) error {
		// One unit of scale is 100,000 accounts.
		scale := max(1, (d.Rows+99_999)/100_000)
		return d.Database.Client(ctx, d.env(), nil,
			append(d.pgArgs(), "-i", "-q", "-s", strconv.Itoa(scale), d.Database.Account.Database)...)
	},
	command: func(d *Driver, length time.Duration) []string {
		args := append(d.pgArgs(), "-c", strconv.Itoa(d.Threads), "-j", strconv.Itoa(d.Threads), "-T",
			strconv.Itoa(int(length/time.Second)),
			"-P", "1", "-n", "-l", "--log-prefix="+d.file("client-of-"+d.Database.Name), "-b", cmp.Or(d.Script,
				"tpcb-like"))
		if d.Rate > 0 {
			args = append(args, "-R", strconv.Itoa(int(d.Rate)))
		}
		return append(append(args, d.Options...), d.Database.Account.Database)
	},
	ready:     func(d *Driver) error { return removePgbenchLogs(d.file("client-of-" + d.Database.Name)) },
	complains: true,
	parse:     func(_ *Driver, r io.Reader, live func(float64)) (Outcome, error) { return parsePgbench(r, live) },
	finish:    func(d *Driver, o *Outcome) error { return readPgbenchLogs(d.file("client-of-"+d.Database.Name), o) },
}

// pgArgs is how pgbench finds the server.
func (d *Driver) pgArgs() []string {
	where := d.Database.RunDir
	if !d.Database.Ours() {
		where = cmp.Or(d.Database.Host, d.Database.SocketOfClient())
	}
	return []string{d.Path, "-h", where, "-p", strconv.Itoa(d.Database.Port), "-U", d.Database.Account.User}
}

// parsePgbench reads pgbench's progress: "progress: 1.0 s, 5012.3 tps, lat 0.396 ms stddev 0.1, 0 failed".
func parsePgbench(r io.Reader, live func(tps float64)) (Outcome, error) {
	var o Outcome
	var complaints []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		rest, found := strings.CutPrefix(line, "progress: ")
		if !found {
			if strings.Contains(line, "error:") || strings.Contains(line, "fatal:") {
				complaints = append(complaints, line)
			}
			continue
		}
		var s proof.Second
		var latency float64
		if n, err := fmt.Sscanf(rest, "%f s, %f tps, lat %f ms", &s.At, &s.TPS, &latency); n < 2 || !finite(s.At) ||
			!finite(s.TPS) {
			return Outcome{}, fmt.Errorf("read pgbench's progress %q: %w", line, err)
		}
		if s.Latency = proof.Figure(latency); s.TPS == 0 { // 0 ms of nothing
			s.Latency = proof.Figure(math.NaN())
		}
		o.Seconds = append(o.Seconds, s)
		if live != nil {
			live(s.TPS)
		}
	}
	if err := lines.Err(); err != nil {
		return Outcome{}, fmt.Errorf("read pgbench's output: %w", err)
	}
	if len(complaints) > 0 {
		return o, fmt.Errorf("run pgbench: %s", strings.Join(complaints[:min(3, len(complaints))], "; "))
	}
	return o, nil
}

// removePgbenchLogs takes away what a run that failed left: its transactions are not those of the next one.
func removePgbenchLogs(prefix string) error {
	paths, err := filepath.Glob(prefix + ".[0-9]*")
	for _, path := range paths {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("remove pgbench's log: %w", err)
	}
	return nil
}

// readPgbenchLogs reads the logs of pgbench's threads, PREFIX.PID and PREFIX.PID.THREAD, and takes them away.
func readPgbenchLogs(prefix string, o *Outcome) (err error) {
	paths, err := filepath.Glob(prefix + ".[0-9]*")
	if err != nil {
		return fmt.Errorf("find pgbench's log: %w", err)
	}
	t := tally{}
	var span logSpan
	for _, path := range paths {
		if err := readPgbenchLog(path, t, &span); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove pgbench's log: %w", err)
		}
	}
	o.Histogram = t.buckets()
	for _, b := range o.Histogram {
		o.Transactions += b.Count
	}
	if o.Elapsed = span.length(); o.Transactions == 0 {
		return errors.New("read pgbench's log: it holds no transaction")
	}
	return nil
}

// logSpan is from when to when a log goes, in microseconds.
type logSpan struct{ from, to int64 }

func (s logSpan) length() time.Duration { return time.Duration(s.to-s.from) * time.Microsecond }

// readPgbenchLog reads lines of "client transaction time_us script epoch epoch_us …": the time that a transaction took,
// and when it ended.
func readPgbenchLog(path string, t tally, span *logSpan) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read pgbench's log: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			return fmt.Errorf("read pgbench's log: line %q has %d fields", lines.Text(), len(fields))
		}
		if fields[2] == "failed" || fields[2] == "skipped" {
			continue
		}
		took, err := strconv.ParseFloat(fields[2], 64)
		seconds, err2 := strconv.ParseInt(fields[4], 10, 64)
		micro, err3 := strconv.ParseInt(fields[5], 10, 64)
		if err := errors.Join(err, err2, err3); err != nil || !finite(took) {
			return fmt.Errorf("read pgbench's log: line %q: %w", lines.Text(), err)
		}
		end := seconds*1_000_000 + micro
		if start := end - int64(took); span.from == 0 || start < span.from {
			span.from = start
		}
		span.to = max(span.to, end)
		t.add(took/1000, 1)
	}
	return lines.Err()
}

package bench

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/proof"
)

// parseSysbench reads the output of `sysbench --report-interval=1 --histogram run` (sysbench 1.0). Each
// interval's rate is handed to live as soon as its line is there; live may be nil. A run that reports
// no total is an error that carries sysbench's own FATAL lines.
func parseSysbench(r io.Reader, live func(tps float64)) (outcome, error) {
	var l outcome
	var fatal []string
	section := ""
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "FATAL:"):
			fatal = append(fatal, line)
		case strings.HasPrefix(line, "["):
			if second, ok := intervalLine(line); ok {
				l.seconds = append(l.seconds, second)
				if live != nil {
					live(second.TPS)
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
				return outcome{}, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return outcome{}, fmt.Errorf("read sysbench's output: %w", err)
	}
	if len(fatal) > 0 {
		return outcome{}, fmt.Errorf("run sysbench: %s", strings.Join(fatal, "; "))
	}
	if l.elapsed <= 0 || len(l.histogram) == 0 {
		return outcome{}, fmt.Errorf("read sysbench's output: it ended without totals")
	}
	return l, nil
}

// intervalLine reads "[ 1s ] thds: 2 tps: 5012.33 qps: … lat (ms,95%): 0.62 err/s: …".
func intervalLine(line string) (proof.Second, bool) {
	at, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "s ]")
	if !ok {
		return proof.Second{}, false
	}
	s := proof.Second{Latency: proof.Figure(math.NaN())}
	var err error
	if s.At, err = strconv.ParseFloat(strings.TrimSpace(at), 64); err != nil || !finite(s.At) {
		return proof.Second{}, false
	}
	_, tps, ok := strings.Cut(rest, " tps: ")
	if !ok {
		return proof.Second{}, false
	}
	word, _, _ := strings.Cut(tps, " ")
	if s.TPS, err = strconv.ParseFloat(word, 64); err != nil || !finite(s.TPS) {
		return proof.Second{}, false
	}
	if _, latency, ok := strings.Cut(rest, " lat (ms,"); ok {
		_, latency, _ = strings.Cut(latency, "%): ")
		word, _, _ := strings.Cut(latency, " ")
		if ms, err := strconv.ParseFloat(word, 64); err == nil && finite(ms) {
			s.Latency = proof.Figure(ms)
		}
	}
	return s, true
}

// histogramLine reads "0.354 |************   2436".
func histogramLine(line string) (proof.Bucket, bool) {
	value, rest, ok := strings.Cut(line, "|")
	if !ok {
		return proof.Bucket{}, false
	}
	ms, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || math.IsNaN(ms) || math.IsInf(ms, 0) || ms < 0 {
		return proof.Bucket{}, false
	}
	count, err := strconv.ParseInt(strings.TrimSpace(strings.TrimLeft(rest, "* ")), 10, 64)
	if err != nil || count < 0 {
		return proof.Bucket{}, false
	}
	return proof.Bucket{MS: ms, Count: count}, true
}

// total reads the two lines of the closing statistics that a rate is made from.
func (o *outcome) total(line string) error {
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
		o.transactions = n
	case "total time":
		d, err := time.ParseDuration(word)
		if err != nil || d < 0 {
			return fmt.Errorf("read sysbench's output: total time %q is not a duration", word)
		}
		o.elapsed = d
	}
	return nil
}

// sysbench loads MariaDB or PostgreSQL with its scripts (sysbench 1.0).
var sysbench = &loader{
	programs: []program{{name: "sysbench", pkg: "sysbench"}},
	fill: func(ctx context.Context, d *driver) error {
		return d.in.client(ctx, d.env(), nil, append(d.sysbenchArgs(), "prepare")...)
	},
	command: func(d *driver, length time.Duration) []string {
		args := append(d.sysbenchArgs(), fmt.Sprintf("--time=%d", int(length/time.Second)), "--report-interval=1", "--percentile=95", "--histogram")
		if d.rate > 0 {
			args = append(args, fmt.Sprintf("--rate=%.0f", d.rate))
		}
		return append(append(args, d.Options...), "run")
	},
	parse: func(_ *driver, r io.Reader, live func(float64)) (outcome, error) { return parseSysbench(r, live) },
}

// sysbenchArgs is what every command of sysbench begins with. Where a database exists, a file says how to log in.
func (d *driver) sysbenchArgs() []string {
	in, kind := d.in, "mysql"
	if in.Engine == "postgresql" {
		kind = "pgsql"
	}
	args := []string{d.path, cmp.Or(d.Script, "oltp_read_only"), "--db-driver=" + kind}
	database := in.account.database
	switch {
	case !in.ours():
		args = append(args, "--config-file="+d.file(in.configFile()))
		if in.Engine == "mariadb" {
			database = ownPlace
		}
	case kind == "mysql":
		args = append(args, "--mysql-socket="+in.socket)
	default:
		args = append(args, "--pgsql-host="+in.rundir, "--pgsql-port="+strconv.Itoa(in.port))
	}
	return append(args, "--"+kind+"-user="+in.account.user, "--"+kind+"-db="+database,
		fmt.Sprintf("--tables=%d", d.tables), fmt.Sprintf("--table-size=%d", d.rows), fmt.Sprintf("--threads=%d", d.threads))
}

// sysbenchConfig says where a server that exists is, and the password.
func (in *instance) sysbenchConfig(kind string) string {
	text := fmt.Sprintf("%s-password=%s\n", kind, in.account.password)
	switch {
	case in.host != "":
		return text + fmt.Sprintf("%s-host=%s\n%s-port=%d\n", kind, in.host, kind, in.port)
	case kind == "mysql":
		return text + "mysql-socket=" + in.socket + "\n"
	}
	return text + fmt.Sprintf("pgsql-host=%s\npgsql-port=%d\n", in.socketOfClient(), in.port)
}

package load

import (
	"bufio"
	"cmp"
	"context"
	_ "embed" // the script of a data load
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
)

// parseSysbench reads the output of `sysbench --report-interval=1 --histogram run` (sysbench 1.0). Each
// interval's rate is handed to live as soon as its line is there; live may be nil. A run that reports
// no total is an error that carries sysbench's own FATAL lines.
func parseSysbench(r io.Reader, live func(tps float64)) (Outcome, error) {
	var l Outcome
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
				l.Seconds = append(l.Seconds, second)
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
				l.Histogram = append(l.Histogram, b)
			}
		case section == "totals":
			if err := l.total(line); err != nil {
				return Outcome{}, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return Outcome{}, fmt.Errorf("read sysbench's output: %w", err)
	}
	if len(fatal) > 0 {
		return Outcome{}, fmt.Errorf("run sysbench: %s", strings.Join(fatal, "; "))
	}
	if l.Elapsed <= 0 || len(l.Histogram) == 0 {
		return Outcome{}, fmt.Errorf("read sysbench's output: it ended without totals")
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
		if ms, err := strconv.ParseFloat(word, 64); err == nil && finite(ms) && s.TPS > 0 { // 0 ms of nothing
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
func (o *Outcome) total(line string) error {
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
		o.Transactions = n
	case "total time":
		d, err := time.ParseDuration(word)
		if err != nil || d < 0 {
			return fmt.Errorf("read sysbench's output: total time %q is not a duration", word)
		}
		o.Elapsed = d
	}
	return nil
}

// dataLoad is the name of a script of our own beside those of sysbench: it loads data into tables of its own.
const dataLoad = "data_load"

//go:embed data_load.lua
var dataLoadScript []byte

// sysbench loads MariaDB or PostgreSQL with its scripts (sysbench 1.0).
var sysbench = &loader{
	Programs: []process.Program{{Name: "sysbench", Package: "sysbench"}},
	fill: func(ctx context.Context, d *Driver) error {
		if d.Script == dataLoad {
			// It makes its tables itself, anew in each run.
			if err := os.WriteFile(d.file(dataLoad+".lua"), dataLoadScript, 0o644); err != nil {
				return fmt.Errorf("write sysbench's script: %w", err)
			}
			return nil
		}
		return d.Database.Client(ctx, d.env(), nil, append(d.sysbenchArgs(), "prepare")...)
	},
	command: func(d *Driver, length time.Duration) []string {
		args := append(d.sysbenchArgs(), fmt.Sprintf("--time=%d", int(length/time.Second)), "--report-interval=1",
			"--percentile=95", "--histogram")
		if d.Rate > 0 {
			args = append(args, fmt.Sprintf("--rate=%.0f", d.Rate))
		}
		return append(append(args, d.Options...), "run")
	},
	parse: func(_ *Driver, r io.Reader, live func(float64)) (Outcome, error) { return parseSysbench(r, live) },
}

// sysbenchArgs is what every command of sysbench begins with. Where a database exists, a file says how to log in.
func (d *Driver) sysbenchArgs() []string {
	in, kind := d.Database, "mysql"
	if in.Engine == "postgresql" {
		kind = "pgsql"
	}
	script := cmp.Or(d.Script, "oltp_read_only")
	if script == dataLoad {
		script = d.file(dataLoad + ".lua")
	}
	args := []string{d.Path, script, "--db-driver=" + kind}
	name := in.Account.Database
	switch {
	case !in.Ours():
		args = append(args, "--config-file="+d.file(configFile(in)))
		if in.Engine == "mariadb" {
			name = database.OwnPlace
		}
	case d.Remote:
		args = append(args, "--"+kind+"-host="+NearAddr, "--"+kind+"-port="+strconv.Itoa(in.Port))
	case kind == "mysql":
		args = append(args, "--mysql-socket="+in.Socket)
	default:
		args = append(args, "--pgsql-host="+in.RunDir, "--pgsql-port="+strconv.Itoa(in.Port))
	}
	return append(args, "--"+kind+"-user="+in.Account.User, "--"+kind+"-db="+name,
		fmt.Sprintf("--tables=%d", d.Tables), fmt.Sprintf("--table-size=%d", d.Rows), fmt.Sprintf("--threads=%d",
			d.Threads))
}

// sysbenchConfig says where a server that exists is, and the password.
func sysbenchConfig(in *database.Instance, kind string) string {
	text := fmt.Sprintf("%s-password=%s\n", kind, in.Account.Password)
	switch {
	case in.Host != "":
		return text + fmt.Sprintf("%s-host=%s\n%s-port=%d\n", kind, in.Host, kind, in.Port)
	case kind == "mysql":
		return text + "mysql-socket=" + in.Socket + "\n"
	}
	return text + fmt.Sprintf("pgsql-host=%s\npgsql-port=%d\n", in.SocketOfClient(), in.Port)
}

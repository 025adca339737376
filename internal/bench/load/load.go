// Package load drives the load generators of a proof: sysbench, pgbench, redis-benchmark, fio, iperf3 and a heartbeat
// of its own. A [Driver] fills its database once with Prepare and loads it with Run, whose Outcome has the rate of each
// second and a histogram of latencies.
//
// Different drivers may run at the same time.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// Outcome is what one run of a load measured.
type Outcome struct {
	Transactions int64
	Elapsed      time.Duration
	bytes        float64 // a second, where the load counts them
	Seconds      []proof.Second
	Histogram    []proof.Bucket
}

// Rate is transactions per second over the whole run.
func (o Outcome) Rate() float64 {
	if o.Elapsed <= 0 {
		return 0
	}
	return float64(o.Transactions) / o.Elapsed.Seconds()
}

// Figures are those of a load by name: tps, mean, p50, p95, … (latencies in milliseconds).
func (o Outcome) Figures() map[string]float64 {
	f := map[string]float64{
		"tps": o.Rate(), "transactions": float64(o.Transactions), "mean": proof.Mean(o.Histogram),
		"p50": proof.Percentile(o.Histogram, 50), "p95": proof.Percentile(o.Histogram, 95),
		"p99": proof.Percentile(o.Histogram, 99), "p999": proof.Percentile(o.Histogram, 99.9),
		"longest":     proof.Percentile(o.Histogram, 100),
		"within_10ms": proof.CallsWithin(o.Histogram, 10), "time_50_to_100ms": proof.TimeBetween(o.Histogram, 50, 100),
	}
	if o.bytes > 0 {
		f["bytes"] = o.bytes
	}
	return f
}

// Driver is a load ready to run.
type Driver struct {
	scenario.Load
	Database   *database.Instance // nil: it loads no database
	Loader     *loader
	Path       string
	Supervisor *process.Supervisor
	Dir        string              // for its own files
	Far        *process.Supervisor // at the far end of the wire; nil without one
	Port       int                 // on the wire
	Server     *process.Child      // of iperf3
	Self       string              // bulkhead's program
	batch      int                 // requests that redis-benchmark reports together
	Threads    int
	Tables     int
	Rows       int
	Rate       float64
	Size       int // MiB
	Jobs       int
	Depth      int
}

// loader is how one program fills a database, loads it and tells about it.
type loader struct {
	Programs []process.Program
	// fill prepares the database or the file; nil is nothing to prepare.
	fill func(ctx context.Context, d *Driver) error
	// command is the argument list of a run.
	command func(d *Driver, length time.Duration) []string
	// parse reads the output as it comes; live gets each second's rate.
	parse func(d *Driver, r io.Reader, live func(tps float64)) (Outcome, error)
	// finish adds what stands in files; nil is nothing.
	finish func(d *Driver, o *Outcome) error
	// ready makes way for a run; nil is nothing.
	ready func(d *Driver) error
	// beside starts what the load needs beside it for the whole run; nil is nothing.
	beside func(ctx context.Context, d *Driver) error
	// native is the load itself, in place of command and parse: no program is started.
	Native func(ctx context.Context, d *Driver, length time.Duration, live func(tps float64)) (Outcome, error)
	// endless: the program knows no time and is ended when its time is over.
	endless bool
	// complains says that the figures are on stderr.
	complains bool
}

// prepared is one name for what a load filled: loads that need the same fill it once.
func (d *Driver) prepared() string { return fmt.Sprintf("%s %d %d", d.Program, d.Tables, d.Rows) }

// Prepare fills the database, once.
func (d *Driver) Prepare(ctx context.Context) error {
	if d.Loader.beside != nil {
		return d.Loader.beside(ctx, d)
	}
	if d.Loader.fill == nil || d.Database != nil && d.Database.Prepared[d.prepared()] {
		return nil
	}
	if err := d.Loader.fill(ctx, d); err != nil {
		return fmt.Errorf("fill for load %q: %w", d.Name, err)
	}
	if d.Database != nil {
		d.Database.Prepared[d.prepared()] = true
	}
	return nil
}

// makeReady makes way for a run.
func (d *Driver) makeReady() error {
	if d.Loader.ready == nil {
		return nil
	}
	return d.Loader.ready(d)
}

// Run runs the load. wrap makes its argument list one that starts inside a group; nil is outside of any.
func (d *Driver) Run(ctx context.Context, length time.Duration, wrap func([]string) []string, live func(float64),
	started func(*process.Child)) (Outcome, error) {
	// Starved by neighbours, a load takes a while to connect and to end.
	ctx, cancel := context.WithTimeoutCause(ctx, 3*length+30*time.Second,
		errors.New("it took more than three times as long as asked"))
	defer cancel()
	if d.Loader.Native != nil {
		return d.Loader.Native(ctx, d, length, live)
	}
	if err := d.makeReady(); err != nil {
		return Outcome{}, err
	}
	args, starter := d.Loader.command(d, length), d.Supervisor
	switch {
	case d.fromFar():
		starter = d.Far
	case wrap != nil:
		args = wrap(args)
	}
	reader, writer := io.Pipe()
	type answer struct {
		outcome Outcome
		err     error
	}
	parsed := make(chan answer, 1)
	// Starved by neighbours, an endless program takes its time to begin: its time counts from what it says first.
	speaks := &firstWord{Reader: reader, heard: make(chan struct{})}
	go func() {
		o, err := d.Loader.parse(d, speaks, live)
		_, _ = io.Copy(io.Discard, reader) // after an error, let it write on until it ends
		parsed <- answer{o, err}
	}()
	var complaints bytes.Buffer
	s := process.Spec{Args: args, Dir: d.Dir, Env: d.env(), Session: true, Stdout: writer, Stderr: &complaints}
	if d.Loader.complains {
		s.Stdout, s.Stderr = &complaints, writer
	}
	runErr := starter.RunWith(ctx, s, func(c *process.Child) {
		if d.Loader.endless {
			go func() {
				select {
				case <-speaks.heard:
					process.Sleep(ctx, length)
					c.Signal(syscall.SIGKILL)
				case <-c.Done:
				}
			}()
		}
		if started != nil {
			started(c)
		}
	})
	_ = writer.Close() // never fails
	a := <-parsed
	if cause := context.Cause(ctx); cause != nil {
		return Outcome{}, fmt.Errorf("run %s: %w", d.Program, cause)
	}
	var exit *exec.ExitError
	if errors.As(runErr, &exit) && d.Loader.endless && len(a.outcome.Seconds) > 0 {
		runErr = nil
	}
	if errors.As(runErr, &exit) {
		return a.outcome, errors.Join(fmt.Errorf("run %s: %w\n%s", d.Program, runErr,
			process.LastLines(complaints.String(), 5)), a.err)
	}
	if a.err != nil {
		return a.outcome, fmt.Errorf("%w\n%s", a.err, process.LastLines(complaints.String(), 5))
	}
	if runErr == nil && d.Loader.finish != nil {
		runErr = d.Loader.finish(d, &a.outcome)
	}
	return a.outcome, runErr
}

// fromFar says whether the program asks from the far end of the wire. A group of the load holds its server then.
func (d *Driver) fromFar() bool { return d.Flow == FlowIn || d.Remote }

// firstWord is a reader that tells when something came.
type firstWord struct {
	io.Reader
	once  sync.Once
	heard chan struct{}
}

func (f *firstWord) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if n > 0 {
		f.once.Do(func() { close(f.heard) })
	}
	return n, err
}

// Accounts writes the password of a database that exists where its load generators look: files that only root reads.
// What is on a command line, or in the environment of another user's process, would be for all to read.
func (d *Driver) Accounts() error {
	if d.Database == nil || d.Database.Ours() {
		return nil
	}
	for name, text := range secrets(d.Database) {
		if err := os.WriteFile(d.file(name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the account of load %q: %w", d.Name, err)
		}
	}
	return nil
}

// secrets are the files of accounts, by the end of their names.
func secrets(in *database.Instance) map[string]string {
	a := in.Account
	switch in.Engine {
	case "redis":
		return map[string]string{accountFile: a.User + "\n" + a.Password + "\n"}
	case "postgresql":
		// Escaped as libpq's documentation of the password file wants it.
		return map[string]string{accountFile: "*:*:*:*:" +
			strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(a.Password) +
			"\n", configFile(in): sysbenchConfig(in, "pgsql")}
	}
	return map[string]string{configFile(in): sysbenchConfig(in, "mysql")}
}

const accountFile = "account"

// configFile bears the name by which policies know the clients of a database.
func configFile(in *database.Instance) string { return "sysbench-client-of-" + in.Name }

// env is what a load finds in its environment.
func (d *Driver) env() []string {
	if d.Database == nil || d.Database.Ours() || d.Database.Engine != "postgresql" {
		return nil
	}
	return []string{"PGPASSFILE=" + d.file(accountFile), "PGOPTIONS=" + database.OwnPath}
}

// file is the path of one of the load's own files.
func (d *Driver) file(name string) string { return filepath.Join(d.Dir, d.Name+"-"+name) }

// finite says whether a parsed number can be one of a measurement.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) && x >= 0 }

// bucketOf is the upper bound of the bucket that holds a latency: bounds lie 2 % apart, as sysbench's do about.
func bucketOf(ms float64) float64 {
	const step = 1.02
	if ms <= 0.001 {
		return 0.001
	}
	return 0.001 * math.Pow(step, math.Ceil(math.Log(ms/0.001)/math.Log(step)-1e-9))
}

// tally counts latencies into buckets.
type tally map[float64]int64

func (t tally) add(ms float64, n int64) { t[bucketOf(ms)] += n }

func (t tally) buckets() []proof.Bucket {
	single := make([]proof.Bucket, 0, len(t))
	for ms, n := range t {
		single = append(single, proof.Bucket{MS: ms, Count: n})
	}
	return proof.Merge(single)
}

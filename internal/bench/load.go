package bench

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

	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// outcome is what one run of a load measured.
type outcome struct {
	transactions int64
	elapsed      time.Duration
	bytes        float64 // a second, where the load counts them
	seconds      []proof.Second
	histogram    []proof.Bucket
}

// rate is transactions per second over the whole run.
func (o outcome) rate() float64 {
	if o.elapsed <= 0 {
		return 0
	}
	return float64(o.transactions) / o.elapsed.Seconds()
}

// driver is a load ready to run.
type driver struct {
	scenario.Load
	in      *instance // nil: it loads no database
	program *loader
	path    string
	nursery *nursery
	dir     string   // for its own files
	far     *nursery // at the far end of the wire; nil without one
	port    int      // on the wire
	server  *child   // of iperf3
	self    string   // bulkhead's program
	batch   int      // requests that redis-benchmark reports together
	threads int
	tables  int
	rows    int
	rate    float64
	size    int // MiB
	jobs    int
	depth   int
}

// loader is how one program fills a database, loads it and tells about it.
type loader struct {
	programs []program
	// fill prepares the database or the file; nil is nothing to prepare.
	fill func(ctx context.Context, d *driver) error
	// command is the argument list of a run.
	command func(d *driver, length time.Duration) []string
	// parse reads the output as it comes; live gets each second's rate.
	parse func(d *driver, r io.Reader, live func(tps float64)) (outcome, error)
	// finish adds what stands in files; nil is nothing.
	finish func(d *driver, o *outcome) error
	// ready makes way for a run; nil is nothing.
	ready func(d *driver) error
	// beside starts what the load needs beside it for the whole run; nil is nothing.
	beside func(ctx context.Context, d *driver) error
	// native is the load itself, in place of command and parse: no program is started.
	native func(ctx context.Context, d *driver, length time.Duration, live func(tps float64)) (outcome, error)
	// endless: the program knows no time and is ended when its time is over.
	endless bool
	// complains says that the figures are on stderr.
	complains bool
}

var loaders = map[string]*loader{
	"sysbench": sysbench, "pgbench": pgbench, "redis-benchmark": redisBenchmark, "fio": fio, "iperf3": iperf3, "heartbeat": heartbeat,
}

// prepared is one name for what a load filled: loads that need the same fill it once.
func (d *driver) prepared() string { return fmt.Sprintf("%s %d %d", d.Program, d.tables, d.rows) }

// prepare fills the database, once.
func (d *driver) prepare(ctx context.Context) error {
	if d.program.beside != nil {
		return d.program.beside(ctx, d)
	}
	if d.program.fill == nil || d.in != nil && d.in.prepared[d.prepared()] {
		return nil
	}
	if err := d.program.fill(ctx, d); err != nil {
		return fmt.Errorf("fill for load %q: %w", d.Name, err)
	}
	if d.in != nil {
		d.in.prepared[d.prepared()] = true
	}
	return nil
}

// makeReady makes way for a run.
func (d *driver) makeReady() error {
	if d.program.ready == nil {
		return nil
	}
	return d.program.ready(d)
}

// run runs the load. wrap makes its argument list one that starts inside a group; nil is outside of any.
func (d *driver) run(ctx context.Context, length time.Duration, wrap func([]string) []string, live func(float64), started func(*child)) (outcome, error) {
	// Starved by neighbours, a load takes a while to connect and to end.
	ctx, cancel := context.WithTimeoutCause(ctx, 3*length+30*time.Second, errors.New("it took more than three times as long as asked"))
	defer cancel()
	if d.program.native != nil {
		return d.program.native(ctx, d, length, live)
	}
	if err := d.makeReady(); err != nil {
		return outcome{}, err
	}
	args, starter := d.program.command(d, length), d.nursery
	switch {
	case d.Flow == flowIn: // its group holds the server
		starter = d.far
	case wrap != nil:
		args = wrap(args)
	}
	reader, writer := io.Pipe()
	type answer struct {
		outcome outcome
		err     error
	}
	parsed := make(chan answer, 1)
	// Starved by neighbours, an endless program takes its time to begin: its time counts from what it says first.
	speaks := &firstWord{Reader: reader, heard: make(chan struct{})}
	go func() {
		o, err := d.program.parse(d, speaks, live)
		_, _ = io.Copy(io.Discard, reader) // after an error, let it write on until it ends
		parsed <- answer{o, err}
	}()
	var complaints bytes.Buffer
	s := spec{args: args, dir: d.dir, env: d.env(), session: true, stdout: writer, stderr: &complaints}
	if d.program.complains {
		s.stdout, s.stderr = &complaints, writer
	}
	runErr := starter.runWith(ctx, s, func(c *child) {
		if d.program.endless {
			go func() {
				select {
				case <-speaks.heard:
					sleep(ctx, length)
					c.signal(syscall.SIGKILL)
				case <-c.done:
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
		return outcome{}, fmt.Errorf("run %s: %w", d.Program, cause)
	}
	var exit *exec.ExitError
	if errors.As(runErr, &exit) && d.program.endless && len(a.outcome.seconds) > 0 {
		runErr = nil
	}
	if errors.As(runErr, &exit) {
		return a.outcome, errors.Join(fmt.Errorf("run %s: %w\n%s", d.Program, runErr, lastLines(complaints.String(), 5)), a.err)
	}
	if a.err != nil {
		return a.outcome, fmt.Errorf("%w\n%s", a.err, lastLines(complaints.String(), 5))
	}
	if runErr == nil && d.program.finish != nil {
		runErr = d.program.finish(d, &a.outcome)
	}
	return a.outcome, runErr
}

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

// accounts writes the password of a database that exists where its load generators look: files that only root reads. What is on a
// command line, or in the environment of another user's process, would be for all to read.
func (d *driver) accounts() error {
	if d.in == nil || d.in.ours() {
		return nil
	}
	for name, text := range d.in.secrets() {
		if err := os.WriteFile(d.file(name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the account of load %q: %w", d.Name, err)
		}
	}
	return nil
}

// secrets are the files of accounts, by the end of their names.
func (in *instance) secrets() map[string]string {
	a := in.account
	switch in.Engine {
	case "redis":
		return map[string]string{accountFile: a.user + "\n" + a.password + "\n"}
	case "postgresql":
		// Escaped as libpq's documentation of the password file wants it.
		return map[string]string{accountFile: "*:*:*:*:" + strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(a.password) + "\n", in.configFile(): in.sysbenchConfig("pgsql")}
	}
	return map[string]string{in.configFile(): in.sysbenchConfig("mysql")}
}

const accountFile = "account"

// configFile bears the name by which policies know the clients of a database.
func (in *instance) configFile() string { return "sysbench-client-of-" + in.Name }

// env is what a load finds in its environment.
func (d *driver) env() []string {
	if d.in == nil || d.in.ours() || d.in.Engine != "postgresql" {
		return nil
	}
	return []string{"PGPASSFILE=" + d.file(accountFile), "PGOPTIONS=" + ownPath}
}

// file is the path of one of the load's own files.
func (d *driver) file(name string) string { return filepath.Join(d.dir, d.Name+"-"+name) }

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

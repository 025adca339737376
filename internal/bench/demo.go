package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// DemoOptions says how long the demo runs and where. The zero value is the full demo.
type DemoOptions struct {
	Rounds  int // interleaved rounds of all phases; default 7
	Seconds int // length of one phase; default 6
	// Smoke is one short round, to see that everything works; its figures say little, and its bar is lower.
	Smoke bool
	// Dir is where the work directory is made, on a disk that the kernel can throttle; default /var/tmp.
	Dir string
	// Binary is the bulkhead to show; default the running program.
	Binary string
	// Progress gets what happens while it runs; nil drops it.
	Progress io.Writer
	// Terminal: Progress is a terminal, so one line is rewritten instead of a new line every 5 s.
	Terminal bool
}

// demoUser is the unprivileged user of Debian's mariadb-server package.
const demoUser = "mysql"

func (o DemoOptions) withDefaults() DemoOptions {
	if o.Rounds <= 0 {
		o.Rounds = 7
		if o.Smoke {
			o.Rounds = 1
		}
	}
	if o.Seconds <= 0 {
		o.Seconds = 6
		if o.Smoke {
			o.Seconds = 5
		}
	}
	if o.Dir == "" {
		o.Dir = "/var/tmp"
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// estimate is about how long a demo takes.
func estimate(o DemoOptions) time.Duration {
	const setUp, overhead = 5 * time.Second, settle + time.Second
	return setUp + time.Duration(o.Rounds*len(phases))*(time.Duration(o.Seconds)*time.Second+overhead)
}

// demo is one run.
type demo struct {
	options  DemoOptions
	machine  machine
	paths    programs
	nursery  *nursery
	undo     cleanup
	progress *progress
	dir      string
	server   *server
	load     generator
	product  *product
	meter    *meter
	sizes    sizes
	samples  map[string][]sample // by phase name, a sample per round
	notes    []Note              // what this kernel does not hold; asked before the first apply
	asked    bool
}

// Demo shows what bulkhead does on a real database: a throw-away MariaDB under sysbench, measured
// alone, beside neighbours, and beside the same neighbours with a policy applied by the product's
// own command line.
//
// It needs root and says what else is missing (RequirementError) before it starts anything. Whatever
// it starts, makes or applies is gone when it returns, after a failure, a signal or a panic too. A
// result with Held false is not an error: the demo worked and the database was not protected.
func Demo(ctx context.Context, o DemoOptions) (result DemoResult, err error) {
	d := &demo{options: o.withDefaults(), samples: map[string][]sample{}}
	if err := d.require(); err != nil {
		return DemoResult{}, err
	}
	lock, err := lockMachine(demoRoot)
	if err != nil {
		return DemoResult{}, err
	}
	d.undo.add("let other demos run", func(context.Context) error { return lock.Close() })
	d.progress = newProgress(d.options.Progress, d.options.Terminal)
	ctx, stop := untilSignal(ctx, func() { d.progress.note("cleaning up, please wait") })
	defer stop()
	defer func() {
		d.progress.phase("cleaning up")
		err = errors.Join(err, d.undo.run())
		d.progress.close()
	}()
	if err := d.setUp(ctx); err != nil {
		return DemoResult{}, interruption(ctx, err)
	}
	if err := d.rounds(ctx); err != nil {
		return DemoResult{}, interruption(ctx, err)
	}
	return d.result(), nil
}

// interruption names what ended the context instead of the failure that it caused.
func interruption(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, errInterrupted) {
		return cmp.Or(cause, err)
	}
	return fmt.Errorf("%w: %w", errInterrupted, cause)
}

// require checks everything that can be checked without changing anything.
func (d *demo) require() (err error) {
	if os.Geteuid() != 0 {
		return &RequirementError{Reason: "it needs root: it makes control groups and starts a server as another user", Hint: "run it with sudo"}
	}
	if d.paths, err = find(demoPrograms); err != nil {
		return err
	}
	if d.options.Binary == "" {
		if d.options.Binary, err = os.Executable(); err != nil {
			return fmt.Errorf("find bulkhead's own program: %w", err)
		}
	}
	if d.machine, err = lookAtMachine(d.options.Dir); err != nil {
		return err
	}
	d.sizes, err = sizesFor(d.machine)
	return err
}

// setUp makes the work directory, starts and fills the server, and writes the policy. What it makes
// is on the undo stack as soon as it is there.
func (d *demo) setUp(ctx context.Context) error {
	d.progress.phase("starting MariaDB")
	d.nursery = newNursery()
	if err := d.makeDir(ctx); err != nil {
		d.undo.add("end processes", func(context.Context) error { return d.nursery.close() })
		return err
	}
	d.undo.add("end processes", func(context.Context) error { return d.nursery.close() })
	server, err := startServer(ctx, d.nursery, d.paths, d.dir, demoUser)
	if err != nil {
		return err
	}
	d.server = server
	d.undo.add("stop MariaDB", func(context.Context) error { return server.stop() })

	d.load = generator{program: d.paths["sysbench"], socket: server.socket, threads: d.sizes.threads}
	d.progress.phase("filling " + demoDatabase)
	if err := d.prepare(ctx); err != nil {
		return err
	}
	if err := prepareHogFile(hogFilePath(d.dir), diskHogBytes); err != nil {
		return err
	}
	d.product = newProduct(d.options.Binary, d.dir, d.nursery)
	if err := d.product.writePolicy(d.policy()); err != nil {
		return err
	}
	d.meter = newMeter(d.machine.facts)
	d.undo.add("close the meter", func(context.Context) error { return d.meter.close() })
	d.undo.add("release the groups", d.product.releaseAll)
	if err := d.product.check(ctx); err != nil {
		return err
	}
	d.progress.begin(estimate(d.options))
	d.progress.note(fmt.Sprintf("%s listens on port %d; %s of %d phases of %d s, about %s",
		server.version, server.port, plural(d.options.Rounds, "round"), len(phases), d.options.Seconds, clock(estimate(d.options))))
	return nil
}

// makeDir makes the work directory, after taking away what a killed demo left behind. The directory
// stays when the groups could not be released: it holds the originals.
func (d *demo) makeDir(ctx context.Context) error {
	if err := sweep(ctx, d.options.Dir, d.options.Binary, d.nursery); err != nil {
		return err
	}
	dir, lock, err := newWorkDir(d.options.Dir)
	if err != nil {
		return err
	}
	d.dir = dir
	d.undo.add("remove the work directory", func(context.Context) error {
		defer lock.Close()
		if d.product != nil && d.product.unreleased {
			return fmt.Errorf("kept %q: it holds the original settings; `%s --state %q release --all` gives them back", dir, d.options.Binary, d.product.state)
		}
		return os.RemoveAll(dir)
	})
	return nil
}

// prepare fills the database and reads it once, so that every phase finds it in memory.
func (d *demo) prepare(ctx context.Context) error {
	var out bytes.Buffer
	if err := d.nursery.run(ctx, spec{args: d.load.command("prepare", 0), stdout: &out, stderr: &out}); err != nil {
		return fmt.Errorf("fill the database: %w\n%s", err, lastLines(out.String(), 10))
	}
	d.progress.phase("warming up")
	_, err := d.runLoad(ctx, d.load.command("run", 3*time.Second), 3*time.Second)
	return err
}

// runLoad runs sysbench and reads its figures as they come.
func (d *demo) runLoad(ctx context.Context, args []string, length time.Duration) (load, error) {
	// Starved by hogs, sysbench takes a while to connect and to end.
	ctx, cancel := context.WithTimeoutCause(ctx, 3*length+30*time.Second, errors.New("it took more than three times as long as asked"))
	defer cancel()
	reader, writer := io.Pipe()
	type outcome struct {
		load load
		err  error
	}
	parsed := make(chan outcome, 1)
	go func() {
		l, err := parseLoad(reader, d.progress.rate)
		_, _ = io.Copy(io.Discard, reader) // after an error, let sysbench write on until it ends
		parsed <- outcome{l, err}
	}()
	var complaints bytes.Buffer
	runErr := d.nursery.run(ctx, spec{args: args, session: true, stdout: writer, stderr: &complaints})
	_ = writer.Close() // never fails
	o := <-parsed
	if cause := context.Cause(ctx); cause != nil {
		return load{}, fmt.Errorf("run sysbench: %w", cause)
	}
	if o.err != nil {
		return load{}, fmt.Errorf("%w\n%s", o.err, lastLines(complaints.String(), 5))
	}
	var exit *exec.ExitError
	if errors.As(runErr, &exit) {
		return load{}, fmt.Errorf("run sysbench: %w\n%s", runErr, lastLines(complaints.String(), 5))
	}
	return o.load, runErr
}

// policyPath is where the demo's policy lies, in its work directory.
func policyPath(dir string) string { return filepath.Join(dir, "policy.yaml") }

// hogFilePath is the file that the demo's disk hog overwrites.
func hogFilePath(dir string) string { return filepath.Join(dir, "hog.data") }

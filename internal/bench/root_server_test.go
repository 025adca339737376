//go:build root

package bench

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/bench/progress"
	"bulkhead/internal/scenario"
	"bulkhead/internal/testhost/release"
)

func TestServerRoot(t *testing.T) {
	needRoot(t)
	n := process.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	for _, tt := range []struct{ engine, load, script string }{
		{"mariadb", "sysbench", "oltp_read_only"}, {"postgresql", "pgbench", "select-only"},
		{"postgresql", "sysbench", "oltp_read_only"}, {"redis", "redis-benchmark", "set"},
	} {
		t.Run(tt.engine+" under "+tt.load, func(t *testing.T) {
			t.Parallel()
			serverRoot(t, n, tt.engine, tt.load, tt.script)
		})
	}
}

// serverRoot starts a server as another user, loads it, and stops it.
func serverRoot(t *testing.T, n *process.Supervisor, engineName, loader, script string) {
	d, own := release.Database(t, engineName)
	paths, err := process.Find(load.Loaders[loader].Programs)
	if err != nil {
		t.Fatal(err)
	}
	dir, lock, err := newWorkDir("/var/tmp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer lock.Close()
	in, err := database.NewInstance(d, dir, 64, own, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Kind.Install(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if err := in.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	defer in.Stop()
	if !strings.HasSuffix(in.Version, "-"+in.Kind.Title) {
		t.Errorf("version is %q", in.Version)
	}
	info, err := os.Stat(filepath.Join("/proc", strconv.Itoa(in.PID())))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid == 0 {
		t.Error("the server runs as root")
	}
	driver := &load.Driver{Load: scenario.Load{Name: "load", Program: loader, Script: script}, Database: in,
		Loader: load.Loaders[loader], Path: paths[loader], Supervisor: n, Dir: dir, Threads: 2, Tables: 1, Rows: 1000}
	if err := driver.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := driver.Run(t.Context(), 3*time.Second, nil, func(float64) {}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if count := histogramCount(o); o.Rate() < 10 || len(o.Seconds) < 2 || loader != "redis-benchmark" &&
		count != o.Transactions {
		t.Errorf("%.1f transactions/s in %d seconds, %d in the histogram of %d", o.Rate(), len(o.Seconds), count,
			o.Transactions)
	}
	pid := in.PID()
	if err := in.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := in.Greet(t.Context()); err == nil {
		t.Error("the server still answers")
	}
	if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid))); err == nil {
		t.Error("its process is still there")
	}
}

func TestHogDiskDirectRoot(t *testing.T) {
	needRoot(t)
	if err := neighbour.Hog(t.Context(), "disk",
		neighbour.HogOptions{For: 300 * time.Millisecond, Bytes: 4 << 20, Rate: 64 << 20,
			Dir: workArea(t)}); err != nil {
		t.Errorf("direct writes: %v", err)
	}
}

// A swap file is there while the run is, is taken away however little of it was made, and by the next run where that
// one was killed.
func TestSwapRoot(t *testing.T) {
	needRoot(t)
	paths, err := process.Find(swapPrograms)
	if err != nil {
		t.Fatal(err)
	}
	size, err := scenario.ParseExpression("8")
	if err != nil {
		t.Fatal(err)
	}
	n := process.NewSupervisor()
	defer n.Close()
	begin := func(parent string) (*run, *os.File) {
		dir, lock, err := newWorkDir(parent)
		if err != nil {
			t.Fatal(err)
		}
		return &run{fitted: fitted{scenario: &scenario.Scenario{Swap: size}}, paths: paths, supervisor: n, dir: dir,
			progress: progress.New(io.Discard, false)}, lock
	}
	on := func(dir string) bool {
		return slices.ContainsFunc(linesOf(t, "/proc/swaps"),
			func(line string) bool { return strings.HasPrefix(line, filepath.Join(dir, swapName)+" ") })
	}
	parent := workArea(t)
	r, lock := begin(parent)
	if err := r.makeSwap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !on(r.dir) {
		t.Error("there is no swap in the file")
	}
	if err := r.undo.Run(t.Context()); err != nil || on(r.dir) {
		t.Errorf("taken back: %v", err)
	}
	// Killed: the undo is never run, and the lock is free.
	if err := r.makeSwap(t.Context()); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if err := sweep(t.Context(), parent, "/bin/false", n); err != nil || on(r.dir) {
		t.Errorf("swept: %v", err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	// A file system that cannot swap.
	memory, err := os.MkdirTemp("/dev/shm", "bulkhead-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(memory)
	r, lock = begin(memory)
	defer lock.Close()
	var required *process.RequirementError
	if err := r.makeSwap(t.Context()); !errors.As(err, &required) || !strings.Contains(err.Error(), "swapon") {
		t.Errorf("swap in memory: %v", err)
	}
	if err := r.undo.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

func histogramCount(l load.Outcome) (n int64) {
	for _, b := range l.Histogram {
		n += b.Count
	}
	return n
}

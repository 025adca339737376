//go:build root

package disks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/host"
)

// How many instances, and data files of each, are looked for.
const (
	benchInstances = 50
	benchFiles     = 100
)

// servers starts processes that look like MySQL servers with their data files open for writing. They are copies of the
// test binary.
func servers(b *testing.B) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	program := filepath.Join(dir, "mysqld")
	if err := os.Link(self, program); err != nil {
		b.Fatal(err)
	}
	for i := range benchInstances {
		data := filepath.Join(dir, fmt.Sprint("data", i))
		var files []*os.File
		for n := range benchFiles {
			sub := filepath.Join(data, fmt.Sprint("schema", n%10))
			if err := os.MkdirAll(sub, 0o755); err != nil {
				b.Fatal(err)
			}
			f, err := os.OpenFile(filepath.Join(sub, fmt.Sprint("t", n, ".ibd")), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				b.Fatal(err)
			}
			files = append(files, f)
		}
		cmd := &exec.Cmd{
			Path: program, Dir: data, Args: []string{"mysqld", "--no-defaults", "--datadir=" + data,
				fmt.Sprint("--port=", 23000+i)}, ExtraFiles: files,
			Env:         append(os.Environ(), "BULKHEAD_TESTHOST_CHILD=hold"),
			SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true},
		}
		stdin, err := cmd.StdinPipe() // it waits there
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = stdin.Close()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// BenchmarkDataFiles finds what each open data file of 50 instances lies on, down to the disks: what `discover disks`
// does. The bound, of the median of CPU time, is "in the order of 150 ms": three times that.
func BenchmarkDataFiles(b *testing.B) {
	servers(b)
	h := host.New("/")
	var took, used []time.Duration
	for b.Loop() {
		begun, before := time.Now(), cpuTime(b)
		d, err := Find(h)
		if err != nil {
			b.Fatal(err)
		}
		took, used = append(took, time.Since(begun)), append(used, cpuTime(b)-before)
		found, open := 0, 0
		for _, db := range d.Databases {
			if !strings.HasPrefix(db.Instance.Name(), "mysql23") {
				continue
			}
			found++
			for _, f := range db.Files {
				if f.Place.Layer == nil {
					b.Fatalf("%s: %s is on nothing: %s", db.Instance.Name(), f.Path, f.Trouble)
				}
			}
			for _, w := range db.Written {
				open += w.Files
			}
		}
		if found != benchInstances || open != benchInstances*benchFiles {
			b.Fatalf("%d of %d instances, %d of %d open files", found, benchInstances, open, benchInstances*benchFiles)
		}
	}
	slices.Sort(took)
	slices.Sort(used)
	half, cpu := took[len(took)/2], used[len(used)/2]
	b.ReportMetric(float64(half.Microseconds())/1000, "ms/look")
	b.ReportMetric(float64(cpu.Microseconds())/1000, "cpu-ms/look")
	if cpu > 450*time.Millisecond {
		b.Errorf("%d files of %d instances took %s of CPU time and %s, want in the order of 150ms",
			benchInstances*benchFiles, benchInstances, cpu, half)
	}
}

// cpuTime is what this process has used of the CPUs so far: what else the host does does not count.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDisksUnchanged is what the agent does at a look, with limits on disks, to see that no disk has come or gone:
// one file, and a directory for each device that may lie on others. No file of a database is looked at.
func BenchmarkDisksUnchanged(b *testing.B) {
	h := host.New("/")
	for b.Loop() {
		if _, err := h.Block.DiskShape(); err != nil {
			b.Fatal(err)
		}
	}
}

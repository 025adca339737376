//go:build root

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
}

func TestServerRoot(t *testing.T) {
	needRoot(t)
	paths, err := find(demoPrograms)
	if err != nil {
		t.Fatal(err)
	}
	n := newNursery()
	defer n.close()
	dir, lock, err := newWorkDir("/var/tmp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer lock.Close()

	s, err := startServer(t.Context(), n, paths, dir, demoUser)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(s.version, "MariaDB") {
		t.Errorf("version is %q", s.version)
	}
	info, err := os.Stat(filepath.Join("/proc", strconv.Itoa(s.process.pid())))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid == 0 {
		t.Error("the server runs as root")
	}
	d := &demo{nursery: n, progress: newProgress(io.Discard, false)}
	d.load = generator{program: paths["sysbench"], socket: s.socket, threads: 2}
	if err := d.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := d.runLoad(t.Context(), d.load.command("run", 2*time.Second), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if l.rate() < 10 || countOf(l) != l.transactions {
		t.Errorf("%.1f transactions/s, %d in the histogram", l.rate(), countOf(l))
	}
	// Root without a password is let in over the socket by being root, and by nothing else.
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	tcp := append(d.load.command("run", time.Second), "--mysql-host=127.0.0.1", "--mysql-port="+strconv.Itoa(s.port), "--mysql-socket=")
	if err := n.run(t.Context(), spec{args: tcp}); err == nil {
		t.Error("root was let in over TCP without a password")
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if _, err := greeting(t.Context(), s.socket); err == nil {
		t.Error("the server still answers")
	}
}

func TestHogDiskDirectRoot(t *testing.T) {
	needRoot(t)
	if err := Hog(t.Context(), "disk", HogOptions{For: 300 * time.Millisecond, Bytes: 4 << 20, Rate: 64 << 20, Dir: workArea(t)}); err != nil {
		t.Errorf("direct writes: %v", err)
	}
}

// running is a demo of the real program, as a person would start it.
type running struct {
	cmd  *exec.Cmd
	dir  string
	seen chan string
	all  *bytes.Buffer
}

func buildProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "bulkhead")
	if out, err := exec.Command("go", "build", "-o", program, "bulkhead/cmd/bulkhead").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

func startDemo(t *testing.T, program, dir string) *running {
	t.Helper()
	r := &running{cmd: exec.Command(program, "bench", "demo", "--smoke", "--seconds", "2", "--dir", dir), dir: dir, seen: make(chan string, 1000), all: new(bytes.Buffer)}
	out, err := r.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	go func() {
		defer close(r.seen)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			r.seen <- lines.Text()
		}
	}()
	return r
}

// await reads the progress until it says a word.
func (r *running) await(t *testing.T, word string) {
	t.Helper()
	timeout := time.After(90 * time.Second)
	for {
		select {
		case line, ok := <-r.seen:
			if !ok {
				t.Fatalf("the demo ended before %q:\n%s", word, r.all)
			}
			r.all.WriteString(line + "\n")
			if strings.Contains(line, word) {
				return
			}
		case <-timeout:
			t.Fatalf("no %q in\n%s", word, r.all)
		}
	}
}

// end waits for the program after a signal.
func (r *running) end(t *testing.T) error {
	t.Helper()
	timeout := time.AfterFunc(60*time.Second, func() { _ = r.cmd.Process.Kill() })
	defer timeout.Stop()
	for line := range r.seen {
		r.all.WriteString(line + "\n")
	}
	return r.cmd.Wait()
}

// left says what of a demo below dir is still there: groups, files, processes.
func left(t *testing.T, dir string) (groups, entries, processes []string) {
	t.Helper()
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	tree := cgroup.New(facts.Hierarchies)
	defer tree.Close()
	for _, hierarchy := range facts.Hierarchies {
		there, err := tree.Exists(cgroup.Dir{Hierarchy: hierarchy.ID, Path: "/" + demoRoot})
		if err != nil {
			t.Fatal(err)
		}
		if there {
			groups = append(groups, hierarchy.ID)
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range list {
		entries = append(entries, e.Name())
	}
	all, err := h.Processes(host.ProcessOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if command := strings.Join(p.Args, " "); strings.Contains(command, dir) {
			processes = append(processes, command)
		}
	}
	return groups, entries, processes
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	if groups, entries, processes := left(t, dir); len(groups)+len(entries)+len(processes) > 0 {
		t.Errorf("left behind: groups in %q, files %q, processes %q", groups, entries, processes)
	}
}

func TestDemoInterruptedRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	for _, tt := range []struct {
		at      string
		signals []os.Signal
	}{
		{"filling", []os.Signal{syscall.SIGTERM}},
		{"beside hogs, policy applied", []os.Signal{syscall.SIGINT, syscall.SIGINT, syscall.SIGHUP}},
	} {
		t.Run(tt.at, func(t *testing.T) {
			dir := workArea(t)
			r := startDemo(t, program, dir)
			r.await(t, tt.at)
			time.Sleep(700 * time.Millisecond) // into the middle of it
			for _, s := range tt.signals {
				if err := r.cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				time.Sleep(50 * time.Millisecond)
			}
			var exit *exec.ExitError
			if err := r.end(t); !errors.As(err, &exit) || exit.ExitCode() < 1 {
				t.Errorf("it ended with %v, want an exit code above 0 and not a signal", err)
			}
			if !strings.Contains(r.all.String(), "interrupted") {
				t.Errorf("it does not say that it was interrupted:\n%s", r.all)
			}
			nothingLeft(t, dir)
		})
	}
}

// A demo that is killed takes its processes with it; what it could not undo, the next one does.
func TestDemoKilledRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	first := startDemo(t, program, dir)
	first.await(t, "beside hogs, policy applied")
	time.Sleep(2 * time.Second)
	if groups, _, _ := left(t, dir); len(groups) == 0 {
		t.Fatal("no group is there while the policy is applied")
	}
	// Should it fail below: what is left is released while the state is still there.
	t.Cleanup(func() {
		for _, state := range states(t, dir) {
			if out, err := exec.Command(program, "--state", state, "--socket", filepath.Join(dir, "none"), "release", "--all").CombinedOutput(); err != nil {
				t.Errorf("release: %v\n%s", err, out)
			}
		}
	})
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.end(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, _, processes := left(t, dir); len(processes) > 0; _, _, processes = left(t, dir) {
		if ctx.Err() != nil {
			t.Fatalf("the killed demo left %q running", processes)
		}
		sleep(ctx, 100*time.Millisecond)
	}
	second := startDemo(t, program, dir)
	second.await(t, "filling")
	if groups, entries, _ := left(t, dir); len(groups) > 0 || len(entries) != 1 {
		t.Errorf("the second demo left the first one's groups in %q, files %q", groups, entries)
	}
	if err := second.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = second.end(t)
	nothingLeft(t, dir)
}

// workArea is a directory on a real disk that the server's user can reach.
func workArea(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "bulkhead-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// states are the state directories of demos below dir.
func states(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, workPrefix+"*", "state"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

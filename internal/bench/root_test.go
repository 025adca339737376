//go:build root

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/scenario"
	"bulkhead/internal/systemd/unitname"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
}

// running is a demo of the real program, as a person would start it.
type running struct {
	cmd  *exec.Cmd
	dir  string
	seen chan string
	all  *bytes.Buffer // what it said of its progress, and then its result
	said *bytes.Buffer // its result
}

func buildProgram(t *testing.T) string {
	t.Helper()
	if os.Getenv("BULKHEAD_LAB") != "" { // the machine has no Go, and the binary beside the sources
		program, err := filepath.Abs("../../bulkhead")
		if err != nil {
			t.Fatal(err)
		}
		return program
	}
	if program := os.Getenv("BULKHEAD_PROGRAM"); program != "" { // scripts/test-root makes it once for all
		return program
	}
	program := filepath.Join(t.TempDir(), "bulkhead")
	if out, err := exec.Command("go", "build", "-o", program, "bulkhead/cmd/bulkhead").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

func startBench(t *testing.T, program, name, dir string) *running {
	t.Helper()
	return startProgram(t, dir, exec.Command(program, "bench", name, "--smoke", "--seconds", "2", "--dir", dir))
}

// startProgram starts a run below dir.
func startProgram(t *testing.T, dir string, cmd *exec.Cmd) *running {
	t.Helper()
	// A proof that somebody runs beside the tests is waited for; one goes on at a time.
	for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(100 * time.Millisecond) {
		if lock, err := lockMachine(benchName); err == nil {
			lock.Close()
			break
		}
	}
	r := &running{cmd: cmd, dir: dir, seen: make(chan string, 1000), all: new(bytes.Buffer), said: new(bytes.Buffer)}
	if r.cmd.Stdout == nil {
		r.cmd.Stdout = r.said
	}
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
	limit := 3 * time.Minute
	if os.Getenv("BULKHEAD_LAB") != "" { // servers start and load slowly in emulation
		limit = 12 * time.Minute
	}
	timeout := time.AfterFunc(limit, func() { _ = r.cmd.Process.Kill() })
	defer timeout.Stop()
	for line := range r.seen {
		r.all.WriteString(line + "\n")
	}
	err := r.cmd.Wait()
	r.all.Write(r.said.Bytes())
	return err
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
		names, err := tree.Children(cgroup.Dir{Hierarchy: hierarchy.ID, Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if name == benchName || strings.HasPrefix(name, unitname.TopPrefix) {
				groups = append(groups, hierarchy.ID+":"+name)
			}
		}
	}
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range list {
		entries = append(entries, e.Name())
	}
	all, err := h.Proc.Processes(procfs.Options{})
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

// needing is a scenario without a database that needs what it says.
func needing(t *testing.T, needs string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "needing.yaml")
	text := "version: 1\nname: needing\ntitle: needs\nneeds: " + needs +
		"\nloads:\n  load: {program: fio, size: \"16\"}\narms:\n  alone: {text: alone}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Who is not root is told so, by the program itself.
func TestOtherThanRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	mine := filepath.Join(dir, "bulkhead")
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, text, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"bench", "demo"}, {"bench", "all"}} {
		cmd := exec.Command(mine, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "it needs root: ") ||
			!strings.Contains(string(out), "hint: run it with sudo") || strings.Contains(string(out), "left out") {
			t.Errorf("%q ended with %v and said\n%s", args, err, out)
		}
	}
}

// In a mount namespace of its own a run finds a small tmpfs to work in, and a server that is not executable: each with
// what to do.
func TestLackingRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	server := process.LookPath("redis-server")
	scenario := filepath.Join(t.TempDir(), "cache.yaml")
	text := "version: 1\nname: cache\ntitle: a cache\ndatabases:\n  db: {engine: redis}\nloads:\n" +
		"  load: {program: redis-benchmark, on: db}\narms:\n  alone: {text: alone}\n"
	if err := os.WriteFile(scenario, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, mount, want, hint string }{
		{"a small tmpfs", "mount -t tmpfs -o size=16m tmpfs " + dir, "it needs 512 MiB free in",
			"make room, or choose another place with --dir"},
		{"a large tmpfs", "mount -t tmpfs -o size=2g tmpfs " + dir,
			"is on a file system of type tmpfs, with no block device",
			"--dir DIR puts the work directory on another disk"},
		{"no server", "mount --bind /dev/null " + server, "not installed: redis-server",
			"apt-get install --no-install-recommends redis-server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", tt.mount+` && exec "$@"`, "sh", program, "bench", scenario, "--dir", dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // Go makes its mounts private
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if said := string(out); !errors.As(err, &exit) || !strings.Contains(said, tt.want) ||
				!strings.Contains(said, "hint: "+tt.hint) || strings.Contains(said, "starting") {
				t.Errorf("it ended with %v and said\n%s\nwant %q and the hint %q", err, said, tt.want, tt.hint)
			}
			nothingLeft(t, dir)
		})
	}
}

// A disk that fills up in the middle is named, with what to do.
func TestDiskFullRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	image := filepath.Join(workArea(t), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 600<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	path := filepath.Join(t.TempDir(), "large.yaml")
	text := "version: 1\nname: large\ntitle: larger than its disk\nloads:\n  load: {program: fio, size: \"700\"}\n" +
		"arms:\n  alone: {text: alone}\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// The loop device goes with the mount (autoclear), and that with the namespace.
	cmd := exec.Command("sh", "-c", `mount -o loop "$0" "$1" && shift && exec "$@"`, image, dir, program, "bench", path,
		"--dir", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if said := string(out); !errors.As(err, &exit) || !strings.Contains(said, "the disk of \""+dir+"\" is full: ") ||
		!strings.Contains(said, "no space left on device") || !strings.Contains(said, "hint: make room") {
		t.Errorf("it ended with %v and said\n%s", err, said)
	}
	nothingLeft(t, dir)
}

// A port that somebody took between being picked and being used is named.
func TestPortInUseRoot(t *testing.T) {
	needRoot(t)
	n := process.NewSupervisor()
	defer n.Close()
	paths, err := process.Find(database.Redis.Programs)
	if err != nil {
		t.Fatal(err)
	}
	in, err := database.NewInstance(scenario.Database{Name: "db", Engine: "redis"}, workArea(t), 16, paths, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Kind.Install(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(in.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = in.Start(t.Context(), nil)
	var required *process.RequirementError
	if !errors.As(err, &required) || !strings.Contains(err.Error(),
		"port "+strconv.Itoa(in.Port)+", which was free, is another program's now") || required.Hint == "" {
		t.Errorf("error is %v", err)
	}
}

// What is missing or wrong is said before anything starts.
func TestBadInputRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := gone.Addr().String() // nobody listens there any more
	gone.Close()
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"a machine with too few CPUs", "it needs 4000 CPUs, and there are", []string{needing(t, `{cpus: 4000}`)}},
		{"a machine with too little memory", "it needs 900000000 MiB of memory, and there are",
			[]string{needing(t, `{memory: "900000000"}`)}},
		{"a machine with one node", "it needs 1000 NUMA nodes, and there are", []string{needing(t, `{numa: 1000}`)}},
		{"a disk that is too small", "it needs 900000000 MiB free in", []string{needing(t, `{disk: "900000000"}`)}},
		{"a program that is missing",
			"not installed: absent-x, absent-y\nhint: apt-get install --no-install-recommends absent",
			[]string{needing(t, `{programs: [absent-x, absent-y], packages: [absent, absent]}`)}},
		{"a DSN that fails", "does not answer at " + silent,
			[]string{"demo", "--dsn", "db=mysql://root@" + silent + "/x"}},
		{"a DSN that is none", "begins with", []string{"demo", "--dsn", "db=http://root@h/x"}},
		{"no such directory", "find the disk", []string{"demo", "--dir", dir + "/absent"}},
		{"a file system without a disk", "--dir DIR", []string{"demo", "--dir", "/dev/shm"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"bench"}, tt.args...)
			if !slices.Contains(args, "--dir") {
				args = append(args, "--dir", dir)
			}
			out, err := exec.Command(program, args...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(string(out), tt.want) {
				t.Errorf("it ended with %v and said\n%s\nwant %q", err, out, tt.want)
			}
			nothingLeft(t, dir)
		})
	}
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	if groups, entries, processes := left(t, dir); len(groups)+len(entries)+len(processes) > 0 {
		t.Errorf("left behind: groups in %q, files %q, processes %q", groups, entries, processes)
	}
}

// onlyLong leaves a test to `make test-long` whose like with another scenario TestInterruptedAnywhereRoot has.
func onlyLong(t *testing.T) {
	t.Helper()
	if os.Getenv("LONG") == "" {
		t.Skip("TestInterruptedAnywhereRoot has the like of it; `make test-long` has this one, too (LONG=1)")
	}
}

func TestDemoInterruptedRoot(t *testing.T) {
	needRoot(t)
	onlyLong(t)
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
			r := startBench(t, program, "demo", dir)
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
	onlyLong(t)
	program := buildProgram(t)
	dir := workArea(t)
	first := startBench(t, program, "demo", dir)
	first.await(t, "beside hogs, policy applied")
	time.Sleep(2 * time.Second)
	if groups, _, _ := left(t, dir); len(groups) == 0 {
		t.Fatal("no group is there while the policy is applied")
	}
	// Should it fail below: what is left is released while the state is still there.
	t.Cleanup(func() {
		for _, state := range states(t, dir) {
			if out, err := exec.Command(program, "--state", state, "--socket", filepath.Join(dir, "none"), "release",
				"--all").CombinedOutput(); err != nil {
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
		process.Sleep(ctx, 100*time.Millisecond)
	}
	second := startBench(t, program, "demo", dir)
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

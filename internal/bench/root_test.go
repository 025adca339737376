//go:build root

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
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
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/scenario"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
}

func TestServerRoot(t *testing.T) {
	needRoot(t)
	n := process.NewSupervisor()
	defer n.Close()
	for _, tt := range []struct{ engine, load, script string }{
		{"mariadb", "sysbench", "oltp_read_only"}, {"postgresql", "pgbench", "select-only"},
		{"postgresql", "sysbench", "oltp_read_only"}, {"redis", "redis-benchmark", "set"},
	} {
		t.Run(tt.engine+" under "+tt.load, func(t *testing.T) { serverRoot(t, n, tt.engine, tt.load, tt.script) })
	}
}

// serverRoot starts a server as another user, loads it, and stops it.
func serverRoot(t *testing.T, n *process.Supervisor, engineName, loader, script string) {
	paths, err := process.Find(slices.Concat(database.Engines[engineName].Programs, load.Loaders[loader].Programs))
	if err != nil {
		t.Fatal(err)
	}
	dir, lock, err := newWorkDir("/var/tmp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer lock.Close()
	in, err := database.NewInstance(scenario.Database{Name: "db", Engine: engineName}, dir, 64, paths, n)
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
	d := &load.Driver{Load: scenario.Load{Name: "load", Program: loader, Script: script}, Database: in,
		Loader: load.Loaders[loader], Path: paths[loader], Supervisor: n, Dir: dir, Threads: 2, Tables: 1, Rows: 1000}
	if err := d.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := d.Run(t.Context(), 3*time.Second, nil, func(float64) {}, nil)
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

// running is a demo of the real program, as a person would start it.
type running struct {
	cmd  *exec.Cmd
	dir  string
	seen chan string
	all  *bytes.Buffer
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
		if lock, err := lockMachine(benchRoot); err == nil {
			lock.Close()
			break
		}
	}
	r := &running{cmd: cmd, dir: dir, seen: make(chan string, 1000), all: new(bytes.Buffer)}
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
	timeout := time.AfterFunc(3*time.Minute, func() { _ = r.cmd.Process.Kill() })
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
		there, err := tree.Exists(cgroup.Dir{Hierarchy: hierarchy.ID, Path: "/" + benchRoot})
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
	all, err := h.Proc.Processes(host.ProcessOptions{})
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

// peersLeft are groups of a peer that are still there.
func peersLeft(t *testing.T) (groups []string) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/" + peerPrefix + "*", "/sys/fs/cgroup/*/" + peerPrefix + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, found...)
	}
	return groups
}

// A run in a peer's arm takes that one's groups away when it is interrupted; when it is killed, the next one does.
func TestPeerInterruptedRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	const arm = "by libcgroup" // of io-iops
	first := startBench(t, program, "io-iops", dir)
	first.await(t, arm)
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = first.end(t)
	nothingLeft(t, dir)
	if groups := peersLeft(t); len(groups) > 0 {
		t.Errorf("left behind: %q", groups)
	}
	second := startBench(t, program, "io-iops", dir)
	second.await(t, arm)
	for len(peersLeft(t)) == 0 {
		select {
		case _, running := <-second.seen:
			if !running {
				t.Fatal("it ended without a group of its peer")
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := second.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = second.end(t)
	third := startBench(t, program, "io-iops", dir)
	third.await(t, "filling")
	if groups := peersLeft(t); len(groups) > 0 {
		t.Errorf("after a kill and the next start there are %q", groups)
	}
	if err := third.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = third.end(t)
	nothingLeft(t, dir)
}

// Both ends of a wire are in namespaces of the run alone, which are gone with it.
func TestWireRoot(t *testing.T) {
	needRoot(t)
	paths, err := process.Find(iproute2)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{scenario: &scenario.Scenario{Wire: true}, paths: paths}
	if err := r.makeSupervisors(); err != nil {
		t.Fatal(err)
	}
	defer r.closeSupervisors()
	if err := r.layWire(t.Context()); err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{own: true}
	for name, n := range map[string]*process.Supervisor{load.NearNIC: r.supervisor, load.FarNIC: r.far} {
		var out bytes.Buffer
		if err := n.Run(t.Context(), process.Spec{Args: []string{"sh", "-c",
			"readlink /proc/self/ns/net; ip -oneline link"}, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		namespace, links, _ := strings.Cut(out.String(), "\n")
		if seen[namespace] {
			t.Errorf("%s is in namespace %s, which somebody else has", name, namespace)
		}
		seen[namespace] = true
		if !strings.Contains(links, name) || strings.Count(links, "\n") != 2 {
			t.Errorf("links of %s:\n%s", name, links)
		}
	}
	d := &load.Driver{Supervisor: r.supervisor, Far: r.far, Port: load.FirstPort}
	o, err := load.Heartbeat.Native(t.Context(), d, 200*time.Millisecond, func(float64) {})
	if err != nil || o.Transactions != 4 {
		t.Errorf("%d beats over the wire, %v", o.Transactions, err)
	}
	if _, err := net.InterfaceByName(load.NearNIC); err == nil {
		t.Error("the wire is among the machine's interfaces")
	}
}

// A run on a wire that is killed takes its namespaces with it; its groups go with the next one.
func TestWireKilledRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	first := startBench(t, program, "network-egress", dir)
	first.await(t, "under the policy")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if groups, _, _ := left(t, dir); len(groups) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no group is there while the policy is applied")
		}
	}
	inside := namespaces(t, fmt.Sprintf("/proc/%d/task/*/ns/net", first.cmd.Process.Pid))
	if own := namespaces(t, "/proc/self/ns/net"); len(inside) != 3 || !inside[slices.Collect(maps.Keys(own))[0]] {
		t.Errorf("the run is in namespaces %v, want two beside ours %v", inside, own)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.end(t)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		still := 0
		for name := range namespaces(t, "/proc/[0-9]*/ns/net") {
			if inside[name] {
				still++
			}
		}
		if still == 1 { // ours
			break
		}
		if time.Now().After(end) {
			t.Fatalf("somebody is still in a namespace of the killed run")
		}
	}
	second := startBench(t, program, "network-egress", dir)
	second.await(t, "filling")
	if groups, entries, _ := left(t, dir); len(groups) > 0 || len(entries) != 1 {
		t.Errorf("the second run left the first one's groups in %q, files %q", groups, entries)
	}
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = second.end(t)
	nothingLeft(t, dir)
}

// namespaces are those that links in /proc name.
func namespaces(t *testing.T, pattern string) map[string]bool {
	t.Helper()
	links, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, l := range links {
		if name, err := os.Readlink(l); err == nil { // else it has ended
			found[name] = true
		}
	}
	return found
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
		return &run{scenario: &scenario.Scenario{Swap: size}, paths: paths, supervisor: n, dir: dir,
			progress: newProgress(io.Discard, false)}, lock
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
	if err := r.undo.run(); err != nil || on(r.dir) {
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
	if err := r.undo.run(); err != nil {
		t.Error(err)
	}
}

func histogramCount(l load.Outcome) (n int64) {
	for _, b := range l.Histogram {
		n += b.Count
	}
	return n
}

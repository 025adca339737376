package procfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
)

func processes(t *testing.T, h *host.Host, o procfs.Options) map[int]procfs.Process {
	t.Helper()
	list, err := h.Proc.Processes(o)
	if err != nil {
		t.Fatal(err)
	}
	byPID := map[int]procfs.Process{}
	for i, p := range list {
		if i > 0 && list[i-1].PID >= p.PID {
			t.Fatalf("pid %d stands before %d", list[i-1].PID, p.PID)
		}
		byPID[p.PID] = p
	}
	return byPID
}

func TestAwkwardProcesses(t *testing.T) {
	scope := map[string]string{"unified": "/user.slice/user-1000.slice/session-2.scope"}
	want := map[int]procfs.Process{
		// a name with parentheses that looks like the fields behind it, an empty argument, a replaced file
		1301: {ID: procfs.ID{PID: 1301, Start: 2200}, PPID: 1, Session: 1301, Comm: "Web (1) R 0 0", State: 'S',
			Exe: "/opt/web (1)/web", Args: []string{"/opt/web (1)/web", "", "--name", "a b"},
			UID: 1000, GID: 1000, Groups: []int{1000}, Threads: 21, Cgroups: scope},
		// a zombie
		1400: {ID: procfs.ID{PID: 1400, Start: 2300}, PPID: 1301, Session: 1400, Comm: "sh", State: 'Z',
			UID: 1000, GID: 1000, Groups: []int{1000}, Threads: 1, Cgroups: scope},
		// a kernel thread with a real-time policy
		19: {ID: procfs.ID{PID: 19, Start: 9}, PPID: 2, Session: 19, Comm: "migration/0",
			State: 'S', Kernel: true, RT: true,
			Threads: 1, Cgroups: map[string]string{"unified": "/"}},
		// real-time of a program
		2100: {ID: procfs.ID{PID: 2100, Start: 3400}, PPID: 1, Session: 2100, Comm: "audio", State: 'S', RT: true,
			Exe: "/usr/bin/audio", Args: []string{"/usr/bin/audio"},
			UID: 1000, GID: 1000, Groups: []int{29, 1000}, Threads: 4, Cgroups: scope},
	}
	got := processes(t, hosttest.Load(t, "debian12"), procfs.Options{})
	for pid, p := range want {
		if !reflect.DeepEqual(got[pid], p) {
			t.Errorf("process %d\ngot  %+v\nwant %+v", pid, got[pid], p)
		}
	}
	if want := []string{"postgres: 15/main: checkpointer "}; !slices.Equal(got[905].Args, want) {
		t.Errorf("overwritten command line gives %q, want %q", got[905].Args, want)
	}
}

func TestForeignNamespaces(t *testing.T) {
	for _, test := range []struct {
		fixture string
		foreign int // the process of a container
	}{{"debian12", 2001}, {"centos7", 2044}} { // by NSpid; by the link
		for pid, p := range processes(t, hosttest.Load(t, test.fixture), procfs.Options{}) {
			if p.ForeignNamespace != (pid == test.foreign) {
				t.Errorf("%s: process %d: foreign %t", test.fixture, pid, p.ForeignNamespace)
			}
		}
	}
}

func TestCoMountedCgroups(t *testing.T) {
	p := processes(t, hosttest.Load(t, "centos7"), procfs.Options{PIDs: []int{1890}})[1890]
	for id, want := range map[string]string{
		"cpu,cpuacct": "/system.slice/mysqld.service", "net_cls,net_prio": "/",
		"name=systemd": "/system.slice/mysqld.service",
	} {
		if p.Cgroups[id] != want {
			t.Errorf("in %s the process is in %q, want %q", id, p.Cgroups[id], want)
		}
	}
}

func TestProcessOptions(t *testing.T) {
	h := hosttest.Load(t, "debian12")
	got := processes(t, h, procfs.Options{PIDs: []int{900, 1, 77777, 900}, Env: true})
	if len(got) != 2 || got[900].PID != 900 || got[1].PID != 1 {
		t.Errorf("asked for 900, 1 and one that does not exist, got %v", got)
	}
	if want := []string{"LANG=C.UTF-8", "PGSYSCONFDIR=/etc/postgresql-common", "EMPTY="}; !slices.Equal(got[900].Env,
		want) {
		t.Errorf("environment is %q, want %q", got[900].Env, want)
	}
	if list, err := h.Proc.Processes(procfs.Options{PIDs: []int{}}); err != nil || len(list) != 0 {
		t.Errorf("no pids at all give %v, %v", list, err)
	}
	if p := processes(t, h, procfs.Options{PIDs: []int{900}})[900]; p.Env != nil {
		t.Errorf("the environment was read unasked: %q", p.Env)
	}
}

func TestExitedProcessIsLeftOut(t *testing.T) {
	dir := linuxtest.Unpack(t, linuxtest.Text(t, "debian12"))
	if err := os.Remove(filepath.Join(dir, "proc/905/status")); err != nil { // as if it went between two reads
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "proc/905/stat")); err != nil {
		t.Fatal(err)
	}
	if _, found := processes(t, host.New(dir), procfs.Options{})[905]; found {
		t.Error("a process without stat is listed")
	}
}

func TestGarbledProcessIsAnError(t *testing.T) {
	for file, text := range map[string]string{
		"stat": "900 postgres S", "status": "Uid:\tx\n", "cgroup": "nonsense\n",
	} {
		dir := linuxtest.Unpack(t, linuxtest.Text(t, "debian12"))
		if err := os.WriteFile(filepath.Join(dir, "proc/900", file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := host.New(dir).Proc.Processes(procfs.Options{})
		if err == nil || !strings.Contains(err.Error(), "process 900") || errors.Is(err, procfs.ErrExited) {
			t.Errorf("garbled %s: error %v, want one that names process 900", file, err)
		}
	}
}

func TestHiddenProcesses(t *testing.T) {
	h := hosttest.Load(t, "container")
	list, err := h.Proc.Processes(procfs.Options{})
	if !errors.Is(err, procfs.ErrHidden) || len(list) != 1 {
		t.Errorf("got %d processes, %v; want the one in sight and ErrHidden", len(list), err)
	}
	scanned, _, err := h.Proc.NewScanner().Look(true)
	if !errors.Is(err, procfs.ErrHidden) || len(scanned) != 1 {
		t.Errorf("scanner: got %d processes, %v; want the one in sight and ErrHidden", len(scanned), err)
	}
	dir := linuxtest.Unpack(t, linuxtest.Text(t, "container"))
	status := filepath.Join(dir, "proc/self/status")
	text, err := os.ReadFile(status)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), "CapEff:	00000000a80425fb", "CapEff:	00000000a80c25fb",
		1)) // CAP_SYS_PTRACE
	if err := os.WriteFile(status, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := host.New(dir).Proc.Processes(procfs.Options{}); err != nil {
		t.Errorf("with CAP_SYS_PTRACE: %v", err)
	}
}

// start runs a program until the test ends and returns its pid.
func start(t *testing.T, name string, args ...string) int {
	t.Helper()
	cmd := exec.Command(name, args...)
	startCommand(t, cmd)
	return cmd.Process.Pid
}

func startCommand(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	// Start returns in the middle of execve, when the program is another one and has no arguments yet.
	file := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		args, _ := os.ReadFile(file + "cmdline")
		stat, _ := os.ReadFile(file + "stat")
		if len(args) > 0 || bytes.Contains(stat, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s never started", cmd.Path)
		}
	}
}

func live(t *testing.T, pid int) procfs.Process {
	t.Helper()
	p, found := processes(t, host.New("/"), procfs.Options{PIDs: []int{pid}})[pid]
	if !found {
		t.Fatalf("process %d is not there", pid)
	}
	return p
}

func TestLiveProcess(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "a) R (b")
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	pid := start(t, program, "600")
	p := live(t, pid)
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		t.Fatal(err)
	}
	if p.Comm != "a) R (b" || p.PPID != os.Getpid() || p.Exe != real ||
		!slices.Equal(p.Args, []string{program, "600"}) ||
		p.UID != os.Geteuid() || p.GID != os.Getegid() || p.Threads != 1 || p.Kernel || p.RT || p.ForeignNamespace {
		t.Errorf("%+v", p)
	}
	self := live(t, os.Getpid())
	if len(p.Cgroups) == 0 || !reflect.DeepEqual(p.Cgroups, self.Cgroups) {
		t.Errorf("child is in %v, parent in %v", p.Cgroups, self.Cgroups)
	}
	if p.Start < self.Start {
		t.Errorf("child started at %d, before its parent at %d", p.Start, self.Start)
	}
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	if p := live(t, pid); p.Exe != real {
		t.Errorf("the removed program is %q, want %q", p.Exe, real)
	}
}

func TestLongCommandLineIsCut(t *testing.T) {
	args := []string{"-c", "while sleep 1; do :; done"}
	for range 20 {
		args = append(args, strings.Repeat("x", 100<<10))
	}
	p := live(t, start(t, "sh", args...))
	size := 0
	for _, arg := range p.Args {
		size += len(arg) + 1
	}
	if !p.ArgsTruncated || size < procfs.MaxArgs || size > procfs.MaxArgs+1 {
		t.Errorf("cut %t, %d bytes, want %d", p.ArgsTruncated, size, procfs.MaxArgs)
	}
}

func TestZombie(t *testing.T) {
	cmd := exec.Command("true")
	startCommand(t, cmd)
	h := host.New("/")
	var p procfs.Process
	for deadline := time.Now().Add(30 * time.Second); p.State != 'Z'; time.Sleep(time.Millisecond) {
		if p = live(t, cmd.Process.Pid); time.Now().After(deadline) {
			t.Fatal("it never became a zombie")
		}
	}
	if p.Exe != "" || p.Args != nil {
		t.Errorf("a zombie has program %q, arguments %q", p.Exe, p.Args)
	}
	// One zombie must not keep the others from being read, where rules ask for the environment.
	with, err := h.Proc.Processes(procfs.Options{Env: true, PIDs: []int{cmd.Process.Pid}})
	if err != nil || len(with) != 1 || len(with[0].Env) != 0 {
		t.Errorf("with its environment: %v, %v, want it without one", with, err)
	}
	if h.Proc.Alive(p.ID) {
		t.Error("a zombie counts as alive")
	}
}

func TestAliveAndReusedPID(t *testing.T) {
	h := host.New("/")
	id := live(t, start(t, "sleep", "600")).ID
	if !h.Proc.Alive(id) {
		t.Error("a running process is not alive")
	}
	other := procfs.ID{PID: id.PID, Start: id.Start - 1}
	if h.Proc.Alive(other) {
		t.Error("the former owner of a pid is alive")
	}
	if err := h.Proc.WriteOOMScoreAdj(other, 1000); !errors.Is(err, procfs.ErrExited) {
		t.Errorf("write to the former owner of a pid: %v", err)
	}
	if _, err := h.Proc.ReadOOMScoreAdj(other); !errors.Is(err, procfs.ErrExited) {
		t.Errorf("read of the former owner of a pid: %v", err)
	}
	if score, err := h.Proc.ReadOOMScoreAdj(id); err != nil || score == 1000 {
		t.Errorf("its successor has score %d, %v", score, err)
	}
}

func TestOOMScoreAdj(t *testing.T) {
	h := host.New("/")
	id := live(t, start(t, "sleep", "600")).ID
	for _, score := range []int{500, 1000} { // upwards needs no capability
		if err := h.Proc.WriteOOMScoreAdj(id, score); err != nil {
			t.Fatal(err)
		}
		if got, err := h.Proc.ReadOOMScoreAdj(id); err != nil || got != score {
			t.Errorf("read back %d, %v, want %d", got, err, score)
		}
	}
	if err := h.Proc.WriteOOMScoreAdj(id, 1001); err == nil {
		t.Error("1001 was accepted")
	}
	fixture := hosttest.Load(t, "debian12")
	postmaster := procfs.ID{PID: 900, Start: 1500}
	if got, err := fixture.Proc.ReadOOMScoreAdj(postmaster); err != nil || got != -900 {
		t.Errorf("fixture: read %d, %v, want -900", got, err)
	}
	if err := fixture.Proc.WriteOOMScoreAdj(postmaster, 5); err != nil {
		t.Fatal(err)
	}
	if got, err := fixture.Proc.ReadOOMScoreAdj(postmaster); err != nil || got != 5 {
		t.Errorf("fixture: read back %d, %v, want 5", got, err)
	}
}

func TestTasks(t *testing.T) {
	got, err := hosttest.Load(t, "debian12").Proc.Tasks(2100)
	want := []procfs.Task{{TID: 2100, State: 'S', RT: true}, {TID: 2101, State: 'D'}, {TID: 2102, State: 'R', RT: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	own, err := host.New("/").Proc.Tasks(os.Getpid())
	if err != nil || len(own) < 2 || own[0].TID != os.Getpid() {
		t.Errorf("own threads: %v, %v", own, err)
	}
}

func TestCwdAndEnviron(t *testing.T) {
	h := host.New("/")
	cmd := exec.Command("sleep", "600")
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"A=1", "B=two words", "C="}
	startCommand(t, cmd)
	cwd, err := h.Proc.Cwd(cmd.Process.Pid)
	if want, _ := filepath.EvalSymlinks(cmd.Dir); err != nil || cwd != want {
		t.Errorf("cwd %q, %v, want %q", cwd, err, want)
	}
	env, err := h.Proc.Environ(cmd.Process.Pid)
	if err != nil || !slices.Equal(env, cmd.Env) {
		t.Errorf("environ %q, %v, want %q", env, err, cmd.Env)
	}
}

func TestQuestionsAboutAnExitedProcess(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	h, pid := host.New("/"), cmd.Process.Pid
	for name, ask := range map[string]func() error{
		"Memory":       func() error { _, err := h.Proc.Memory(pid); return err },
		"Cwd":          func() error { _, err := h.Proc.Cwd(pid); return err },
		"Environ":      func() error { _, err := h.Proc.Environ(pid); return err },
		"Tasks":        func() error { _, err := h.Proc.Tasks(pid); return err },
		"OpenFiles":    func() error { _, err := h.Proc.OpenFiles(pid); return err },
		"ReadRootFile": func() error { _, err := h.Proc.ReadRootFile(pid, "/etc/passwd", 1<<20); return err },
		"OOMScoreAdj":  func() error { _, err := h.Proc.ReadOOMScoreAdj(procfs.ID{PID: pid}); return err },
	} {
		if err := ask(); !errors.Is(err, procfs.ErrExited) || !strings.Contains(err.Error(), strconv.Itoa(pid)) {
			t.Errorf("%s: %v, want ErrExited with the pid", name, err)
		}
	}
	if got, err := h.Sockets.Listeners([]int{pid}); err != nil || len(got) != 0 {
		t.Errorf("Listeners: %v, %v", got, err)
	}
}

func TestMemory(t *testing.T) {
	got, err := hosttest.Load(t, "debian12").Proc.Memory(905)
	if want := (procfs.Memory{Anon: 700 << 10, File: 5000 << 10, Shmem: 150000 << 10}); err != nil || got != want {
		t.Errorf("from status: %+v, %v, want %+v", got, err, want)
	}
	// Before kernel 4.5: code, data and heap; a System V segment and /dev/shm; huge pages.
	got, err = hosttest.Load(t, "centos7").Proc.Memory(1890)
	want := procfs.Memory{
		Anon:  (500 + 120000) << 10,
		File:  (6000 + 1000) << 10,
		Shmem: (40000 + 36) << 10,
		Swap:  1024 << 10,
		Huge:  8192 << 10,
	}
	if err != nil || got != want {
		t.Errorf("from smaps: %+v, %v, want %+v", got, err, want)
	}
	if got, err := hosttest.Load(t, "centos7").Proc.Memory(2); err != nil || got != (procfs.Memory{}) {
		t.Errorf("a kernel thread holds %+v, %v", got, err)
	}
	if got, err := host.New("/").Proc.Memory(os.Getpid()); err != nil || got.Anon == 0 || got.File == 0 {
		t.Errorf("own memory: %+v, %v", got, err)
	}
}

// Processes that come and go while the table is read must neither fail the reading nor be mixed up:
// whoever runs "true" has "true" for its arguments, or none while it starts and ends.
func TestProcessesThatComeAndGo(t *testing.T) {
	h := host.New("/")
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := exec.Command("true").Run(); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 40 {
		list, err := h.Proc.Processes(procfs.Options{})
		if err != nil {
			t.Error(err)
		}
		for _, p := range list {
			if p.PPID == os.Getpid() && strings.HasSuffix(p.Exe, "/true") && len(p.Args) > 0 && p.Args[0] != "true" {
				t.Errorf("mixed up: %+v", p)
			}
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// pipedShell starts sh -c script with a pipe as its standard input.
func pipedShell(t *testing.T, script string) (pid int, in io.WriteCloser) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	startCommand(t, cmd)
	return cmd.Process.Pid, in
}

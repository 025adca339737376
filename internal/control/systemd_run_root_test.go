//go:build root

package control

import (
	"bufio"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/transaction"
)

// envEnter has a copy of the test binary become a command inside the group that it names.
const envEnter = "BULKHEAD_TEST_ENTER"

// TestEnterInACopy is the other end of command; on its own it has nothing to run.
func TestEnterInACopy(t *testing.T) {
	group := os.Getenv(envEnter)
	if group == "" {
		return
	}
	c, err := transaction.Open(transaction.Options{State: os.Getenv(envState)})
	if err != nil {
		t.Fatal(err)
	}
	if err := Enter(t.Context(), c, Entry{Group: group, By: "test", Command: "sh"}); err != nil {
		t.Fatal(err)
	}
	t.Fatal(syscall.Exec("/bin/sh", []string{"sh", "-c", os.Getenv(envText)}, os.Environ()))
}

// ran is a command that was started by `run`.
type ran struct {
	*os.Process
	id    procfs.ID
	born  []string // lines of /proc/self/cgroup, as its first instruction saw them
	stdin *os.File
}

// command has `run` start a script in a group. It says first where it is, and reads its standard input to the end.
func (s *unitSite) command(group, script string) *ran {
	s.t.Helper()
	in, stdin, err1 := os.Pipe()
	stdout, out, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		s.t.Fatal(err1, err2)
	}
	p, err := os.StartProcess("/proc/self/exe", []string{"run", "-test.run=^TestEnterInACopy$"}, &os.ProcAttr{
		Env: append(os.Environ(), envEnter+"="+group, envState+"="+s.state,
			envText+"=cat /proc/self/cgroup; echo; "+script),
		Files: []*os.File{in, out, os.Stderr},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	in.Close()
	out.Close()
	s.t.Cleanup(func() { stdin.Close(); stdout.Close(); _ = p.Kill(); _, _ = p.Wait() })
	r := &ran{Process: p, stdin: stdin}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && lines.Text() != "" {
		r.born = append(r.born, lines.Text())
	}
	procs, err := s.Host.Proc.Processes(procfs.Options{PIDs: []int{p.Pid}})
	if err != nil || len(procs) != 1 {
		s.t.Fatalf("the command did not start: %v, %v", r.born, err)
	}
	r.id = procs[0].ID
	return r
}

// gone waits until systemd knows nothing of a unit any more.
func (s *unitSite) gone(when, unit string) {
	s.t.Helper()
	var u *systemd.Unit
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if u = s.unit(unit); u.LoadState == systemd.LoadNotFound {
			return
		}
	}
	s.t.Errorf("%s: %s is still %s, %s", when, unit, u.LoadState, u.ActiveState)
}

// A command of `run` is a unit of its own in the group's slice from its first instruction on: the group's limits hold
// it, the agent leaves it there, reloads do, it ends with the command, and release sends the command back.
func TestRunIsAUnitOfItsOwn(t *testing.T) {
	s := newUnitSite(t)
	p, rule := marked(t, 81010)
	loose(t, s, p)
	text := "groups:\n  jobs: {match: [{cmdline: '" + rule +
		"'}], cpu: {limit: 0.5}, memory: {max: 256MiB}, tasks: 60, io: [{read: {bandwidth: 50MB/s}}]}\n"
	s.apply(text)
	slice, keeper := s.unitsOf("jobs")
	group := path.Join(s.slice, slice)
	check := func(when string, r *ran) string {
		t.Helper()
		unit, err := unitname.RunName(s.root, "jobs", r.id.PID, r.id.Start)
		if err != nil {
			t.Fatal(err)
		}
		scope := path.Join(group, unit)
		if u, err := s.systemd.Unit(t.Context(), unit); err != nil || !u.Active() ||
			u.ControlGroup != scope || u.Slice != slice {
			t.Errorf("%s: systemd has it in %+v, %v; want %s", when, u, err, unit)
		}
		for _, c := range []string{"cpu", "memory", "pids"} {
			if at := s.where(c, r.id); at != scope && at != group {
				t.Errorf("%s: it is in %s of %s, want %s", when, at, c, scope)
			}
		}
		if at, want := s.where("blkio", r.id), path.Join(group, keeper, layout.Members); s.of("blkio").Version == 1 &&
			at != want {
			t.Errorf("%s: it is in %s of blkio, where a limit holds only the very directory; want %s", when, at, want)
		}
		return unit
	}
	r := s.command("jobs", "read x; exit 7")
	unit := check("started", r)
	for _, line := range r.born {
		if h, ok := s.hierarchyOf(line); ok && !strings.HasPrefix(strings.SplitN(line, ":", 3)[2], group) {
			t.Errorf("its first instruction was outside in %s: %s", h, line)
		}
	}
	check("after a look", r)
	if done := s.full(); len(done.Moved) > 0 || done.Repaired > 0 {
		t.Errorf("the agent moved %v and repaired %d", done.Moved, done.Repaired)
	}
	check("after a look", r)
	s.reload(3)
	check("after three reloads", r)
	if done := s.full(); len(done.Moved) > 0 {
		t.Errorf("after reloads the agent moved %v", done.Moved)
	}
	if again := s.apply(text); again.Changed {
		t.Errorf("a second apply changes something: %+v", again.Plan.Steps)
	}
	r.stdin.Close()
	if state, err := r.Wait(); err != nil || state.ExitCode() != 7 {
		t.Errorf("it ended with %v, %v; its own status is 7", state, err)
	}
	s.gone("the command has ended", unit)

	r = s.command("jobs", "sleep 81011 & read x")
	unit = check("started again", r)
	if err := r.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if state, err := r.Wait(); err != nil || state.String() != "signal: terminated" {
		t.Errorf("it ended with %v, %v", state, err)
	}
	child := s.findProcess("", "81011")
	if !s.unit(unit).Active() {
		t.Error("what the command started lost its unit")
	}
	home := s.ownCgroups()
	last := s.command("jobs", "read x")
	lastUnit := check("before release", last)
	s.must(api.Request{Verb: "release", All: true})
	now := s.ownCgroups()
	for _, id := range []procfs.ID{child, last.id} {
		if !s.Host.Proc.Alive(id) {
			t.Errorf("release ended process %d", id.PID)
		}
		for hierarchy, want := range home {
			at := s.whereIn(hierarchy, id)
			if id == last.id && at != want && at != now[hierarchy] &&
				at != "/" { // systemd may have taken a directory away meanwhile
				t.Errorf("after release it is in %s of %s, was called from %s", at, hierarchy, want)
			}
			if strings.HasPrefix(at, s.slice) {
				t.Errorf("after release process %d is in %s of %s", id.PID, at, hierarchy)
			}
		}
	}
	s.gone("after release", unit)
	s.gone("after release", lastUnit)
	if ours := s.ourUnits(); len(ours) > 0 {
		t.Errorf("left behind: %v", ours)
	}
	if err := kill(child.PID); err != nil {
		t.Error(err)
	}
}

// hierarchyOf tells, for a line of /proc/PID/cgroup, in which hierarchy of systemd's with a limit of the group's it is.
func (s *unitSite) hierarchyOf(line string) (string, bool) {
	fields := strings.SplitN(line, ":", 3)
	for _, c := range []string{"cpu", "memory", "pids", "blkio"} {
		h := s.of(c)
		controllers := strings.Join(h.Controllers, ",")
		if h.Version == 2 {
			controllers = ""
		}
		listed := strings.Split(fields[1], ",")
		slices.Sort(listed)
		if strings.Join(listed, ",") == controllers {
			return h.ID, true
		}
	}
	return "", fields[1] == "name=systemd"
}

// ownCgroups is where this process is.
func (s *unitSite) ownCgroups() map[string]string {
	s.t.Helper()
	procs, err := s.Host.Proc.Processes(procfs.Options{PIDs: []int{os.Getpid()}})
	if err != nil || len(procs) != 1 {
		s.t.Fatal(err)
	}
	return procs[0].Cgroups
}

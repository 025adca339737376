package control

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/confirm"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/systemdfake"
	"bulkhead/internal/transaction"
)

// machine is a host with systemd that is nowhere but in memory: the model of PID 1 over the model of the kernel, on
// cgroup v2, and /proc as files. The verbs run on it as they are.
type machine struct {
	*reconcile.Reconciler
	trials *confirm.Fallback
	ahead  time.Duration // of the clock of trials
	t      *testing.T
	kernel *cgroupfake.Kernel
	pid1   *systemdfake.Manager
	root   string
	proc   string // its /proc

	mu    sync.Mutex
	alive map[int]procfs.ID
	moved bool // since /proc/PID/cgroup was written
	// byPID1 says that it is systemd who changes the kernel's model.
	byPID1 bool
}

func newMachine(t *testing.T, version string) *machine {
	t.Helper()
	root := linuxtest.Unpack(t, linuxtest.Text(t, "debian12"))
	m := &machine{t: t, root: root, proc: filepath.Join(root, "proc"), alive: map[int]procfs.ID{}}
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != 1 {
			m.must(os.RemoveAll(filepath.Join(m.proc, e.Name())))
		}
	}
	// Every look reads every block device; two are enough.
	for _, number := range []string{"7:0", "7:1", "9:0", "259:0", "259:1", "259:2"} {
		m.must(os.Remove(filepath.Join(root, "sys/dev/block", number)))
	}
	h := host.New(root)
	facts, err := h.Facts()
	m.must(err)
	m.kernel = cgroupfake.New(facts.Hierarchies, cgroupfake.Options{})
	m.kernel.Intercept(m.notice)
	k := (*machineKernel)(m)
	m.pid1 = systemdfake.New(t, systemdfake.Options{Version: version, Kernel: &systemdfake.Kernel{
		Realize: k.Realize, Remove: k.Remove, Spawn: k.Spawn, Move: k.Move, End: k.End, GroupOf: k.GroupOf,
	}})
	m.open(t.TempDir())
	t.Cleanup(func() { _ = m.Controller.Close() })
	m.Self = m.start("/usr/bin/bulkhead agent")
	m.Agent = m.Self
	return m
}

// open is what a new process sees of a state directory.
func (m *machine) open(dir string) {
	m.t.Helper()
	c, err := transaction.Open(transaction.Options{State: dir, Root: m.root, Tree: m.kernel.Tree})
	m.must(err)
	c.LockWait = time.Second
	c.Bus = systemd.Options{Root: m.pid1.Root(), Timeout: 3 * time.Second, JobTimeout: 3 * time.Second}
	m.Reconciler, m.trials = reconcile.New(c), nil
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// at is a directory.
func at(dir string) cgroup.Dir { return cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: dir} }

// notice keeps /proc up to date: what a write to cgroup.procs has moved is in there before anything else is done.
func (m *machine) notice(o cgroupfake.Operation) error {
	if m.moved {
		m.moved = false
		m.refresh()
	}
	m.moved = o.Op == "write" && o.File.Name == "cgroup.procs"
	return nil
}

// refresh writes who is where.
func (m *machine) refresh() {
	for pid := range m.alive {
		group := (*machineKernel)(m).GroupOf(pid)
		m.must(os.WriteFile(filepath.Join(m.proc, strconv.Itoa(pid), "cgroup"), []byte("0::"+group+"\n"), 0o644))
	}
}

// start makes a process in no unit.
func (m *machine) start(command string) procfs.ID {
	m.t.Helper()
	pid := (*machineKernel)(m).Spawn()
	m.run(pid, 1, command)
	m.pid1.Adopt(pid)
	return m.alive[pid]
}

// run gives a process a program.
func (m *machine) run(pid, ppid int, command string) {
	m.t.Helper()
	linuxtest.Process(m.t, m.root, 1, pid, ppid, m.alive[pid].Start, command)
	m.refresh()
}

// machineKernel is the machine's kernel as systemd uses it.
type machineKernel machine

func (k *machineKernel) Realize(group string, files map[string]string) {
	k.byPID1 = true
	defer func() { k.byPID1 = false }()
	d := at("/")
	for name := range strings.SplitSeq(strings.TrimPrefix(group, "/"), "/") {
		_ = k.kernel.Enable(d, []string{"cpu", "memory", "pids", "blkio"}) // refused where a process is in it
		d = d.Child(name)
		if there, _ := k.kernel.Exists(d); !there {
			_ = k.kernel.Make(d)
		}
	}
	for file, text := range files {
		if text != "" {
			_ = k.kernel.Write(d.File(file), text) // one whose controller is not handed down
		}
	}
}

func (k *machineKernel) Remove(group string) { k.kernel.Vanish(at(group)) }

func (k *machineKernel) Spawn() int {
	id := k.kernel.Spawn()
	k.mu.Lock()
	k.alive[id.PID] = id
	k.mu.Unlock()
	(*machine)(k).run(id.PID, 1, "/usr/bin/sleep infinity")
	return id.PID
}

func (k *machineKernel) Move(pid int, group string) {
	k.byPID1 = true
	(*machine)(k).must(k.kernel.Move(at(group), k.alive[pid]))
	k.byPID1 = false
	(*machine)(k).refresh()
}

func (k *machineKernel) End(pid int) {
	k.kernel.Exit(pid)
	delete(k.alive, pid)
	(*machine)(k).must(os.RemoveAll(filepath.Join(k.proc, strconv.Itoa(pid))))
}

func (k *machineKernel) GroupOf(pid int) string {
	where := k.kernel.Membership(pid)
	return where[procfs.UnifiedID]
}

// service starts a service of an administrator's with limits of its own, and gives its main process.
func (m *machine) service(unit, command string, lines ...string) procfs.ID {
	m.t.Helper()
	text := "[Service]\nExecStart=/bin/sleep infinity\n" + strings.Join(lines, "\n") + "\n"
	m.must(os.WriteFile(filepath.Join(m.pid1.Root(), "etc/systemd/system", unit), []byte(text), 0o644))
	m.must(m.bySystemd().Start(context.Background(), unit))
	pid := m.unit(unit).MainPID
	m.run(pid, 1, command)
	return m.alive[pid]
}

func (m *machine) bySystemd() *systemd.Manager {
	m.t.Helper()
	c, err := m.Manager(m.t.Context(), &host.Facts{Systemd: true})
	m.must(err)
	return c
}

func (m *machine) unit(name string) *systemd.Unit {
	m.t.Helper()
	u, err := m.bySystemd().Unit(context.Background(), name)
	m.must(err)
	return u
}

// do does a verb.
func (m *machine) do(r api.Request) (*api.Reply, error) {
	m.refresh()
	r.By = "test"
	return Do(context.Background(), m.Reconciler.Controller, r)
}

func (m *machine) policy(groups string) []policy.Source {
	return []policy.Source{{Path: "test.yaml", Text: "version: 1\n" + groups}}
}

func (m *machine) apply(groups string) *api.Reply {
	m.t.Helper()
	reply, err := m.do(api.Request{Verb: "apply", Sources: m.policy(groups)})
	m.must(err)
	return reply
}

func (m *machine) release(groups ...string) *api.Reply {
	m.t.Helper()
	reply, err := m.do(api.Request{Verb: "release", Groups: groups, All: len(groups) == 0})
	m.must(err)
	return reply
}

// full is a full look, as the agent takes it.
func (m *machine) full() (reconcile.LookResult, error) {
	m.t.Helper()
	m.refresh()
	procs, err := m.Host.Proc.Processes(procfs.Options{})
	m.must(err)
	return m.Look(context.Background(), reconcile.LookOptions{Processes: procs, Changed: true, Full: true})
}

// reads holds a file of a directory against what it should hold.
func (m *machine) reads(when, dir, file, want string) {
	m.t.Helper()
	if got, err := m.kernel.Read(at(dir).File(file)); err != nil || got != want {
		m.t.Errorf("%s: %s/%s holds %q, %v; want %q", when, dir, file, got, err, want)
	}
}

// where is the directory of a process.
func (m *machine) where(id procfs.ID) string { return (*machineKernel)(m).GroupOf(id.PID) }

// state is all that the kernel and systemd hold, as text: every group, every file of a unit but the agent's records.
func (m *machine) state() string {
	m.t.Helper()
	var b strings.Builder
	b.WriteString(m.kernel.Dump())
	root := m.pid1.Root()
	err := filepath.WalkDir(root, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type() != 0 {
			return err
		}
		text, err := os.ReadFile(file)
		fmt.Fprintf(&b, "%s:\n%s", strings.TrimPrefix(file, root), text)
		return err
	})
	m.must(err)
	return b.String()
}

const dbRule = "match: [{exe: mysqld}]"

// The whole way there and back on the models, with a database's service and a process in no unit.
func TestVerbsOnTheModels(t *testing.T) {
	for _, version := range []string{"247.3", "252.39", "257.13"} {
		m := newMachine(t, version)
		db := m.service("db.service", "/usr/sbin/mysqld", "TasksMax=321", "MemoryMax=2147483648")
		job := m.start("/usr/bin/backup all")
		before := m.state()
		text := "groups:\n  app: {role: database, " + dbRule +
			", memory: {max: 1GiB}}\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n"
		m.apply(text)
		m.reads("applied", "/system.slice/db.service", "memory.max", "1073741824")
		m.reads("applied", "/system.slice/db.service", "pids.max", "321")
		members := "/bulkhead.jobs.slice/bulkhead.jobs.service/members"
		if at := m.where(job); at != members {
			t.Errorf("the job is in %s", at)
		}
		if again := m.apply(text); again.Changed {
			t.Errorf("a second apply changes something: %+v", again.Plan.Steps)
		}
		m.must(m.bySystemd().Reload(t.Context()))
		if done, err := m.full(); err != nil || done.Repaired > 0 || len(done.Moved) > 0 {
			t.Errorf("a look: %+v, %v", done, err)
		}
		m.release()
		if after := m.state(); after != before {
			t.Errorf("%s: after release:\n%s", version, differs(after, before))
		}
		if at := m.where(db); at != path.Join("/system.slice", "db.service") {
			t.Errorf("the database is in %s", at)
		}
	}
}

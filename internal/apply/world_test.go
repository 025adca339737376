package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/change"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd/unitfiles"
)

const boot = "11111111-1111-4111-8111-111111111111"

// The two modelled hosts: controllers apart on v1, and one hierarchy with all of them.
var (
	v1 = []host.Hierarchy{v1Hierarchy("cpu"), v1Hierarchy("cpuset"), v1Hierarchy("memory"), v1Hierarchy("blkio")}
	v2 = []host.Hierarchy{{ID: "unified", Version: 2, Controllers: []string{"blkio", "cpu", "cpuset", "memory", "pids"},
		Mount: "/sys/fs/cgroup", Root: "/"}}
)

func v1Hierarchy(controller string) host.Hierarchy {
	return host.Hierarchy{ID: controller, Version: 1, Controllers: []string{controller},
		Mount: "/sys/fs/cgroup/" + controller, Root: "/"}
}

// world is a modelled host with its processes' oom_score_adj and a state directory.
type world struct {
	*cgroupfake.Kernel
	scores map[procfs.ID]int
	procs  []procfs.ID
	dir    string // of the journal
	calls  int    // writes of oom_score_adj, for faults
	fail   func(call int) error
	full   func(name string, data []byte) error // decides whether a write to the state directory fails
}

// newWorld has three processes in a home of their own, "/user", and one in the root.
func newWorld(t testing.TB, hierarchies []host.Hierarchy) *world {
	t.Helper()
	w := &world{Kernel: cgroupfake.New(hierarchies, cgroupfake.Options{}), scores: map[procfs.ID]int{},
		dir: t.TempDir()}
	for i := range 4 {
		w.procs = append(w.procs, w.Spawn())
		w.scores[w.procs[i]] = i
	}
	for _, h := range hierarchies {
		user := cgroup.Dir{Hierarchy: h.ID, Path: "/user"}
		w.must(t, w.Make(user))
		if h.Has("cpuset") && h.Version == 1 {
			w.must(t, w.Write(user.File("cpuset.cpus"), "0-1"))
			w.must(t, w.Write(user.File("cpuset.mems"), "0"))
		}
		for _, id := range w.procs[:3] {
			w.must(t, w.Move(user, id))
		}
	}
	return w
}

func (w *world) must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) ReadOOMScoreAdj(id procfs.ID) (int, error) {
	if !w.Alive(id) {
		return 0, fmt.Errorf("read oom_score_adj of process %d: %w", id.PID, procfs.ErrExited)
	}
	return w.scores[id], nil
}

func (w *world) WriteOOMScoreAdj(id procfs.ID, score int) error {
	if !w.Alive(id) {
		return fmt.Errorf("write oom_score_adj of process %d: %w", id.PID, procfs.ErrExited)
	}
	w.calls++
	if w.fail != nil {
		if err := w.fail(w.calls); err != nil {
			return err
		}
	}
	w.scores[id] = score
	return nil
}

// Processes hides the model's method of that name, which only names them. As in package host, processes of
// the same groups share one map.
func (w *world) Processes(o procfs.Options) ([]procfs.Process, error) {
	var found []procfs.Process
	shared := map[string]map[string]string{}
	for _, id := range w.Kernel.Processes() {
		if !slices.Contains(o.PIDs, id.PID) {
			continue
		}
		at := w.Membership(id.PID)
		if shared[fmt.Sprint(at)] == nil {
			shared[fmt.Sprint(at)] = at
		}
		found = append(found, procfs.Process{ID: id, Cgroups: shared[fmt.Sprint(at)]})
	}
	return found, nil
}

// dump is the whole host as text. The lines of a per-device file are sorted: the kernel keeps them in
// the order of their writes, and they mean the same in any. v2's cpusets are as they take effect: the
// kernel takes an empty list back only while nobody is inside.
func (w *world) dump() string {
	var b strings.Builder
	var d cgroup.Dir
	for line := range strings.Lines(w.Dump()) {
		name, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " = ")
		if place, ok := strings.CutPrefix(name, "["); ok {
			d.Hierarchy, d.Path, _ = strings.Cut(strings.TrimSuffix(place, "]"), ":")
		}
		if d.Hierarchy == unified && (name == "cpuset.cpus" || name == "cpuset.mems") {
			text, _ = w.Read(d.File(name + ".effective"))
		}
		values := strings.Split(text, " | ")
		slices.Sort(values)
		fmt.Fprintln(&b, name+" = "+strings.Join(values, " | "))
	}
	for _, id := range w.procs {
		fmt.Fprintf(&b, "process %d alive %v oom_score_adj %d\n", id.PID, w.Alive(id), w.scores[id])
	}
	return b.String()
}

// stateFiles is the journal's file system: the real one without syncing, because kill -9 loses nothing
// that was written.
type stateFiles struct{ w *world }

func (s stateFiles) Open(name string, flag int, perm fs.FileMode) (atomicfile.File, error) {
	f, err := os.OpenFile(name, flag, perm)
	return unsynced{f, s.w}, err
}

func (stateFiles) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }
func (stateFiles) Rename(from, to string) error         { return os.Rename(from, to) }
func (stateFiles) Remove(name string) error             { return os.Remove(name) }

type unsynced struct {
	*os.File
	w *world
}

func (f unsynced) Sync() error { return nil }

func (f unsynced) Write(p []byte) (int, error) {
	if f.w.full != nil {
		if err := f.w.full(f.Name(), p); err != nil {
			return 0, err
		}
	}
	return f.File.Write(p)
}

// runner opens the state directory and gives a runner over the world.
func (w *world) runner(t testing.TB) *Runner {
	t.Helper()
	s, err := journal.Open(w.dir, journal.Options{FS: stateFiles{w}})
	w.must(t, err)
	t.Cleanup(func() { s.Close() })
	_, err = s.Lock("test", "root")
	w.must(t, err)
	return &Runner{Files: w, Dirs: w, Members: w, Processes: w, Actuators: w.actuators(), Journal: s, Boot: boot}
}

// actuators are those of the modelled host.
func (w *world) actuators() change.Actuators {
	return change.Actuators{
		cgroup.KindControllers:  cgroup.Controllers{Tree: w},
		unitfiles.KindDropIn:    unitfiles.DropIns{Files: unitfiles.Mute{}},
		unitfiles.KindOverrides: unitfiles.Overrides{Files: unitfiles.Mute{}},
		cgroup.KindOwner:        cgroup.Owners{Tree: w.Tree}, cgroup.KindOption: cgroup.MountOptions{Tree: w.Tree},
		procfs.KindScore: procfs.Scores{Processes: w}, cgroup.KindFile: knob.Files{Tree: w},
	}
}

// check holds the host against what it was, and the journal against the host.
func (w *world) check(t testing.TB, what, before string) {
	t.Helper()
	if after := w.dump(); after != before {
		t.Fatalf("%s: the host changed:\n%s", what, difference(before, after))
	}
}

// difference gives the lines that two dumps do not share, each with the directory it belongs to.
func difference(before, after string) string {
	old, now := located(before), located(after)
	var b strings.Builder
	for _, l := range old {
		if !slices.Contains(now, l) {
			fmt.Fprintf(&b, "- %s\n", l)
		}
	}
	for _, l := range now {
		if !slices.Contains(old, l) {
			fmt.Fprintf(&b, "+ %s\n", l)
		}
	}
	return b.String()
}

// located puts the directory before each line of a dump.
func located(dump string) []string {
	lines := strings.Split(dump, "\n")
	dir := ""
	for i, l := range lines {
		if strings.HasPrefix(l, "[") {
			dir = l
		}
		lines[i] = dir + " " + l
	}
	return lines
}

// builder makes plans step by step, with the reasons and undos that package plan would give.
type builder struct {
	procs []procfs.ID
	where func(pid int) map[string]string // hierarchy → path
	steps []plan.Step
}

func (w *world) build() *builder { return &builder{procs: w.procs, where: w.Membership} }

func (b *builder) add(s plan.Step) {
	s.Reason = fmt.Sprintf("%s %d", flat.Op(s.Change), len(b.steps))
	b.steps = append(b.steps, s)
}

func (b *builder) mkdir(h, path string) {
	b.add(plan.Step{Change: change.Of(cgroup.Dir{Hierarchy: h, Path: path}.Target(), "", cgroup.There),
		Group: group(path)})
}

func (b *builder) rmdir(h, path string) {
	b.add(plan.Step{Change: change.Of(cgroup.Dir{Hierarchy: h, Path: path}.Target(), cgroup.There, ""),
		Group: group(path)})
}

func (b *builder) write(h, path, file, value string) {
	name, key, _ := strings.Cut(file, "@")
	f := cgroup.File{Dir: cgroup.Dir{Hierarchy: h, Path: path}, Name: name, Key: key}
	b.add(plan.Step{Change: change.Of(f.Target(), "", value), Group: group(path)})
}

func (b *builder) move(i int, h, path string) {
	id := b.procs[i]
	b.add(plan.Step{Change: change.Of(cgroup.Membership(id, h), b.where(id.PID)[h], path), Group: group(path),
		Name: "mysqld"})
}

func (b *builder) score(i, score int) {
	b.add(plan.Step{Change: change.Of(b.procs[i].ScoreTarget(), "", strconv.Itoa(score)), Group: "a", Name: "mysqld"})
}

func (b *builder) plan() plan.Plan { return plan.Plan{Steps: b.steps} }

func group(path string) string {
	g, _ := strings.CutPrefix(path, "/bulkhead/")
	return strings.TrimSuffix(strings.TrimPrefix(g, "/bulkhead"), "/db")
}

// first makes the tree /bulkhead/a/{db,x}, gives it limits and moves processes in.
func (w *world) first() plan.Plan {
	b := w.build()
	if w.v2() {
		b.write("unified", "/", cgroup.SubtreeControl, "+cpu +cpuset +io +memory +pids")
		for _, path := range []string{"/bulkhead", "/bulkhead/a", "/bulkhead/a/db", "/bulkhead/a/x"} {
			b.mkdir("unified", path)
		}
		b.write("unified", "/bulkhead", cgroup.SubtreeControl, "+cpu +cpuset +io +memory +pids")
		b.write("unified", "/bulkhead/a", cgroup.SubtreeControl, "+cpu +io +memory")
		b.write("unified", "/bulkhead", "cpu.weight", "10000")
		b.write("unified", "/bulkhead/a", "cpu.max", "150000 100000")
		b.write("unified", "/bulkhead/a", "memory.max", "1073741824")
		b.write("unified", "/bulkhead/a", "io.max@8:16", "rbps=10485760 wbps=max riops=max wiops=max")
		b.write("unified", "/bulkhead/a", "cpuset.cpus", "0")
		b.write("unified", "/bulkhead/a", "pids.max", "100")
		b.write("unified", "/bulkhead/a/x", "cpu.idle", "1")
	} else {
		for _, h := range v1 {
			for _, path := range []string{"/bulkhead", "/bulkhead/a", "/bulkhead/a/db", "/bulkhead/a/x"} {
				b.mkdir(h.ID, path)
				if h.ID == "cpuset" {
					b.write(h.ID, path, "cpuset.cpus", "0-1")
					b.write(h.ID, path, "cpuset.mems", "0")
				}
			}
		}
		b.write("cpu", "/bulkhead", "cpu.shares", "102400")
		b.write("cpu", "/bulkhead/a", "cpu.cfs_quota_us", "150000")
		b.write("cpu", "/bulkhead/a/x", "cpu.shares", "2048")
		b.write("memory", "/bulkhead/a", "memory.limit_in_bytes", "1073741824")
		b.write("memory", "/bulkhead/a", "memory.memsw.limit_in_bytes", "1073741824")
		b.write("blkio", "/bulkhead/a", "blkio.throttle.read_bps_device@8:16", "10485760")
		b.write("cpuset", "/bulkhead/a/x", "cpuset.cpus", "1")
	}
	for _, h := range w.Hierarchies() {
		b.move(0, h.ID, "/bulkhead/a/db")
		b.move(1, h.ID, "/bulkhead/a/x")
		b.move(3, h.ID, "/bulkhead/a/x")
	}
	b.score(0, -500)
	b.score(1, 300)
	return b.plan()
}

// second changes limits of the tree that first made, moves processes within it and adds a group.
func (w *world) second() plan.Plan {
	b := w.build()
	if w.v2() {
		b.mkdir("unified", "/bulkhead/b")
		b.write("unified", "/bulkhead/b", "cpu.weight", "50")
		b.write("unified", "/bulkhead/a", "memory.max", "536870912")
		b.write("unified", "/bulkhead/a", "io.max@8:16", "rbps=max wbps=max riops=500 wiops=max")
		b.write("unified", "/bulkhead/a", "io.max@8:0", "rbps=1048576 wbps=max riops=max wiops=max")
		b.write("unified", "/bulkhead/a", cgroup.SubtreeControl, "+cpuset -io")
		b.write("unified", "/bulkhead/a/x", "cpu.idle", "0")
		b.write("unified", "/bulkhead/a/x", "cpu.weight", "7")
	} else {
		for _, h := range v1 {
			b.mkdir(h.ID, "/bulkhead/b")
		}
		b.write("cpuset", "/bulkhead/b", "cpuset.cpus", "0")
		b.write("cpuset", "/bulkhead/b", "cpuset.mems", "0")
		b.write("cpu", "/bulkhead/b", "cpu.shares", "50")
		b.write("cpu", "/bulkhead/a/x", "cpu.idle", "1") // resets cpu.shares, 2048 until now
		b.write("cpu", "/bulkhead/a", "cpu.cfs_quota_us", "50000")
		b.write("memory", "/bulkhead/a", "memory.limit_in_bytes", "536870912")
		b.write("memory", "/bulkhead/a", "memory.memsw.limit_in_bytes", "536870912")
		b.write("blkio", "/bulkhead/a", "blkio.throttle.read_bps_device@8:16", "0")
		b.write("blkio", "/bulkhead/a", "blkio.throttle.read_iops_device@8:0", "500")
	}
	for _, h := range w.Hierarchies() {
		b.move(1, h.ID, "/bulkhead/b")
		b.move(2, h.ID, "/bulkhead/b")
	}
	b.score(0, 0)
	b.score(2, 700)
	return b.plan()
}

// third limits what needs controllers that the groups of first, with processes inside, do not have yet.
func (w *world) third() plan.Plan {
	b := w.build()
	b.write("unified", "/bulkhead/a", cgroup.SubtreeControl, "+cpuset +pids")
	b.write("unified", "/bulkhead/a/x", "pids.max", "50")
	b.write("unified", "/bulkhead/a/db", "cpuset.cpus", "0")
	b.write("unified", "/bulkhead/a", "pids.max", "70")
	return b.plan()
}

// release gives the host back after first.
func (w *world) release() plan.Plan {
	b := w.build()
	if w.v2() {
		b.write("unified", "/bulkhead/a", "memory.max", "max")
		b.write("unified", "/bulkhead/a", "cpu.max", "max 100000")
	} else {
		b.write("memory", "/bulkhead/a", "memory.memsw.limit_in_bytes", "-1")
		b.write("memory", "/bulkhead/a", "memory.limit_in_bytes", "-1")
		b.write("cpu", "/bulkhead/a", "cpu.cfs_quota_us", "-1")
	}
	for _, h := range w.Hierarchies() {
		b.move(0, h.ID, "/user")
		b.move(1, h.ID, "/user")
		b.move(3, h.ID, "/")
	}
	b.score(0, 0)
	b.score(1, 1)
	for _, h := range w.Hierarchies() {
		for _, path := range []string{"/bulkhead/a/x", "/bulkhead/a/db", "/bulkhead/a", "/bulkhead"} {
			b.rmdir(h.ID, path)
		}
	}
	if w.v2() {
		b.write("unified", "/", cgroup.SubtreeControl, "-cpu -cpuset -io -memory -pids")
	}
	return b.plan()
}

func (w *world) v2() bool { return w.Hierarchies()[0].Version == 2 }

// scene is a plan that the tests walk through, with what must have been done before it.
type scene struct {
	name        string
	hierarchies []host.Hierarchy
	before      []func(*world) plan.Plan
	plan        func(*world) plan.Plan
}

// scenes are those with plans made by hand, and those of package plan (see wish).
var scenes = []scene{
	{"v1 first", v1, nil, (*world).first},
	{"v1 second", v1, []func(*world) plan.Plan{(*world).first}, (*world).second},
	{"v1 release", v1, []func(*world) plan.Plan{(*world).first}, (*world).release},
	{"v2 first", v2, nil, (*world).first},
	{"v2 second", v2, []func(*world) plan.Plan{(*world).first}, (*world).second},
	{"v2 third", v2, []func(*world) plan.Plan{(*world).first}, (*world).third},
	{"v2 release", v2, []func(*world) plan.Plan{(*world).first}, (*world).release},
}

// stage makes a world in which a scene can begin.
func stage(t testing.TB, hierarchies []host.Hierarchy, before []func(*world) plan.Plan) *world {
	t.Helper()
	w := newWorld(t, hierarchies)
	r := w.runner(t)
	for _, p := range before {
		if _, err := r.Run(context.Background(), p(w), Options{Verb: "apply", By: "root"}); err != nil {
			t.Fatal(err)
		}
	}
	w.must(t, r.Journal.Close())
	return w
}

// state is what the journal knows, as text.
func state(s *journal.Store) string {
	process, groups := s.InBoot(boot).Homes()
	var lines []string
	for d := range s.InBoot(boot).Made() {
		lines = append(lines, "made "+d.String())
	}
	for id, from := range process {
		lines = append(lines, fmt.Sprintf("home of process %d %v", id.PID, from))
	}
	for g, from := range groups {
		lines = append(lines, fmt.Sprintf("home of group %s %v", g, from))
	}
	for _, c := range s.InBoot(boot).Originals() {
		lines = append(lines, fmt.Sprintf("original %s %q", c.Target, c.Old))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// errFault is what the tests inject where no errno is wanted.
var errFault = errors.New("injected fault")

// soon is a context that ends on its own, so that no test hangs.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

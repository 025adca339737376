package cgroupfake

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
)

// process is a thread group of the model.
type process struct {
	id      procfs.ID
	threads []*thread
	kernel  bool
	stuck   bool
	charges []charge
	born    map[string]*group // its groups at birth
}

// thread is in one group per hierarchy. On v1 the threads of a process may differ.
type thread struct {
	tid      int
	process  *process
	realtime bool
	groups   map[string]*group
}

// charge is anonymous memory of a process, and the group that pays for it: it does not move with
// the process.
type charge struct {
	group *group
	bytes int64
}

// Spawn adds a process to the root group of every hierarchy.
func (k *Kernel) Spawn() procfs.ID { return k.spawn(nil, false).id }

// SpawnKernelThread adds a kernel thread bound to a CPU, which cannot be moved.
func (k *Kernel) SpawnKernelThread() procfs.ID { return k.spawn(nil, true).id }

func (k *Kernel) spawn(parent *process, kernel bool) *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.add(parent, kernel)
}

func (k *Kernel) add(parent *process, kernel bool) *process {
	k.clock++
	p := &process{id: procfs.ID{PID: k.nextPID, Start: k.clock}, kernel: kernel}
	groups := maps.Clone(k.roots)
	if parent != nil {
		groups = maps.Clone(parent.threads[0].groups)
	}
	p.born = maps.Clone(groups)
	p.threads = []*thread{{tid: k.nextPID, process: p, groups: groups}}
	k.processes[k.nextPID] = p
	k.nextPID++
	return p
}

// Fork adds a child that starts in its parent's groups; EAGAIN where pids.max is reached.
func (k *Kernel) Fork(pid int) (procfs.ID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.processes[pid]
	if p == nil {
		return procfs.ID{}, syscall.ESRCH
	}
	if err := k.mayFork(p.threads[0]); err != nil {
		return procfs.ID{}, err
	}
	return k.add(p, false).id, nil
}

// Thread adds a thread to a process and gives its number; EAGAIN where pids.max is reached.
func (k *Kernel) Thread(pid int) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.processes[pid]
	if p == nil {
		return 0, syscall.ESRCH
	}
	if err := k.mayFork(p.threads[0]); err != nil {
		return 0, err
	}
	t := &thread{tid: k.nextPID, process: p, groups: maps.Clone(p.threads[0].groups)}
	p.threads = append(p.threads, t)
	k.nextPID++
	return t.tid, nil
}

// mayFork holds one task more against pids.max of every ancestor.
func (k *Kernel) mayFork(t *thread) error {
	for _, g := range t.groups {
		for _, up := range g.ancestors() {
			limit, err := parseSigned(up.values["pids.max"])
			if err == nil && k.tasksBelow(up) >= limit {
				up.refused++
				return syscall.EAGAIN
			}
		}
	}
	return nil
}

// SetRealtime gives a thread a real-time policy, or takes it away. Inside a v1 cpu group without a real-time
// budget it is EPERM.
func (k *Kernel) SetRealtime(tid int, on bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.processes {
		for _, t := range p.threads {
			if t.tid != tid {
				continue
			}
			if on && k.forbidsRealtime(t) {
				return syscall.EPERM
			}
			t.realtime = on
			return nil
		}
	}
	return syscall.ESRCH
}

func (k *Kernel) forbidsRealtime(t *thread) bool {
	for _, g := range t.groups {
		if g.Version == 1 && g.Has("cpu") && k.file(g, "cpu.rt_runtime_us") != nil && realtime(g) == 0 {
			return true
		}
	}
	return false
}

// SetStuck puts a process into uninterruptible sleep (state D), where it cannot be frozen.
func (k *Kernel) SetStuck(pid int, on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.processes[pid]; p != nil {
		p.stuck = on
	}
}

// Exit ends a process and frees its anonymous memory.
func (k *Kernel) Exit(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.exit(pid)
}

func (k *Kernel) exit(pid int) {
	p := k.processes[pid]
	if p == nil {
		return
	}
	for _, c := range p.charges {
		c.group.memory.anonymous -= c.bytes
	}
	delete(k.processes, pid)
}

// Reuse gives the number of a process that exited to a new one, in the root groups.
func (k *Kernel) Reuse(pid int) procfs.ID {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.nextPID
	k.nextPID = pid
	p := k.add(nil, false)
	k.nextPID = next
	return p.id
}

// Alive says whether the process runs under that start time.
func (k *Kernel) Alive(id procfs.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.processes[id.PID]
	return p != nil && p.id == id
}

// Tasks gives the threads of a process.
func (p *processTable) Tasks(pid int) ([]procfs.Task, error) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	process := p.k.processes[pid]
	if process == nil {
		return nil, syscall.ESRCH
	}
	var tasks []procfs.Task
	for _, t := range process.threads {
		tasks = append(tasks, procfs.Task{TID: t.tid, State: 'S', RT: t.realtime})
	}
	return tasks, nil
}

// Alive is Kernel.Alive.
func (p *processTable) Alive(id procfs.ID) bool { return p.k.Alive(id) }

// Hold watches a number by the start time that belongs to it.
func (p *processTable) Hold(id procfs.ID) (procfs.Hold, error) {
	if !p.k.Alive(id) {
		return procfs.Hold{}, procfs.ErrExited
	}
	return procfs.Hold{Same: func() bool { return p.k.Alive(id) }, Close: func() {}}, nil
}

// Birthplace gives the process that has a number, and the groups that Reuse made it in.
func (p *processTable) Birthplace(pid int) (procfs.ID, map[string]string, error) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	process := p.k.processes[pid]
	if process == nil {
		return procfs.ID{}, nil, procfs.ErrExited
	}
	groups := make(map[string]string, len(process.born))
	for id, g := range process.born {
		groups[id] = g.path()
	}
	return process.id, groups, nil
}

// processTable is the model's processes as cgroup.Processes.
type processTable struct{ k *Kernel }

// Membership gives the group of a process in every hierarchy, as host.Process.Cgroups has it.
func (k *Kernel) Membership(pid int) map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.processes[pid]
	if p == nil {
		return nil
	}
	groups := make(map[string]string)
	for id, g := range p.threads[0].groups {
		groups[id] = g.path()
	}
	return groups
}

// Processes gives the running processes, by number.
func (k *Kernel) Processes() []procfs.ID {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ids []procfs.ID
	for _, pid := range slices.Sorted(maps.Keys(k.processes)) {
		ids = append(ids, k.processes[pid].id)
	}
	return ids
}

// threadsIn gives the threads directly in a group, by number.
func (k *Kernel) threadsIn(g *group) []*thread {
	var in []*thread
	for _, p := range k.processes {
		for _, t := range p.threads {
			if t.groups[g.ID] == g {
				in = append(in, t)
			}
		}
	}
	slices.SortFunc(in, func(a, b *thread) int { return cmp.Compare(a.tid, b.tid) })
	return in
}

func (k *Kernel) tidsIn(g *group) []int {
	var tids []int
	for _, t := range k.threadsIn(g) {
		tids = append(tids, t.tid)
	}
	return tids
}

func (k *Kernel) pidsIn(g *group) []int {
	var pids []int
	for _, t := range k.threadsIn(g) {
		pids = append(pids, t.process.id.PID)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

func (k *Kernel) tasksBelow(g *group) int64 {
	var n int64
	g.each(func(g *group) { n += int64(len(k.threadsIn(g))) })
	return n
}

func (k *Kernel) populated(g *group) bool { return k.tasksBelow(g) > 0 }

func (k *Kernel) realtimeIn(g *group) bool {
	return slices.ContainsFunc(k.threadsIn(g), func(t *thread) bool { return t.realtime })
}

// attach is a write to cgroup.procs, or of v1's tasks when whole is false.
func (k *Kernel) attach(g *group, text string, whole bool) error {
	pid, err := parseSigned(strings.TrimSpace(text))
	if err != nil || pid < 0 {
		return syscall.EINVAL
	}
	var moving []*thread
	for _, p := range k.processes {
		for _, t := range p.threads {
			if t.tid == int(pid) && p.kernel {
				return syscall.EINVAL
			}
			if t.tid == int(pid) && !whole {
				moving = []*thread{t}
			}
			if t.tid == int(pid) && whole {
				moving = p.threads
			}
		}
	}
	if moving == nil {
		return syscall.ESRCH
	}
	if err := k.mayAttach(g, moving); err != nil {
		return err
	}
	for _, t := range moving {
		t.groups[g.ID] = g
	}
	return nil
}

func (k *Kernel) mayAttach(g *group, moving []*thread) error {
	if g.Version == 2 {
		switch { // cgroup_migrate_vet_dst
		case !k.validDomain(g):
			return syscall.EOPNOTSUPP
		case !k.canBeThreadRoot(g) && len(g.enabled()) > 0:
			return syscall.EBUSY
		}
		return nil
	}
	if g.Has("cpuset") && (len(k.effective(g, "cpuset.cpus")) == 0 || len(k.effective(g, "cpuset.mems")) == 0) {
		return syscall.ENOSPC
	}
	if g.Has("cpu") && !g.root() && k.file(g, "cpu.rt_runtime_us") != nil && realtime(g) == 0 &&
		slices.ContainsFunc(moving, func(t *thread) bool { return t.realtime }) {
		return syscall.EINVAL
	}
	return nil
}

// killAll is cgroup.kill.
func (k *Kernel) killAll(g *group, text string) error {
	if n, err := parseSigned(text); err != nil || n != 1 {
		return cmp.Or(err, error(syscall.ERANGE))
	}
	g.each(func(g *group) {
		for _, pid := range k.pidsIn(g) {
			k.exit(pid)
		}
	})
	return nil
}

// Kind is a kind of memory.
type Kind int

// The kinds of memory that Charge knows.
const (
	Anonymous Kind = iota
	File
	Shared
)

// ErrKilled says that the process was killed because its group, or one above, reached its memory limit.
var ErrKilled = errors.New("killed by the kernel: out of memory")

// Charge has a process touch bytes of new memory, one MiB after the other. A limit first takes page cache
// back, then kills the process of the group with most anonymous memory; with v1's oom_kill_disable the
// process waits: EAGAIN.
func (k *Kernel) Charge(pid int, kind Kind, bytes int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for bytes > 0 {
		step := min(bytes, 1<<20)
		if err := k.charge(pid, kind, step); err != nil {
			return err
		}
		bytes -= step
	}
	return nil
}

func (k *Kernel) charge(pid int, kind Kind, bytes int64) error {
	p := k.processes[pid]
	if p == nil {
		return syscall.ESRCH
	}
	g := k.memoryGroup(p)
	if g == nil {
		return nil
	}
	if err := k.makeRoom(g, p, bytes); err != nil {
		return err
	}
	switch kind {
	case Anonymous:
		g.memory.anonymous += bytes
		p.pay(g, bytes)
	case File:
		g.memory.file += bytes
	case Shared:
		g.memory.shared += bytes
	}
	for _, up := range g.ancestors() {
		up.memory.peak = max(up.memory.peak, charged(up).total())
	}
	return nil
}

// pay notes that g pays for more of the process's anonymous memory.
func (p *process) pay(g *group, bytes int64) {
	for i := range p.charges {
		if p.charges[i].group == g {
			p.charges[i].bytes += bytes
			return
		}
	}
	p.charges = append(p.charges, charge{group: g, bytes: bytes})
}

func (k *Kernel) makeRoom(g *group, p *process, bytes int64) error {
	for _, up := range g.ancestors() {
		for {
			over := charged(up).total() + bytes - limitOf(up)
			if over <= 0 || reclaim(up, over) >= over {
				break
			}
			up.memory.failures++
			if up.values["memory.oom_control"] == "1" {
				return syscall.EAGAIN
			}
			killed := k.oomKill(up)
			if k.processes[p.id.PID] == nil {
				return ErrKilled
			}
			if !killed {
				return syscall.ENOMEM
			}
		}
	}
	return nil
}

// memoryGroup is where a process's memory is charged: its own group, or on v2 the nearest ancestor
// that has the controller.
func (k *Kernel) memoryGroup(p *process) *group {
	for _, g := range p.threads[0].groups {
		if !g.Has("memory") {
			continue
		}
		for !g.root() && !contains(g.available(), "memory") {
			g = g.parent
		}
		return g
	}
	return nil
}

// oomKill ends the process in g or below with most anonymous memory; false when there is none.
func (k *Kernel) oomKill(g *group) bool {
	var victim *process
	var most int64 = -1
	g.each(func(g *group) {
		for _, pid := range k.pidsIn(g) {
			p := k.processes[pid]
			var held int64
			for _, c := range p.charges {
				held += c.bytes
			}
			if held > most {
				victim, most = p, held
			}
		}
	})
	if victim == nil {
		return false
	}
	home := k.memoryGroup(victim)
	home.oomKills++
	if g.Version == 2 {
		for up := home.parent; up != nil; up = up.parent {
			up.oomKills++ // memory.events counts what happens below too
		}
	}
	k.exit(victim.id.PID)
	return true
}

var _ cgroup.Processes = (*processTable)(nil)

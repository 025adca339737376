package cgroupfake

import (
	"maps"
	"slices"
	"syscall"

	"bulkhead/internal/linux/procfs"
)

// Spawn adds a process to the root group of every hierarchy.
func (k *Kernel) Spawn() procfs.ID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.add(k.roots, false).id
}

// SpawnKernelThread adds a kernel thread bound to a CPU, which cannot be moved.
func (k *Kernel) SpawnKernelThread() procfs.ID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.add(k.roots, true).id
}

// Fork adds a child that starts in its parent's groups; EAGAIN where pids.max is reached.
func (k *Kernel) Fork(pid int) (procfs.ID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.forking(pid)
	if err != nil {
		return procfs.ID{}, err
	}
	return k.add(p.threads[0].groups, false).id, nil
}

// Thread adds a thread to a process and gives its number; EAGAIN where pids.max is reached.
func (k *Kernel) Thread(pid int) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, err := k.forking(pid)
	if err != nil {
		return 0, err
	}
	t := &thread{tid: k.nextPID, process: p, groups: maps.Clone(p.threads[0].groups)}
	p.threads = append(p.threads, t)
	k.nextPID++
	return t.tid, nil
}

// SetRealtime gives a thread a real-time policy, or takes it away. Inside a v1 cpu group without a real-time
// budget it is EPERM.
func (k *Kernel) SetRealtime(tid int, on bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.thread(tid)
	switch {
	case t == nil:
		return syscall.ESRCH
	case on && k.forbidsRealtime(t):
		return syscall.EPERM
	}
	t.realtime = on
	return nil
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

// Reuse gives the number of a process that exited to a new one, in the root groups.
func (k *Kernel) Reuse(pid int) procfs.ID {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.nextPID
	k.nextPID = pid
	p := k.add(k.roots, false)
	k.nextPID = next
	return p.id
}

// Alive says whether the process runs under that start time.
func (k *Kernel) Alive(id procfs.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.alive(id)
}

// Membership gives the group of a process in every hierarchy, as host.Process.Cgroups has it.
func (k *Kernel) Membership(pid int) map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.processes[pid]
	if p == nil {
		return nil
	}
	return paths(p.threads[0].groups)
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

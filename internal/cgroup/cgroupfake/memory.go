package cgroupfake

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup/cgroupfake/kstrto"
)

// memoryFiles are those of the memory controller.
func memoryFiles() []*file { return append(memoryFilesV1(), memoryFilesV2()...) }

const memswLimit = "memory.memsw.limit_in_bytes"

func memoryFilesV1() []*file {
	usage := func(name string) *file {
		return count(name, 1, "memory", func(_ *kernel, g *group) int64 { return charged(g).total() })
	}
	peak := func(name string) *file {
		f := count(name, 1, "memory", func(_ *kernel, g *group) int64 { return max(g.memory.peak, charged(g).total()) })
		f.action = true
		f.write = func(_ *kernel, g *group, _ string) error { g.memory.peak = 0; return nil }
		return f
	}
	limit := func(name string, write func(*kernel, *group, int64) error) *file {
		return &file{name: name, version: 1, controller: "memory", initial: fmt.Sprint(kstrto.NoLimit / 4096 * 4096),
			write: func(k *kernel, g *group, text string) error {
				n, err := kstrto.Memory(text, "-1", k.options.PageSize)
				if err != nil {
					return err
				}
				if err := write(k, g, n); err != nil {
					return err
				}
				g.values[name] = fmt.Sprint(n)
				return nil
			}}
	}
	return []*file{
		limit("memory.limit_in_bytes", (*kernel).setLimitV1),
		limit(memswLimit, (*kernel).setMemswV1),
		limit("memory.soft_limit_in_bytes", func(*kernel, *group, int64) error { return nil }),
		usage("memory.usage_in_bytes"), usage("memory.memsw.usage_in_bytes"),
		peak("memory.max_usage_in_bytes"), peak("memory.memsw.max_usage_in_bytes"),
		count("memory.failcnt", 1, "memory", func(_ *kernel, g *group) int64 { return g.memory.failures }),
		counter("memory.memsw.failcnt", 1, "memory", "0"),
		counter("memory.kmem.usage_in_bytes", 1, "memory", "0"),
		{name: "memory.stat", version: 1, controller: "memory", read: statV1},
		{name: "memory.swappiness", version: 1, controller: "memory", initial: "60", inherit: true,
			write: writeSwappiness},
		{name: "memory.oom_control", version: 1, controller: "memory", initial: "0", inherit: true,
			read: func(k *kernel, g *group) string {
				text := fmt.Sprintf("oom_kill_disable %s\nunder_oom 0", g.value("memory.oom_control", "0"))
				if !k.options.older(since413) {
					text += fmt.Sprintf("\noom_kill %d", g.oomKills)
				}
				return text
			},
			write: func(_ *kernel, g *group, text string) error {
				if n, err := kstrto.Unsigned(text); err != nil || n > 1 || g.root() {
					return syscall.EINVAL
				}
				g.values["memory.oom_control"] = strings.TrimSpace(text)
				return nil
			}},
		{name: "memory.use_hierarchy", version: 1, controller: "memory", initial: "1",
			write: func(_ *kernel, _ *group, text string) error {
				if n, err := kstrto.Unsigned(text); err != nil || n != 1 { // fixed since kernel 5.11
					return syscall.EINVAL
				}
				return nil
			}},
		{name: "memory.force_empty", version: 1, controller: "memory", writeOnly: true,
			write: func(_ *kernel, g *group, _ string) error {
				reclaim(g, math.MaxInt64)
				return nil
			}},
	}
}

// setLimitV1 is mem_cgroup_resize_max: reclaim what can be, EBUSY when that is not enough.
func (k *kernel) setLimitV1(g *group, limit int64) error {
	if g.root() {
		return syscall.EINVAL
	}
	if k.file(g, memswLimit) != nil && limit > g.number(memswLimit, kstrto.NoLimit) {
		return syscall.EINVAL
	}
	return shrink(g, limit)
}

func (k *kernel) setMemswV1(g *group, limit int64) error {
	if g.root() || limit < limitOf(g) {
		return syscall.EINVAL
	}
	return shrink(g, limit)
}

func shrink(g *group, limit int64) error {
	if over := charged(g).total() - limit; over > reclaim(g, max(over, 0)) {
		return syscall.EBUSY
	}
	return nil
}

// reclaim takes up to want bytes of page cache from g and below and says how many it got.
func reclaim(g *group, want int64) int64 {
	var got int64
	g.each(func(g *group) {
		n := min(g.memory.file, want-got)
		g.memory.file -= n
		got += n
	})
	return got
}

// limitOf is the hard limit of a group; math.MaxInt64 for none.
func limitOf(g *group) int64 {
	if g.Version == 1 {
		return g.number("memory.limit_in_bytes", kstrto.NoLimit)
	}
	return g.number("memory.max", kstrto.NoLimit)
}

func writeSwappiness(k *kernel, g *group, text string) error {
	most := uint64(200)
	if k.options.older(since519) {
		most = 100
	}
	n, err := kstrto.Unsigned(text)
	if err != nil {
		return err
	}
	if n > most {
		return syscall.EINVAL
	}
	g.values["memory.swappiness"] = fmt.Sprint(n)
	return nil
}

func statV1(_ *kernel, g *group) string {
	lines := func(prefix string, m memory) string {
		return fmt.Sprintf("%[1]scache %[2]d\n%[1]srss %[3]d\n%[1]srss_huge 0\n%[1]sshmem %[4]d\n%[1]sswap "+
			"0\n%[1]sunevictable 0\n",
			prefix, m.file+m.shared, m.anonymous, m.shared)
	}
	return strings.TrimSpace(lines("", g.memory) + lines("total_", charged(g)))
}

func memoryFilesV2() []*file {
	limit := func(name, initial string, after func(*kernel, *group, int64)) *file {
		return &file{name: name, version: 2, controller: "memory", place: notRoot, initial: initial,
			write: func(k *kernel, g *group, text string) error {
				n, err := kstrto.Memory(text, "max", k.options.PageSize)
				if err != nil {
					return err
				}
				g.values[name] = fmt.Sprint(n)
				if n >= kstrto.NoLimit/k.options.PageSize*k.options.PageSize {
					g.values[name] = "max"
				}
				if after != nil {
					after(k, g, n)
				}
				return nil
			}}
	}
	return []*file{
		limit("memory.min", "0", nil), limit("memory.low", "0", nil),
		limit("memory.high", "max", func(_ *kernel, g *group, n int64) { reclaim(g, max(charged(g).total()-n, 0)) }),
		limit("memory.max", "max", (*kernel).enforce),
		limit("memory.swap.max", "max", nil), limit("memory.swap.high", "max", nil),
		flag("memory.oom.group", 2, "memory", "0", syscall.EINVAL).at(notRoot).from(since419),
		count("memory.current", 2, "memory", func(_ *kernel, g *group) int64 { return charged(g).total() }).at(notRoot),
		count("memory.peak", 2, "memory", func(_ *kernel, g *group) int64 {
			return max(g.memory.peak, charged(g).total())
		}).at(notRoot).from(since519),
		counter("memory.swap.current", 2, "memory", "0").at(notRoot),
		{name: "memory.stat", version: 2, controller: "memory", read: func(_ *kernel, g *group) string {
			m := charged(g)
			return fmt.Sprintf("anon %d\nfile %d\nkernel 0\nshmem %d\nanon_thp 0\nunevictable 0", m.anonymous,
				m.file+m.shared, m.shared)
		}},
		{name: "memory.events", version: 2, controller: "memory", place: notRoot,
			read: func(_ *kernel, g *group) string {
				return fmt.Sprintf("low 0\nhigh 0\nmax %d\noom %d\noom_kill %d\noom_group_kill 0", g.memory.failures,
					g.oomKills, g.oomKills)
			}},
		{name: "memory.reclaim", version: 2, controller: "memory", place: notRoot, since: since519, writeOnly: true,
			write: func(k *kernel, g *group, text string) error {
				n, err := kstrto.Memory(text, "max", k.options.PageSize)
				if err != nil {
					return err
				}
				if reclaim(g, n) < n {
					return syscall.EAGAIN
				}
				return nil
			}},
	}
}

// enforce is what v2 does when memory.max goes below the use: reclaim, then kill until it fits.
func (k *kernel) enforce(g *group, limit int64) {
	for {
		over := charged(g).total() - limit
		if over <= 0 || reclaim(g, over) >= over || !k.oomKill(g) {
			return
		}
	}
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

func (ts *tasks) charge(pid int, kind Kind, bytes int64) error {
	p := ts.processes[pid]
	if p == nil {
		return syscall.ESRCH
	}
	g := memoryGroup(p)
	if g == nil {
		return nil
	}
	if err := ts.makeRoom(g, p, bytes); err != nil {
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

func (ts *tasks) makeRoom(g *group, p *process, bytes int64) error {
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
			killed := ts.oomKill(up)
			if ts.processes[p.id.PID] == nil {
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
func memoryGroup(p *process) *group {
	for _, g := range p.threads[0].groups {
		if !g.Has("memory") {
			continue
		}
		for !g.root() && !slices.Contains(g.available(), "memory") {
			g = g.parent
		}
		return g
	}
	return nil
}

// oomKill ends the process in g or below with most anonymous memory; false when there is none.
func (ts *tasks) oomKill(g *group) bool {
	var victim *process
	var most int64 = -1
	g.each(func(g *group) {
		for _, pid := range ts.pidsIn(g) {
			p := ts.processes[pid]
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
	home := memoryGroup(victim)
	home.oomKills++
	if g.Version == 2 {
		for up := home.parent; up != nil; up = up.parent {
			up.oomKills++ // memory.events counts what happens below too
		}
	}
	ts.exit(victim.id.PID)
	return true
}

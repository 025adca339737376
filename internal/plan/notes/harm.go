package notes

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// usualWeight is the weight that a group has whose policy asks for none.
const usualWeight policy.Weight = 100

// clients are programs that speak to a database for a person or a job, as the kernel names them (15 bytes).
var clients = []string{
	"mysql", "mariadb", "mysqlslap", "mariadb-slap", "sysbench", "psql", "pgbench", "sqlplus", "mongo", "mongosh",
	"redis-cli", "valkey-cli", "redis-benchmark", "valkey-benchmar", "cqlsh", "sqlcmd", "clickhouse-clie",
}

// lockers are the kinds of helpers that lock what they work on.
var lockers = []string{"backup", "restore", "tool"}

// Harm warns of what can make a host with the policy worse than without one. inside lists the processes of a group and
// of those inside it.
func (p *Writer) Harm(inside func(group string) []procfs.Process) {
	noteHeavyRoot(p)
	for _, g := range p.in.InForce() {
		session := classify.IsOthers(g.Path) && g.Path != classify.Others
		if slow := slowed(p, g.Path); slow != "" && !session {
			noteStarved(p, g, slow)
		}
	}
	noteTasks(p, inside)
	noteBusy(p, inside)
}

func warn(p *Writer, group string, key policy.Key, format string, args ...any) {
	p.out.Notes = append(p.out.Notes, plan.Note{Group: group, Key: key, Text: fmt.Sprintf(format, args...), Harm: true})
}

// noteHeavyRoot warns of a root group that is heavier than a group usually is, and has others than databases in it.
func noteHeavyRoot(p *Writer) {
	if p.in.Host.Root == "" || p.in.Host.Weight <= usualWeight {
		return
	}
	var busy []string
	for _, g := range p.in.InForce() {
		if g.Parent == layout.RootGroup && g.Role != policy.RoleDatabase {
			busy = append(busy, g.Path)
		}
	}
	if len(busy) > 0 {
		warn(p, layout.RootGroup, policy.KeyCPUWeight,
			"host.weight %s puts %s before everything outside of the groups "+
				"whenever the databases wait: clients of the databases, threads of the kernel that write to disks, "+
				"shells. "+
				"Leave host.weight out", p.in.Host.Weight, strings.Join(busy, ", "))
	}
}

// slowed says how the CPU is kept from a group, or from one above it: in words that go on "the group …", "" where it is
// not. The limit of a database's group is meant for all that is in it.
func slowed(p *Writer, group string) string {
	for n := p.d.Forest.ByPath[group]; n != nil && n.Path != layout.RootGroup; n = n.Parent {
		if g := groupNamed(p, n.Path); g != nil && g.Role == policy.RoleDatabase {
			return ""
		}
		if s, _ := n.Settings.Get(policy.KeyCPUIdle, ""); s.Value == policy.Flag(true) {
			return "is idle"
		}
		if s, _ := n.Settings.Get(policy.KeyCPULimit, ""); s.Value != nil {
			if limit, ok := s.Value.(policy.Cores); ok {
				return "may use " + limit.String() + " cores"
			}
		}
	}
	return ""
}

// noteStarved warns of members of a slowed group for which a database waits: its clients, its own parts, and helpers
// that lock what they work on.
func noteStarved(p *Writer, g classify.Group, slow string) {
	var found []string
	add := func(who string) {
		if !slices.Contains(found, who) {
			found = append(found, who)
		}
	}
	for _, r := range g.Rules {
		switch m := r.Match; {
		case m.Part != "":
			add("a part of a server (" + m.Part + ")")
		case slices.Contains(lockers, m.Helper):
			add("a helper (" + m.Helper + ")")
		case slices.Contains(clients, path.Base(m.Exe)):
			add("a client (" + path.Base(m.Exe) + ")")
		}
	}
	unknown := map[procfs.ID]string{}
	for i := range p.in.Classified.Placements {
		pl := &p.in.Classified.Placements[i]
		if pl.Group != g.Path && (g.Path != classify.Others || !classify.IsOthers(pl.Group)) {
			continue
		}
		kind, tool, _, helps := recognise.HelperOf(&pl.Process)
		switch {
		case slices.Contains(clients, pl.Process.Comm):
			add("a client (" + pl.Process.Comm + ")")
		case helps && slices.Contains(lockers, kind):
			if here := "a helper (" + kind + ")"; !slices.Contains(found, here) {
				add("a helper (" + kind + ", " + tool + ")")
			}
		case !helps && p.in.Live != nil:
			unknown[pl.Process.ID] = pl.Process.Comm
		}
	}
	for _, who := range connected(p, unknown) {
		add(who)
	}
	if len(found) > 0 {
		warn(p, g.Path, policy.KeyCPULimit, "the group %s, and has %s of a database: what that holds locked while it "+
			"waits for the CPU, the database's other clients wait for. A weight (`role: helper`) slows it down only "+
			"while others want the CPU", slow, strings.Join(found, ", "))
	}
}

// connected names those of the programs that are connected to a database, by pid.
func connected(p *Writer, programs map[procfs.ID]string) (clients []string) {
	if len(programs) == 0 {
		return nil
	}
	to := p.in.Live.Clients(slices.Collect(maps.Keys(programs)))
	for _, id := range slices.SortedFunc(maps.Keys(to), func(a, b procfs.ID) int { return a.PID - b.PID }) {
		clients = append(clients, "a client ("+programs[id]+", connected to "+to[id]+")")
	}
	return clients
}

// noteTasks warns of a limit on tasks that is about to be written and is below what the group has now: nothing is
// ended, and nothing new starts. A limit on memory below what is in use is refused elsewhere.
func noteTasks(p *Writer, inside func(group string) []procfs.Process) {
	said := map[string]bool{layout.RootGroup: true}
	for _, s := range p.out.Steps {
		n := p.d.Forest.ByPath[s.Group]
		if s.Setting != policy.KeyTasks || n == nil || said[s.Group] {
			continue
		}
		said[s.Group] = true
		asked, _ := n.Settings.Get(policy.KeyTasks, "")
		has := 0
		for _, proc := range inside(s.Group) {
			has += proc.Threads
		}
		if most, limited := asked.Value.(policy.Count); limited && has > int(most) {
			warn(p, s.Group, policy.KeyTasks, "tasks: %d is below the %s that the group has now: none is ended, and "+
				"none can start, no connection of a server that forks either", most, policy.Counted(has, "task"))
		}
	}
}

// How long processes are watched: shortly to see who may use more than a limit, and then those.
const (
	glance = 100 * time.Millisecond
	watch  = time.Second
)

// busy is a group about to get a limit of the CPU.
type busy struct {
	group string
	limit policy.Cores
	ids   []procfs.ID // of its processes
}

// uses is the cores that the group's processes use.
func (b *busy) uses(cores map[procfs.ID]float64) (sum float64) {
	for _, id := range b.ids {
		sum += cores[id]
	}
	return sum
}

// noteBusy warns of a limit of the CPU that is about to be written and is below what the group's processes use now.
// Batch groups and strangers are there to be slowed down. A tenth more than the limit is within what a second tells.
func noteBusy(p *Writer, inside func(group string) []procfs.Process) {
	if p.in.Live == nil {
		return
	}
	var all []busy
	said := map[string]bool{layout.RootGroup: true}
	for _, s := range p.out.Steps {
		n, g := p.d.Forest.ByPath[s.Group], groupNamed(p, s.Group)
		if s.Setting != policy.KeyCPULimit || n == nil || g == nil || said[s.Group] ||
			g.Role == policy.RoleBatch || classify.IsOthers(g.Path) {
			continue
		}
		said[s.Group] = true
		asked, _ := n.Settings.Get(policy.KeyCPULimit, "")
		limit, limited := asked.Value.(policy.Cores)
		threads, b := 0, busy{group: s.Group, limit: limit}
		for _, proc := range inside(s.Group) {
			threads += proc.Threads
			b.ids = append(b.ids, proc.ID)
		}
		if limited && float64(threads) > limit.Float() {
			all = append(all, b)
		}
	}
	ids := func() (list []procfs.ID) {
		for i := range all {
			list = append(list, all[i].ids...)
		}
		return list
	}
	var cores map[procfs.ID]float64
	for _, look := range []struct {
		during time.Duration
		times  float64
	}{{glance, 0.5}, {watch, 1.1}} {
		if len(all) == 0 {
			return
		}
		cores = p.in.Live.Cores(ids(), look.during)
		all = slices.DeleteFunc(all, func(b busy) bool { return b.uses(cores) <= b.limit.Float()*look.times })
	}
	for i := range all {
		warn(p, all[i].group, policy.KeyCPULimit, "cpu.limit %s is below the %.1f cores that its processes used "+
			"in the last second: all of them will stand still for a part of each tenth of a second, also while the "+
			"CPUs have nothing else to do. Raise the limit above that, or leave it out: a weight holds the group "+
			"back only while others want the CPU", all[i].limit, all[i].uses(cores))
	}
}

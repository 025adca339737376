package notes

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/classify"
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

// Harm warns of what can make a host with the policy worse than without one. has counts the tasks of a group and of
// those inside it.
func (p *Writer) Harm(has func(group string) int) {
	noteHeavyRoot(p)
	for _, g := range p.in.InForce() {
		session := classify.IsOthers(g.Path) && g.Path != classify.Others
		if slow := slowed(p, g.Path); slow != "" && !session {
			noteStarved(p, g, slow)
		}
	}
	noteTasks(p, has)
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
	for i := range p.in.Classified.Placements {
		pl := &p.in.Classified.Placements[i]
		here := pl.Group == g.Path || g.Path == classify.Others && classify.IsOthers(pl.Group)
		if here && slices.Contains(clients, pl.Process.Comm) {
			add("a client (" + pl.Process.Comm + ")")
		}
	}
	if len(found) > 0 {
		warn(p, g.Path, policy.KeyCPULimit, "the group %s, and has %s of a database: what that holds locked while it "+
			"waits for the CPU, the database's other clients wait for. A weight (`role: helper`) slows it down only "+
			"while others want the CPU", slow, strings.Join(found, ", "))
	}
}

// noteTasks warns of a limit on tasks that is about to be written and is below what the group has now: nothing is
// ended, and nothing new starts. A limit on memory below what is in use is refused elsewhere.
func noteTasks(p *Writer, tasks func(group string) int) {
	said := map[string]bool{layout.RootGroup: true}
	for _, s := range p.out.Steps {
		n := p.d.Forest.ByPath[s.Group]
		if s.Setting != policy.KeyTasks || n == nil || said[s.Group] {
			continue
		}
		said[s.Group] = true
		asked, _ := n.Settings.Get(policy.KeyTasks, "")
		has := tasks(s.Group)
		if most, limited := asked.Value.(policy.Count); limited && has > int(most) {
			warn(p, s.Group, policy.KeyTasks, "tasks: %d is below the %s that the group has now: none is ended, and "+
				"none can start, no connection of a server that forks either", most, policy.Counted(has, "task"))
		}
	}
}

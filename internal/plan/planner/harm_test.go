package planner

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// someLive is a host whose processes use the CPU and are connected as it says, whoever asks.
type someLive struct {
	cores   float64        // each process, in a second
	client  string         // the instance that each process is connected to
	watched *time.Duration // for how long, in all
}

func (l someLive) Cores(ids []procfs.ID, during time.Duration) map[procfs.ID]float64 {
	if l.watched != nil {
		*l.watched += during
	}
	all := map[procfs.ID]float64{}
	for _, id := range ids {
		all[id] = l.cores
	}
	return all
}

func (l someLive) Clients(ids []procfs.ID) map[procfs.ID]string {
	all := map[procfs.ID]string{}
	for _, id := range ids {
		if l.client != "" {
			all[id] = l.client
		}
	}
	return all
}

// What can make a host with the policy worse than without one is said, and nothing like it of a sound policy.
func TestNotesOfHarm(t *testing.T) {
	limit := settings("group", "cpu.limit", policy.Cores(500))
	two := settings("group", "cpu.limit", policy.Cores(2*policy.One))
	idle := settings("role batch", "cpu.idle", policy.Flag(true))
	database := func(g classify.Group) classify.Group { g.Role = policy.RoleDatabase; return g }
	matching := func(g classify.Group, m policy.Match) classify.Group {
		g.Rules = []classify.Rule{{Group: g.Path, Match: m}}
		return g
	}
	running := func(in *plan.Input, comm, group string, threads int) {
		proc := procfs.Process{ID: procfs.ID{PID: 100, Start: 1}, PPID: 1, Comm: comm,
			Exe: "/usr/bin/" + comm, Args: []string{comm}, State: 'S', Threads: threads}
		in.Classified.Placements = []classify.Placement{{Process: proc, Group: group, By: classify.ByRule}}
	}
	using := func(cores float64, threads int) func(*plan.Input) {
		return func(in *plan.Input) {
			running(in, "postgres", "b", threads)
			in.Live = someLive{cores: cores}
		}
	}
	batch := func(g classify.Group) classify.Group { g.Role = policy.RoleBatch; return g }
	connected := func(comm, group string) func(*plan.Input) {
		return func(in *plan.Input) {
			running(in, comm, group, 1)
			in.Live = someLive{client: "postgresql 5432"}
		}
	}
	for name, tt := range map[string]struct {
		host   policy.HostPart
		groups []classify.Group
		change func(*plan.Input)
		want   string // in a note of group b, or of no group; "" is none
	}{
		"a heavy root group above busy groups": {policy.HostPart{Root: "r", Weight: 10000},
			[]classify.Group{database(group("a", nil)), group("b", nil)}, nil, "host.weight 10000 puts b before"},
		"a heavy root group of databases": {policy.HostPart{Root: "r", Weight: 10000},
			[]classify.Group{database(group("b", nil))}, nil, ""},
		"an ordinary root group": {policy.HostPart{Root: "r", Weight: 100}, []classify.Group{group("b", nil)}, nil, ""},
		"a client in an idle group": {policy.HostPart{}, []classify.Group{group("b", idle)},
			func(in *plan.Input) { running(in, "psql", "b", 1) }, "the group is idle, and has a client (psql)"},
		"a client in a limited group": {policy.HostPart{}, []classify.Group{matching(group("b", limit),
			policy.Match{Exe: "/usr/bin/mysql"})}, nil, "a client (mysql)"},
		"a client below a limited group": {policy.HostPart{}, []classify.Group{group("a", limit), group("a/b", nil)},
			func(in *plan.Input) { running(in, "sysbench", "a/b", 1) }, "a client (sysbench)"},
		"a client in a weighted group": {policy.HostPart{}, []classify.Group{group("b", nil)},
			func(in *plan.Input) { running(in, "psql", "b", 1) }, ""},
		"a client in its database's group": {policy.HostPart{}, []classify.Group{database(group("b", limit))},
			func(in *plan.Input) { running(in, "psql", "b", 1) }, ""},
		"another program in a limited group": {policy.HostPart{}, []classify.Group{group("b", limit)},
			func(in *plan.Input) { running(in, "perl", "b", 1) }, ""},
		"a helper that locks": {policy.HostPart{}, []classify.Group{matching(group("b", limit),
			policy.Match{Helper: "backup"})}, nil, "a helper (backup)"},
		"a helper that locks nothing": {policy.HostPart{}, []classify.Group{matching(group("b", limit),
			policy.Match{Helper: "exporter"})}, nil, ""},
		"a part of a server": {policy.HostPart{}, []classify.Group{matching(group("b", idle),
			policy.Match{Engine: "postgresql", Part: "autovacuum"})}, nil, "a part of a server (autovacuum)"},
		"an unknown client in an idle group": {policy.HostPart{}, []classify.Group{group("b", idle)},
			connected("php-fpm", "b"), "a client (php-fpm, connected to postgresql 5432)"},
		"an unknown client below a limited group": {policy.HostPart{},
			[]classify.Group{group("a", limit), group("a/b", nil)}, connected("php-fpm", "a/b"),
			"a client (php-fpm, connected to postgresql 5432)"},
		"an unknown client in a weighted group": {policy.HostPart{}, []classify.Group{group("b", nil)},
			connected("php-fpm", "b"), ""},
		"an exporter, which is connected": {policy.HostPart{}, []classify.Group{group("b", idle)},
			connected("mysqld_exporter", "b"), ""},
		"nobody connected in an idle group": {policy.HostPart{}, []classify.Group{group("b", idle)}, using(0, 1), ""},
		"a backup placed by its program": {policy.HostPart{}, []classify.Group{matching(group("b", idle),
			policy.Match{Exe: "mysqldump"})}, func(in *plan.Input) { running(in, "mysqldump", "b", 1) },
			"a helper (backup, mysqldump)"},
		"a backup in a weighted group": {policy.HostPart{}, []classify.Group{group("b", nil)},
			func(in *plan.Input) { running(in, "mysqldump", "b", 1) }, ""},
		"less CPU than it uses": {policy.HostPart{}, []classify.Group{database(group("b", two))}, using(2.5, 3),
			"cpu.limit 2 is below the 2.5 cores that its processes used"},
		"less CPU than a group inside uses": {policy.HostPart{}, []classify.Group{database(group("a", two)),
			group("a/b", nil)}, func(in *plan.Input) {
			using(2.5, 3)(in)
			in.Classified.Placements[0].Group = "a/b"
		}, "cpu.limit 2 is below"},
		"about the CPU that it uses": {policy.HostPart{}, []classify.Group{database(group("b", two))},
			using(2.1, 3), ""},
		"less CPU for batch": {policy.HostPart{}, []classify.Group{batch(group("b", two))}, using(2.5, 3), ""},
		"CPU of which nothing is known": {policy.HostPart{}, []classify.Group{database(group("b", two))},
			func(in *plan.Input) { running(in, "postgres", "b", 3) }, ""},
		"fewer tasks than there are": {policy.HostPart{},
			[]classify.Group{group("b", settings("group", "tasks", policy.Count(20)))},
			func(in *plan.Input) { running(in, "postgres", "b", 21) }, "tasks: 20 is below the 21 tasks"},
		"tasks enough": {policy.HostPart{}, []classify.Group{group("b", settings("group", "tasks", policy.Count(20)))},
			func(in *plan.Input) { running(in, "postgres", "b", 20) }, ""},
	} {
		in := input(legacyHost(), tt.groups...)
		in.Host = tt.host
		if tt.change != nil {
			tt.change(&in)
		}
		var got []string
		for _, n := range Make(in).Notes {
			if n.Harm {
				got = append(got, n.Text)
			}
		}
		if all := strings.Join(got, "\n"); (tt.want == "") != (len(got) == 0) || !strings.Contains(all, tt.want) {
			t.Errorf("%s: said %q, want %q", name, all, tt.want)
		}
	}
}

// A plan takes no longer than it must: who is below half of a limit is watched for 0.1 s, who is above it for 1.1 s.
func TestBusyGroupsAreWatchedOnce(t *testing.T) {
	for cores, want := range map[float64]time.Duration{0.9: 100 * time.Millisecond, 2.5: 1100 * time.Millisecond} {
		var watched time.Duration
		g := group("b", settings("group", "cpu.limit", policy.Cores(2*policy.One)))
		g.Role = policy.RoleDatabase
		in := input(legacyHost(), g)
		in.Classified.Placements = []classify.Placement{{Group: "b", By: classify.ByRule, Process: procfs.Process{
			ID: procfs.ID{PID: 100, Start: 1}, PPID: 1, Exe: "/usr/bin/postgres", State: 'S', Threads: 3}}}
		in.Live = someLive{cores: cores, watched: &watched}
		if Make(in); watched != want {
			t.Errorf("%v cores: watched for %v, want %v", cores, watched, want)
		}
	}
}

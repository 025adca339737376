package hugepages

import (
	"testing"

	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
)

const mib = 1 << 20

// The pool is the sum of what is told to use it, 1 % and what other programs hold; by node where one is pinned.
func TestTogether(t *testing.T) {
	m := host.Memory{HugePage: 2 * mib, Pools: []host.HugePages{{Size: 2 * mib, Pages: 310, Free: 200, Reserved: 50,
		Surplus: 10}}, Nodes: []host.NodeMemory{
		{ID: 0, Total: 1, Pools: []host.HugePages{{Size: 2 * mib, Pages: 300}}},
		{ID: 1, Total: 1, Pools: []host.HugePages{{Size: 2 * mib, Pages: 10, Surplus: 10}}}, {ID: 2}}}
	all := []Need{{Instance: "a", Page: 2 * mib, Pages: 150, Told: true, Holds: 100},
		{Instance: "b", Page: 2 * mib, Pages: 101, Told: true}, {Instance: "off", Page: 2 * mib, Pages: 500},
		{Instance: "gigantic", Page: 1 << 30, Pages: 7, Told: true}}
	p := Together(all, m)
	if p.Instances != 251 || p.Margin != 2 || p.Others != 60 || p.Pages != 313 || p.Has != 300 || p.Missing != 13 ||
		p.String() != "313" || len(p.Unknown) > 0 {
		t.Errorf("%+v", p)
	}
	all[1].Nodes = []int{1}
	p = Together(all, m)
	if p.String() != "0:106,1:207" || p.Missing != 207 || p.AtLeast().String() != "0:300,1:207" {
		t.Errorf("by node: %+v", p)
	}
	all[0].Unknown = "no answer"
	if p = Together(all, m); len(p.Unknown) != 1 {
		t.Errorf("%+v", p)
	}
}

// What maps and /proc/sysvipc/shm show of a PostgreSQL and of Oracle, and on which nodes.
func TestOf(t *testing.T) {
	h := host.New(linuxtest.Unpack(t, `
-- proc/900/maps --
7f0000000000-7f0008e00000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7f1000000000-7f1000001000 rw-s 00000000 00:01 3                          /SYSV0052e2c1 (deleted)
-- proc/900/status --
Mems_allowed_list:	0-1
-- proc/900/numa_maps --
55e0 bind:1 file=/x mapped=1
-- proc/950/maps --
7f0000000000-7f0000400000 rw-s 00000000 00:0e 78                         /anon_hugepage (deleted)
7f0000400000-7f0000600000 rw-s 00400000 00:0e 78                         /anon_hugepage (deleted)
-- proc/950/status --
Mems_allowed_list:	0-1
-- proc/1500/maps --
60000000-60800000 rw-s 00000000 00:0e 3                                  /SYSV00000000 (deleted)
60800000-a0800000 rw-s 00000000 00:0e 4                                  /SYSV00000000 (deleted)
-- proc/1500/status --
HugetlbPages:	    8192 kB
-- proc/sysvipc/shm --
       key      shmid perms                  size
         0          3   600               7340032
-- proc/1600/maps --
60000000-60800000 rw-s 00000000 00:0e 3                                  /dev/shm/ora_X_1
-- proc/1600/status --
`))
	facts := &host.Facts{HugePage: 2 * mib, Nodes: []host.Node{{ID: 0, MemTotal: 1}, {ID: 1, MemTotal: 1}, {ID: 2}}}
	for _, c := range []struct {
		pid          int
		engine       string
		pages, holds int64
		told         bool
		nodes        int
	}{
		{900, engine.PostgreSQL, 71, 0, false, 1},
		{950, engine.PostgreSQL, 3, 3, false, 0},
		{1500, engine.Oracle, 4 + 513, 517, true, 0},
		{1600, engine.Oracle, 0, 0, false, 0},
		{1600, engine.Redis, 0, 0, false, 0},
	} {
		inst := engine.Instance{Engine: c.engine, Main: procfs.ID{PID: c.pid}}
		n := Of(h, facts, inst, settings.Settings{})
		if n.Pages != c.pages || n.Holds != c.holds || n.Told != c.told || len(n.Nodes) != c.nodes || n.Unknown != "" {
			t.Errorf("%d: %+v", c.pid, n)
		}
	}
	inst := engine.Instance{Engine: engine.PostgreSQL, Main: procfs.ID{PID: 1}}
	if n := Of(h, facts, inst, settings.Settings{}); n.Unknown == "" {
		t.Errorf("without maps: %+v", n)
	}
}

package recognise

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
)

// counting counts the questions that a source is asked.
type counting struct {
	Source
	asked int
}

func (c *counting) Listeners(pids []int) (map[int][]sockets.Listener, error) {
	c.asked += len(pids)
	return c.Source.Listeners(pids)
}

func (c *counting) Connections(pids []int) (map[int][]sockets.Listener, error) {
	c.asked += len(pids)
	return c.Source.Connections(pids)
}

func (c *counting) Environ(pid int) ([]string, error) { c.asked++; return c.Source.Environ(pid) }

func (c *counting) Cwd(pid int) (string, error) { c.asked++; return c.Source.Cwd(pid) }

func (c *counting) ReadRootFile(pid int, name string, limit int64) ([]byte, error) {
	c.asked++
	return c.Source.ReadRootFile(pid, name, limit)
}

// A tracker says what a single look says, and asks nothing twice while nothing changes.
func TestTracker(t *testing.T) {
	procs, h := captured(t)
	src := &counting{Source: SourceOf(h)}
	tracker := Tracker{Keep: 2}
	want := describe(Instances(procs, SourceOf(h)), procs)
	looks := []bool{true, false, false, true, false} // whether the source is asked
	for n, asks := range looks {
		src.asked = 0
		if got := describe(tracker.Recognise(procs, src), procs); got != want {
			t.Fatalf("look %d differs:\n%s", n, got)
		}
		if (src.asked > 0) != asks {
			t.Errorf("look %d asks the source %d times", n, src.asked)
		}
	}
}

func TestTrackerSeesChanges(t *testing.T) {
	var tracker Tracker
	look := func(src Source, procs ...procfs.Process) string {
		var b strings.Builder
		for _, i := range tracker.Recognise(procs, src) {
			fmt.Fprint(&b, i.Name(), i.Members, " ")
		}
		return b.String()
	}
	rd := process(100, 1, "/usr/bin/redis-server", "redis-server", "redis-server --port 7000")
	save := process(101, 100, "/usr/bin/redis-server", "redis-server", "redis-rdb-bgsave *:7000")
	other := process(200, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/d")
	restarted := rd
	restarted.Start++
	retitled := rd
	retitled.Args = []string{"redis-server *:7001"}
	for n, step := range []struct{ got, want string }{
		{look(fake{}, rd), "redis7000[{{100 100} main}] "},                                // starting: believed
		{look(fake{listeners: listening(100, 7777)}, rd), "redis7777[{{100 100} main}] "}, // listens elsewhere
		// kept, with a new member
		{look(fake{}, rd, save), "redis7777[{{100 100} main} {{101 101} save}] "},
		{look(fake{}, rd), "redis7777[{{100 100} main}] "},                                    // which has ended
		{look(fake{}, rd, other), "mysql3306[{{200 200} main}] redis7777[{{100 100} main}] "}, // a new server
		{look(fake{}, retitled), "redis7001[{{100 100} main}] "},                              // asked again
		{look(fake{listeners: listening(100, 3306)}, restarted), "redis3306[{{100 101} main}] "},
		{look(fake{}, restarted, other), "mysql-d[{{200 200} main}] redis3306[{{100 101} main}] "}, // the port is taken
		{look(fake{}), ""},
	} {
		if step.got != step.want {
			t.Errorf("step %d: %q, want %q", n, step.got, step.want)
		}
	}
}

// The titles that tell a cluster's name may come after the server listens.
func TestTrackerLearnsClusterName(t *testing.T) {
	var tracker Tracker
	pg := "/usr/lib/postgresql/15/bin/postgres"
	main := process(100, 1, pg, "postgres", pg+" -D /pg")
	wal := process(101, 100, pg, "postgres", "")
	wal.Args = []string{"postgres: late: walwriter "}
	src := fake{listeners: listening(100, 5432)}
	tracker.Recognise([]procfs.Process{main}, src)
	i := tracker.Recognise([]procfs.Process{main, wal}, fake{})[0]
	if part, ok := i.Part(wal.ID); i.Cluster != "late" || part != "walwriter" || !ok {
		t.Errorf("cluster %q, part %q", i.Cluster, part)
	}
	if _, ok := i.Part(procfs.ID{PID: 101, Start: 1}); ok {
		t.Error("a reused pid is a member")
	}
}

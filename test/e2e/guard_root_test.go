//go:build root

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/testhost"
)

// load has clients write to a Redis server as fast as it answers, until the test ends.
func (d *database) load(clients int) {
	d.t.Helper()
	for i := range clients {
		c, err := d.dial()
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { _ = c.Close() })
		go func() {
			answers := bufio.NewReader(c)
			for n := 0; ; n++ {
				if _, err := fmt.Fprintf(c, "SET key:%d:%d value\r\n", i, n%1000); err != nil {
					return
				}
				if _, err := answers.ReadString('\n'); err != nil {
					return
				}
			}
		}()
	}
}

// cores is the group's limit in force.
func (s *site) cores(group string) string {
	s.t.Helper()
	for _, g := range s.status().Groups {
		for _, l := range g.Limits {
			if g.Group == group && l.Key == "cpu.limit" {
				return l.InForce
			}
		}
	}
	return "none"
}

// A CPU limit that starves a loaded database is undone within 10 s of the guard's window, told by the database or by
// the kernel, with an agent that has watched it and without; a limit that does no harm stays. How much may fall is far
// above what other work on the machine takes.
func TestGuardUndoesABadChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		dsn, byAgent bool
		says         string
		sql          bool // MariaDB in place of Redis
	}{
		{"by the database, without an agent", true, false, "total_commands_processed per second, by the database",
			false},
		{"by the kernel, with an agent", false, true, "cores, by the kernel", false},
		{"by MariaDB, without an agent", true, false, "Questions per second, by the database", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.sql && os.Getenv("LONG") == "" {
				t.Skip("only with LONG=1: another database takes the same way")
			}
			s := newSite(t)
			engine, url := "redis", "redis://127.0.0.1:%d"
			start := func() *database {
				db := redis(t)
				db.start()
				db.load(4)
				return db
			}
			if c.sql {
				engine, url = "mysql", "mysql://root@127.0.0.1:%d/"
				start = func() *database {
					db := mariadb(t)
					db.start()
					const rows = 1000
					db.fill(rows)
					for range 4 {
						db.reads(rows)
					}
					return db
				}
			}
			db := start()
			const window = time.Second
			dsn := ""
			if c.dsn {
				dsn = fmt.Sprintf(", dsn: \""+url+"\"", db.port)
			}
			s.write(fmt.Sprintf("groups:\n  app: {role: database, match: [{engine: %s, port: %d}], cpu: {limit: "+
				"2}, memory: {max: 1GiB}}\n"+
				"guard: {for: 6s, window: %s, before: 20s, groups: {app: {oom_kills: 0, throughput_falls: 85%%%s}}}\n",
				engine, db.port, window, dsn))
			s.must("apply")
			testhost.WaitLong(t, 40*time.Second, "the guard to be content with the first apply",
				func() bool { return s.status().Trial == nil })
			if c.byAgent {
				s.agent()
				time.Sleep(3 * window) // it watches
			}
			s.exits(0, []string{"guarded until "}, "set", "app:cpu.limit=1.9")
			testhost.WaitLong(t, 40*time.Second, "the guard to be content with a limit that does no harm",
				func() bool { return s.status().Trial == nil })
			if got := s.cores("app"); got != "1.9 cores" {
				t.Fatalf("a limit that does no harm: %q is in force\n%s", got, s.must("history"))
			}
			s.must("set", "app:cpu.limit=0.03")
			begin := time.Now()
			testhost.WaitLong(t, window+10*time.Second, "the guard to undo it",
				func() bool { return strings.Contains(s.must("history"), "revert the set") })
			if took := time.Since(begin); took > window+10*time.Second {
				t.Errorf("undone after %s", took)
			} else {
				t.Logf("undone after %s", took.Round(100*time.Millisecond))
			}
			if got := s.cores("app"); got != "1.9 cores" {
				t.Errorf("after it %q is in force", got)
			}
			var entries []journal.Entry
			if err := json.Unmarshal([]byte(s.must("history", "--json")), &entries); err != nil {
				t.Fatal(err)
			}
			last := entries[len(entries)-1]
			if !strings.HasPrefix(last.Reason, "guard: group app: its throughput fell by ") ||
				!strings.Contains(last.Reason, c.says) {
				t.Errorf("the history says %+v", last)
			}
			s.must("release", "--all")
		})
	}
}

// A clause that nothing here counts is refused before anything is changed.
func TestGuardWithoutASource(t *testing.T) {
	s := newSite(t)
	id, rule := marked(t, 600)
	before := testhost.Snapshot(t, s.tree, s.root, id)
	for guard, says := range map[string]string{
		"oom_kills: 0":          "guard: oom_kills of group app has no source on this host: nothing was changed",
		"throughput_falls: 30%": "guard: throughput_falls of group app has no source on this host: nothing was changed",
		"throughput_falls: 30%, dsn: " +
			"\"redis://127.0.0.1:1\"": "ask the database of group app how much it does: ask Redis for " +
			"total_commands_processed",
	} {
		s.write("groups:\n  app: {match: [{cmdline: '" + rule + "'}], tasks: 50}\nguard: {groups: {app: {" + guard +
			"}}}\n")
		r := s.run("apply")
		if want := api.CodeUsage; strings.Contains(guard, "dsn") && r.code != int(api.CodeFailed) ||
			!strings.Contains(guard, "dsn") && r.code != int(want) || !strings.Contains(r.err, says) {
			t.Errorf("%s: exit code %d\n%s", guard, r.code, r.err)
		}
		if after := testhost.Snapshot(t, s.tree, s.root, id); after != before {
			t.Errorf("%s: after it\n%s\nbefore\n%s", guard, after, before)
		}
	}
}

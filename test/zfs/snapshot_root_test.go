//go:build root

package zfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/testhost"
)

// rounds is how often a snapshot is taken under load.
func rounds() int {
	if testing.Short() {
		return 3
	}
	return 20
}

// cloned makes clones of the datasets of a snapshot by hand, and gives where they are mounted.
func (r *rig) cloned(set, snapshot string) (data, log string) {
	r.t.Helper()
	for _, part := range []string{"data", "log"} {
		r.must("zfs", "clone", "-o", "mountpoint="+filepath.Join(r.dir, "copy", part),
			pool+"/"+set+"/"+part+"@"+snapshot, pool+"/copy-"+part)
	}
	return filepath.Join(r.dir, "copy", "data"), filepath.Join(r.dir, "copy", "log")
}

func (r *rig) uncloned() {
	r.t.Helper()
	for _, part := range []string{"data", "log"} {
		testhost.WaitLong(r.t, time.Minute, "what the killed server left to end", func() bool {
			return exec.Command("zfs", "destroy", pool+"/copy-"+part).Run() == nil
		})
	}
}

// A snapshot of MariaDB under a committing load holds the lock for a second at most, and a copy has every commit that
// was acknowledged before, no half transaction, and its binary log ends where the snapshot says.
func TestSnapshotOfMariaDBUnderCommits(t *testing.T) {
	r := newRig(t)
	s := r.mariadb()
	s.exec("CREATE DATABASE load_test")
	s.in("load_test")
	l := s.load()
	r.waits(l)
	var longest float64
	var wait time.Duration
	for i := range rounds() {
		name := fmt.Sprintf("s%d", i)
		l.slowest.Store(0)
		before := l.reached()
		var taken dbsnapshot.Taken
		r.does(&taken, "zfs", "snapshot", s.name, name)
		after := l.reached()
		wait = max(wait, time.Duration(l.slowest.Load()))
		longest = max(longest, taken.Held)
		if taken.Held > 1 {
			t.Errorf("%s: the lock was held for %.3f s, %.3f s of them in zfs", name, taken.Held, taken.Took)
		}
		if taken.Lock != "BACKUP STAGE BLOCK_COMMIT" || taken.Position.AtLeast {
			t.Errorf("%s: %+v", name, taken)
		}
		data, log := r.cloned("my", name)
		file, offset, _ := strings.Cut(taken.Position.Binlog, ":")
		info, err := os.Stat(filepath.Join(log, file))
		if err != nil || strconv.FormatInt(info.Size(), 10) != offset {
			t.Errorf("%s: the binary log of the copy ends at %v and not at %s: %v", name, info, taken.Position.Binlog,
				err)
		}
		index := filepath.Join(log, "bin.index")
		text, err := os.ReadFile(index)
		if err != nil {
			t.Fatal(err)
		}
		moved := strings.ReplaceAll(string(text), filepath.Join(r.dir, "my", "log"), log)
		if err := os.WriteFile(index, []byte(moved), 0o660); err != nil {
			t.Fatal(err)
		}
		socket := filepath.Join(r.dir, "copy.sock")
		c := r.start("mysql", "mysql", "root@unix("+socket+")/load_test", "/usr/sbin/mariadbd", "--no-defaults",
			"--datadir="+data, "--innodb-log-group-home-dir="+log, "--log-bin="+log+"/bin", "--server-id=2",
			"--socket="+socket, "--skip-networking", "--pid-file="+socket+".pid", "--innodb-buffer-pool-size=32M")
		judge(t, c.db, before, after)
		c.db.close()
		c.stop()
		r.uncloned()
	}
	l.stop()
	t.Logf("%d snapshots: the lock was held for %.0f ms at most, and no commit took longer than %v; %v transactions",
		rounds(), longest*1000, wait.Round(time.Millisecond), l.reached())
	r.listAndPrune(s.name)
	if out := r.does(nil, "zfs", "check", s.name); !strings.Contains(out, pool+"/my/data") {
		t.Errorf("zfs check does not show the data set:\n%s", out)
	} else {
		t.Log(out)
	}
}

// listAndPrune looks at the snapshots of the rounds and removes all but two.
func (r *rig) listAndPrune(instance string) {
	r.t.Helper()
	var list struct{ Snapshots []dbsnapshot.Set }
	r.does(&list, "zfs", "list", instance)
	if len(list.Snapshots) != rounds() || !list.Snapshots[0].Complete || list.Snapshots[0].Refers == 0 {
		r.t.Fatalf("%+v", list.Snapshots)
	}
	r.t.Log(r.does(nil, "zfs", "list"))
	newest, oldest := list.Snapshots[0], list.Snapshots[rounds()-1]
	r.must("zfs", "hold", "keep", pool+"/my/data@"+oldest.Name)
	r.does(nil, "zfs", "prune", instance, "--keep", "2", "--dry-run")
	r.does(nil, "zfs", "prune", instance, "--older", "1d")
	if out := r.does(nil, "zfs", "prune", instance+"@none-*", "--keep", "1"); !strings.Contains(out, "no snapshot") {
		r.t.Error(out)
	}
	r.does(&list, "zfs", "list", instance)
	if len(list.Snapshots) != rounds() {
		r.t.Fatalf("prune removed what it was not asked for: %d are left", len(list.Snapshots))
	}
	r.t.Log(r.does(nil, "zfs", "prune", instance, "--keep", "2"))
	r.does(&list, "zfs", "list", instance)
	want := 3
	if len(list.Snapshots) != want || list.Snapshots[0].Name != newest.Name || list.Snapshots[2].Name != oldest.Name {
		r.t.Errorf("want the newest two and the one that is held: %+v", list.Snapshots)
	}
	r.must("zfs", "release", "keep", pool+"/my/data@"+oldest.Name)
}

// A copy of PostgreSQL, taken without any lock under commits, has every commit that was acknowledged before.
func TestSnapshotOfPostgreSQLUnderCommits(t *testing.T) {
	r := newRig(t)
	s := r.postgresql()
	l := s.load()
	r.waits(l)
	file := filepath.Join(r.dir, "dsn")
	dsn := fmt.Sprintf("postgres://postgres@localhost:%d/postgres?host=%s", s.port, r.dir)
	if err := os.WriteFile(file, []byte(dsn), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(testhost.Program(t, "postgresql", "/usr/lib/postgresql/*/bin/postgres"))
	for i := range rounds() {
		name := fmt.Sprintf("s%d", i)
		before := l.reached()
		var taken dbsnapshot.Taken
		r.does(&taken, "zfs", "snapshot", s.name, name, "--dsn", s.name+"=@"+file)
		after := l.reached()
		if taken.Position.LSN == "" || !taken.Position.AtLeast || len(taken.Layout.Datasets) != 2 {
			t.Errorf("%s: %+v", name, taken)
		}
		data, log := r.cloned("pg", name)
		wal := filepath.Join(data, "pg_wal")
		if err := os.Remove(wal); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(log, "wal"), wal); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(filepath.Join(data, "postmaster.pid"))
		c := r.start("postgres", "pgx", fmt.Sprintf("postgres://postgres@localhost:1/postgres?host=%s", r.dir),
			bin+"/postgres", "-D", data, "-k", r.dir, "-p", "1", "-c", "listen_addresses=")
		judge(t, c.db, before, after)
		var reached bool
		err := c.db.row("SELECT pg_current_wal_insert_lsn() >= '"+taken.Position.LSN+"'::pg_lsn", &reached)
		if err != nil || !reached {
			t.Errorf("%s: the copy is before %s: %v", name, taken.Position.LSN, err)
		}
		c.db.close()
		c.stop()
		r.uncloned()
	}
	l.stop()
	t.Logf("%d snapshots of PostgreSQL; %v transactions", rounds(), l.reached())
}

// Killed at any moment, the lock is gone, and the same command again makes the snapshot.
func TestSnapshotKilled(t *testing.T) {
	r := newRig(t)
	s := r.mariadb()
	s.exec("CREATE DATABASE load_test")
	s.in("load_test")
	l := s.load()
	r.waits(l)
	begun := time.Now()
	r.does(nil, "zfs", "snapshot", s.name, "whole")
	span, tries, left := time.Since(begun), 12, 0
	for i := range tries {
		name := fmt.Sprintf("k%d", i)
		cmd := r.command("zfs", "snapshot", s.name, name)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(span * time.Duration(i+1) / time.Duration(tries))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		was := l.reached()
		testhost.WaitFor(t, "commits to go on", func() bool { return l.reached() != was })
		if _, said, code := r.bulkhead("zfs", "snapshot", s.name, name); code != 0 {
			if !strings.Contains(said, "is there already") {
				t.Fatalf("%s: %s", name, said)
			}
		} else if strings.Contains(said, "halfway") {
			left++
		}
		var list struct{ Snapshots []dbsnapshot.Set }
		r.does(&list, "zfs", "list")
		if len(list.Snapshots) != i+2 || !list.Snapshots[0].Complete || list.Snapshots[0].Name != name {
			t.Fatalf("%s: %+v", name, list.Snapshots)
		}
	}
	t.Logf("killed %d times within %v; %d left a snapshot that was replaced", tries, span.Round(time.Millisecond), left)
}

// What one snapshot cannot hold is refused, and a server that cannot lock in time is let go.
func TestSnapshotRefuses(t *testing.T) {
	r := newRig(t)
	s := r.mariadb()
	t.Run("outside", func(t *testing.T) {
		elsewhere := filepath.Join(r.dir, "elsewhere")
		if err := os.Mkdir(elsewhere, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(elsewhere, 0o777); err != nil {
			t.Fatal(err)
		}
		s.exec("CREATE DATABASE d")
		s.exec("CREATE TABLE d.outside (n INT) DATA DIRECTORY='" + elsewhere + "'")
		out, said, code := r.bulkhead("zfs", "snapshot", s.name, "x")
		if code != 5 || !strings.Contains(said, "not on ZFS") {
			t.Errorf("exit status %d\n%s%s", code, out, said)
		}
		s.exec("DROP TABLE d.outside")
	})
	t.Run("locked", func(t *testing.T) {
		c, err := s.db.(mysqlClient).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.ExecContext(t.Context(), "BACKUP STAGE START"); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		out, said, code := r.bulkhead("zfs", "snapshot", s.name, "x", "--wait", "2s")
		if code != 1 || !strings.Contains(said, "imeout") || time.Since(begun) > 15*time.Second {
			t.Errorf("exit status %d after %v\n%s%s", code, time.Since(begun), out, said)
		}
		if _, err := c.ExecContext(t.Context(), "BACKUP STAGE END"); err != nil {
			t.Fatal(err)
		}
		r.does(nil, "zfs", "snapshot", s.name, "x")
		r.does(nil, "zfs", "snapshot", s.name, "y", "--crash-consistent")
	})
	t.Run("there", func(t *testing.T) {
		r.must("zfs", "snapshot", pool+"/my/data@foreign")
		for _, name := range []string{"x", "foreign"} {
			_, said, code := r.bulkhead("zfs", "snapshot", s.name, name)
			if code != 1 || !strings.Contains(said, "already") {
				t.Errorf("exit status %d: %s", code, said)
			}
		}
		r.does(nil, "zfs", "prune", "--keep", "1")
		r.must("zfs", "list", "-t", "snapshot", pool+"/my/data@foreign")
	})
	t.Run("two pools", func(t *testing.T) {
		r.must("sh", "-c", "[ -b /dev/vde1 ] || echo , | sfdisk -q /dev/vde")
		r.must("zpool", "create", "-f", "-O", "mountpoint="+filepath.Join(r.dir, "my", "data", "other"), "bhother",
			"/dev/vde1")
		defer r.must("zpool", "destroy", "-f", "bhother")
		_, said, code := r.bulkhead("zfs", "snapshot", s.name, "z")
		if code != 5 || !strings.Contains(said, "two pools") {
			t.Errorf("exit status %d: %s", code, said)
		}
	})
}

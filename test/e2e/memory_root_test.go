//go:build root

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
)

// client is a program that puts one question after the other to a MariaDB, and how long each took.
type client struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	mu    sync.Mutex
	took  []time.Duration
	ended chan error
}

// query has a MariaDB do something as root.
func (d *database) query(text string) {
	d.t.Helper()
	d.must(testhost.Program(d.t, "mariadb-client", "/usr/bin/mariadb", "/usr/bin/mysql"), "--no-defaults",
		"--socket="+filepath.Join(d.dir, "m.sock"), "-uroot", "-e", text)
}

// fill makes the table of reads.
func (d *database) fill(rows int) {
	d.t.Helper()
	digits := "SELECT 0 AS i" // MySQL has no table of numbers
	for i := 1; i < 10; i++ {
		digits += fmt.Sprintf(" UNION ALL SELECT %d", i)
	}
	d.query(fmt.Sprintf("CREATE DATABASE IF NOT EXISTS test; USE test; CREATE TABLE t (id INT PRIMARY KEY, c "+
		"VARBINARY(4000)) ENGINE=InnoDB; INSERT INTO t WITH d AS (%s) SELECT n, REPEAT('x', 4000) FROM (SELECT "+
		"a.i + 10 * b.i + 100 * c.i + 1000 * d.i + 10000 * e.i + 100000 * f.i AS n FROM d a, d b, d c, d, d e, d f) s "+
		"WHERE n < %d", digits, rows))
}

// reads starts a client that reads ranges of a table until the test ends.
func (d *database) reads(rows int) *client {
	d.t.Helper()
	c := &client{ended: make(chan error, 1)}
	c.cmd = d.command(testhost.Program(d.t, "mariadb-client", "/usr/bin/mariadb", "/usr/bin/mysql"), "--no-defaults",
		"--socket="+filepath.Join(d.dir, "m.sock"), "-uroot", "-N", "-n", "--unbuffered", "test")
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	d.t.Cleanup(func() { _ = c.in.Close(); _ = c.cmd.Process.Kill(); _ = c.cmd.Wait() })
	go func() {
		for {
			begun := time.Now()
			_, err := fmt.Fprintf(c.in, "SELECT SUM(LENGTH(c)) FROM t WHERE id BETWEEN %[1]d AND %[1]d + 20;\n",
				rand.IntN(rows))
			if err == nil {
				_, err = c.out.ReadString('\n')
			}
			if err != nil {
				c.ended <- err
				return
			}
			c.mu.Lock()
			c.took = append(c.took, time.Since(begun))
			c.mu.Unlock()
		}
	}()
	return c
}

// p99 is the time within which 99 % of the questions since the last call were answered, and their number.
func p99(all []*client) (time.Duration, int) {
	var took []time.Duration
	for _, c := range all {
		c.mu.Lock()
		took, c.took = append(took, c.took...), nil
		c.mu.Unlock()
	}
	if len(took) == 0 {
		return 0, 0
	}
	slices.Sort(took)
	return took[len(took)*99/100], len(took)
}

// TestLowerMariaDBUnderLoad: a MariaDB that uses 1 GiB, 240 MiB of it a buffer pool and most of the rest its files in
// the page cache, is lowered to 600 MiB while clients read, and then to less than its buffer pool, which is refused.
// Nobody is killed. Without LONG=1, and on a machine of less than 4 GiB (the lab's has 2), it is half of that.
func TestLowerMariaDBUnderLoad(t *testing.T) {
	s := newSite(t)
	full, limit, pool := int64(1<<30), int64(600<<20), int64(240<<20)
	if facts, err := host.New("/").Facts(); err != nil {
		t.Fatal(err)
	} else if facts.MemTotal < 4<<30 || os.Getenv("LONG") == "" {
		full, limit, pool = full/2, limit/2, pool/2
	}
	t.Setenv("TMPDIR", "/var/tmp") // on a disk, also where /tmp is in memory
	d := mariadb(t)
	d.args = append(d.args, fmt.Sprintf("--innodb-buffer-pool-size=%d", pool), "--innodb-flush-method=fsync",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--loose-innodb-log-file-size=64M",
		"--skip-log-bin", "--performance-schema=OFF")
	d.start()
	s.write(fmt.Sprintf("groups:\n  orders: {role: database, match: [{engine: mysql, port: %d}], memory: {max: "+
		"%dMiB}}\n", d.port, full>>20))
	s.must("apply")
	rows := int((full - pool + 150<<20) / 4400)
	d.fill(rows)
	d.query("SELECT SUM(LENGTH(c)) FROM test.t") // the files, page by page
	use := func() int64 { return *s.group("orders").Usage.Memory.Current }
	if before := use(); before < full*9/10 {
		t.Fatalf("it uses %s, too little to show anything", policy.Bytes(before).Human())
	}
	clients := []*client{d.reads(rows), d.reads(rows)}
	time.Sleep(time.Second)
	calm, n := p99(clients)
	t.Logf("before: %s in use, %d questions in 1 s, p99 %s", policy.Bytes(use()).Human(), n, calm)

	begun := time.Now()
	r := s.run("set", fmt.Sprintf("orders:memory.max=%dMiB", limit>>20))
	took := time.Since(begun)
	slow, n := p99(clients)
	t.Logf("to %s: exit %d after %s, %s in use; %d questions meanwhile, p99 %s", policy.Bytes(limit).Human(), r.code,
		took.Round(time.Millisecond), policy.Bytes(use()).Human(), n, slow)
	if r.code != 0 && r.code != 5 {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
	if took > 45*time.Second {
		t.Errorf("took %s, with 30s to wait", took)
	}
	if r.code == 0 && use() > limit {
		t.Errorf("%s in use", policy.Bytes(use()).Human())
	}
	time.Sleep(time.Second)
	after, n := p99(clients)
	t.Logf("after: %s in use, %d questions in 1 s, p99 %s", policy.Bytes(use()).Human(), n, after)

	if r := s.run("set", fmt.Sprintf("orders:memory.max=%dMiB", pool>>21)); r.code != 5 ||
		!strings.Contains(r.err, "cannot be reclaimed") {
		t.Errorf("half of the buffer pool: exit %d, %s%s", r.code, r.out, r.err)
	}
	if kills := s.group("orders").Usage.Memory.OOMKills; kills == nil || *kills != 0 {
		t.Errorf("OOM kills: %v", kills)
	}
	for _, c := range clients {
		select {
		case err := <-c.ended:
			t.Errorf("a client ended: %v", err)
		default:
		}
	}
	select {
	case <-d.exited:
		t.Error("the server is gone")
	default:
	}
	s.must("release", "--all")
}

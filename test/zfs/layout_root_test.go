//go:build root

package zfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/testhost"
	"bulkhead/internal/zfslayout"
)

// plain is a MariaDB in a directory of the machine's own file system, with an option file, and with tables.
type plain struct {
	*server
	data, cnf string
	text      []byte // of the option file
	rows      int    // that were written
}

func (r *rig) plain() *plain {
	r.t.Helper()
	if fresh == "" {
		r.freshMariaDB()
	}
	base := filepath.Join(r.dir, "plain")
	// The option file is where the server cannot write.
	p := &plain{data: filepath.Join(base, "mysql"), cnf: filepath.Join(r.dir, "my.cnf")}
	socket, port := filepath.Join(base, "my.sock"), testhost.FreePort(r.t)
	p.text = fmt.Appendf(nil, "[mysqld]\ndatadir = %s\nsocket = %s\nport = %d\nbind_address = 127.0.0.1\npid_file "+
		"= %s.pid\n"+
		"log_error = %s/error.log\ninnodb_buffer_pool_size = 32M\ninnodb_log_file_size = 32M\nskip_name_resolve\n"+
		"log_bin = bin\nserver_id = 1\n", p.data, socket, port, socket, base)
	if err := errors.Join(os.Mkdir(base, 0o777), os.Chmod(base, 0o777),
		os.WriteFile(p.cnf, p.text, 0o644)); err != nil {
		r.t.Fatal(err)
	}
	r.must("cp", "-a", fresh, p.data)
	r.must("touch", p.data+"/.hidden")
	p.server = r.start("mysql", "mysql", "root@unix("+socket+")/", "/usr/sbin/mariadbd", "--defaults-file="+p.cnf)
	p.name, p.socket, p.port = "mysql"+strconv.Itoa(port), socket, port
	r.t.Cleanup(p.end)
	p.fill()
	return p
}

// fill makes tables.
func (p *plain) fill() {
	p.r.t.Helper()
	p.exec("CREATE DATABASE shop")
	p.exec("CREATE TABLE shop.numbers (n INT PRIMARY KEY, t VARCHAR(100))")
	p.exec("INSERT INTO shop.numbers SELECT seq, REPEAT('x', 90) FROM shop.seq_1_to_5000")
	p.exec("CREATE TABLE shop.plain (n INT) ENGINE=Aria")
	p.exec("INSERT INTO shop.plain VALUES (1), (2)")
	p.exec("CREATE TABLE shop.written (n INT AUTO_INCREMENT PRIMARY KEY)")
}

// end ends the server that bulkhead started.
func (p *plain) end() {
	text, _ := os.ReadFile(p.socket + ".pid")
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for end := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil && time.Now().Before(end); {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// login logs in to the server that runs now.
func (p *plain) login() {
	p.r.t.Helper()
	if err := p.use("mysql", "root@unix("+p.socket+")/"); err != nil {
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(p.data), "error.log"))
		p.r.t.Fatalf("%v\n%s", err, text)
	}
}

// sums are the checksums of every table of the server but those that it writes as it runs, and that write writes. It
// sees that each row is there that was written.
func (p *plain) sums() string {
	p.r.t.Helper()
	p.login()
	defer p.db.close()
	var n int
	if err := p.db.row("SELECT COUNT(*) FROM shop.written", &n); err != nil || n != p.rows {
		p.r.t.Errorf("%d of %d rows are there: %v", n, p.rows, err)
	}
	rows, err := p.db.(mysqlClient).Query("SELECT CONCAT('`', table_schema, '`.`', table_name, '`') " +
		"FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema NOT IN " +
		"('information_schema', 'performance_schema') AND table_name NOT IN ('general_log', 'slow_log', 'written', " +
		"'innodb_table_stats', 'innodb_index_stats') ORDER BY 1")
	if err != nil {
		p.r.t.Fatal(err)
	}
	var tables []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			p.r.t.Fatal(err)
		}
		tables = append(tables, name)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		p.r.t.Fatal(err)
	}
	text := ""
	for _, name := range tables {
		var table string
		var sum *int64
		if err := p.db.row("CHECKSUM TABLE "+name+" EXTENDED", &table, &sum); err != nil {
			p.r.t.Fatal(err)
		}
		if sum != nil {
			text += fmt.Sprintf("%s %d\n", table, *sum)
		}
	}
	if strings.Count(text, "\n") < 20 || !strings.Contains(text, "shop.numbers") {
		p.r.t.Fatalf("only these tables were read:\n%s", text)
	}
	return text
}

// write commits a row.
func (p *plain) write() {
	p.r.t.Helper()
	p.login()
	defer p.db.close()
	p.exec("INSERT INTO shop.written VALUES ()")
	p.rows++
}

// onZFS sees that the server runs on the data sets.
func (p *plain) onZFS() {
	t := p.r.t
	t.Helper()
	for set, point := range map[string]string{"data": p.data, "log": p.data + "-log"} {
		got := p.r.must("zfs", "get", "-H", "-o", "value", "mounted,mountpoint,canmount", pool+"/"+p.name+"/"+set)
		if strings.Fields(got)[0] != "yes" || strings.Fields(got)[1] != point || strings.Fields(got)[2] != "on" {
			t.Errorf("%s: %s", set, got)
		}
	}
	p.login()
	defer p.db.close()
	var redo string
	if err := p.db.row("SELECT @@innodb_log_group_home_dir", &redo); err != nil ||
		filepath.Clean(redo) != p.data+"-log" {
		t.Errorf("redo log in %q: %v", redo, err)
	}
	if _, err := os.Stat(p.data + "-log/ib_logfile0"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{p.data + "/.hidden", p.data + zfslayout.Suffix + "/ib_logfile0"} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
	if got := p.r.must("zfs", "get", "-H", "-o", "value", "recordsize", pool+"/"+p.name+"/data"); got != "16K" {
		t.Errorf("recordsize %s", got)
	}
}

// before sees that all is as it was, but for what the server writes.
func (p *plain) before() {
	t := p.r.t
	t.Helper()
	if text, err := os.ReadFile(p.cnf); err != nil || string(text) != string(p.text) {
		t.Errorf("option file: %v\n%s", err, text)
	}
	for _, name := range []string{p.cnf + zfslayout.Suffix, p.data + zfslayout.Suffix, p.data + "-log",
		filepath.Join(p.r.dir, "state", "zfs-layout", p.name+".json")} {
		if _, err := os.Lstat(name); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	if got := p.r.must("zfs", "list", "-H", "-o", "name"); got != pool {
		t.Errorf("data sets are left: %s", got)
	}
	if got := p.r.must("stat", "-f", "-c", "%T", p.data); got == "zfs" {
		t.Error("the data is on ZFS")
	}
}

// A MariaDB is moved onto ZFS and back with every table and every row that was committed meanwhile; what has no second
// copy is refused; finish removes the old directory and nothing else.
func TestLayoutOfMariaDB(t *testing.T) {
	r := newRig(t)
	p := r.plain()
	was := p.sums()
	if out, said, code := r.bulkhead("zfs", "plan", p.name, "--pool", "none", "--device", "/dev/vde1"); code != 5 ||
		!strings.Contains(out, "nothing mirrors /dev/vde1") {
		t.Errorf("exit status %d\n%s%s", code, out, said)
	}
	t.Log(r.does(nil, "zfs", "plan", p.name, "--pool", pool))
	begun := time.Now()
	t.Log(r.does(nil, "zfs", "apply", p.name, "--pool", pool, "--reason", "test"))
	t.Logf("moved in %v", time.Since(begun).Round(time.Second))
	p.onZFS()
	if now := p.sums(); now != was {
		t.Errorf("checksums before:\n%s\nafter:\n%s", was, now)
	}
	if out, _, code := r.bulkhead("zfs", "plan", p.name, "--pool", pool); code != 5 || !strings.Contains(out,
		"already") {
		t.Errorf("a second plan: %d\n%s", code, out)
	}
	t.Log(r.does(nil, "zfs", "check", p.name))
	p.write()
	was = p.sums()
	begun = time.Now()
	t.Log(r.does(nil, "zfs", "rollback", p.name))
	t.Logf("moved back in %v", time.Since(begun).Round(time.Second))
	p.before()
	if now := p.sums(); now != was {
		t.Errorf("checksums on ZFS:\n%s\nback:\n%s", was, now)
	}

	r.does(nil, "zfs", "apply", p.name, "--pool", pool)
	p.write()
	was = p.sums()
	aside := p.data + zfslayout.Suffix
	t.Log(r.does(nil, "zfs", "finish", p.name, "--dry-run"))
	if _, err := os.Stat(aside); err != nil {
		t.Error(err)
	}
	t.Log(r.does(nil, "zfs", "finish", p.name))
	if _, err := os.Lstat(aside); err == nil {
		t.Errorf("%s is left", aside)
	}
	if now := p.sums(); now != was {
		t.Errorf("checksums before finish:\n%s\nafter:\n%s", was, now)
	}
	if _, said, code := r.bulkhead("zfs", "rollback", p.name); code != 1 || !strings.Contains(said, "no move") {
		t.Errorf("rollback after finish: %d, %s", code, said)
	}
}

// killed runs a verb that dies after some steps, as a variable says; "" where it came to its end.
func (r *rig) killed(variable string, step int, args ...string) string {
	r.t.Helper()
	cmd := r.command(args...)
	cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(step))
	out, err := cmd.CombinedOutput()
	at := regexp.MustCompile(`(?m)^killed at: (.*)$`).FindSubmatch(out)
	var failed *exec.ExitError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &failed) && at != nil:
		return string(at[1])
	}
	r.t.Fatalf("bulkhead %q: %v\n%s", args, err, out)
	return ""
}

// Killed at steps of the move and of the way back, a second run ends it or a rollback takes it back, and every
// table has what was committed. A long run is killed at every step, in parts so that each may be run alone.
func TestLayoutKilled(t *testing.T) {
	parts, every := 3, 3 // each takes half a minute in emulation; internal/zfslayout is killed at each one of a model
	if testing.Short() {
		parts, every = 1, 7
	}
	for part := range parts {
		t.Run(fmt.Sprintf("from step %d", part), func(t *testing.T) {
			r := newRig(t)
			p := r.plain()
			p.killedMoves(p.sums(), part, every)
		})
	}
}

// killedMoves kills moves and ways back, each at the step behind the first ones and every some on from there. was are
// the checksums of all tables before.
func (p *plain) killedMoves(was string, first, every int) {
	r, t := p.r, p.r.t
	t.Helper()
	seen := []string{}
	forth, back, round := first, first, 0 // how many steps are let pass
	for ends := 0; ends < 2 && !t.Failed(); round++ {
		at := r.killed("BULKHEAD_TEST_LAYOUT", forth, "zfs", "apply", p.name, "--pool", pool)
		ends = 0
		if at == "" {
			ends++
		} else {
			seen = append(seen, at)
		}
		if at == "" || round%2 == 0 {
			if _, said, code := r.bulkhead("zfs", "apply", p.name); code != 0 && !strings.Contains(said,
				"it is applied") {
				t.Fatalf("killed at %q, then apply: %s", at, said)
			}
			p.onZFS()
			if now := p.sums(); now != was {
				t.Fatalf("killed at %q: checksums before:\n%s\nafter:\n%s", at, was, now)
			}
			p.write()
			if step := r.killed("BULKHEAD_TEST_LAYOUT", back, "zfs", "rollback", p.name); step != "" {
				at = step
				seen = append(seen, "back: "+step)
			} else {
				ends++
			}
			back += every
		}
		if _, said, code := r.bulkhead("zfs", "rollback", p.name); code != 0 && !strings.Contains(said, "no move") {
			t.Fatalf("killed at %q, then rollback: %s", at, said)
		}
		p.before()
		if now := p.sums(); now != was {
			t.Fatalf("killed at %q: checksums before:\n%s\nafter:\n%s", at, was, now)
		}
		forth += every
	}
	t.Logf("killed at %d steps:\n%s", len(seen), strings.Join(seen, "\n"))
	if len(seen) < 4 {
		t.Error("hardly any step was seen")
	}
}

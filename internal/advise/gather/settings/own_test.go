package settings

import (
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

// The file of a server is in a directory that it reads, so that nothing after it has another word; where that cannot
// be, why is said.
func TestPlaces(t *testing.T) {
	const (
		my     = "-- etc/mysql/my.cnf --\n[mysqld]\nport = 3306\ndatadir = /var/lib/mysql\n"
		dirs   = "!includedir /etc/mysql/conf.d/\n!includedir /etc/mysql/mysql.conf.d/\n"
		inside = "-- etc/mysql/conf.d/a.cnf --\n[mysqld]\nsync_binlog = 0\n-- etc/mysql/mysql.conf.d/mysqld.cnf --\n" +
			"[mysqld]\n"
		pg     = "-- var/lib/postgresql/15/main/postgresql.conf --\nfsync = off\n"
		pgDir  = "include_dir = 'conf.d'\n"
		pgIn   = "-- var/lib/postgresql/15/main/conf.d/a.conf --\nfsync = off\n"
		second = "-- proc/812/cmdline --\n" +
			"escaped: /usr/sbin/mysqld\\0--defaults-file=/etc/mysql/my.cnf\\0--sync-binlog=0\\0\n"
	)
	for name, c := range map[string]struct{ more, instance, name, value, file, why string }{
		"the last directory": {my + dirs + inside, "mysql3306", "sync_binlog", "1",
			"/etc/mysql/mysql.conf.d/zz-bulkhead.cnf", ""},
		"a line behind it": {my + dirs + "[mysqld]\nsync-binlog = 0\n" + inside, "mysql3306", "sync_binlog", "1", "",
			"/etc/mysql/my.cnf:7 sets it"},
		"a file behind it in one directory, not in the other": {my + dirs + inside +
			"-- etc/mysql/mysql.conf.d/zzz.cnf --\n[mysqld]\nsync_binlog = 0\n", "mysql3306", "sync_binlog", "1", "",
			"/etc/mysql/mysql.conf.d/zzz.cnf:2 sets it"},
		"the command line": {my + dirs + inside + second, "mysql3306", "sync_binlog", "1", "",
			"the command line sets it"},
		"no directory": {my, "mysql3306", "sync_binlog", "1", "", "include no directory"},
		"SET PERSIST": {my + dirs + inside + "-- var/lib/mysql/mysqld-auto.cnf --\n{\"sync_binlog\": 0}\n",
			"mysql3306", "sync_binlog", "1", "", "SET PERSIST sync_binlog = 1"},
		"a short form": {my + dirs + "[mysqld]\nskip-innodb-doublewrite\n" + inside, "mysql3306",
			"innodb_doublewrite", "ON", "", "/etc/mysql/my.cnf:7 sets it"},
		"a short form before it": {my + "skip-innodb-doublewrite\n" + dirs + inside, "mysql3306", "innodb_doublewrite",
			"ON", "/etc/mysql/mysql.conf.d/zz-bulkhead.cnf", ""},
		"a value that can do harm": {my + dirs + inside, "mysql3306", "innodb_doublewrite", "OFF", "",
			"do so yourself"},
		"a value for a person": {my + dirs + inside, "mysql3306", "sync_binlog", "", "", "for you to choose"},
		"PostgreSQL": {pg + pgDir + pgIn, "postgresql5432", "fsync", "on",
			"/var/lib/postgresql/15/main/conf.d/zz-bulkhead.conf", ""},
		"a directory elsewhere": {pg + "include_dir = '/etc/site'\n-- etc/site/a.conf --\n", "postgresql5432", "fsync",
			"on", "", "/etc/site is not beside /var/lib/postgresql/15/main/postgresql.conf"},
		"PostgreSQL without a directory": {pg, "postgresql5432", "fsync", "on", "", "include_dir = 'conf.d'"},
		"a directory before the line": {strings.Replace(pg, "fsync", pgDir+"fsync", 1) + pgIn, "postgresql5432",
			"fsync", "on", "", "/var/lib/postgresql/15/main/postgresql.conf:2 sets it"},
		"ALTER SYSTEM": {pg + pgDir + pgIn + "-- var/lib/postgresql/15/main/postgresql.auto.conf --\nfsync = 'off'\n",
			"postgresql5432", "fsync", "on", "", "/var/lib/postgresql/15/main/postgresql.auto.conf:1 sets it"},
		"an engine without files": {"", "mongodb27017", "storage.journal.enabled", "true", "", "do so yourself"},
	} {
		h := host.New(linuxtest.Unpack(t, linuxtest.Text(t, "storage/dbhost")+c.more))
		places, err := Places(h, []string{c.instance}, c.name, c.value)
		p, known := places[c.instance]
		if err != nil || !known || p.File != c.file || (c.why == "") != (p.Why == "") ||
			!strings.Contains(p.Why, c.why) {
			t.Errorf("%s: %+v, %v", name, places, err)
		}
	}
}

// A file of one instance is none that another one has at once.
func TestHasAtOnce(t *testing.T) {
	h := host.New(linuxtest.Unpack(t, linuxtest.Text(t, "storage/dbhost")))
	const own = "/var/lib/postgresql/15/main/conf.d/zz-bulkhead.conf"
	for _, c := range []struct {
		instance, file string
		want           bool
	}{
		{"postgresql5432", own, true}, {"postgresql5432", "/srv/pg2/conf.d/zz-bulkhead.conf", false},
		{"postgresql5433", own, false}, {"mysql3306", "/etc/mysql/conf.d/zz-bulkhead.cnf", false},
	} {
		if got := HasAtOnce(h, c.instance, c.file); got != c.want {
			t.Errorf("%s has %s at once: %t", c.instance, c.file, got)
		}
	}
}

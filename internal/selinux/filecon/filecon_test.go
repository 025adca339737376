package filecon_test

import (
	"testing"

	"bulkhead/internal/selinux/filecon"
)

// base is written after what https://www.percona.com/blog/2018/06/21/enforcing-selinux-with-percona-xtradb-cluster/
// prints of the file contexts of MySQL on CentOS 7, and local after what it adds.
const (
	base = `# a comment
/.*	system_u:object_r:default_t:s0
/[^/]+	--	system_u:object_r:etc_runtime_t:s0
/tmp/.*	<<none>>
/var/.*	system_u:object_r:var_t:s0
/var/lib(/.*)?	system_u:object_r:var_lib_t:s0
/var/lib/mysql(-files|-keyring)?(/.*)?	system_u:object_r:mysqld_db_t:s0
/var/lib/mysql/mysql\.sock	-s	system_u:object_r:mysqld_var_run_t:s0
/var/log/mysql.*	--	system_u:object_r:mysqld_log_t:s0
/var/run/mysqld(/.*)?	system_u:object_r:mysqld_var_run_t:s0
/etc/my\.cnf	--	system_u:object_r:mysqld_etc_t:s0
/usr/sbin/mysqld(-max)?	--	system_u:object_r:mysqld_exec_t:s0
/usr/(s)?bin/mariadbd?	--	system_u:object_r:mysqld_exec_t:s0
/opt/a|/opt/b	system_u:object_r:usr_t:s0
/srv/x?y	system_u:object_r:usr_t:s0
/broken/(?=x)	system_u:object_r:usr_t:s0
/bad
`
	local = "/etc/percona-xtradb-cluster\\.cnf system_u:object_r:mysqld_etc_t:s0\n" +
		"/data(/.*)? system_u:object_r:mysqld_db_t:s0\n"
	subs     = "/fast /data\n"
	subsDist = "# equal\n/run /var/run\n"
)

// wanted are the types of paths, which matchpathcon gives, too.
var wanted = []struct{ path, class, want string }{
	{"/var/lib/mysql/ibdata1", "file", "mysqld_db_t"}, {"/var/lib/mysql", "dir", "mysqld_db_t"},
	{"/var/lib/mysql-files/a", "file", "mysqld_db_t"}, {"/var/lib/mysql-other/a", "file", "var_lib_t"},
	{"/var/lib/mysql/mysql.sock", "sock_file", "mysqld_var_run_t"},
	{"/var/lib/mysql/mysql.sock", "file", "mysqld_db_t"},
	{"/var/lib/mysql/mysqlxsock", "sock_file", "mysqld_db_t"},
	{"/run/mysqld/mysqld.pid", "file", "mysqld_var_run_t"}, {"/running/a", "file", "default_t"},
	{"/etc/my.cnf", "file", "mysqld_etc_t"}, {"/etc/myxcnf", "file", "default_t"}, {"/etc/my.cnf", "dir", "default_t"},
	{"/usr/sbin/mysqld-max", "file", "mysqld_exec_t"}, {"/usr/bin/mariadb", "file", "mysqld_exec_t"},
	{"/usr/sbin/mariadbd", "file", "mysqld_exec_t"}, {"/usr/sbin/mysqldx", "file", "default_t"},
	{"/etc/percona-xtradb-cluster.cnf", "file", "mysqld_etc_t"}, {"/data/db/a.ibd", "file", "mysqld_db_t"},
	{"/data/", "dir", "mysqld_db_t"}, {"/fast/db", "dir", "mysqld_db_t"}, {"/database", "dir", "default_t"},
	{"/opt/b", "dir", "usr_t"}, {"/srv/y", "file", "usr_t"}, {"/srv/xy", "file", "usr_t"},
	{"/srv/zy", "file", "default_t"},
}

func TestContext(t *testing.T) {
	table := filecon.Parse(base, "", local, subs, subsDist)
	for range 2 { // compiled once
		for _, c := range wanted {
			if got, none := table.Context(c.path, c.class); got != "system_u:object_r:"+c.want+":s0" || none {
				t.Errorf("%s %s is %q, want %s", c.class, c.path, got, c.want)
			}
		}
	}
	if got, none := table.Context("/tmp/a", "file"); got != "" || !none {
		t.Errorf("<<none>> is %q, %v", got, none)
	}
	if got, none := filecon.Parse("/a --  u:object_r:a_t:s0", "", "", "", "").Context("/b", "file"); got != "" || none {
		t.Errorf("no line is %q, %v", got, none)
	}
}

// Whatever the texts have, a path gets an answer.
func FuzzContext(f *testing.F) {
	f.Add(base, subs, "/var/lib/mysql/a")
	f.Add("/a(/.*)?(b|c u:r:t", "/ /", "/")
	f.Add(`/\d+\ u:r:t`, "a  b", "/1")
	f.Fuzz(func(_ *testing.T, text, subs, path string) {
		filecon.Parse(text, text, "", subs, subs).Context(path, "file")
	})
}

package verdict_test

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/selinux/policydb"
	"bulkhead/internal/selinux/verdict"
)

// denied is a line of a denial of mysqld_t.
func denied(permissions, extra, target, class string) string {
	return from("system_u:system_r:mysqld_t:s0", permissions, extra, target, class)
}

func from(source, permissions, extra, target, class string) string {
	return "type=AVC msg=audit(1527792830.989:136): avc:  denied  { " + permissions + " } for  pid=7 " + extra +
		" scontext=" + source + " tcontext=" + target + " tclass=" + class + "\n"
}

const (
	varLib  = "system_u:object_r:var_lib_t:s0"
	named   = `comm="mysqld" name="mariadb-bin.index" dev="dm-0" ino=5`
	withIts = `comm="mysqld" path="/data/mysql/ibdata1" dev="dm-0" ino=5`
)

// ibdata1 is a type of that file.
func ibdata1(kind string) map[string]string { return map[string]string{"/data/mysql/ibdata1": kind} }

// only judges a log of one group.
func only(t *testing.T, host verdict.Host, text string) verdict.Verdict {
	t.Helper()
	r := verdict.Judge(read(t, text), host)
	if len(r.Verdicts) != 1 {
		t.Fatalf("%d groups", len(r.Verdicts))
	}
	return r.Verdicts[0]
}

func allowing(rules ...string) policy {
	p := policy{allowed: map[string]bool{}, types: []string{"mysqld_db_t", "mysqld_log_t", "httpd_log_t"}}
	for _, r := range rules {
		p.allowed[r] = true
	}
	return p
}

func TestVerdicts(t *testing.T) {
	db := allowing("mysqld_t mysqld_db_t file write")
	for name, c := range map[string]struct {
		host verdict.Host
		log  string
		kind verdict.Kind
		fix  string // "" is none
		open bool   // something is undecided
	}{
		"a label that differs": {
			host: verdict.Host{Policy: db, Files: files{expected: ibdata1("mysqld_db_t")}},
			log:  denied("write", withIts, varLib, "file"), kind: verdict.Label,
			fix: "restorecon -v /data/mysql/ibdata1"},
		"a label that was put right": {
			host: verdict.Host{Policy: db,
				Files: files{expected: ibdata1("mysqld_db_t"), actual: ibdata1("mysqld_db_t")}},
			log: denied("write", withIts, varLib, "file"), kind: verdict.Stale, fix: "nothing"},
		"a label that would not help": {
			host: verdict.Host{Policy: allowing(), Files: files{expected: ibdata1("cert_t")}},
			log:  denied("write", withIts, varLib, "file"), kind: verdict.Rule,
			fix: "allow mysqld_t var_lib_t:file write;"},
		"a place without a label of its own": {host: verdict.Host{Policy: db},
			log: denied("write", withIts, varLib, "file"), kind: verdict.Label,
			fix: "semanage fcontext -a -t mysqld_db_t '/data/mysql/ibdata1(/.*)?'"},
		"a directory that was looked up": {host: verdict.Host{Policy: allowing("mysqld_t mysqld_db_t dir write")},
			log: denied("write", `comm="mysqld" path="/data/mysql/"`, varLib, "dir"), kind: verdict.Label,
			fix: "semanage fcontext -a -t mysqld_db_t '/data/mysql(/.*)?', then restorecon -R -v /data/mysql"},
		"two types are possible": {
			host: verdict.Host{Policy: allowing("mysqld_t mysqld_db_t file write", "mysqld_t mysqld_log_t file write")},
			log:  denied("write", withIts, varLib, "file"), kind: verdict.Label, fix: "semanage fcontext -a -t TYPE"},
		"no path": {host: verdict.Host{Policy: db}, log: denied("write", named, varLib, "file"), kind: verdict.Label,
			fix: "semanage fcontext -a -t mysqld_db_t 'PATH", open: true},
		"no path and no policy": {log: denied("write", named, varLib, "file"), kind: verdict.Label,
			fix: "run this again", open: true},
		"only read": {log: denied("read", named, varLib, "file"), kind: verdict.Rule, fix: "allow", open: true},
		"never meant": {host: verdict.Host{Policy: allowing("mysqld_t mysqld_db_t file read")},
			log:  denied("read", withIts, "system_u:object_r:default_t:s0", "file"),
			kind: verdict.Label, fix: "semanage fcontext -a -t mysqld_db_t"},
		"a file in /tmp": {host: verdict.Host{Policy: db},
			log:  denied("write", `comm="mysqld" path="/tmp/a.b"`, "system_u:object_r:tmp_t:s0", "file"),
			kind: verdict.Label, fix: "let the database use a directory of its own"},
		"stale": {host: verdict.Host{Policy: db},
			log:  denied("write", withIts, "system_u:object_r:mysqld_db_t:s0", "file"),
			kind: verdict.Stale, fix: "nothing"},
		"a constraint": {
			host: verdict.Host{Policy: policy{allowed: db.allowed, constrained: "file"}},
			log:  denied("write", withIts, "system_u:object_r:mysqld_db_t:s0:c1,c2", "file"), kind: verdict.Constraint,
			fix: "compare the two contexts"},
		"a narrow boolean": {
			host: verdict.Host{Policy: policy{booleans: map[string][]string{
				"mysqld_t nfs_t dir search": {"use_nfs_home_dirs"}}}},
			log:  denied("search", `comm="mysqld" name="nfs"`, "system_u:object_r:nfs_t:s0", "dir"),
			kind: verdict.Boolean, fix: "setsebool -P use_nfs_home_dirs on"},
		"a boolean that opens far more": {
			host: verdict.Host{Policy: policy{booleans: map[string][]string{
				"mysqld_t mssql_port_t tcp_socket name_connect": {"mysql_connect_any"}}}},
			log:  denied("name_connect", `comm="mysqld" dest=1433`, "system_u:object_r:mssql_port_t:s0", "tcp_socket"),
			kind: verdict.Rule, fix: "allow mysqld_t mssql_port_t:tcp_socket name_connect;"},
		"a port by now": {
			host: verdict.Host{Policy: policy{
				allowed: map[string]bool{"mysqld_t mysqld_port_t tcp_socket name_bind": true},
				ports:   []policydb.Port{{Protocol: "tcp", Low: 4568, High: 4568, Type: "mysqld_port_t"}}}},
			log:  denied("name_bind", `comm="mysqld" src=4568`, "system_u:object_r:unreserved_port_t:s0", "tcp_socket"),
			kind: verdict.Stale, fix: "nothing"},
		"a port without a number": {host: verdict.Host{Policy: allowing()},
			log:  denied("name_bind", `comm="mysqld"`, "system_u:object_r:unreserved_port_t:s0", "tcp_socket"),
			kind: verdict.Rule, fix: "allow", open: true},
		"a program in a starter's domain": {
			host: verdict.Host{Policy: allowing(),
				Starts: policy{domains: map[string]string{"mysqld_exec_t": "mysqld_t"}},
				Files: files{expected: map[string]string{"/usr/sbin/mariadbd": "mysqld_exec_t"},
					actual: map[string]string{"/usr/sbin/mariadbd": "bin_t"}}},
			log: from("system_u:system_r:initrc_t:s0", "write", `comm="mariadbd" exe="/usr/sbin/mariadbd"`,
				"system_u:object_r:mysqld_db_t:s0", "file"),
			kind: verdict.Domain, fix: "restorecon -v /usr/sbin/mariadbd, and start the service again"},
		"a starter's domain and no program": {
			log: from("system_u:system_r:init_t:s0", "name_connect", `comm="gunicorn" dest=3306`,
				"system_u:object_r:mysqld_port_t:s0", "tcp_socket"), kind: verdict.Rule, fix: "allow", open: true},
	} {
		v := only(t, c.host, c.log)
		if v.Kind != c.kind || !strings.HasPrefix(strings.Join(v.Fix, "\n"), c.fix) ||
			(len(v.Undecided) > 0) != c.open || len(v.Because) == 0 || len(v.Evidence) != 1 ||
			v.Evidence[0].Number != 1 || v.Count != 1 {
			t.Errorf("%s: %+v", name, v)
		}
		if (v.Needed != "") != (c.kind == verdict.Rule) {
			t.Errorf("%s: needs %q", name, v.Needed)
		}
	}
}

// What is said of many paths is true of each: one that is put right by now does not hide one that is not.
func TestPathsOfOneGroup(t *testing.T) {
	host := verdict.Host{Policy: allowing("mysqld_t mysqld_db_t file write"),
		Files: files{expected: map[string]string{}, actual: map[string]string{}}}
	log := func(kinds string) (text string) {
		for i, kind := range kinds {
			at := fmt.Sprintf("/data/%c%d", kind, i)
			text += denied("write", `comm="mysqld" path="`+at+`"`, varLib, "file")
			expected, actual := host.Files.(files).expected, host.Files.(files).actual
			switch kind {
			case 'w': // it has the wrong label
				expected[at], actual[at] = "mysqld_db_t", "var_lib_t"
			case 'n': // it has the right one by now
				expected[at], actual[at] = "mysqld_db_t", "mysqld_db_t"
			case 'r': // it had the right one
				expected[at], actual[at] = "var_lib_t", "var_lib_t"
			}
		}
		return text
	}
	for kinds, want := range map[string]string{
		"n": "stale: nothing: leave these lines out", "nn": "stale: nothing: leave these lines out",
		"wn": "wrong label: restorecon -v /data/w0", "nw": "wrong label: restorecon -v /data/w1",
		"nnnnw": "wrong label: restorecon -v /data/w4",
		"rrrrw": "wrong label: restorecon -v /data/w4; " +
			"run this again on a newer log: for 4 other paths that does not help",
		"wwwww": "wrong label: restorecon -v /data/w0; restorecon -v /data/w1; restorecon -v /data/w2",
		"nr":    "wrong label: semanage fcontext -a -t mysqld_db_t '/data/r1(/.*)?', then restorecon -R -v /data/r1",
	} {
		v := only(t, host, log(kinds))
		if got := string(v.Kind) + ": " + strings.Join(v.Fix, "; "); got != want {
			t.Errorf("%s: %s, want %s", kinds, got, want)
		}
		if more := slices.Contains(v.Because, "and so have 2 paths more"); more != (kinds == "wwwww") {
			t.Errorf("%s: because %q", kinds, v.Because)
		}
	}
}

// The name of a file is what somebody else has chosen: in a command that root types it is one word.
func TestNamesInCommands(t *testing.T) {
	host := verdict.Host{Policy: allowing("mysqld_t mysqld_db_t file write"), Files: files{
		expected: map[string]string{"/data/a'; reboot": "mysqld_db_t", "/data/$(reboot)": "mysqld_db_t"}}}
	path := func(at string) string { return "path=" + strings.ToUpper(hex.EncodeToString([]byte(at))) }
	for log, want := range map[string]string{
		path("/data/a'; reboot"):  `restorecon -v '/data/a'\''; reboot'`,
		path("/data/$(reboot)"):   `restorecon -v '/data/$(reboot)'`,
		path("/srv/a' $(reboot)"): `semanage fcontext -a -t mysqld_db_t '/srv/a'\'' \$\(reboot\)(/.*)?'`,
	} {
		v := only(t, host, denied("write", `comm="mysqld" `+log, varLib, "file"))
		if len(v.Fix) != 1 || !strings.HasPrefix(v.Fix[0], want) {
			t.Errorf("%q, want %s", v.Fix, want)
		}
	}
	v := only(t, verdict.Host{Policy: allowing(),
		Starts: policy{domains: map[string]string{"mysqld_exec_t": "mysqld_t"}},
		Files:  files{expected: map[string]string{"/opt/a b": "mysqld_exec_t"}}},
		from("system_u:system_r:initrc_t:s0", "write", `comm="a" exe="/opt/a b"`, varLib, "file"))
	if len(v.Fix) != 1 || !strings.HasPrefix(v.Fix[0], "restorecon -v '/opt/a b', ") {
		t.Errorf("%q", v.Fix)
	}
}

// A program that looks at three other domains looks at all; the script that starts it is found by its parents.
func TestScript(t *testing.T) {
	ss := func(target string) string {
		return denied("getattr", `comm="ss"`, "system_u:system_r:"+target+":s0", "process")
	}
	process := func(pid, parent int, comm, title string) string {
		at := fmt.Sprintf("msg=audit(1527792830.989:%d): ", 136+pid-7)
		return fmt.Sprintf("type=SYSCALL %sppid=%d pid=%d comm=%q exe=\"/usr/bin/bash\"\n"+
			"type=PROCTITLE %sproctitle=%X\n", at, parent, pid, comm, at, title)
	}
	log := ss("init_t") + ss("sshd_t") + ss("crond_t") +
		denied("read", `comm="mysqld"`, "system_u:object_r:etc_t:s0", "file") +
		process(7, 6, "ss", "ss\x00-p") + process(6, 5, "bash", "bash") +
		process(5, 1, "wsrep_sst", "bash\x00-ue\x00/usr/bin/wsrep_sst_xtrabackup-v2\x00--role\x00joiner")
	script := files{text: map[string]string{"/usr/bin/wsrep_sst_xtrabackup-v2": "#!/bin/bash -ue\n" +
		"# ss is used below\nclass=1\n    ss -p state listening " +
		"\"( sport = :$PORT )\" | grep -qE 'socat|nc' && break\n"}}
	r := verdict.Judge(read(t, log), verdict.Host{Files: script})
	fault := r.Of(verdict.Script)
	if len(fault) != 3 || len(r.Verdicts) != 4 {
		t.Fatalf("%+v", r.Verdicts)
	}
	want := `started at /usr/bin/wsrep_sst_xtrabackup-v2:4: ss -p state listening "( sport = :$PORT )" | grep -qE ` +
		`'socat|nc' && break`
	for _, v := range fault {
		if !slices.Contains(v.Because, want) || len(v.Undecided) > 0 || v.Needed != "" ||
			len(v.Broad) != 1 || v.Broad[0].Name != "process sweep" {
			t.Errorf("%+v", v)
		}
	}
	// Two domains are not all, and the database's own name is no excuse for another type of access.
	r = verdict.Judge(read(t, ss("init_t")+ss("sshd_t")), verdict.Host{})
	if n := len(r.Of(verdict.Rule)); n != 2 {
		t.Errorf("two domains: %+v", r.Verdicts)
	}
	// What another program did stays, with its own permissions.
	mixed := verdict.Judge(read(t, ss("init_t")+ss("sshd_t")+ss("crond_t")+
		denied("sigkill", `comm="mysqld"`, "system_u:system_r:crond_t:s0", "process")), verdict.Host{})
	if !slices.Equal(mixed.Rules, []string{"allow mysqld_t crond_t:process sigkill;"}) ||
		len(mixed.Of(verdict.Script)) != 2 {
		t.Errorf("%q, %+v", mixed.Rules, mixed.Verdicts)
	}
}

// What is allowed in permissive mode is counted as such.
func TestPermissiveIsSaid(t *testing.T) {
	line := strings.TrimSuffix(denied("read", named, varLib, "file"), "\n")
	v := only(t, verdict.Host{}, line+" permissive=1\n"+line+" permissive=0\n"+line+"\n")
	if v.Count != 3 || v.Allowed != 1 {
		t.Errorf("%d denials, %d allowed", v.Count, v.Allowed)
	}
}

// A policy that was loaded after a denial may allow it: without it to ask, that is said.
func TestLoadedAfterwards(t *testing.T) {
	load := "type=MAC_POLICY_LOAD msg=audit(1527792999.1:200): auid=0 ses=1\n"
	v := only(t, verdict.Host{}, denied("read", named, "system_u:object_r:etc_t:s0", "file")+load)
	if !strings.Contains(strings.Join(v.Undecided, "\n"), "a policy was loaded 2018-05-31") {
		t.Errorf("%+v", v)
	}
}

// Each objection of a reviewer.
func TestOverBroad(t *testing.T) {
	object := func(kind string) string { return "system_u:object_r:" + kind + ":s0" }
	self := "system_u:system_r:mysqld_t:s0"
	for _, c := range []struct{ permissions, target, class, flag string }{
		{"write", object("tmp_t"), "file", "generic target"},
		{"name_bind", object("unreserved_port_t"), "tcp_socket", "generic port"},
		{"execute_no_trans", object("bin_t"), "file", "code execution"},
		{"execmem", self, "process", "code execution"},
		{"execmod", object("lib_t"), "file", "code execution"},
		{"sys_admin", self, "capability", "privilege"},
		{"mac_admin", self, "capability2", "privilege"},
		{"module_load", "system_u:system_r:kernel_t:s0", "system", "privilege"},
		{"read", object("security_t"), "file", "privilege"},
		{"read", object("shadow_t"), "file", "secrets"},
		{"write", object("cert_t"), "file", "secrets"},
		{"read", object("fixed_disk_device_t"), "blk_file", "raw disk"},
		{"read", object("file_type"), "file", "attribute target"},
		{"read", object("crack_db_t"), "file", ""},
		{"read", object("tmp_t"), "file", ""},
		{"setpgid", self, "process", ""},
		{"ipc_lock", self, "capability", ""},
	} {
		v := only(t, verdict.Host{}, denied(c.permissions, `comm="mysqld" src=1`, c.target, c.class))
		got := ""
		for _, f := range v.Broad {
			got += f.Name
			if f.Weight < 1 || f.Weight > 5 || f.Why == "" {
				t.Errorf("%+v", f)
			}
		}
		if got != c.flag {
			t.Errorf("%s %s %s has %q, want %q", c.permissions, c.target, c.class, got, c.flag)
		}
	}
	v := only(t, verdict.Host{}, from("a:b:unconfined_service_t:s0", "read", `comm="x"`, object("etc_t"), "file"))
	if len(v.Broad) != 1 || v.Broad[0].Name != "unconfined source" {
		t.Errorf("%+v", v.Broad)
	}
}

// A port that is in somebody's range is that one's own, too.
func TestPortInRange(t *testing.T) {
	host := verdict.Host{Policy: policy{
		allowed: map[string]bool{"mysqld_t mysqld_port_t tcp_socket name_bind": true},
		ports: []policydb.Port{{Protocol: "tcp", Low: 27017, High: 27019, Type: "mongod_port_t"},
			{Protocol: "tcp", Low: 1024, High: 32767, Type: "unreserved_port_t"},
			{Protocol: "tcp", Low: 3306, High: 3306, Type: "mysqld_port_t"}}}}
	for port, owner := range map[string]string{"27018": "mongod_port_t", "23306": ""} {
		target := "system_u:object_r:" + cmp.Or(owner, "unreserved_port_t") + ":s0"
		v := only(t, host, denied("name_bind", `comm="mysqld" src=`+port, target, "tcp_socket"))
		if len(v.Remedies) != 1 || v.Remedies[0].Owner != owner || !strings.HasPrefix(v.Fix[0], "semanage port -a ") {
			t.Errorf("%s: %+v, %q", port, v.Remedies, v.Fix)
		}
	}
}

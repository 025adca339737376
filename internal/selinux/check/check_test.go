package check_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/check"
	"bulkhead/internal/selinux/filecon"
	"bulkhead/internal/selinux/places"
	"bulkhead/internal/selinux/policydb"
)

// policy is the policy of testdata/server.cil, version 33, as secilc 3.4 compiles it.
func policy(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/server.hex")
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// contexts are file contexts, those of testdata and local ones.
type contexts struct{ *filecon.Table }

func (c contexts) Expected(path, class string) (string, bool) {
	text, _ := c.Context(path, class)
	k, ok := avc.ParseContext(text)
	return k.Type, ok
}

func contextsOf(t testing.TB, local, subs string) contexts {
	t.Helper()
	text, err := os.ReadFile("testdata/file_contexts")
	if err != nil {
		t.Fatal(err)
	}
	return contexts{filecon.Parse(string(text), "", local, subs, "/run /var/run\n")}
}

// tree are files, of a process with number 7.
const tree = `
-- proc/7/mountinfo --
1 0 8:1 / / rw - ext4 /dev/sda1 rw,seclabel
2 1 8:2 / /nfs rw - nfs4 server:/ rw
3 1 8:3 / /fixed rw - xfs /dev/sdc rw,context="system_u:object_r:usr_t:s0:c1,c2"
4 1 8:4 / /good rw - xfs /dev/sdd rw,context=system_u:object_r:mysqld_db_t:s0
-- data/mysql/ibdata1 --
-- data/mysql/binlog.1 --
-- data/log/slow.log --
-- srv/link --
symlink: ../data/mysql
-- var/lib/mysql/ibdata1 --
-- var/lib/mysql/moved.ibd --
-- var/lib/mysql/moved2.ibd --
-- var/log/mysqld.log --
-- var/run/mysqld/mysqld.pid --
-- run --
symlink: var/run
-- tmp/x --
-- etc/my.cnf --
-- etc/pki/server.pem --
-- home/cert.pem --
-- nfs/mysql/a --
-- fixed/mysql/a --
-- good/mysql/a --
-- usr/sbin/mysqld --
-- opt/mysql/bin/mysqld --
-- other/a --
`

// host is the tree, each file with the label of the file contexts but for those that are given: types by path.
func host(t testing.TB, labels map[string]string, local, subs string) check.Host {
	t.Helper()
	p, err := policydb.Decode(policy(t))
	if err != nil {
		t.Fatal(err)
	}
	plain := contextsOf(t, "", "")
	root := sysroot.New(linuxtest.Unpack(t, tree))
	files := selinux.Host{Root: root, Labels: func(name string) (string, error) {
		kind, given := labels[name]
		for mount, of := range map[string]string{"/nfs": "nfs_t", "/fixed": "usr_t", "/good": "mysqld_db_t"} {
			if strings.HasPrefix(name, mount) && !given {
				kind, given = of, true
			}
		}
		if !given {
			class := "file"
			if info, err := root.Lstat(name); err == nil && info.IsDir() {
				class = "dir"
			}
			kind, _ = plain.Expected(name, class)
		}
		if kind == "" {
			return "", selinux.ErrNoLabel
		}
		return "system_u:object_r:" + kind + ":s0", nil
	}}
	return check.Host{Policy: p, Transitions: p, Contexts: contextsOf(t, local, subs), Files: files}
}

// server is a MySQL with these places.
func server(domain string, all ...places.Place) check.Server {
	for i := range all {
		all[i].From = "/etc/my.cnf:1"
		if all[i].Setting == "" {
			all[i].Setting = "datadir"
		}
	}
	return check.Server{Name: "mysql3306", Engine: "mysql", PID: 7, Program: "/usr/sbin/mysqld", Places: all,
		Processes: []check.Process{{PID: 7, Part: "main", Context: "system_u:system_r:" + domain + ":s0"}}}
}

func data(path string) places.Place { return places.Place{Kind: places.Data, Path: path} }

// short is a finding in one line.
func short(f check.Finding) string {
	return fmt.Sprintf("%s %s%s has %s want %s pattern %q fix %s", f.About, f.Path, map[bool]string{true: fmt.Sprint(
		f.Port)}[f.Port > 0], f.Has, f.Want, f.Pattern, strings.Join(f.Fix, "; "))
}

// A label is put right by the file contexts where they have one for the path, else by one of its own with the type of
// the customary path, else by a boolean, and on the mount where files have none.
func TestPlaces(t *testing.T) {
	for name, c := range map[string]struct {
		place       places.Place
		labels      map[string]string
		local, subs string
		want        []string // none: it fits
	}{
		"as packages have it": {place: data("/var/lib/mysql")},
		"a custom path": {place: data("/data/mysql"), want: []string{
			`label /data has default_t want var_lib_t pattern "/data" fix semanage fcontext -a -t var_lib_t /data; ` +
				`restorecon -v /data`,
			`label /data/mysql has default_t want mysqld_db_t pattern "/data/mysql(/.*)?" fix ` +
				`semanage fcontext -a -t mysqld_db_t '/data/mysql(/.*)?'; restorecon -R -v /data/mysql`}},
		"a type of the directory above": {place: data("/srv/link"), labels: map[string]string{"/data": "var_t",
			"/data/mysql": "var_t"}, want: []string{
			`label /data/mysql has var_t want mysqld_db_t pattern "/data/mysql(/.*)?" fix ` +
				`semanage fcontext -a -t mysqld_db_t '/data/mysql(/.*)?'; restorecon -R -v /data/mysql`}},
		"a local context that was not restored": {place: data("/data/mysql"),
			labels: map[string]string{"/data": "usr_t"},
			local:  "/data/mysql(/.*)? system_u:object_r:mysqld_db_t:s0\n", want: []string{
				`label /data/mysql has default_t want mysqld_db_t pattern "" fix restorecon -R -v /data/mysql`}},
		"an equivalence that was not restored": {place: data("/data/mysql"),
			labels: map[string]string{"/data": "usr_t"},
			subs:   "/data/mysql /var/lib/mysql\n", want: []string{
				`label /data/mysql has default_t want mysqld_db_t pattern "" fix restorecon -R -v /data/mysql`}},
		"a label by chcon": {place: data("/data/mysql"), labels: map[string]string{"/data": "usr_t",
			"/data/mysql": "mysqld_db_t"}, want: []string{
			`relabel /data/mysql has mysqld_db_t want mysqld_db_t pattern "/data/mysql(/.*)?" fix ` +
				`semanage fcontext -a -t mysqld_db_t '/data/mysql(/.*)?'`}},
		"another label that suits, too": {place: data("/var/lib/mysql"), labels: map[string]string{
			"/var/lib/mysql": "mysqld_log_t"}, want: []string{
			`drift /var/lib/mysql has mysqld_log_t want mysqld_db_t pattern "" fix restorecon -v /var/lib/mysql`}},
		"a log":       {place: places.Place{Kind: places.Log, Path: "/var/log/mysqld.log"}},
		"a log to be": {place: places.Place{Kind: places.Log, Path: "/var/log/new.log"}},
		"a log elsewhere": {place: places.Place{Kind: places.Log, Path: "/data/log/slow.log"},
			labels: map[string]string{
				"/data": "usr_t", "/data/log": "usr_t"}, want: []string{`label /data/log has usr_t want mysqld_log_t ` +
				`pattern "/data/log" fix semanage fcontext -a -t mysqld_log_t /data/log; restorecon -v /data/log`,
				`label /data/log/slow.log has default_t want mysqld_log_t pattern "/data/log/slow\\.log" fix ` +
					`semanage fcontext -a -t mysqld_log_t '/data/log/slow\.log'; restorecon -v /data/log/slow.log`}},
		"a log to be elsewhere": {place: places.Place{Kind: places.Log, Path: "/other/e.log"},
			labels: map[string]string{
				"/other": "usr_t"}, want: []string{`label /other has usr_t want mysqld_log_t pattern "/other" ` +
				`fix semanage fcontext -a -t mysqld_log_t /other; restorecon -v /other`}},
		"a socket": {place: places.Place{Kind: places.Runtime, Path: "/run/mysqld/mysqld.sock"}},
		"a pid":    {place: places.Place{Kind: places.Runtime, Path: "/run/mysqld/mysqld.pid"}},
		"/tmp":     {place: places.Place{Kind: places.Temporary, Path: "/tmp"}},
		"no /tmp": {place: places.Place{Kind: places.Temporary, Path: "/other"}, want: []string{
			`label /other has default_t want mysqld_tmp_t pattern "/other(/.*)?" fix ` +
				`semanage fcontext -a -t mysqld_tmp_t '/other(/.*)?'; restorecon -R -v /other`}},
		"a certificate": {place: places.Place{Kind: places.Certificate, Path: "/etc/pki/server.pem"}},
		"a certificate at home": {place: places.Place{Kind: places.Certificate, Path: "/home/cert.pem"},
			labels: map[string]string{"/home": "usr_t"},
			want: []string{`label /home/cert.pem has default_t want cert_t ` +
				`pattern "/home/cert\\.pem" fix semanage fcontext -a -t cert_t '/home/cert\.pem'; ` +
				`restorecon -v /home/cert.pem`}},
		"no label at all": {place: data("/var/lib/mysql"), labels: map[string]string{"/var/lib/mysql": "unlabeled_t"},
			want: []string{`label /var/lib/mysql has unlabeled_t want mysqld_db_t pattern "" fix ` +
				`restorecon -R -v /var/lib/mysql`}},
		"a network file system": {place: data("/nfs/mysql"), labels: map[string]string{"/nfs": "usr_t"}, want: []string{
			`mount /nfs has nfs_t want mysqld_db_t pattern "" fix setsebool -P use_nfs on`}},
		"a socket in /tmp": {place: places.Place{Kind: places.Runtime, Path: "/tmp/my.sock"}, want: []string{
			`label /tmp has tmp_t want  pattern "" fix another path, or a rule: bulkhead selinux explain says which, ` +
				`once it is denied`}},
		"below what was not restored": {place: places.Place{Kind: places.Certificate, Path: "/home/cert.pem"},
			local: "/home -d u:object_r:bin_t:s0\n", labels: map[string]string{"/home": "default_t",
				"/home/cert.pem": "cert_t"}, want: []string{
				`label /home has default_t want bin_t pattern "" fix restorecon -v /home`,
				`relabel /home/cert.pem has cert_t want cert_t pattern "/home/cert\\.pem" fix ` +
					`semanage fcontext -a -t cert_t '/home/cert\.pem'`}},
		"below what is closed to it": {place: places.Place{Kind: places.Certificate, Path: "/home/cert.pem"},
			local: "/home -d u:object_r:unlabeled_t:s0\n/home/.* u:object_r:cert_t:s0\n", labels: map[string]string{
				"/home": "unlabeled_t", "/home/cert.pem": "cert_t"}, want: []string{
				`label /home has unlabeled_t want  pattern "" fix another path, or a rule: bulkhead selinux explain ` +
					`says which, once it is denied`}},
		"a mount with one context": {place: data("/fixed/mysql"), want: []string{`mount /fixed has usr_t want ` +
			`mysqld_db_t pattern "" fix mount /fixed with context=system_u:object_r:mysqld_db_t:s0, or ` +
			`keep the files on ` +
			`a file system with labels`}},
		"a mount with the right one": {place: data("/good/mysql")},
		"read only and not there": {place: places.Place{Kind: places.Config, Path: "/data/none"},
			labels: map[string]string{
				"/data": "usr_t"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := host(t, c.labels, c.local, c.subs).Server(server("mysqld_t", c.place))
			got := []string{}
			for _, f := range r.Findings {
				got = append(got, short(f))
				if f.Instance != "mysql3306" || len(f.Settings) != 1 || f.Settings[0] != "datadir "+
					"(/etc/my.cnf:1)" || f.Why == "" {
					t.Errorf("%+v", f)
				}
			}
			if !slices.Equal(got, c.want) || len(r.Undecided) > 0 {
				t.Errorf("%s\nwant\n%s\nundecided %q", strings.Join(got, "\n"), strings.Join(c.want, "\n"), r.Undecided)
			}
			for _, p := range r.Paths {
				denied := slices.ContainsFunc(r.Findings, func(f check.Finding) bool { return f.Denied })
				if p.Fits == denied {
					t.Errorf("fits is %v: %+v", p.Fits, p)
				}
			}
		})
	}
}

// Files that were moved into a directory of data keep the labels of their old place; one finding is for all of them.
func TestMoved(t *testing.T) {
	s := server("mysqld_t", data("/var/lib/mysql"))
	s.Entries = func(string) []string { return []string{"ibdata1", "moved.ibd", "moved2.ibd", "gone"} }
	r := host(t, map[string]string{"/var/lib/mysql/moved.ibd": "usr_t", "/var/lib/mysql/moved2.ibd": "usr_t"}, "",
		"").Server(s)
	const want = `label /var/lib/mysql has usr_t want mysqld_db_t pattern "" fix restorecon -R -v /var/lib/mysql`
	if len(r.Findings) != 1 || short(r.Findings[0]) != want || r.Findings[0].Entries != 2 {
		t.Errorf("%+v", r.Findings)
	}
}

// What one label puts right is one finding, of several settings.
func TestSettingsOfOnePath(t *testing.T) {
	other := data("/data/mysql/ibdata1")
	other.Setting = "innodb_data_file_path"
	also := places.Place{Setting: "innodb_undo_directory", Kind: places.Data, Path: "/data/mysql"}
	r := host(t, nil, "", "").Server(server("mysqld_t", data("/data/mysql"), also, other))
	var got []string
	for _, f := range r.Findings {
		got = append(got, fmt.Sprintf("%s of %d", f.Path, len(f.Settings)))
	}
	if want := []string{"/data of 3", "/data/mysql of 3"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPorts(t *testing.T) {
	for name, c := range map[string]struct {
		port places.Port
		want string
	}{
		"its own":   {port: places.Port{Protocol: "tcp", Number: 3306}},
		"a range":   {port: places.Port{Protocol: "tcp", Number: 63140}},
		"of Galera": {port: places.Port{Protocol: "tcp", Number: 4567, Peers: true}},
		"any": {port: places.Port{Protocol: "tcp", Number: 4568},
			want: "port 4568 has unreserved_port_t want mysqld_port_t pattern \"\" fix semanage port -a -t " +
				"mysqld_port_t -p tcp 4568"},
		"of another": {port: places.Port{Protocol: "tcp", Number: 4444},
			want: "port 4444 has kerberos_port_t want mysqld_port_t pattern \"\" fix semanage port -m -t " +
				"mysqld_port_t -p tcp 4444"},
		"of no type": {port: places.Port{Protocol: "tcp", Number: 81}, want: "?"},
		"by UDP": {port: places.Port{Protocol: "udp", Number: 4567}, want: "port 4567 has unreserved_port_t want " +
			" pattern " +
			"\"\" fix another port that it may use, or a rule: bulkhead selinux explain says which, once it is denied"},
	} {
		s := server("mysqld_t")
		c.port.Setting, c.port.From = "port", "the command line"
		s.Ports = []places.Port{c.port}
		r := host(t, nil, "", "").Server(s)
		got := ""
		for _, f := range r.Findings {
			got += short(f)
		}
		if c.want == "?" {
			if len(r.Undecided) != 1 || got != "" || r.Ports[0].Fits {
				t.Errorf("%s: %+v", name, r)
			}
			continue
		}
		if got != c.want || len(r.Ports) != 1 || r.Ports[0].Fits != (c.want == "") || len(r.Undecided) > 0 {
			t.Errorf("%s: %q, want %q; %+v", name, got, c.want, r)
		}
	}
	s := server("mysqld_t")
	s.Ports = []places.Port{{Protocol: "tcp", Number: 4568, Peers: true}}
	f := host(t, nil, "", "").Server(s).Findings[0]
	if strings.Join(f.Missing, " ") != "name_bind name_connect" || !strings.Contains(f.Why, "listen on or connect to") {
		t.Errorf("%+v", f)
	}
}

// A server that nothing confines is held against the domain that its program belongs in.
func TestDomains(t *testing.T) {
	s := server("unconfined_service_t", data("/data/mysql"))
	r := host(t, map[string]string{"/usr/sbin/mysqld": "bin_t", "/data": "usr_t"}, "", "").Server(s)
	if r.Domain != "mysqld_t" || len(r.Findings) != 2 || r.Findings[0].About != check.Label {
		t.Errorf("%+v", r)
	}
	const again = "start it again through its systemd unit, not from a shell: paths and ports first"
	want := `domain /usr/sbin/mysqld has unconfined_service_t want mysqld_t pattern "" fix restorecon -v ` +
		`/usr/sbin/mysqld; ` + again
	if got := short(r.Findings[1]); got != want {
		t.Errorf("%s", got)
	}
	s.Program = "/opt/mysql/bin/mysqld" // a tarball
	r = host(t, nil, "", "").Server(s)
	want = `domain /opt/mysql/bin/mysqld has unconfined_service_t want mysqld_t pattern "/opt/mysql/bin/mysqld" fix ` +
		`semanage fcontext -a -t mysqld_exec_t /opt/mysql/bin/mysqld; restorecon -v /opt/mysql/bin/mysqld; ` + again
	if got := short(r.Findings[len(r.Findings)-1]); got != want || r.Domain != "mysqld_t" {
		t.Errorf("%s", got)
	}
	s.Engine, s.Program = "mongodb", "/opt/mongod"
	r = host(t, nil, "", "").Server(s)
	if r.Domain != "" || len(r.Findings) != 1 || len(r.Paths) > 0 || !strings.Contains(r.Findings[0].Why, "no domain") {
		t.Errorf("%+v", r)
	}
	s = server("postgresql_t")
	s.Engine = "postgresql"
	s.Processes = append(s.Processes, check.Process{PID: 9, Context: "u:r:other_t:s0"}, check.Process{PID: 8,
		Context: s.Processes[0].Context}, check.Process{PID: 10})
	r = host(t, nil, "", "").Server(s)
	if got := fmt.Sprint(r.Domains); got != "[{postgresql_t [7 8]} {other_t [9]} { [10]}]" || len(r.Findings) != 1 ||
		r.Findings[0].About != check.Permissive {
		t.Errorf("%s: %+v", got, r.Findings)
	}
	s.Processes = []check.Process{{PID: 7}}
	if r = host(t, nil, "", "").Server(s); r.Domain != "" || len(r.Undecided) != 1 {
		t.Errorf("%+v", r)
	}
}

// A boolean is named where no label helps; one that opens far more is not advised.
func TestBooleans(t *testing.T) {
	h := host(t, map[string]string{"/var/lib/mysql": "nfs_t"}, "/.* system_u:object_r:nfs_t:s0\n", "")
	r := h.Server(server("mysqld_t", data("/var/lib/mysql")))
	if len(r.Findings) != 1 || r.Findings[0].Boolean != "use_nfs" || r.Findings[0].Fix[0] != "setsebool -P use_nfs on" {
		t.Errorf("%+v", r.Findings)
	}
}

// A file system that cannot be looked at is no finding.
func TestUndecided(t *testing.T) {
	h := host(t, nil, "", "")
	h.Files = broken{}
	r := h.Server(server("mysqld_t", data("/var/lib/mysql")))
	if len(r.Findings) > 0 || len(r.Undecided) != 1 || !strings.Contains(r.Undecided[0], "datadir (/etc/my.cnf:1)") {
		t.Errorf("%+v", r)
	}
}

// A label that the policy does not know is neither fit nor unfit.
func TestUnknownLabel(t *testing.T) {
	h := host(t, map[string]string{"/var/lib/mysql": "new_t", "/etc/my.cnf": ""}, "", "")
	config := places.Place{Kind: places.Config, Path: "/etc/my.cnf"}
	r := h.Server(server("mysqld_t", data("/var/lib/mysql"), config))
	if len(r.Findings) > 0 || len(r.Undecided) != 2 || len(r.Paths) != 2 || !r.Paths[0].Undecided || r.Paths[0].Fits ||
		!strings.Contains(r.Undecided[0], `"new_t"`) || !strings.Contains(r.Undecided[1], "no label") {
		t.Errorf("%+v", r)
	}
}

type broken struct{}

func (broken) Way(int, string) (selinux.Way, error) { return selinux.Way{}, errors.New("no answer") }
func (broken) Labelling(int, string) (selinux.Labelling, error) {
	return selinux.Labelling{}, errors.New("no answer")
}

// Names in JSON are of one kind, and lists are never null.
func TestJSON(t *testing.T) {
	s := server("mysqld_t", data("/data/mysql"))
	s.Ports = []places.Port{{Protocol: "tcp", Number: 4444}}
	for _, r := range []*check.Result{host(t, nil, "", "").Server(s), host(t, nil, "", "").Server(check.Server{})} {
		text, err := json.Marshal(r)
		if err != nil || strings.Contains(string(text), "null") {
			t.Errorf("%v: %s", err, text)
		}
		for _, m := range regexp.MustCompile(`"([A-Za-z_]+)":`).FindAllStringSubmatch(string(text), -1) {
			if strings.ToLower(m[1]) != m[1] {
				t.Errorf("JSON has the name %q", m[1])
			}
		}
	}
}

// ranged has one port in a range of another service.
type ranged struct{ check.Policy }

func (ranged) PortType(string, int) (policydb.Port, bool) {
	return policydb.Port{Protocol: "tcp", Low: 27017, High: 27019, Type: "kerberos_port_t"}, true
}

// A port in the range of another service is added to the local ones, and whose it is is said.
func TestPortInARangeOfAnother(t *testing.T) {
	h := host(t, nil, "", "")
	h.Policy = ranged{h.Policy}
	s := server("mysqld_t")
	s.Ports = []places.Port{{Protocol: "tcp", Number: 27018}}
	r := h.Server(s)
	if len(r.Findings) != 1 || !r.Findings[0].Own || !strings.Contains(r.Findings[0].Why,
		"it is kerberos_port_t's own port, which a server of that kind on this host would lose") ||
		len(r.Findings[0].Fix) != 1 || r.Findings[0].Fix[0] != "semanage port -a -t mysqld_port_t -p tcp 27018" {
		t.Errorf("%+v", r.Findings)
	}
}

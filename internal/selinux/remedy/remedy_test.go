package remedy_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/selinux/remedy"
	"bulkhead/internal/selinux/verdict"
)

// host has what a plan asks.
type host struct {
	trees            map[string]remedy.Tree
	modules, foreign map[string]string
	using            map[string]string
}

func (h host) Tree(_ context.Context, path string) (remedy.Tree, error) {
	if t, known := h.trees[path]; known {
		return t, nil
	}
	return remedy.Tree{}, errors.New("it is not there")
}
func (h host) Module(_ context.Context, name string) (string, error) { return h.modules[name], nil }
func (h host) Foreign(tree string) (string, error)                   { return h.foreign[tree], nil }
func (h host) Using(path string) []string                            { return strings.Fields(h.using[path]) }

// of is a verdict on a denial of mysqld_t.
func of(kind verdict.Kind, target, class string, remedies ...verdict.Remedy) verdict.Verdict {
	return verdict.Verdict{Kind: kind, Source: "mysqld_t", Target: target, Class: class, Count: 1, Remedies: remedies,
		Rule: "allow mysqld_t " + target + ":" + class, Because: []string{"why " + target + " " + class}}
}

func needs(target, class string, permissions ...string) verdict.Verdict {
	return of(verdict.Rule, target, class, verdict.Remedy{Permissions: permissions})
}

func broadly(v verdict.Verdict) verdict.Verdict {
	v.Broad = []verdict.Flag{{Name: "code execution", Why: "memory that is written and then run"}}
	return v
}

func planOf(t *testing.T, h host, take []string, all ...verdict.Verdict) (set []string, left []string) {
	p := remedy.Of(t.Context(), &verdict.Report{Verdicts: all}, h,
		remedy.Options{Domains: []string{"mysqld_t"}, Take: take})
	for _, s := range p.Settings {
		set = append(set, s.Name+" = "+s.Value)
	}
	for _, l := range p.Left {
		left = append(left, l.Why)
	}
	return set, left
}

func TestPlan(t *testing.T) {
	own := []string{"mysqld_db_t", "mysqld_log_t"}
	at := func(path, class string, types ...string) verdict.Remedy {
		return verdict.Remedy{Path: path, Class: class, Types: types}
	}
	kerberos := verdict.Remedy{Port: "tcp/4444", Types: []string{"mysqld_port_t"}, Owner: "kerberos_port_t"}
	// is has one directory with some types.
	is := func(path, labels string, types ...string) host {
		tree := remedy.Tree{Labels: labels, Has: map[string]string{}}
		for _, kind := range types {
			tree.Has[kind] = path + "/has_" + kind
		}
		return host{trees: map[string]remedy.Tree{path: tree}}
	}
	but := func(h host, change func(t *remedy.Tree)) host {
		for path, tree := range h.trees {
			change(&tree)
			h.trees[path] = tree
		}
		return h
	}
	inDB := []verdict.Verdict{of(verdict.Label, "var_t", "dir", at("/srv/db", "dir", "mysqld_db_t")),
		of(verdict.Label, "var_t", "file", at("/srv/db/x", "file", "mysqld_db_t"))}
	inMySQL := []verdict.Verdict{of(verdict.Label, "var_t", "dir",
		verdict.Remedy{Path: "/var/lib/mysql", Class: "dir", Types: own[:1], Listed: true})}
	httpd := needs("mysqld_db_t", "file", "read")
	httpd.Source = "httpd_t"
	broad := needs("var_lib_t", "file", "write")
	broad.Broad = []verdict.Flag{{Name: "generic target", Why: "files of many programs"}}
	for name, c := range map[string]struct {
		host host
		take []string
		all  []verdict.Verdict
		set  []string
		left string // "" is none
	}{
		"a directory of its own": {host: is("/srv/db/data", "", "var_t", "mysqld_db_t"), all: []verdict.Verdict{
			of(verdict.Label, "var_t", "dir", at("/srv/db/data", "dir", "mysqld_db_t", "mysqld_tmp_t"),
				at("/srv/db/data/test", "dir", "mysqld_db_t", "mysqld_tmp_t")),
			of(verdict.Label, "var_t", "file", at("/srv/db/data/ibdata1", "file", own...),
				at("/srv/db/data/test/t.ibd", "file", own...)),
		}, set: []string{"selinux context /srv/db/data = mysqld_db_t"}},
		"two directories": {host: host{trees: map[string]remedy.Tree{"/srv/a": {}, "/data/b": {}}},
			all: []verdict.Verdict{of(verdict.Label, "var_t", "file",
				at("/srv/a/x", "file", "mysqld_db_t"), at("/data/b/y", "file", "mysqld_log_t"))},
			set: []string{"selinux context /data/b = mysqld_log_t", "selinux context /srv/a = mysqld_db_t"}},
		"no type for all of it": {all: []verdict.Verdict{of(verdict.Label, "var_t", "dir", at("/srv/db", "dir",
			"mysqld_db_t")), of(verdict.Label, "var_t", "file", at("/srv/db/x", "file", "mysqld_log_t"))},
			left: "no one type"},
		"several types": {all: []verdict.Verdict{of(verdict.Label, "var_t", "dir", at("/srv/db", "dir", "mysqld_log_t",
			"mysqld_tmp_t"))}, left: "choose one"},
		"only a directory": {host: is("/data", "", "default_t"), all: []verdict.Verdict{of(verdict.Label, "default_t",
			"dir", at("/data", "dir", "mysqld_db_t"))}, left: "only the directory itself was denied"},
		"a directory on the way": {host: is("/data/db", "", "default_t"), all: []verdict.Verdict{
			of(verdict.Label, "default_t", "dir", at("/data", "dir", "mysqld_db_t")),
			of(verdict.Label, "default_t", "file", at("/data/db/x", "file", "mysqld_db_t"))},
			set: []string{"selinux context /data/db = mysqld_db_t"}, left: "/data: only the directory itself"},
		"a directory with others' types": {host: is("/srv/db", "", "var_t", "postgresql_db_t"), all: inDB,
			left: "/srv/db/has_postgresql_db_t has the type postgresql_db_t"},
		"a directory with others' files": {host: but(is("/srv/db", "", "var_t"), func(t *remedy.Tree) {
			t.Stranger = "/srv/db/pgsql"
		}), all: inDB, left: "/srv/db/pgsql has another owner"},
		"a directory with another context": {host: but(is("/srv/db", "", "var_t"), func(t *remedy.Tree) {
			t.Narrower = "/srv/db/www"
		}), all: inDB, left: "have a type of its own for /srv/db/www"},
		"a hard link": {host: but(is("/srv/db", "", "var_t"), func(t *remedy.Tree) { t.Linked = "/srv/db/f" }),
			all: inDB, left: "/srv/db/f has another name"},
		"a mount": {host: but(is("/srv/db", "", "var_t"), func(t *remedy.Tree) { t.Mounted = "/srv/db/m" }),
			all: inDB, left: "something is mounted at /srv/db/m"},
		"a directory that is gone": {all: inDB, left: "it is not there"},
		"a directory of the system": {all: []verdict.Verdict{of(verdict.Label, "tmp_t", "file",
			at("/tmp/x", "file", "mysqld_tmp_t"))}, left: "/tmp is a directory of the whole system"},
		"the line of somebody": {host: host{foreign: map[string]string{"/srv/db": "/srv/db(/.*)?"}},
			all: inDB, left: "is there already"},
		"a label that differs": {host: is("/var/lib/mysql/x", "mysqld_db_t", "var_t"),
			all: []verdict.Verdict{of(verdict.Label, "var_t", "file", verdict.Remedy{
				Path: "/var/lib/mysql/x", Class: "file", Types: own[:1], Listed: true})},
			set: []string{"selinux labels /var/lib/mysql/x = mysqld_db_t"}},
		"a label that was put right, or is somebody's": {host: is("/var/lib/mysql", "mysqld_db_t", "httpd_t"),
			all: inMySQL, left: "has the type httpd_t, and not var_t"},
		"a label that the contexts do not give": {host: is("/var/lib/mysql", "", "var_t"), all: inMySQL,
			left: "do not give all below it a label"},
		"the label of a socket": {host: is("/run/m.sock", "mysqld_var_run_t", "var_run_t"), all: []verdict.Verdict{
			of(verdict.Label, "mysqld_t", "unix_stream_socket", verdict.Remedy{Path: "/run/m.sock", Class: "sock_file",
				Types: []string{"mysqld_var_run_t"}, Listed: true})},
			set: []string{"selinux labels /run/m.sock = mysqld_var_run_t"}},
		"another domain": {all: []verdict.Verdict{httpd}, left: "httpd_t is not known as the domain of a database"},
		"a boolean that is broad": {all: []verdict.Verdict{broadly(of(verdict.Boolean, "mysqld_t", "process",
			verdict.Remedy{Boolean: "allow_execmem", On: true}))}, left: "the boolean would allow too much"},
		"a boolean that protects": {all: []verdict.Verdict{of(verdict.Boolean, "a_t", "b",
			verdict.Remedy{Boolean: "secure_mode"})}, left: "secure_mode would have to be switched off"},
		"a directory whose label differs": {host: is("/var/lib/mysql",
			"mysqld_db_t\nmysqld_var_run_t \"mysql.sock\"", "var_t"), all: inMySQL,
			set: []string{"selinux labels /var/lib/mysql = mysqld_db_t\nmysqld_var_run_t \"mysql.sock\""}},
		"a free port": {all: []verdict.Verdict{of(verdict.Port, "unreserved_port_t", "tcp_socket",
			verdict.Remedy{Port: "tcp/23306", Types: []string{"mysqld_port_t"}})},
			set: []string{"selinux port tcp/23306 = mysqld_port_t"}},
		"a port of Kerberos": {all: []verdict.Verdict{of(verdict.Port, "kerberos_port_t", "tcp_socket", kerberos)},
			left: "tcp/4444 is kerberos_port_t's own port"},
		"a port of Kerberos, named": {take: []string{"tcp/4444"},
			all: []verdict.Verdict{of(verdict.Port, "kerberos_port_t", "tcp_socket", kerberos)},
			set: []string{"selinux port tcp/4444 = mysqld_port_t from kerberos_port_t"}},
		"a boolean": {all: []verdict.Verdict{of(verdict.Boolean, "a_t", "b",
			verdict.Remedy{Boolean: "a_b", On: true})}, set: []string{"selinux boolean a_b = on"}},
		"two booleans": {all: []verdict.Verdict{of(verdict.Boolean, "a_t", "b",
			verdict.Remedy{Boolean: "a_b", On: true}, verdict.Remedy{Boolean: "a_c"})}, left: "choose one"},
		"rules, with those of before": {
			host: host{modules: map[string]string{"bulkhead_mysqld_t": "(allow mysqld_t a_t (file (read)))"}},
			all:  []verdict.Verdict{needs("mysqld_t", "process", "setpgid", "getattr"), needs("a_t", "file", "read")},
			set: []string{"selinux module bulkhead_mysqld_t = (allow mysqld_t a_t (file (read))) " +
				"(allow mysqld_t self (process (setpgid getattr)))"}},
		"an over-broad rule": {all: []verdict.Verdict{broad}, left: "allow too much (generic target"},
		"a script": {all: []verdict.Verdict{of(verdict.Script, "init_t", "process")},
			left: "why init_t process"},
		"stale": {all: []verdict.Verdict{of(verdict.Stale, "a_t", "file")}},
	} {
		set, left := planOf(t, c.host, c.take, c.all...)
		if !slices.Equal(set, c.set) {
			t.Errorf("%s: it sets %q, want %q", name, set, c.set)
		}
		if (c.left == "") != (len(left) == 0) || !strings.Contains(strings.Join(left, "\n"), c.left) {
			t.Errorf("%s: it leaves %q, want %q", name, left, c.left)
		}
	}
}

// Who uses files whose labels change is told, and a plan is cut down to what was named.
func TestInUseAndOnly(t *testing.T) {
	h := host{trees: map[string]remedy.Tree{"/srv/db": {Has: map[string]string{"var_t": "/srv/db"}}},
		using: map[string]string{"/srv/db": "mysql3306"}}
	p := remedy.Of(t.Context(), &verdict.Report{Verdicts: []verdict.Verdict{
		of(verdict.Label, "var_t", "file", verdict.Remedy{Path: "/srv/db/a", Class: "file",
			Types: []string{"mysqld_db_t"}}),
		of(verdict.Port, "unreserved_port_t", "tcp_socket", verdict.Remedy{Port: "tcp/23306",
			Types: []string{"mysqld_port_t"}})}}, h, remedy.Options{Domains: []string{"mysqld_t"}})
	if len(p.Settings) != 2 || strings.Join(p.Settings[0].InUse, " ") != "mysql3306" || len(p.Settings[1].InUse) > 0 ||
		p.Settings[1].InUse == nil {
		t.Fatalf("%+v", p)
	}
	unknown := p.Only([]string{"port tcp/23306", "selinux context /srv/db", "port tcp/1", "selinux boolean x"})
	if strings.Join(unknown, ", ") != "selinux boolean x, selinux port tcp/1" || len(p.Settings) != 2 {
		t.Errorf("%q, %+v", unknown, p.Settings)
	}
	if unknown = p.Only([]string{"port tcp/23306"}); len(unknown) > 0 || len(p.Settings) != 1 ||
		p.Settings[0].Name != "selinux port tcp/23306" {
		t.Errorf("%q, %+v", unknown, p.Settings)
	}
}

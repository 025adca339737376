package remedy_test

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/selinux/check"
	"bulkhead/internal/selinux/remedy"
	"bulkhead/internal/selinux/verdict"
)

// What settings name and the policy denies is set beside what was denied: a directory with all below it though nothing
// in it was denied yet, the label that the file contexts have, a port. What makes no setting is left with its reason,
// and what the policy allows is not looked at.
func TestNamed(t *testing.T) {
	one := func(f check.Finding) check.Finding {
		f.Domain, f.Has, f.Denied, f.Why, f.Settings = "mysqld_t", "var_t", true, "it may not", []string{"datadir (x)"}
		return f
	}
	dir := one(check.Finding{About: check.Label, Path: "/srv/db", Class: "dir", Want: "mysqld_db_t",
		Pattern: "/srv/db(/.*)?", Missing: []string{"search"}, Tree: true})
	port := one(check.Finding{About: check.PortType, Protocol: "tcp", Port: 4567, Class: "tcp_socket",
		Want: "mysqld_port_t", Missing: []string{"name_bind", "name_connect"}})
	with := func(f check.Finding, change func(f *check.Finding)) []check.Finding {
		change(&f)
		return []check.Finding{f}
	}
	h := host{trees: map[string]remedy.Tree{"/srv/db": {Has: map[string]string{"var_t": "/srv/db/x"}, Owned: true},
		"/srv/app":       {Has: map[string]string{"var_t": "/srv/app/x"}},
		"/var/lib/mysql": {Labels: "mysqld_db_t", Has: map[string]string{"var_t": "/var/lib/mysql/x"}}}}
	inDB := of(verdict.Label, "var_t", "file", verdict.Remedy{Path: "/srv/db/sub/x", Class: "file",
		Types: []string{"mysqld_db_t"}})
	for name, c := range map[string]struct {
		denied   []verdict.Verdict
		findings []check.Finding
		set      []string
		left     string // "" is none
	}{
		"a directory": {findings: []check.Finding{dir}, set: []string{"selinux context /srv/db = mysqld_db_t"}},
		"a directory in which something was denied": {denied: []verdict.Verdict{inDB}, findings: []check.Finding{dir},
			set: []string{"selinux context /srv/db = mysqld_db_t"}},
		"a port": {findings: []check.Finding{port}, set: []string{"selinux port tcp/4567 = mysqld_port_t"}},
		"a port that was denied, too": {denied: []verdict.Verdict{of(verdict.Port, "var_t", "tcp_socket",
			verdict.Remedy{Port: "tcp/4567", Types: []string{"mysqld_port_t"}})}, findings: []check.Finding{port},
			set: []string{"selinux port tcp/4567 = mysqld_port_t"}},
		"a port of another": {findings: with(port, func(f *check.Finding) { f.Own = true }),
			left: "tcp/4567 is var_t's own port"},
		"a port that no type suits": {findings: with(port, func(f *check.Finding) { f.Want = "" }),
			left: "it may not; it is set by datadir (x)"},
		"files that were moved there": {findings: with(dir, func(f *check.Finding) {
			f.Path, f.Class, f.Entries, f.Pattern, f.Contexts = "/var/lib/mysql", "file", 3, "", "mysqld_db_t"
		}), set: []string{"selinux labels /var/lib/mysql = mysqld_db_t"}},
		"a directory for itself": {findings: with(dir, func(f *check.Finding) { f.Pattern, f.Tree = "/srv/db", false }),
			left: "it may not"},
		"a directory on the way that was not restored": {findings: with(dir, func(f *check.Finding) {
			f.Path, f.Pattern, f.Contexts, f.Tree = "/var/lib/mysql", "", "mysqld_db_t", false
		}), left: "it may not"},
		"a directory of another program": {findings: with(dir, func(f *check.Finding) {
			f.Path, f.Pattern = "/srv/app", "/srv/app(/.*)?"
		}), left: "its owner is no account of a database"},
		"a directory of another program in which something was denied": {denied: []verdict.Verdict{of(verdict.Label,
			"var_t", "file", verdict.Remedy{Path: "/srv/app/x", Class: "file", Types: []string{"mysqld_db_t"}})},
			set: []string{"selinux context /srv/app = mysqld_db_t"}},
		"a narrow boolean": {findings: with(dir, func(f *check.Finding) { f.Boolean = "use_nfs" }), left: "it may not"},
		"a mount":          {findings: with(dir, func(f *check.Finding) { f.About = check.Mount }), left: "it may not"},
		"what is allowed":  {findings: with(dir, func(f *check.Finding) { f.Denied = false })},
	} {
		set, left := planOf(t, h, nil, slices.Concat(c.denied, remedy.Named(c.findings))...)
		if !slices.Equal(set, c.set) {
			t.Errorf("%s: it sets %q, want %q", name, set, c.set)
		}
		if (c.left == "") != (len(left) == 0) || !strings.Contains(strings.Join(left, "\n"), c.left) {
			t.Errorf("%s: it leaves %q, want %q", name, left, c.left)
		}
	}
}

package export_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/selinux/export"
	"bulkhead/internal/selinux/remedy"
)

func plan(settings ...string) *remedy.Plan {
	p := &remedy.Plan{}
	for i := 0; i < len(settings); i += 2 {
		p.Settings = append(p.Settings, remedy.Setting{Name: sepolicy.Prefix + settings[i], Value: settings[i+1]})
	}
	return p
}

var whole = plan(
	"boolean mysql_connect_any", "on", "context /srv/my.db", "mysqld_db_t", "labels /var/lib/mysql/a", "mysqld_db_t",
	"module bulkhead_mysqld_t", sepolicy.Rule("mysqld_t", "mysqld_t", "process", []string{"getattr", "setpgid"})+" "+
		sepolicy.Rule("mysqld_t", "tmp_t", "file", []string{"write"}),
	"module bulkhead_rsync_t", sepolicy.Rule("rsync_t", "tmp_t", "file", []string{"read"}),
	"port tcp/4444", "mysqld_port_t from kerberos_port_t", "port udp/4567-4568", "mysqld_port_t")

func texts(name string, p *remedy.Plan) map[string]string {
	all := map[string]string{}
	for _, f := range export.Of(name, p) {
		all[f.Name] = f.Text
	}
	return all
}

func TestFiles(t *testing.T) {
	want := map[string]string{
		"db.te": `module db 1.0;

require {
	type mysqld_db_t;
	type mysqld_t;
	type rsync_t;
	type tmp_t;
	class file { read write };
	class process { getattr setpgid };
}

allow mysqld_t self:process { getattr setpgid };
allow mysqld_t tmp_t:file { write };
allow rsync_t tmp_t:file { read };
`,
		"db.fc": "/srv/my\\.db(/.*)?\tsystem_u:object_r:mysqld_db_t:s0\n",
		"apply.sh": `#!/bin/sh
# Builds the module, installs it and sets the rest. Run it as root; stop the databases first.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checkmodule -M -m -o "$work/db.mod" db.te
semodule_package -o "$work/db.pp" -m "$work/db.mod" -f db.fc
semodule -i "$work/db.pp"
# tcp/4444 is kerberos_port_t's: a server of that kind on this host loses it
semanage port -a -t mysqld_port_t -p tcp 4444 || semanage port -m -t mysqld_port_t -p tcp 4444
semanage port -a -t mysqld_port_t -p udp 4567-4568 || semanage port -m -t mysqld_port_t -p udp 4567-4568
setsebool -P mysql_connect_any on
restorecon -R -v '/srv/my.db'
restorecon -R -v '/var/lib/mysql/a'
`,
		"undo.sh": `#!/bin/sh
# Takes back what apply.sh has set. Run it as root; stop the databases first.
set -eu
cd "$(dirname "$0")"
semodule -r db
semanage port -d -p tcp 4444
semanage port -d -p udp 4567-4568
setsebool -P mysql_connect_any off
restorecon -R -v '/srv/my.db'
restorecon -R -v '/var/lib/mysql/a'
`,
	}
	got := texts("db", whole)
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s is\n%s\nwant\n%s", name, got[name], text)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("and there are %v", got)
	}
	alone := texts("db", plan("port tcp/23306", "mysqld_port_t"))
	if len(alone) != 2 || strings.Contains(alone["apply.sh"]+alone["undo.sh"], "module") {
		t.Errorf("of a port alone there is %q", alone)
	}
	for name, valid := range map[string]bool{"db": true, "a_1": true, "": false, "1a": false, "a b": false,
		"a/b": false} {
		if export.Valid(name) != valid {
			t.Errorf("%q: %v", name, !valid)
		}
	}
}

// The programs that build modules take it: with rules, and with file contexts alone.
func TestBuilds(t *testing.T) {
	if _, err := exec.LookPath("checkmodule"); err != nil {
		t.Skip("checkmodule is not here: `make deps` installs it")
	}
	for name, p := range map[string]*remedy.Plan{"whole": whole, "labels": plan("context /srv/db", "mysqld_db_t")} {
		dir := t.TempDir()
		for file, text := range texts(name, p) {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{{"checkmodule", "-M", "-m", "-o", name + ".mod", name + ".te"},
			{"semodule_package", "-o", name + ".pp", "-m", name + ".mod", "-f", name + ".fc"},
			{"sh", "-n", "apply.sh"}, {"sh", "-n", "undo.sh"}} {
			c := exec.Command(args[0], args[1:]...)
			c.Dir = dir
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s: %q: %v\n%s", name, args, err, out)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, name+".pp")); err != nil || info.Size() == 0 {
			t.Errorf("%s: no package: %v", name, err)
		}
	}
}

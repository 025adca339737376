//go:build root

package selinux

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// One setting of each kind, as one change on a real policy that is enforced: in force afterwards as the programs of the
// policy say, and taken back without a trace. What an administrator had set stays: in the store, and in the kernel,
// which has it otherwise.
func TestEveryKind(t *testing.T) {
	r := newRig(t)
	tree := "/srv/bhkinds"
	t.Cleanup(func() { _ = os.RemoveAll(tree) })
	r.write(tree+"/sub/t.ibd", "")
	r.write(tree+"/mysql.sock", "")
	r.must("chcon", "-t", "mysqld_runtime_t", tree+"/mysql.sock")
	booleans := strings.Fields(r.must("sh", "-c", "getsebool -a | sed -n 's/ --> off//p'"))
	theirs := slices.DeleteFunc(booleans, func(b string) bool {
		return b == "mysql_connect_any" || strings.HasPrefix(b, "secure_")
	})[0]
	r.must("semanage", "boolean", "-m", "--on", theirs)
	r.must("setsebool", theirs, "off")
	t.Cleanup(func() { r.must("semanage", "boolean", "-D") })
	r.enforce()
	was := r.policy(tree)
	open := func() *transaction.Controller {
		c, err := transaction.Open(transaction.Options{State: filepath.Join(r.dir, "state")})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	do := func(q api.Request) {
		t.Helper()
		c := open()
		defer c.Close()
		reply, err := control.Do(t.Context(), c, q)
		if err != nil {
			t.Fatalf("%s: %v", q.Verb, err)
		}
		t.Logf("%s: %d steps, notes %q", q.Verb, len(reply.Plan.Steps), reply.Notes)
	}
	var asked []state.Tuned
	for name, value := range map[string]string{
		"context " + tree:            "mysqld_db_t",
		"port tcp/4444":              "mysqld_port_t from " + owner(r, "tcp", "4444"),
		"port udp/4567-4568":         "mysqld_port_t",
		"boolean mysql_connect_any":  "on",
		"module bulkhead_mysqld_t":   sepolicy.Rule("mysqld_t", "mysqld_t", "process", []string{"ptrace"}),
		"module permissive_mysqld_t": sepolicy.Permissive("mysqld_t"),
	} {
		asked = append(asked, state.Tuned{Rule: state.RuleSELinux, Name: sepolicy.Prefix + name, Value: value})
	}
	do(api.Request{Verb: "tune apply", Tune: asked})
	for name, want := range map[string][2]string{
		"label":      {r.must("stat", "-c", "%C", tree+"/sub/t.ibd", tree+"/mysql.sock"), ":mysqld_db_t:"},
		"restorecon": {r.must("sh", "-c", "restorecon -n -R -v "+tree+"; echo end"), "end"},
		"port":       {r.must("semanage", "port", "-l", "-C"), "4444"},
		"boolean":    {r.must("getsebool", "mysql_connect_any"), "on"},
		"stored":     {r.must("semanage", "export"), "boolean -m -1 mysql_connect_any"},
		"module":     {r.must("semodule", "-lfull"), "400 bulkhead_mysqld_t"},
		"rule": {r.must("sesearch", "-A", "-s", "mysqld_t", "-t", "mysqld_t", "-c", "process", "-p", "ptrace"),
			"ptrace"},
		"permissive": {r.must("semanage", "permissive", "-l"), "mysqld_t"},
	} {
		if !strings.Contains(want[0], want[1]) || name == "restorecon" && want[0] != want[1] {
			t.Errorf("%s: %q, want %q", name, want[0], want[1])
		}
	}
	do(api.Request{Verb: "tune rollback", Rules: []string{state.RuleSELinux}})
	is := r.policy(tree)
	for what, text := range is { // beside theirs it stays, as the policy has it
		is[what] = strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return line == "boolean -m -0 mysql_connect_any" || line == "mysql_connect_any=0"
		}), "\n")
	}
	r.same("after the rollback", was, is)
}

// owner is the type that the policy itself has for one port.
func owner(r *rig, protocol, port string) string {
	r.t.Helper()
	for line := range strings.Lines(r.must("seinfo", "--portcon="+port, "-x")) {
		words := strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), ";"))
		if len(words) == 4 && words[1] == protocol && words[2] == port {
			return strings.Split(words[3], ":")[2]
		}
	}
	r.t.Fatalf("no type of %s/%s", protocol, port)
	return ""
}

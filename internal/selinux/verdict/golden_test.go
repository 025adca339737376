package verdict_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/policydb"
	"bulkhead/internal/selinux/verdict"
)

// policy is one of few rules.
type policy struct {
	allowed  map[string]bool // "source target class permission"
	types    []string
	booleans map[string][]string // by rule
	ports    []policydb.Port
	domains  map[string]string // by type of the file
	// constrained are classes.
	constrained string
}

func (p policy) Access(source, target, class string, permissions []string) policydb.Access {
	a := policydb.Access{Known: true, Constrained: class == p.constrained}
	for _, perm := range permissions {
		rule := source + " " + target + " " + class + " " + perm
		if !p.allowed[rule] {
			a.Missing = append(a.Missing, perm)
		}
		for _, name := range p.booleans[rule] {
			a.Booleans = append(a.Booleans, policydb.Boolean{Name: name, On: true})
		}
	}
	return a
}

func (p policy) PortType(protocol string, port int) (policydb.Port, bool) {
	for _, r := range p.ports {
		if r.Protocol == protocol && r.Low <= port && port <= r.High {
			return r, true
		}
	}
	return policydb.Port{}, false
}

func (p policy) PortTypes(source, protocol, class string, permissions []string) map[string][]policydb.Port {
	found := map[string][]policydb.Port{}
	for _, r := range p.ports {
		if a := p.Access(source, r.Type, class, permissions); r.Protocol == protocol && len(a.Missing) == 0 {
			found[r.Type] = append(found[r.Type], r)
		}
	}
	return found
}

func (p policy) Types(prefix, source, class string, permissions []string) (found []string) {
	for _, t := range p.types {
		if a := p.Access(source, t, class, permissions); strings.HasPrefix(t, prefix) && len(a.Missing) == 0 {
			found = append(found, t)
		}
	}
	return found
}

func (p policy) Domain(_, file string) string { return p.domains[file] }

// files are some.
type files struct {
	expected, actual map[string]string
	text             map[string]string
}

func (f files) Expected(path, _ string) (string, bool) { k, known := f.expected[path]; return k, known }
func (f files) Actual(path string) (string, bool)      { k, known := f.actual[path]; return k, known }
func (f files) Read(path string) ([]byte, error) {
	if text, there := f.text[path]; there {
		return []byte(text), nil
	}
	return nil, errors.New("it is not there")
}

// read reads a log.
func read(t *testing.T, text string) *avc.Log {
	t.Helper()
	log := &avc.Log{}
	if err := log.Read(strings.NewReader(text), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if len(log.Unread) > 0 {
		t.Fatalf("%v", log.Unread)
	}
	return log
}

func document(t *testing.T) *avc.Log {
	t.Helper()
	text, err := os.ReadFile("../avc/testdata/percona-xtradb-cluster.log")
	if err != nil {
		t.Fatal(err)
	}
	return read(t, string(text))
}

// after is the document's policy: it has the six rules, where the 32 came down to when the script and the ports were
// put right.
var after = []string{
	"allow mysqld_t kernel_t:system module_request;",
	"allow mysqld_t self:process { getattr setpgid };",
	"allow mysqld_t self:unix_stream_socket connectto;",
	"allow mysqld_t sysctl_net_t:dir search;",
	"allow mysqld_t sysctl_net_t:file { getattr open read };",
	"allow mysqld_t tmp_t:file write;",
}

// centos is what that policy of CentOS 7 has, as far as the document shows it: the annotations of audit2allow, and
// what semanage printed.
func centos() verdict.Host {
	p := policy{allowed: map[string]bool{}, types: []string{"mysqld_db_t", "mysqld_tmp_t"},
		booleans: map[string][]string{
			"mysqld_t kerberos_port_t tcp_socket name_bind":      {"nis_enabled"},
			"mysqld_t kernel_t system module_request":            {"domain_kernel_load_modules"},
			"mysqld_t mysqld_t unix_stream_socket connectto":     {"daemons_enable_cluster_mode"},
			"mysqld_t unreserved_port_t tcp_socket name_connect": {"nis_enabled", "mysql_connect_any"},
			"mysqld_t unreserved_port_t tcp_socket name_bind":    {"nis_enabled"},
		},
		ports: []policydb.Port{{Protocol: "tcp", Low: 4444, High: 4444, Type: "kerberos_port_t"},
			{Protocol: "tcp", Low: 1186, High: 1186, Type: "mysqld_port_t"},
			{Protocol: "tcp", Low: 3306, High: 3306, Type: "mysqld_port_t"},
			{Protocol: "tcp", Low: 1024, High: 65535, Type: "unreserved_port_t"}}}
	for _, rule := range []string{"mysqld_tmp_t file write", "mysqld_port_t tcp_socket name_bind",
		"mysqld_port_t tcp_socket name_connect"} {
		p.allowed["mysqld_t "+rule] = true
	}
	return verdict.Host{Policy: p, Starts: p, Files: files{
		expected: map[string]string{"/var/lib/mysql/mysql.sock": "mysqld_var_run_t"},
		actual:   map[string]string{"/var/lib/mysql/mysql.sock": "mysqld_db_t"},
	}}
}

// The document's log comes down to its six rules, two of which its own annotations put right by a label.
func TestDocument(t *testing.T) {
	log := document(t)
	if n := len(avc.Groups(log.Denials)); n != 32 {
		t.Fatalf("%d rules of audit2allow, the document has 32", n)
	}
	r := verdict.Judge(log, centos())
	var six []string
	for _, k := range []verdict.Kind{verdict.Rule, verdict.Label} {
		for _, v := range r.Of(k) {
			six = append(six, v.Rule)
		}
	}
	slices.Sort(six)
	if !slices.Equal(six, after) {
		t.Errorf("left are\n%s\nwant\n%s", strings.Join(six, "\n"), strings.Join(after, "\n"))
	}
	labels := r.Of(verdict.Label)
	if len(labels) != 2 || labels[0].Fix[0] != "restorecon -v /var/lib/mysql/mysql.sock" ||
		!strings.Contains(labels[1].Fix[0], "mysqld_tmp_t") || labels[1].Target != "tmp_t" {
		t.Errorf("labels: %+v", labels)
	}
	if len(r.Rules) != 4 || len(r.Of(verdict.Script)) != 24 {
		t.Errorf("%d rules are needed, and %d are a script's fault", len(r.Rules), len(r.Of(verdict.Script)))
	}
	ports := r.Of(verdict.Port)
	if len(ports) != 2 || !slices.Equal(ports[0].Fix, []string{"semanage port -m -t mysqld_port_t -p tcp 4444"}) ||
		!slices.Equal(ports[1].Fix, []string{"semanage port -a -t mysqld_port_t -p tcp 4568"}) ||
		!strings.Contains(strings.Join(ports[0].Because, "\n"), "would lose it") {
		t.Errorf("ports: %+v", ports)
	}
	for _, v := range r.Verdicts {
		if len(v.Because) == 0 || len(v.Fix) == 0 || len(v.Evidence) == 0 || len(v.Undecided) > 0 &&
			v.Kind != verdict.Script && v.Target != "tmp_t" {
			t.Errorf("%s lacks something: %+v", v.Rule, v)
		}
		if v.Kind == verdict.Boolean {
			t.Errorf("%s is a boolean: all that the document has open far more", v.Rule)
		}
	}
	traps := ""
	for _, v := range r.Of(verdict.Rule) {
		traps += strings.Join(v.Because, "\n")
	}
	if !strings.Contains(traps, "domain_kernel_load_modules") {
		t.Errorf("the boolean that opens far more is not named:\n%s", traps)
	}
}

// Without a policy to ask, the same log has no verdict that needs one, and says so.
func TestDocumentElsewhere(t *testing.T) {
	r := verdict.Judge(document(t), verdict.Host{})
	if n := len(r.Of(verdict.Script)); n != 24 {
		t.Errorf("%d are a script's fault", n)
	}
	for _, v := range r.Verdicts {
		if v.Kind != verdict.Script && len(v.Undecided) == 0 {
			t.Errorf("%s is decided without a policy: %+v", v.Rule, v)
		}
		for _, f := range v.Fix {
			for _, guess := range []string{"semanage", "restorecon", "setsebool", "mysqld_port_t", "mysqld_tmp_t"} {
				if strings.HasPrefix(f, guess) {
					t.Errorf("%s: %q is guessed", v.Rule, f)
				}
			}
		}
	}
}

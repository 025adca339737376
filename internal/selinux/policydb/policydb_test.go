package policydb_test

import (
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/selinux/policydb"
)

var update = flag.Bool("update", false, "write testdata/small.hex anew")

// small is the policy of testdata/small.cil, version 33, as secilc 3.4 compiles it.
func small(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/small.hex")
	if err != nil {
		t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, data []byte) {
	t.Helper()
	text := regexp.MustCompile(`.{1,96}`).ReplaceAllString(hex.EncodeToString(data), "$0\n")
	if err := os.WriteFile("testdata/small.hex", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func words(text string) []string { return strings.Fields(text) }

// check asks a policy all that the text has.
func check(t *testing.T, data []byte) {
	t.Helper()
	p, err := policydb.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, target, class, permissions, want string }{
		{"mysqld_t", "mysqld_db_t", "file", "read write open", "[] constrained"},
		{"mysqld_t", "mysqld_data_t", "file", "read getattr", "[]"}, // an alias
		{"mysqld_t", "mysqld_db_t", "file", "read entrypoint", "[entrypoint]"},
		{"mysqld_t", "tmp_t", "dir", "search", "[]"}, // by an attribute
		{"lonely_t", "tmp_t", "dir", "search", "[search]"},
		{"mysqld_t", "tmp_t", "file", "getattr", "[getattr]"}, // dontaudit is no allow
		{"mysqld_t", "mysqld_t", "process", "getattr setpgid", "[setpgid]"},
		{"mysqld_t", "nfs_t", "file", "read open", "[read open] use_nfs=true"},
		{"mysqld_t", "nfs_t", "dir", "search", "[search] use_nfs=true"},
		{"mysqld_t", "kerberos_port_t", "tcp_socket", "name_connect", "[name_connect] connect_any=true strict=false"},
		{"mysqld_t", "kerberos_port_t", "tcp_socket", "name_connect name_bind", "[name_connect name_bind]"},
		{"mysqld_t", "lonely_t", "dir", "search", "[]"}, // while a condition is false
		{"init_t", "mysqld_t", "process", "transition", "[] constrained permissive"},
		{"nobody_t", "tmp_t", "dir", "search", "unknown"},
		{"mysqld_t", "tmp_t", "door", "search", "unknown"},
		{"mysqld_t", "tmp_t", "dir", "knock", "unknown"},
	} {
		a := p.Access(c.source, c.target, c.class, words(c.permissions))
		got := fmt.Sprint(a.Missing)
		for _, b := range a.Booleans {
			got += fmt.Sprintf(" %s=%v", b.Name, b.On)
		}
		if a.Constrained {
			got += " constrained"
		}
		if a.Permissive {
			got += " permissive"
		}
		if !a.Known {
			got = "unknown"
		}
		if got != c.want {
			t.Errorf("version %d: %s %s:%s { %s } is %q, want %q", p.Version, c.source, c.target, c.class,
				c.permissions, got, c.want)
		}
	}
	for port, want := range map[int]string{4444: "kerberos_port_t 4444-4444", 3306: "mysqld_port_t 3306-3306",
		4568: "unreserved_port_t 1024-65535", 80: " 0-0"} {
		found, ok := p.PortType("tcp", port)
		if got := fmt.Sprintf("%s %d-%d", found.Type, found.Low, found.High); got != want || ok != (port != 80) {
			t.Errorf("port %d is %q, %v, want %q", port, got, ok, want)
		}
	}
	if _, ok := p.PortType("udp", 3306); ok {
		t.Error("a port of TCP is one of UDP")
	}
	may := p.PortTypes("mysqld_t", "tcp", "tcp_socket", []string{"name_bind"})
	if len(may) != 1 || len(may["mysqld_port_t"]) != 1 {
		t.Errorf("it may use %v", may)
	}
	types := p.Types("mysqld_", "mysqld_t", "file", []string{"write", "open"})
	if got := fmt.Sprint(types); got != "[mysqld_db_t mysqld_log_t]" {
		t.Errorf("types: %v", got)
	}
	if got := fmt.Sprint(p.Types("", "mysqld_t", "file", []string{"ioctl"})); got != "[mysqld_log_t tmp_t]" {
		t.Errorf("by an attribute, which is no type: %s", got)
	}
	if got := p.Domain("init_t", "mysqld_exec_t"); got != "mysqld_t" {
		t.Errorf("it starts as %q", got)
	}
	if got := p.Domain("mysqld_t", "mysqld_exec_t") + p.Domain("init_t", "nobody_t"); got != "" {
		t.Errorf("it starts as %q", got)
	}
}

// What is made has the type that a rule says, or that of the directory; booleans are those of the type itself.
func TestMadeAndBooleans(t *testing.T) {
	p, err := policydb.Decode(small(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Created("init_t", "mysqld_exec_t", "process"); got != "mysqld_t" {
		t.Errorf("%q", got)
	}
	for _, class := range []string{"file", "door"} { // by the name of a file alone
		if got := p.Created("mysqld_t", "tmp_t", class); got != "tmp_t" {
			t.Errorf("%s: %q", class, got)
		}
	}
	if got := fmt.Sprint(p.BooleansOf("mysqld_t")); got != "[{connect_any false} {strict true} {use_nfs false}]" {
		t.Errorf("%s", got)
	}
	if got := fmt.Sprint(p.BooleansOf("lonely_t"), p.BooleansOf("nobody_t")); got != "[] []" {
		t.Errorf("%s", got)
	}
	if got := fmt.Sprint(p.Permissive()); got != "[init_t]" {
		t.Errorf("%s", got)
	}
}

func TestPolicy(t *testing.T) { check(t, small(t)) }

// A policy that is cut or of another kind is an error, wherever it is cut, and so is a number that is too large.
func TestDamaged(t *testing.T) {
	data := small(t)
	for n := range len(data) {
		if _, err := policydb.Decode(data[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are a policy", n, len(data))
		}
	}
	const version, config, symbols = 16, 20, 24
	for at, value := range map[int]uint32{0: 1, 4: 7, version: 23, config: 0, symbols: 7} {
		other := append([]byte(nil), data...)
		binary.LittleEndian.PutUint32(other[at:], value)
		if p, err := policydb.Decode(other); err == nil {
			t.Errorf("%d at byte %d is a policy: %d", value, at, p.Version)
		}
	}
}

// Whatever bytes there are, they are read in bounded time and memory, and answers can be asked.
func FuzzDecode(f *testing.F) {
	f.Add(small(f))
	f.Add(small(f)[:200])
	f.Fuzz(func(_ *testing.T, data []byte) {
		p, err := policydb.Decode(data)
		if err != nil {
			return
		}
		p.Access("mysqld_t", "nfs_t", "file", []string{"read"})
		p.PortTypes("mysqld_t", "tcp", "tcp_socket", []string{"name_bind"})
		p.Domain("init_t", "mysqld_exec_t")
	})
}

// A policy of a distribution has 100,000 rules: this one, 2 KB, shows what each costs.
func BenchmarkDecode(b *testing.B) {
	data := small(b)
	for b.Loop() {
		if _, err := policydb.Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}

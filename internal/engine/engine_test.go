package engine

import (
	"net/netip"
	"regexp"
	"testing"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"

	"pgregory.net/rapid"
)

func TestMatches(t *testing.T) {
	maria := Instance{Engine: MySQL, Flavor: MariaDB, Port: 3306, Ports: []int{3306, 4567}, Socket: "/run/m.sock",
		DataDir: "/d/m"}
	cluster := Instance{Engine: PostgreSQL, Port: 5432, Cluster: "15/main", DataDir: "/d/pg"}
	offline := Instance{Engine: MySQL, Socket: "/run/orders.sock"}
	oracle := Instance{Engine: Oracle, SID: "BX1"}
	asm := Instance{Engine: Oracle, Flavor: ASM, SID: "+ASM1"}
	sentinel := Instance{Engine: Redis, Port: 26379, Members: []Member{{procfs.ID{PID: 1}, PartSentinel}}}
	for _, test := range []struct {
		instance Instance
		match    policy.Match
		key      string // the mismatch, "" for a match
	}{
		{maria, policy.Match{}, ""},
		{maria, policy.Match{Engine: "mysql"}, ""},
		{maria, policy.Match{Engine: "mariadb"}, ""},
		{maria, policy.Match{Engine: "percona"}, "engine"},
		{offline, policy.Match{Engine: "mariadb"}, "engine"},
		{maria, policy.Match{Engine: "redis"}, "engine"},
		{maria, policy.Match{Engine: "mysql", Port: "3306"}, ""},
		{maria, policy.Match{Port: "4567"}, ""},
		{maria, policy.Match{Port: "3307"}, "port"},
		{maria, policy.Match{Port: "x"}, "port"},
		{offline, policy.Match{Port: "0"}, "port"},
		{maria, policy.Match{Socket: "/run//m.sock"}, ""},
		{maria, policy.Match{Socket: "/run/x.sock"}, "socket"},
		{cluster, policy.Match{Socket: "/run/x.sock"}, "socket"},
		{maria, policy.Match{DataDir: "/d/m/"}, ""},
		{maria, policy.Match{DataDir: "/d"}, "datadir"},
		{offline, policy.Match{DataDir: "."}, "datadir"},
		{maria, policy.Match{Instance: "mysql3306"}, ""},
		{maria, policy.Match{Instance: "mysql3307"}, "instance"},
		{cluster, policy.Match{Instance: "15/main"}, ""},
		{cluster, policy.Match{Instance: "14/main"}, "instance"},
		{offline, policy.Match{Instance: "mysql-orders"}, ""},
		{oracle, policy.Match{Engine: "oracle"}, ""},
		{oracle, policy.Match{Engine: "oracle", SID: "BX1"}, ""},
		{oracle, policy.Match{Engine: "oracle", SID: "bx1"}, "sid"}, // SIDs know upper and lower case
		{oracle, policy.Match{Instance: "oracle-BX1"}, ""},
		{oracle, policy.Match{Engine: "asm"}, "engine"},
		{asm, policy.Match{Engine: "oracle"}, "engine"},
		{asm, policy.Match{Engine: "asm"}, ""},
		{asm, policy.Match{Engine: "oracle", SID: "+ASM1"}, ""},
		{sentinel, policy.Match{Engine: "redis"}, "part"},
		{sentinel, policy.Match{Engine: "redis", Part: "sentinel"}, ""},
		{maria, policy.Match{Engine: "mysql", Part: "supervisor"}, ""},
	} {
		key, _ := test.instance.Mismatch(test.match)
		if key != test.key || test.instance.Matches(test.match) != (test.key == "") {
			t.Errorf("%s against %+v: mismatch %q, want %q", test.instance, test.match, key, test.key)
		}
	}
}

func TestListensOn(t *testing.T) {
	at := func(all ...string) (i Instance) {
		i.Socket = "/run/m.sock"
		for _, a := range all {
			l := netip.MustParseAddrPort(a)
			i.Addresses, i.Ports = append(i.Addresses, l), append(i.Ports, int(l.Port()))
		}
		return i
	}
	for _, test := range []struct {
		instance Instance
		port     int
		address  string
		want     bool
	}{
		{at("10.0.0.5:3306"), 3306, "10.0.0.5:3306", true},
		{at("10.0.0.5:3306"), 3306, "[::ffff:10.0.0.5]:3306", true},
		{at("10.0.0.5:3306"), 3306, "10.0.0.6:3306", false},
		{at("10.0.0.5:3306", "0.0.0.0:33060"), 3306, "10.0.0.6:3306", false},
		{at("10.0.0.5:3306", "0.0.0.0:33060"), 33060, "10.0.0.6:33060", true},
		{at("[::]:3306"), 3306, "10.0.0.6:3306", true},
		{at("10.0.0.5:3306"), 3306, "", true}, // at which address is not known
		{at("10.0.0.5:3306"), 3307, "10.0.0.5:3307", false},
		{Instance{Port: 3306}, 3306, "10.0.0.6:3306", true}, // its sockets were not seen
		{at(), 0, "/run/m.sock", true},
		{at(), 0, "", false},
		{at(), 0, "/run/x.sock", false},
	} {
		if got := test.instance.ListensOn(test.port, test.address); got != test.want {
			t.Errorf("%v at %q: %t", test.instance.Addresses, test.address, got)
		}
	}
}

func TestName(t *testing.T) {
	for _, test := range []struct {
		instance   Instance
		name, text string
	}{
		{Instance{Engine: MySQL, Flavor: MariaDB, Port: 3306, DataDir: "/var/lib/mysql"}, "mysql3306",
			"mariadb 3306 (/var/lib/mysql)"},
		{Instance{Engine: PostgreSQL, Port: 5432}, "postgresql5432", "postgresql 5432"},
		{Instance{Engine: MySQL, Socket: "/run/my orders.sock", DataDir: "/d"}, "mysql-my-orders",
			"mysql /run/my orders.sock (/d)"},
		{Instance{Engine: Redis, DataDir: "/srv/käse"}, "redis-k-se", "redis (/srv/käse)"},
		{Instance{Engine: Redis, DataDir: "/"}, "redis", "redis (/)"},
		{Instance{Engine: Redis, Socket: "/run/.hidden"}, "redis-hidden", "redis /run/.hidden"},
		{Instance{Engine: PostgreSQL}, "postgresql", "postgresql"},
		{Instance{Engine: Oracle, SID: "BXTST02"}, "oracle-BXTST02", "oracle BXTST02"},
		{Instance{Engine: Oracle, Flavor: ASM, SID: "+ASM1"}, "oracle-ASM1", "asm +ASM1"},
		{Instance{Engine: Redis, Port: 26379, Members: []Member{{Part: PartSentinel}}}, "sentinel26379",
			"redis sentinel 26379"},
	} {
		if got := test.instance.Name(); got != test.name {
			t.Errorf("%s is called %q, want %q", test.text, got, test.name)
		}
		if got := test.instance.String(); got != test.text {
			t.Errorf("%s is described as %q, want %q", test.name, got, test.text)
		}
	}
}

// Whatever an instance has, its name fits the policy's rules for names.
func TestNameIsValid(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z0-9A-Z][a-zA-Z0-9_.-]*$`)
	rapid.Check(t, func(t *rapid.T) {
		i := Instance{
			Engine:  rapid.SampledFrom([]string{MySQL, Oracle, PostgreSQL, Redis, SQLServer}).Draw(t, "engine"),
			Port:    rapid.SampledFrom([]int{0, 1, 65535}).Draw(t, "port"),
			SID:     rapid.String().Draw(t, "sid"),
			Socket:  rapid.String().Draw(t, "socket"),
			DataDir: rapid.String().Draw(t, "datadir"),
		}
		if name := i.Name(); !valid.MatchString(name) || i.Placeholders()["instance"] != name {
			t.Fatalf("%q is no name", name)
		}
	})
}

func TestPlaceholders(t *testing.T) {
	i := Instance{Engine: MySQL, Flavor: MariaDB, User: "mysql", Socket: "/run/a.sock", DataDir: "/d"}
	want := map[string]string{"port": "", "sid": "", "socket": "/run/a.sock", "datadir": "/d", "engine": "mysql",
		"instance": "mysql-a", "user": "mysql"}
	got := i.Placeholders()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("{%s} is %q, want %q", k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("placeholders are %v", got)
	}
	i.Port = 3306
	if got := i.Placeholders()["port"]; got != "3306" {
		t.Errorf("{port} is %q", got)
	}
}

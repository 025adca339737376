package settings

import (
	"strings"
	"testing"

	"bulkhead/internal/advise/ask"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
)

// A DSN may lead to another server than the instance: what that one tells is not taken.
func TestAnotherServer(t *testing.T) {
	h := host.New(linuxtest.Unpack(t, "-- proc/sys/kernel/hostname --\ndb1\n-- proc/950/stat --\n"+
		"950 (postgres: a b) S 900 1 1 0\n-- proc/951/stat --\n951 (postgres) S 901 1 1 0\n-- srv/my/x --\n"+
		"-- srv/other/x --\n-- srv/link --\nsymlink: my\n"))
	my := engine.Instance{Engine: engine.MySQL, Port: 3306, Ports: []int{3306, 33062}, DataDir: "/srv/link"}
	pg := engine.Instance{Engine: engine.PostgreSQL, Port: 5432, Main: procfs.ID{PID: 900}}
	red := engine.Instance{Engine: engine.Redis, Port: 6379, Main: procfs.ID{PID: 700}}
	contained := my
	contained.Container = true
	for name, c := range map[string]struct {
		inst engine.Instance
		a    ask.Answer
		want string
	}{
		"itself":                {my, ask.Answer{Port: 3306, DataDir: "/srv/my/", Hostname: "db1"}, ""},
		"its other port":        {my, ask.Answer{Port: 33062}, ""},
		"another port":          {my, ask.Answer{Port: 3307}, "its port is 3307"},
		"another directory":     {my, ask.Answer{Port: 3306, DataDir: "/srv/other"}, "its data directory is"},
		"another host":          {my, ask.Answer{Port: 3306, DataDir: "/srv/my", Hostname: "db2"}, "its host is db2"},
		"in a container":        {contained, ask.Answer{Port: 3306, DataDir: "/data", Hostname: "0a1b"}, ""},
		"a session of it":       {pg, ask.Answer{Port: 5432, PID: 950}, ""},
		"of another postmaster": {pg, ask.Answer{Port: 5432, PID: 951}, "its process is 951"},
		"of another machine":    {pg, ask.Answer{Port: 5432, PID: 4000}, "its process is 4000"},
		"Redis":                 {red, ask.Answer{Port: 6379, PID: 700}, ""},
		"another Redis":         {red, ask.Answer{Port: 6379, PID: 701}, "its process is 701"},
	} {
		err := isIt(h, c.inst, &c.a)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSettingForms(t *testing.T) {
	for _, c := range []struct {
		text string
		read func(string) (any, bool)
		want any
	}{
		{"1g", redisForm, int64(1e9)}, {"1gb", redisForm, int64(1 << 30)}, {"0", redisForm, int64(0)},
		{"8", gigasForm, int64(8 << 30)}, {"0.5", gigasForm, int64(512 << 20)}, {"DETECT_AND_RECOVER", setForm, true},
		{"OFF", setForm, false}, {"4MB", kilosForm, int64(4 << 20)}, {"4096", kilosForm, int64(4 << 20)},
	} {
		if got, ok := c.read(c.text); !ok || got != c.want {
			t.Errorf("%q is %v", c.text, got)
		}
	}
	for _, c := range []struct {
		text string
		read func(string) (any, bool)
	}{{"-1", gigasForm}, {"1e99", gigasForm}, {"lots", redisForm}, {"-5g", redisForm}, {"maybe", flagForm}} {
		if got, ok := c.read(c.text); ok {
			t.Errorf("%q is %v", c.text, got)
		}
	}
}

// Defaults that differ by flavour and version: without a version none is taken.
func TestDefaultsOfMySQL(t *testing.T) {
	for _, c := range []struct{ flavour, version, name, want string }{
		{"", "8.0.36", "sync_binlog", "1"}, {"", "5.6.40", "sync_binlog", "0"}, {"mariadb", "", "sync_binlog", "0"},
		{"", "", "sync_binlog", ""}, {"", "8.4.0", "innodb_numa_interleave", ""}, {"", "8.0.36", "log_bin", "ON"},
		{"mariadb", "10.11", "log_bin", "OFF"}, {"", "8.4.0", "innodb_log_buffer_size", "64M"},
	} {
		for _, s := range mysqlTable(engine.Instance{Engine: engine.MySQL, Flavor: c.flavour, Version: c.version}) {
			if s.name == c.name && s.byDefault != c.want {
				t.Errorf("%+v: %q", c, s.byDefault)
			}
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"128M": 128 << 20, "64MB": 64 << 20, "16384": 16384 * 8192,
		"1G": 1 << 30} {
		if n, ok := Size(text, 8192); !ok || n != want {
			t.Errorf("%s is %d", text, n)
		}
	}
	for _, text := range []string{"", "lots", "12X", "-1", "9999999999999999999", "9223372036854775807T"} {
		if n, ok := Size(text, 1); ok {
			t.Errorf("%q is %d", text, n)
		}
	}
}

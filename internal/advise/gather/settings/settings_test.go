package settings

import (
	"testing"

	"bulkhead/internal/engine"
)

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

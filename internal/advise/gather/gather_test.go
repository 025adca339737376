package gather

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

// capturedWith is a captured host with some files changed.
func capturedWith(t *testing.T, files map[string]string) *host.Host {
	t.Helper()
	root := linuxtest.Unpack(t, linuxtest.Text(t, "debian12"))
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return host.New(root)
}

func TestHostFacts(t *testing.T) {
	h := capturedWith(t, map[string]string{
		"proc/sys/vm/swappiness":                               "60\n",
		"proc/sys/vm/zone_reclaim_mode":                        "many\n",
		"sys/kernel/mm/transparent_hugepage/enabled":           "always [madvise] never\n",
		"sys/kernel/mm/transparent_hugepage/defrag":            "always madvise never\n",
		"proc/sys/net/ipv4/ip_local_port_range":                "32768\t60999\n",
		"proc/sys/fs/aio-nr":                                   "60000\n",
		"proc/sys/fs/aio-max-nr":                               "65536\n",
		"proc/cmdline":                                         "root=/dev/sda1 elevator=noop\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
	})
	set := Facts(t.Context(), h, Options{})
	for name, want := range map[string]any{"host.swappiness": int64(60), "host.thp": "madvise",
		"host.port_high":   int64(60999),
		"host.aio_percent": int64(91), "host.cmdline_elevator": true, "host.tuned_profile": "",
		"host.buffers_together": int64(0)} {
		if v := set.Host.Get(name); v.Is != want || v.From == "" {
			t.Errorf("%s is %+v", name, v)
		}
	}
	for name, want := range map[string]string{"host.zone_reclaim": "many", "host.thp_defrag": "shows no choice",
		"host.ksm": "no such file"} {
		if v := set.Host.Get(name); !strings.Contains(v.Unknown, want) {
			t.Errorf("%s is %+v", name, v)
		}
	}
}

// Pages that a pool has beyond its size, since servers still use them, are not there for the next start.
func TestSurplusHugePages(t *testing.T) {
	h := capturedWith(t, map[string]string{"proc/meminfo": "MemTotal: 8388608 kB\nHugePages_Total: 234\n" +
		"HugePages_Free: 100\nHugePages_Rsvd: 100\nHugePages_Surp: 230\nHugepagesize: 2048 kB\n"})
	set := Facts(t.Context(), h, Options{})
	for name, want := range map[string]int64{"host.huge_pages": 4, "host.huge_pool": 4 * 2 << 20} {
		if v := set.Host.Get(name); v.Is != want || !strings.Contains(v.From, "HugePages_Surp") {
			t.Errorf("%s is %+v, want %d", name, v, want)
		}
	}
}

// Each fact of the table is read: it has a value, or a reason of its own.
func TestEveryFactIsRead(t *testing.T) {
	set := Facts(t.Context(), capturedWith(t, nil), Options{})
	set.Instances = append(set.Instances, fact.Object{Values: fact.Values{}})
	for _, row := range fact.Table {
		if row.Scope() != fact.Host {
			continue
		}
		v := set.Host.Get(row.Name)
		if v.Unknown == "not read" || strings.Contains(v.Unknown, "no answer within") {
			t.Errorf("nothing reads %s", row.Name)
		}
		if kind := map[fact.Type]string{fact.Number: "int64", fact.Text: "string", fact.Flag: "bool",
			fact.List: "[]string"}[row.Type]; v.Unknown == "" && kind != typeName(v.Is) {
			t.Errorf("%s is a %s, not a %s", row.Name, typeName(v.Is), kind)
		}
	}
}

func typeName(v any) string {
	switch v.(type) {
	case int64:
		return "int64"
	case string:
		return "string"
	case bool:
		return "bool"
	case []string:
		return "[]string"
	}
	return "another"
}

func TestListedMount(t *testing.T) {
	const table = "# a comment\n/dev/sdb1 /srv xfs noatime,nobarrier 0 2\nUUID=1 /a\\040b ext4 defaults 0 2\nbroken\n"
	for point, want := range map[string]string{"/srv": "/dev/sdb1 noatime+nobarrier /etc/fstab:2",
		"/a b": "UUID=1 defaults /etc/fstab:3", "/x": "  /etc/fstab does not list it"} {
		source, options, from := listedMount(table, point)
		if got := source + " " + strings.Join(options, "+") + " " + from; got != want {
			t.Errorf("%s: %q", point, got)
		}
	}
}

func TestProcessFacts(t *testing.T) {
	h := capturedWith(t, map[string]string{
		"proc/77/status":        "Name:\tmysqld\nVmSwap:\t  2048 kB\nTHP_enabled:\t0\n",
		"proc/77/limits":        "Limit  Soft Limit  Hard Limit\nMax open files            1024    524288   files\n",
		"proc/77/oom_score_adj": "-600\n",
	})
	v := fact.Values{}
	processFacts(h, 77, v)
	for name, want := range map[string]any{"instance.swapped": int64(2 << 20), "instance.thp_off": true,
		"instance.open_files": int64(1024), "instance.oom_score_adj": int64(-600)} {
		if v.Get(name).Is != want {
			t.Errorf("%s is %+v", name, v.Get(name))
		}
	}
	gone := fact.Values{}
	processFacts(h, 78, gone)
	for name, value := range gone {
		if value.Unknown == "" {
			t.Errorf("%s of no process is %+v", name, value)
		}
	}
}

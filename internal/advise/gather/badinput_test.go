package gather

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
)

// A file that cannot be read, or holds what no kernel writes, is a fact that is unknown, and never a finding.
func TestBadInput(t *testing.T) {
	t.Parallel()
	h := tuned(t, nil)
	dir, err := h.Root.Tree()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := rule.Library()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/tuned.txtar")
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 6
	spoilt := make([][]string, rounds) // of the files that one fact has, a part at a time
	count := 0
	for line := range strings.Lines(string(text)) {
		name, is := strings.CutPrefix(strings.TrimSpace(line), "-- ")
		name = strings.TrimSuffix(name, " --")
		switch base := filepath.Base(name); {
		case !is:
		case slices.Contains([]string{"comm", "current_clocksource", "scaling_governor",
			"energy_performance_preference"}, base): // any word may be the name of a program, a clock or a governor
		case slices.Contains([]string{"meminfo", "cgroups", "osrelease", "boot_id", "hostname", "pid_max",
			"threads-max", "status", "smaps", "online", "cgroup", "my.cnf", "postgresql.conf"}, base):
			// without it much is unknown
			spoilt = append(spoilt, []string{name})
		default:
			spoilt[count%rounds] = append(spoilt[count%rounds], name)
			count++
		}
	}
	for _, names := range spoilt {
		for what, spoil := range map[string]func(file string) error{
			"holds rubbish": func(file string) error { return os.WriteFile(file, []byte("many -7x\n[\n"), 0o600) },
			"is no file": func(file string) error {
				if err := os.Remove(file); err != nil {
					return err
				}
				return os.Mkdir(file, 0o700)
			},
		} {
			if len(names) == 1 && what == "is no file" {
				continue // it costs a second, and other files show how a file is that cannot be read
			}
			kept := map[string][]byte{}
			for _, name := range names {
				file := filepath.Join(dir.Name(), name)
				if kept[file], err = os.ReadFile(file); err == nil {
					err = spoil(file)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			rep := advise.Run(rules, Facts(t.Context(), h, Options{Units: unitsIn(h)}), advise.Options{})
			for _, f := range rep.Findings {
				if f.Rule != "FS-05" { // MongoDB lies on btrfs
					t.Errorf("where each of %q %s: %s %v: %s", names, what, f.Rule, f.On, f.Means)
				}
			}
			for file, good := range kept {
				if err := os.RemoveAll(file); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, good, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Option files that include themselves, contradict each other and have sizes that no server takes give what the last
// line says, or nothing.
func TestOddOptionFiles(t *testing.T) {
	const odd = "+!includedir /etc/mysql\n[mysqld]\ninnodb_buffer_pool_size = 12Q\nmax_connections = many\n" +
		"large_pages = perhaps\nsync_binlog = 0\nsync_binlog = 1\n"
	set := Facts(t.Context(), tuned(t, map[string]string{"etc/mysql/my.cnf": odd}), Options{})
	i := slices.IndexFunc(set.Instances, func(o fact.Object) bool { return o.Name == "mysql3306" })
	if i < 0 {
		t.Fatal("the instance is gone")
	}
	for name, want := range map[string]string{"instance.buffer": "12Q", "instance.connections": "many",
		"instance.large_pages": "perhaps", "instance.footprint": "12Q"} {
		if v := set.Instances[i].Values.Get(name); !strings.Contains(v.Unknown, want) {
			t.Errorf("%s is %+v", name, v)
		}
	}
	if v := set.Instances[i].Values.Get("instance.sync_binlog"); v.Is != int64(1) {
		t.Errorf("the last line of two is not what counts: %+v", v)
	}
}

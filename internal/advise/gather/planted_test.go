package gather

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

// tuned is a host with MySQL, PostgreSQL, MongoDB and Oracle on which nothing is to be put right, with some files
// changed. A text that begins with "+" is added to the file.
func tuned(t *testing.T, changes map[string]string) *host.Host {
	t.Helper()
	over, err := os.ReadFile("testdata/tuned.txtar")
	if err != nil {
		t.Fatal(err)
	}
	root := linuxtest.Unpack(t, linuxtest.Text(t, "storage/dbhost"))
	own := linuxtest.Unpack(t, string(over))
	if err := filepath.WalkDir(own, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		relative, _ := filepath.Rel(own, name)
		write(t, root, relative, string(text))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{"812", "900", "1500", "1700"} {
		write(t, root, "proc/"+pid+"/status", "+VmSwap:\t0 kB\nHugetlbPages:\t"+
			map[bool]string{true: "67108864", false: "0"}[pid == "1500"]+" kB\nTHP_enabled:\t1\n"+
			"Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1\n")
	}
	write(t, root, "proc/self/mountinfo",
		"+60 23 0:27 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,memory_recursiveprot\n")
	const disks = "sys/devices/pci0000:00/0000:00:17.0/ata"
	for _, d := range []string{"1/host1/target1:0:0/1:0:0:0/block/sda", "2/host2/target2:0:0/2:0:0:0/block/sdb"} {
		write(t, root, disks+d+"/queue/rotational", "0\n")
		write(t, root, disks+d+"/queue/write_cache", "write back\n")
		for name, value := range map[string]string{"nr_requests": "256", "nomerges": "0", "rq_affinity": "1",
			"iostats": "1", "add_random": "0", "wbt_lat_usec": "0"} {
			write(t, root, disks+d+"/queue/"+name, value+"\n")
		}
	}
	for link, target := range map[string]string{
		"sda": "../devices/pci0000:00/0000:00:17.0/ata1/host1/target1:0:0/1:0:0:0/block/sda",
		"sdb": "../devices/pci0000:00/0000:00:17.0/ata2/host2/target2:0:0/2:0:0:0/block/sdb",
	} {
		if err := os.MkdirAll(filepath.Join(root, "sys/block"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, "sys/block", link)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range changes {
		write(t, root, name, text)
	}
	return host.New(root)
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if more, adds := strings.CutPrefix(text, "+"); adds {
		old, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = string(old) + more
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unitsIn answers for systemd from files "units/NAME": a number is a time in seconds, all else a text.
func unitsIn(h *host.Host) Units {
	return func(_ context.Context, unit string, names ...string) (map[string]any, error) {
		text, err := h.Root.ReadText("/units/" + unit)
		if err != nil {
			return nil, err
		}
		all := map[string]any{}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			if n, err := strconv.ParseUint(value, 10, 64); err == nil && slices.Contains(names, name) {
				all[name] = n * 1e6
			} else if slices.Contains(names, name) {
				all[name] = value
			}
		}
		return all, nil
	}
}

// found are the rules that are not kept, with what they are found on.
func found(t *testing.T, h *host.Host) (list []string, rep *advise.Report) {
	t.Helper()
	rules, err := rule.Library()
	if err != nil {
		t.Fatal(err)
	}
	rep = advise.Run(rules, Facts(t.Context(), h, Options{Units: unitsIn(h)}), advise.Options{})
	for _, f := range rep.Findings {
		list = append(list, strings.TrimSpace(f.Rule+" "+strings.Join(f.On, " ")))
	}
	slices.Sort(list)
	return list, rep
}

// On a host where all is well only what was planted is found, all of it, with the value that was planted as evidence.
func TestPlantedFaults(t *testing.T) {
	// MongoDB lies on btrfs, which no file changes.
	const always = "FS-05 mongodb27017"
	good, rep := found(t, tuned(t, nil))
	if !slices.Equal(good, []string{always}) || len(rep.Notes) > 0 {
		t.Errorf("on a host where all is well: %q, %q", good, rep.Notes)
	}
	changes := map[string]string{}
	want := []string{always}
	for _, p := range planted {
		for i := 0; i+1 < len(p.files); i += 2 {
			changes[p.files[i]] += p.files[i+1]
		}
		want = append(want, p.rules...)
	}
	slices.Sort(want)
	got, rep := found(t, tuned(t, changes))
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("not found: %s", w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("found and not planted: %s", g)
		}
	}
	for _, p := range planted {
		for _, r := range p.rules {
			if !slices.ContainsFunc(rep.Findings, func(f advise.Finding) bool {
				return strings.HasPrefix(r, f.Rule) && slices.ContainsFunc(f.Evidence, func(e advise.Evidence) bool {
					return strings.Contains(e.Value, p.evidence)
				})
			}) {
				t.Errorf("%s has no evidence %q", r, p.evidence)
			}
		}
	}
}

// A value that depends on the host is computed from it, and it is none where it would not help.
func TestComputedValues(t *testing.T) {
	values := func(changes map[string]string) map[string]string {
		_, rep := found(t, tuned(t, changes))
		all := map[string]string{}
		for _, f := range rep.Findings {
			all[f.Rule] = f.Change.Value
		}
		return all
	}
	const ports = sysctls + "net/ipv4/ip_local_port_range"
	const reserved = sysctls + "net/ipv4/ip_local_reserved_ports"
	got := values(map[string]string{
		sysctls + "fs/file-max":    "8192\n",
		sysctls + "kernel/pid_max": "512\n",
		ports:                      "1024 65000\n",
		reserved:                   "27010-27016,3300-3305,8080\n",
	})
	for rule, want := range map[string]string{
		"LIM-05": "9223372036854775807",
		"LIM-11": "4194304",
		"NET-05": "3300-3306,5432,8080,27010-27017",
	} {
		if got[rule] != want {
			t.Errorf("%s wants %q, not %q", rule, got[rule], want)
		}
	}
	got = values(map[string]string{sysctls + "kernel/threads-max": "512\n", sysctls + "kernel/pid_max": "4194304\n"})
	if value, is := got["LIM-11"]; !is || value != "" {
		t.Errorf("LIM-11 wants pid_max to be %q where threads-max is the limit (%t)", value, is)
	}
}

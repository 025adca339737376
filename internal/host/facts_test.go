package host_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fixtures are the captured and hand-built hosts of testdata.
var fixtures = []string{"hybrid", "centos7", "fournodes", "debian12", "container"}

// known are the facts of fixtures that a test has read already.
var known = map[string]*host.Facts{}

func facts(t *testing.T, name string) *host.Facts {
	t.Helper()
	if f := known[name]; f != nil {
		return f
	}
	f, err := hosttest.Load(t, name).Facts()
	if err != nil {
		t.Fatal(err)
	}
	known[name] = f
	return f
}

// golden compares a value, as JSON, with a file in testdata.
func golden(t *testing.T, name string, value any) {
	t.Helper()
	var got bytes.Buffer
	encoder := json.NewEncoder(&got)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("differs from %s (go test -update writes it anew):\n%s", file,
			linuxtest.FirstDifference(got.String(), string(want)))
	}
}

func TestFactsOfFixtures(t *testing.T) {
	for _, name := range fixtures {
		t.Run(name, func(t *testing.T) {
			golden(t, name+".facts.golden", facts(t, name))
		})
	}
}

// The golden files hold everything; what the fixtures are there for is asserted here by hand.

func TestHierarchiesPerController(t *testing.T) {
	type place struct{ id, mount string }
	tests := []struct {
		fixture string
		want    map[string]place
	}{
		{"hybrid", map[string]place{
			"cpu":     {"cpu", "/sys/fs/cgroup/cpu"},
			"cpuacct": {"cpuacct", "/sys/fs/cgroup/cpuacct"},
			"blkio":   {"blkio", "/sys/fs/cgroup/blkio"},
			"hugetlb": {"unified", "/sys/fs/cgroup/unified"},
		}},
		{"centos7", map[string]place{
			"cpu":      {"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"},
			"cpuacct":  {"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"},
			"net_cls":  {"net_cls,net_prio", "/sys/fs/cgroup/net_cls,net_prio"},
			"net_prio": {"net_cls,net_prio", "/sys/fs/cgroup/net_cls,net_prio"},
			"hugetlb":  {"hugetlb", "/sys/fs/cgroup/hugetlb"},
		}},
		{"fournodes", map[string]place{"cpuset": {"cpuset", "/cgroup/cpuset"}, "memory": {"memory", "/cgroup/memory"}}},
		{"debian12", map[string]place{
			"cpu":   {"unified", "/sys/fs/cgroup"},
			"blkio": {"unified", "/sys/fs/cgroup"},
		}},
		{"container", map[string]place{
			"cpu":   {"cpu,cpuacct", "/mnt/host cgroup/cpu"}, // the whole tree, not the container's part
			"blkio": {"blkio", "/b"},                         // no whole tree: writable, short
		}},
	}
	for _, test := range tests {
		f := facts(t, test.fixture)
		for controller, want := range test.want {
			h, found := f.HierarchyOf(controller)
			if got := (place{h.ID, h.Mount}); !found || got != want {
				t.Errorf("%s: %s is in %v, want %v", test.fixture, controller, got, want)
			}
			if same, found := f.Hierarchy(want.id); !found || !reflect.DeepEqual(same, h) {
				t.Errorf("%s: Hierarchy(%q) is not the one of %s", test.fixture, want.id, controller)
			}
		}
		if h, found := f.HierarchyOf("nosuch"); found {
			t.Errorf("%s: found %v for a controller that does not exist", test.fixture, h)
		}
	}
}

func TestMountHints(t *testing.T) {
	tests := []struct{ fixture, controller, want string }{
		{"hybrid", "net_cls",
			"mkdir -p /sys/fs/cgroup/net_cls && mount -t cgroup -o net_cls none /sys/fs/cgroup/net_cls"},
		{"hybrid", "hugetlb", ""}, // it is on cgroup2
		{"fournodes", "ns", "mkdir -p /cgroup/ns && mount -t cgroup -o ns none /cgroup/ns"},
		// a directory below a cgroup2 would be a cgroup
		{"debian12", "net_cls", "mkdir -p /run/cgroup/net_cls && mount -t cgroup -o net_cls none /run/cgroup/net_cls"},
		{"container", "net_cls", "mount -o remount,rw /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/net_cls && " +
			"mount -t cgroup -o net_cls none /sys/fs/cgroup/net_cls"},
		{"container", "memory", ""}, // switched off at boot
	}
	for _, test := range tests {
		c, found := facts(t, test.fixture).Controller(test.controller)
		if !found {
			t.Errorf("%s: no controller %s", test.fixture, test.controller)
			continue
		}
		if c.Hint != test.want {
			t.Errorf("%s: hint for %s\ngot  %s\nwant %s", test.fixture, test.controller, c.Hint, test.want)
		}
	}
}

func TestMountHintWithNoHierarchyAtAll(t *testing.T) {
	dir := linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
	file := filepath.Join(dir, "proc/self/mountinfo")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "cgroup") {
			kept = append(kept, line)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Join(kept, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := host.New(dir).Facts()
	if err != nil {
		t.Fatal(err)
	}
	want := "mount -t tmpfs cgroup_root /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/cpu && " +
		"mount -t cgroup -o cpu none /sys/fs/cgroup/cpu"
	if c, _ := f.Controller("cpu"); c.Hint != want {
		t.Errorf("got  %s\nwant %s", c.Hint, want)
	}
}

func TestReadOnlyHierarchies(t *testing.T) {
	f := facts(t, "container")
	for id, want := range map[string]bool{"cpu,cpuacct": false, "blkio": false, "cpuset": true, "pids": true,
		"unified": true} {
		if h, found := f.Hierarchy(id); !found || h.ReadOnly != want {
			t.Errorf("%s: found %t, read-only %t, want %t", id, found, h.ReadOnly, want)
		}
	}
}

func TestInterleavedNodes(t *testing.T) {
	f := facts(t, "fournodes")
	for id, want := range []string{
		"0,4,8,12,16,20,24,28", "1,5,9,13,17,21,25,29", "2,6,10,14,18,22,26,30", "3,7,11,15,19,23,27,31",
	} {
		node, found := f.Node(id)
		if !found || node.CPUs.String() != want {
			t.Errorf("node %d has CPUs %s, want %s", id, node.CPUs, want)
		}
	}
	if node, _ := f.Node(0); node.MemTotal != 32649<<20 {
		t.Errorf("node 0 has %d bytes, want 32649 MiB", node.MemTotal)
	}
	if _, found := f.Node(4); found {
		t.Error("there is a node 4")
	}
}

func TestWithoutNUMA(t *testing.T) {
	f := facts(t, "container")
	want := []host.Node{{ID: 0, CPUs: idset.Set{0, 1, 3}, MemTotal: 32768000 << 10}}
	if !reflect.DeepEqual(f.Nodes, want) {
		t.Errorf("nodes are %v, want %v", f.Nodes, want)
	}
}

func TestDeviceKinds(t *testing.T) {
	tests := []struct {
		fixture, number string
		want            blockdev.DeviceKind
		disk            string
		slaves          []string
	}{
		{"hybrid", "254:0", blockdev.Disk, "254:0", nil},
		{"hybrid", "253:0", blockdev.Other, "253:0", nil}, // zram
		{"hybrid", "7:0", blockdev.Loop, "7:0", nil},
		{"centos7", "8:2", blockdev.Partition, "8:0", nil},
		{"centos7", "11:0", blockdev.Other, "11:0", nil}, // optical
		{"centos7", "253:0", blockdev.Volume, "253:0", []string{"8:2"}},
		{"debian12", "259:0", blockdev.Disk, "259:0", nil},
		{"debian12", "259:2", blockdev.Partition, "259:0", nil},
		{"debian12", "9:0", blockdev.RAID, "9:0", []string{"8:0", "8:16"}},
	}
	for _, test := range tests {
		d, found := facts(t, test.fixture).Device(test.number)
		if !found || d.Kind != test.want || d.Disk != test.disk || !reflect.DeepEqual(d.Slaves, test.slaves) {
			t.Errorf("%s: found %t, %+v; want a %s of disk %s on %v", test.fixture, found, d, test.want, test.disk,
				test.slaves)
		}
	}
	if d, found := facts(t, "debian12").Device("7:1"); found {
		t.Errorf("a free loop device counts: %+v", d)
	}
}

func TestMountOf(t *testing.T) {
	f := facts(t, "debian12")
	for name, want := range map[string]string{
		"/":                      "/",
		"/srv/my data":           "9:0",
		"/srv/my data/mysql/ib":  "9:0",
		"/srv/my database":       "/",
		"/var/lib/postgresql/15": "/",
		"/sys/fs/cgroup/x":       "0:27",
	} {
		if want == "/" {
			want = "259:2"
		}
		if m, found := f.Mounts.Of(name); !found || m.Dev != want {
			t.Errorf("MountOf(%q) = %q on %s, want %s", name, m.Point, m.Dev, want)
		}
	}
}

func TestMissingFilesAreNamed(t *testing.T) {
	for _, name := range []string{
		"proc/meminfo", "proc/self/mountinfo", "proc/sys/kernel/osrelease", "sys/devices/system/cpu/online",
		"proc/1/comm",
	} {
		dir := linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		_, err := host.New(dir).Facts()
		if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: error %v, want one that names it", name, err)
		}
	}
}

func TestGarbledFilesAreErrors(t *testing.T) {
	for name, text := range map[string]string{
		"proc/meminfo":                          "MemTotal: much kB\n",
		"proc/self/mountinfo":                   "1 2 3\n",
		"proc/cgroups":                          "cpu 1\n",
		"proc/sys/kernel/osrelease":             "six\n",
		"proc/sys/kernel/pid_max":               "\n",
		"sys/devices/system/cpu/online":         "3-1\n",
		"sys/devices/system/node/node0/cpulist": "0-\n",
		"proc/self/status":                      "Name: x\n",
		"proc/self/smaps":                       "",
	} {
		dir := linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if f, err := host.New(dir).Facts(); err == nil {
			t.Errorf("%s of %q gives %+v", name, text, f)
		}
	}
}

// The machine the tests run on: what must hold wherever that is.
func TestFactsOfThisMachine(t *testing.T) {
	f, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	if f.PageSize != int64(os.Getpagesize()) {
		t.Errorf("page size %d, want %d", f.PageSize, os.Getpagesize())
	}
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if f.Hostname != hostname {
		t.Errorf("hostname %q, want %q", f.Hostname, hostname)
	}
	if len(f.CPUs) == 0 || f.MemTotal == 0 || len(f.Nodes) == 0 || !f.Kernel.AtLeast(2, 6) {
		t.Errorf("implausible: %+v", f)
	}
	for _, node := range f.Nodes {
		if !node.CPUs.Subset(f.CPUs) {
			t.Errorf("node %d has CPUs %s that are not online (%s)", node.ID, node.CPUs, f.CPUs)
		}
	}
	for _, h := range f.Hierarchies {
		if _, err := os.Stat(filepath.Join(h.Mount, "cgroup.procs")); err != nil {
			t.Errorf("hierarchy %s: %v", h.ID, err)
		}
		for controller, file := range map[string]string{"cpu": "cpu.rt_runtime_us",
			"memory": "memory.memsw.limit_in_bytes"} {
			_, err := os.Stat(filepath.Join(h.Mount, file))
			want := h.Version == 1 && h.Has(controller) && errors.Is(err, os.ErrNotExist)
			if slices.Contains(h.Lacks, file) != want {
				t.Errorf("hierarchy %s lacks %q, but %s: %v", h.ID, h.Lacks, file, err)
			}
		}
	}
}

// TestLacks: a v1 hierarchy whose top directory can be seen and has no real-time budget.
func TestLacks(t *testing.T) {
	root := linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
	for name, text := range map[string]string{
		"proc/self/mountinfo": "30 20 0:26 / /c/cpu rw - cgroup cgroup rw,cpu\n31 20 0:27 / /c/memory rw - cgroup " +
			"cgroup rw,memory\n",
		"proc/cgroups": "cpu\t2\t1\t1\nmemory\t3\t1\t1\n",
		"c/cpu/tasks":  "", "c/memory/tasks": "", "c/memory/memory.memsw.limit_in_bytes": "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755),
			os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := host.New(root).Facts()
	if err != nil {
		t.Fatal(err)
	}
	cpu, _ := f.HierarchyOf("cpu")
	memory, _ := f.HierarchyOf("memory")
	if !slices.Equal(cpu.Lacks, []string{"cpu.rt_runtime_us"}) || len(memory.Lacks) > 0 {
		t.Errorf("cpu lacks %q, memory %q", cpu.Lacks, memory.Lacks)
	}
}

func TestLoadAverage(t *testing.T) {
	load, err := hosttest.Load(t, "debian12").LoadAverage()
	if want := "0.52 0.58 0.59"; err != nil || load != want {
		t.Errorf("got %q, %v, want %q", load, err, want)
	}
}

func TestParseVersion(t *testing.T) {
	tests := []struct {
		text string
		want [3]int
	}{
		{"6.1.0-18-amd64", [3]int{6, 1, 0}},
		{"3.10.0-1160.el7.x86_64\n", [3]int{3, 10, 0}},
		{"2.6.32-71.el6.x86_64", [3]int{2, 6, 32}},
		{"6.12-rc1", [3]int{6, 12, 0}},
		{"4.4", [3]int{4, 4, 0}},
		{"5.10.", [3]int{5, 10, 0}},
		{"5.15.153.1-microsoft", [3]int{5, 15, 153}},
	}
	for _, test := range tests {
		v, err := host.ParseVersion(test.text)
		if got := [3]int{v.Major, v.Minor, v.Patch}; err != nil || got != test.want {
			t.Errorf("%q gives %v, %v, want %v", test.text, got, err, test.want)
		}
		if v.String() != strings.TrimSpace(test.text) {
			t.Errorf("%q prints as %q", test.text, v)
		}
	}
	for _, text := range []string{"", "6", "6-rc1", ".1", "six.one", "99999999999999999999.1"} {
		if v, err := host.ParseVersion(text); err == nil {
			t.Errorf("%q gives %v", text, v)
		}
	}
}

func TestVersionAtLeast(t *testing.T) {
	v := host.Version{Major: 5, Minor: 14}
	for other, want := range map[[2]int]bool{
		{5, 14}: true, {5, 13}: true, {5, 15}: false, {4, 19}: true, {6, 0}: false,
	} {
		if got := v.AtLeast(other[0], other[1]); got != want {
			t.Errorf("5.14 at least %v: %t, want %t", other, got, want)
		}
	}
}

// Before 5.15 a class of v1 on any socket hides the cgroup2 directory of all.
func TestBlindedBy(t *testing.T) {
	const mount = "c/net_cls,net_prio"
	const v2 = "31 20 0:27 / /c/unified rw - cgroup2 cgroup2 rw\n"
	for _, test := range []struct{ name, kernel, file, text, want, v2 string }{
		{"nobody", "5.10.0", "x/net_cls.classid", "0", "", v2},
		{"a class", "5.10.0", "x/y/net_cls.classid", "65537", "/" + mount + "/x/y", v2},
		{"a priority", "5.10.0", "x/net_prio.ifpriomap", "lo 0\neth0 3\n", "/" + mount + "/x", v2},
		{"at the top", "4.19.0", "net_cls.classid", "1", "/" + mount, v2},
		{"no cgroup2", "5.10.0", "x/net_cls.classid", "65537", "", ""},
		{"a new kernel", "5.15.0", "x/net_cls.classid", "65537", "", v2},
	} {
		root := linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
		files := map[string]string{
			"proc/self/mountinfo": "30 20 0:26 / /" + mount + " rw - cgroup cgroup rw,net_cls,net_prio\n" +
				test.v2,
			"c/unified/cgroup.controllers":     "\n",
			"proc/cgroups":                     "net_cls\t2\t1\t1\nnet_prio\t2\t1\t1\n",
			"proc/sys/kernel/osrelease":        test.kernel + "\n",
			mount + "/net_cls.classid":         "0\n",
			mount + "/net_prio.ifpriomap":      "lo 0\neth0 0\n",
			mount + "/x/net_cls.classid":       "0\n",
			mount + "/x/y/net_cls.classid":     "0\n",
			mount + "/x/y/net_prio.ifpriomap":  "lo 0\n",
			mount + "/x/net_prio.ifpriomap":    "lo 0\n",
			mount + "/cgroup.clone_children":   "0\n",
			mount + "/tasks":                   "",
			mount + "/cgroup.sane_behavior":    "0\n",
			mount + "/x/cgroup.clone_children": "0\n",
		}
		files[mount+"/"+test.file] = test.text
		for name, text := range files {
			if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755),
				os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		f, err := host.New(root).Facts()
		if err != nil {
			t.Fatal(err)
		}
		if f.BlindedBy != test.want {
			t.Errorf("%s: %q, want %q", test.name, f.BlindedBy, test.want)
		}
	}
}

func TestProcessesOfFixtures(t *testing.T) {
	for _, name := range []string{"hybrid", "centos7", "debian12"} {
		t.Run(name, func(t *testing.T) {
			list, err := hosttest.Load(t, name).Proc.Processes(procfs.Options{Env: true})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".processes.golden", list)
		})
	}
}

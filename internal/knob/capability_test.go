package knob

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

var update = flag.Bool("update", false, "write the golden files and docs/knobs.md anew")

// golden compares text with a file, or writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run the test with -update to write it)", err)
	}
	if got != string(want) {
		t.Errorf("%s is not current (run the test with -update and look at the difference); got:\n%s", path, got)
	}
}

// mounted builds the hierarchies of a host and their controllers. "cpu,cpuacct" is a v1 mount,
// "2:cpu,memory" the controllers of cgroup2.
func mounted(f *host.Facts, mounts ...string) *host.Facts {
	for _, mount := range mounts {
		h := host.Hierarchy{ID: mount, Version: 1, Controllers: strings.Split(mount, ","), Mount: "/sys/fs/cgroup/" +
			mount, Root: "/"}
		if names, ok := strings.CutPrefix(mount, "2:"); ok {
			h = host.Hierarchy{ID: procfs.UnifiedID, Version: 2, Controllers: strings.Split(names, ","),
				Mount: "/sys/fs/cgroup/unified", Root: "/"}
		}
		if strings.HasPrefix(mount, "name=") {
			h.Controllers = nil
		}
		f.Hierarchies = append(f.Hierarchies, h)
		for _, name := range h.Controllers {
			f.Controllers = append(f.Controllers, host.Controller{Name: name, Hierarchy: h.ID, Enabled: true})
		}
	}
	return f
}

// hybrid is the machine that the facts of this project were measured on.
func hybrid() *host.Facts {
	f := kernel("6.18.44")
	f.MemTotal, f.CPUs, f.HugePageSizes = 25276510208, idset.Set{0, 1}, []int64{2 << 20, 1 << 30}
	f.Nodes = []host.Node{{ID: 0, CPUs: f.CPUs, MemTotal: f.MemTotal}}
	return mounted(f, "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "name=systemd",
		"2:hugetlb")
}

// centos7 is a v1 host with co-mounted controllers and an old kernel.
func centos7() *host.Facts {
	f := kernel("3.10.0-1160.el7.x86_64")
	f.HugePageSizes, f.SwapTotal, f.SysResource, f.Systemd = []int64{2 << 20}, 4<<30, true, true
	return mounted(f, "cpu,cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "perf_event",
		"net_cls,net_prio", "name=systemd")
}

// debian12 is a v2 host.
func debian12() *host.Facts {
	f := kernel("6.1.0-18-amd64")
	f.HugePageSizes, f.SwapTotal, f.SysResource, f.Systemd = []int64{2 << 20, 1 << 30}, 1<<30, true, true
	return mounted(f, "2:cpuset,cpu,blkio,memory,hugetlb,pids,rdma,misc")
}

// always answers every question of whether a file is there in one way.
func always(v Verdict) func(hierarchy, file string) Verdict {
	return func(string, string) Verdict { return v }
}

func TestCapabilities(t *testing.T) {
	for name, facts := range map[string]*host.Facts{"hybrid": hybrid(), "centos7": centos7(), "debian12": debian12()} {
		var text strings.Builder
		for _, c := range Capabilities(facts, nil) {
			fmt.Fprintf(&text, "%s: %s", c.Key, c.Verdict)
			if c.Hierarchy != "" {
				fmt.Fprintf(&text, " in %s", c.Hierarchy)
			}
			for _, line := range []struct{ label, text string }{{"files", strings.Join(c.Files, " ")},
				{"reason", c.Reason}, {"instead", c.Instead}} {
				if line.text != "" {
					fmt.Fprintf(&text, "\n\t%s: %s", line.label, line.text)
				}
			}
			text.WriteString("\n")
		}
		golden(t, filepath.Join("testdata", "capabilities", name+".golden"), text.String())
	}
}

// TestCapabilityIsComplete: whatever the host, each key gets an answer, and a no says why and what is
// used instead.
func TestCapabilityIsComplete(t *testing.T) {
	hosts := map[string]*host.Facts{"hybrid": hybrid(), "centos7": centos7(), "debian12": debian12(), "nothing": {},
		"unknown kernel": mounted(&host.Facts{}, "cpu", "2:memory")}
	for name, facts := range hosts {
		for _, has := range []func(string, string) Verdict{nil, always(Yes), always(No), always(Unknown)} {
			all := Capabilities(facts, has)
			if len(all) != len(policy.Keys()) {
				t.Fatalf("%s: %d capabilities of %d keys", name, len(all), len(policy.Keys()))
			}
			for _, c := range all {
				switch {
				case c.Verdict == Yes && (len(c.Files) == 0 || c.Instead != ""):
					t.Errorf("%s: a yes without a file, or with something instead: %+v", name, c)
				case c.Verdict == No && (c.Reason == "" || c.Instead == "" || len(c.Files) > 0):
					t.Errorf("%s: a no without a reason, without what is used instead, or with files: %+v", name, c)
				case c.Verdict == Unknown && (c.Reason == "" || len(c.Files) == 0):
					t.Errorf("%s: in doubt, but not about which file or why: %+v", name, c)
				}
			}
		}
	}
}

func TestExplain(t *testing.T) {
	tests := []struct {
		name    string
		facts   *host.Facts
		has     func(hierarchy, file string) Verdict
		key     policy.Key
		verdict Verdict
		reason  string // a part of it
		instead string
	}{
		{"no such controller", kernel("6.1"), nil, policy.KeyTasks, No, "this kernel has no pids controller", nothing},
		{"switched off at boot", &host.Facts{Controllers: []host.Controller{{Name: "memory"}}}, nil,
			policy.KeyMemoryMax, No, "cgroup_disable=memory", nothing},
		{"not mounted", &host.Facts{Controllers: []host.Controller{{Name: "hugetlb", Enabled: true, Hint: "mount it"}}},
			nil, policy.KeyMemoryHuge, No, "to mount it: mount it", nothing},
		{"read-only", &host.Facts{Hierarchies: []host.Hierarchy{{ID: "pids", Version: 1, Controllers: []string{"pids"},
			Mount: "/x", ReadOnly: true}}}, nil, policy.KeyTasks, No, "at /x is mounted read-only", nothing},
		{"RT_GROUP_SCHED in doubt", hybrid(), nil, policy.KeyCPURT, Unknown, "CONFIG_RT_GROUP_SCHED", nothing},
		{"RT_GROUP_SCHED there", hybrid(), always(Yes), policy.KeyCPURT, Yes, "", ""},
		{"RT_GROUP_SCHED missing", hybrid(), always(No), policy.KeyCPURT, No, "it lacks CONFIG_RT_GROUP_SCHED",
			nothing},
		{"swap accounting in doubt", mounted(kernel("5.10"), "memory"), always(Unknown), policy.KeyMemorySwap, Unknown,
			"swapaccount=1", nothing},
		{"swap accounting since 6.1", mounted(kernel("6.1"), "memory"), always(Unknown), policy.KeyMemorySwap, Yes,
			"no swap now", ""},
		{"swap accounting off", debian12(), always(No), policy.KeyMemorySwap, No,
			"memory.swap.max: it lacks swap accounting", nothing},
		{"idle in 5.15", mounted(kernel("5.15"), "cpu"), nil, policy.KeyCPUIdle, Yes, "", ""},
		{"idle in 5.14", mounted(kernel("5.14"), "cpu"), nil, policy.KeyCPUIdle, No,
			"came with kernel 5.15, this is 5.14", "cpu.weight 1"},
		{"idle on an unknown kernel", mounted(&host.Facts{}, "cpu"), nil, policy.KeyCPUIdle, Unknown,
			"version is not known", "cpu.weight 1"},
		{"idle shown by an unknown kernel", mounted(&host.Facts{}, "cpu"), always(Yes), policy.KeyCPUIdle, Yes, "", ""},
		{"memory.min on v2 before 4.18", mounted(kernel("4.15"), "2:memory"), nil, policy.KeyMemoryMin, No, "4.18",
			nothing},
		{"buffered writes on v2", debian12(), nil, policy.KeyIOWriteBandwidth, Yes, "", ""},
		{"buffered writes with memory on v1", mounted(kernel("6.1"), "memory", "2:blkio"), nil,
			policy.KeyIOWriteBandwidth, Yes, "only together with the memory controller on cgroup v2", ""},
		{"use_hierarchy without systemd", mounted(kernel("4.19"), "memory"), nil, policy.KeyMemoryMax, Yes,
			"use_hierarchy is 1", ""},
		{"use_hierarchy with systemd", centos7(), nil, policy.KeyMemoryMax, Yes, "", ""},
		{"no huge pages", mounted(kernel("6.1"), "2:hugetlb"), nil, policy.KeyMemoryHuge, No, "no huge pages", nothing},
		{"a quota missing", hybrid(), func(_, file string) Verdict {
			if file == "cpu.cfs_quota_us" {
				return No
			}
			return Yes
		}, policy.KeyCPULimit, No, "this kernel has no cpu.cfs_quota_us", nothing},
		{"a lower oom_score_adj", debian12(), nil, policy.KeyOOMScoreAdj, Yes, "", ""},
		{"an unknown key", hybrid(), nil, "cpu.magic", No, "unknown key", nothing},
	}
	for _, test := range tests {
		c := explain(test.key, test.facts, test.has)
		if c.Verdict != test.verdict || c.Instead != test.instead || !strings.Contains(c.Reason, test.reason) ||
			test.reason == "" && c.Reason != "" {
			t.Errorf("%s: %+v; want %s, instead %q, because %q", test.name, c, test.verdict, test.instead, test.reason)
		}
	}
	if got := explain(policy.KeyTasks, debian12(), nil); got.Hierarchy != "unified" || !slices.Equal(got.Files,
		[]string{"pids.max"}) {
		t.Errorf("explain(tasks) on v2 = %+v", got)
	}
}

func TestRowsFor(t *testing.T) {
	names := func(rows []*Row, f *host.Facts) string {
		var list []string
		for _, r := range rows {
			list = append(list, r.HierarchyID(f)+":"+r.File)
		}
		return strings.Join(list, "\n")
	}
	has := func(all, file string) bool { return slices.Contains(strings.Split(all, "\n"), file) }

	mixed := names(RowsFor(hybrid()), hybrid())
	for file, want := range map[string]bool{
		"cpu:cpu.shares": true, "cpu:cpu.idle": true, "memory:memory.limit_in_bytes": true,
		"unified:hugetlb.%s.max": true, "unified:hugetlb.%s.rsvd.max": true, "pids:pids.max": true,
		"unified:cpu.max": false, "unified:memory.max": false, "blkio:blkio.throttle.read_bps_device": true,
	} {
		if has(mixed, file) != want {
			t.Errorf("hybrid host: %s is %v, want %v", file, !want, want)
		}
	}
	old := names(RowsFor(centos7()), centos7())
	for file, want := range map[string]bool{
		"cpu,cpuacct:cpu.shares": true, "cpu,cpuacct:cpu.idle": false, "cpu,cpuacct:cpu.cfs_burst_us": false,
		"pids:pids.max":                      true,
		"memory:memory.memsw.limit_in_bytes": true, "hugetlb:hugetlb.%s.limit_in_bytes": true,
		"hugetlb:hugetlb.%s.rsvd.limit_in_bytes": false, // since 5.7
	} {
		if has(old, file) != want {
			t.Errorf("CentOS 7: %s is %v, want %v", file, !want, want)
		}
	}
	asked := ask(policy.KeyCPULimit, policy.Cores(1e6), policy.KeyMemoryHigh, policy.Bytes(1<<30))
	needed := slices.DeleteFunc(RowsFor(hybrid()), func(r *Row) bool { return len(r.Instances(asked)) == 0 })
	if got := names(needed, hybrid()); got != "cpu:cpu.cfs_period_us\ncpu:cpu.cfs_quota_us" {
		t.Errorf("rows of a CPU limit and memory.high = %q", got)
	}
	readOnly := hybrid()
	for i := range readOnly.Hierarchies {
		readOnly.Hierarchies[i].ReadOnly = true
	}
	if rows := RowsFor(readOnly); len(rows) > 0 {
		t.Errorf("read-only hierarchies give %d rows", len(rows))
	}
}

func TestCaveats(t *testing.T) {
	tests := []struct {
		name  string
		facts *host.Facts
		s     policy.Settings
		want  []string // "KEY: part of the text", with "!" in front where nothing holds the limit
	}{
		{"nothing to say", debian12(), ask(policy.KeyCPUWeight, policy.Weight(10), policy.KeyCPULimit,
			policy.Cores(1e6), policy.KeyMemoryHigh, policy.Bytes(1<<30)), nil},
		{"memory.high on v1", hybrid(), ask(policy.KeyMemoryHigh, policy.Bytes(1<<30)),
			[]string{"!memory.high: memory.max is what stops growth here; instead: nothing"}},
		{"a lifted limit needs nothing", hybrid(), ask(policy.KeyMemoryHigh, lift), nil},
		{"weight and idle", hybrid(), ask(policy.KeyCPUWeight, policy.Weight(10), policy.KeyCPUIdle, policy.Flag(true)),
			nil},
		{"the batch role", hybrid(), ask(policy.KeyCPUWeight, policy.Weight(1), policy.KeyCPUIdle, policy.Flag(true)),
			nil},
		{"not idle", centos7(), ask(policy.KeyCPUIdle, policy.Flag(false)), nil},
		{"idle on an old kernel", centos7(), ask(policy.KeyCPUWeight, policy.Weight(10), policy.KeyCPUIdle,
			policy.Flag(true)),
			[]string{"cpu.weight: cpu.weight 1 stands in for cpu.idle", "!cpu.idle: instead: cpu.weight 1"}},
		{"period and burst alone", hybrid(), ask(policy.KeyCPUPeriod, ms(10), policy.KeyCPUBurst, ms(10)),
			[]string{"!cpu.period: without cpu.limit", "!cpu.burst: without cpu.limit"}},
		{"CPUs and nodes", hybrid(), ask(policy.KeyCPUCPUs, ids("0"), policy.KeyCPUNUMA, ids("0")),
			[]string{"cpu.numa: goes before it"}},
		{"swap alone on v1", hybrid(), ask(policy.KeyMemorySwap, policy.Bytes(0)),
			[]string{"!memory.swap: needs memory.max"}},
		{"swap alone on v2", debian12(), ask(policy.KeyMemorySwap, policy.Bytes(0)), nil},
		{"nodes on v1", hybrid(), ask(policy.KeyMemoryNUMA, ids("0")), []string{"memory.numa: stays on its node"}},
		{"nodes on v2", debian12(), ask(policy.KeyMemoryNUMA, ids("0")), nil},
		{"pause on v2", debian12(), ask(policy.KeyMemoryOOM, policy.OOM("pause")),
			[]string{"!memory.oom: does not pause"}},
		{"pause on v1", hybrid(), ask(policy.KeyMemoryOOM, policy.OOM("pause")), nil},
		{"kill-group on v1", hybrid(), ask(policy.KeyMemoryOOM, policy.OOM("kill-group")),
			[]string{"!memory.oom: kills one process"}},
		{"kill everywhere", hybrid(), ask(policy.KeyMemoryOOM, policy.OOM("kill")), nil},
		{"buffered writes on v1", hybrid(), append(onDevice(ask(policy.KeyIOWriteBandwidth, policy.Rate(1)), "8:0"),
			onDevice(ask(policy.KeyIOWriteBandwidth, policy.Rate(1)), "8:16")...),
			[]string{"io.write.bandwidth: holds what a process hands to the disk itself"}},
		{"buffered writes on v2 beside memory on v1", mounted(kernel("6.1"), "memory", "2:blkio"),
			onDevice(ask(policy.KeyIOWriteBandwidth, policy.Rate(1)), "8:0"),
			[]string{"io.write.bandwidth: only together with the memory controller on cgroup v2"}},
		{"reads on v1", hybrid(), onDevice(ask(policy.KeyIOReadBandwidth, policy.Rate(1)), "8:0"), nil},
		{"io.weight", debian12(), ask(policy.KeyIOWeight, policy.Weight(10)),
			[]string{"!io.weight: this kernel has neither BFQ nor CFQ"}},
		{"io.weight of a role", bfqHost(), ask(policy.KeyIOWeight, policy.Weight(10)),
			[]string{"io.weight: without `on` it changes no disk"}},
		{"io.weight on a disk", bfqHost(), onDevice(ask(policy.KeyIOWeight, policy.Weight(10)), "8:0"), nil},
	}
	for _, test := range tests {
		caveats := Caveats(test.facts, test.s)
		ok := len(caveats) == len(test.want)
		for _, c := range caveats {
			ok = ok && c.Partly == (c.Key == policy.KeyIOWriteBandwidth)
		}
		for i := 0; ok && i < len(caveats); i++ {
			want, lost := strings.CutPrefix(test.want[i], "!")
			key, text, _ := strings.Cut(want, ": ")
			ok = string(caveats[i].Key) == key && strings.Contains(caveats[i].Text, text) &&
				caveats[i].NotEnforced == lost
		}
		if !ok {
			t.Errorf("%s: caveats %+v, want %q", test.name, caveats, test.want)
		}
	}
}

// TestLackingFiles: what the kernel was built without is offered nowhere, and the reason names the option.
func TestLackingFiles(t *testing.T) {
	f := hybrid()
	for i, h := range f.Hierarchies {
		if h.ID == "cpu" {
			f.Hierarchies[i].Lacks = []string{"cpu.rt_runtime_us"}
		}
	}
	if slices.ContainsFunc(RowsFor(f), func(r *Row) bool { return r.File == "cpu.rt_runtime_us" }) {
		t.Error("RowsFor offers cpu.rt_runtime_us")
	}
	for _, c := range Capabilities(f, nil) {
		if c.Key == policy.KeyCPURT && (c.Verdict != No || !strings.Contains(c.Reason, "CONFIG_RT_GROUP_SCHED")) {
			t.Errorf("%+v", c)
		}
		if c.Key == policy.KeyCPULimit && c.Verdict != Yes {
			t.Errorf("%+v", c)
		}
	}
}

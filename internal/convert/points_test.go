package convert_test

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/berx"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// importAs imports files by their names: cgconfig.conf and cgrules.conf, JSON, or units.
func importAs(sources []policy.Source) (*convert.Result, error) {
	var config, rules []policy.Source
	for _, s := range sources {
		switch {
		case strings.HasSuffix(s.Path, ".json"):
			return berx.Import(sources)
		case strings.HasPrefix(s.Path, "cgrules"):
			rules = append(rules, s)
		case strings.HasPrefix(s.Path, "cgconfig"):
			config = append(config, s)
		default:
			return unitfile.Import(sources)
		}
	}
	if len(config) == 0 {
		return libcgroup.ImportRules(rules)
	}
	return libcgroup.Import(config, rules)
}

// Each is the smallest case of something that an import once refused, changed or left out without a word.
func TestSmallestCases(t *testing.T) {
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string // in the policy or the report
		not   []string
	}{
		{"a rule of a script", map[string]string{"cgrules.conf": "*:backup.sh cpu g\n"},
			[]string{"{program: backup.sh}"}, nil},
		{"a rule of a directory", map[string]string{"cgrules.conf": "*:/opt/mysql/* cpu g\n"},
			[]string{"{program: '/opt/mysql/*'}"}, nil},
		{"a rule that is compared with whole paths", map[string]string{"cgrules.conf": "*:my* cpu g\n"},
			[]string{"libcgroup compares \"my\" with the beginning of the whole path", "exe: my*"},
			[]string{"match:"}},
		{"a rule of half a path", map[string]string{"cgrules.conf": "*:bin/x cpu g\n"},
			[]string{"no process gets here"},
			[]string{"match:"}},
		{"a rule without a program behind its colon", map[string]string{"cgrules.conf": "mysql: cpu g\n"},
			[]string{"{user: mysql}", "means every program"}, nil},
		{"a pattern without text", map[string]string{
			"a.json": `{"groups": [{"name": "g", "processes": ["", "x"]}]}`}, []string{"an empty pattern"}, nil},
		{"a rule that makes a group of a template keeps the ratio of those that are there", map[string]string{
			"cgconfig.conf": "group a { cpu { cpu.shares = 100; } }\ngroup b { cpu { cpu.shares = 16; } }\n" +
				"group c { pids { pids.max = 9; } }\ntemplate %u { cpu { cpu.shares = 50; } }\n",
			"cgrules.conf": "x cpu %u\n"},
			[]string{"weight: 50 #", "weight: 8 #", "weight: 25 #", "weight: 512 #"},
			[]string{"weight: 256 #", "is a weight of 256"}},
		{"real-time processes", map[string]string{"cgrules.conf": "a cpu g ignore_rt\nb cpu g\n"},
			[]string{"ignore_rt takes real-time processes out"}, []string{"{user: a}"}},
		{"processes that are taken out where they are",
			map[string]string{"cgrules.conf": "* cpu kept/ ignore\nb cpu g\n"},
			[]string{"{user: b, except: [{cgroup: /kept/}]}"}, nil},
		{"a number for a user", map[string]string{"cgrules.conf": "1001 cpu g\n"},
			[]string{"user or group of this number"},
			nil},
		{"the order of a directory and a user", map[string]string{
			"cgrules.conf": "mysql:mysqld cpu a\n*:/opt/* cpu b\n*:/opt/x/y cpu c\n"},
			[]string{"{program: mysqld, user: mysql}", "{program: '/opt/*'}", "no process gets here: a rule above"},
			nil},
		{"a catch-all with limits", map[string]string{
			"cgconfig.conf": "group rest { memory { memory.limit_in_bytes = 1G; } }\n", "cgrules.conf": "* * rest/\n"},
			[]string{"memory.max 1GiB of rest hold for nobody", "host: {others:"}, []string{"more weight"}},
		{"dperm for tasks", map[string]string{"cgconfig.conf": "group a { perm { task { uid = b; dperm = 775; } " +
			"admin { uid = root; } } cpu { } }\n"},
			[]string{"user: b", "dperm = 775: libcgroup takes dperm in admin only"},
			nil},
		{"more for others than for the owner", map[string]string{"cgconfig.conf": "group a { perm { task { uid = b; " +
			"fperm = 477; } admin { uid = root; fperm = 2664; } } cpu { } }\n"},
			[]string{"mode: '0444'", "is 664"}, nil},
		{"a group in two files", map[string]string{
			"cgconfig.conf":   "group a { cpu { cpu.shares = 100; } }\n",
			"cgconfig.2.conf": "group a/ { cpu { cpu.shares = 200; } memory { memory.limit_in_bytes = 1G; } }\n"},
			[]string{"weight: 20", "max: 1GiB", "gives way to cpu.shares = 200"}, nil},
		{"a controller mounted twice", map[string]string{"cgconfig.conf": "mount { cpu = /a; cpu = /b; }\n"},
			[]string{"mount sections are not carried over"}, nil},
		{"a default section and a template", map[string]string{
			"cgconfig.conf": "default { perm { task { uid = x; } admin { uid = x; } } }\n" +
				"template t/%u { cpu { cpu.shares = 5; } }\n",
			"cgrules.conf": "a cpu t/%u\n"}, []string{"{user: a}"}, []string{"owner"}},
		{"a template of members and of one of them", map[string]string{
			"cgconfig.conf": "template t/%u { cpu { cpu.shares = 512; } }\n",
			"cgrules.conf":  "a cpu t/%u\n@b cpu t/%u\n"},
			[]string{"{user: a}", "{unix_group: b}", "they share t"}, nil},
		{"cgroup.kill", map[string]string{"cgconfig.conf": "group a { cpu { cgroup.kill = 1; } }\n"},
			[]string{"it acts once"}, nil},
		{"a comment in Latin-1", map[string]string{"cgconfig.conf": "# f\xfcr\ngroup a { cpu { } }\n",
			"cgrules.conf": "b cpu a # f\xfcr\n"}, []string{"a:", "comments that are not UTF-8"}, nil},
		{"the default weight of a dump",
			map[string]string{"cgconfig.conf": "group a { blkio { blkio.weight = 500; } }\n"},
			[]string{"weight: 100"}, []string{"- on:"}},
		{"a new path", map[string]string{"cgconfig.conf": "group a/b { cpu { } }\n"},
			[]string{"/bulkhead.a for /a"}, nil},
		{"two schedulers", map[string]string{
			"cgconfig.conf": "group a { blkio { blkio.weight = 200; blkio.bfq.weight = 300; } }\n"},
			[]string{"weight: 300", "blkio.weight = 200: gives way to blkio.bfq.weight = 300"}, nil},
		{"two schedulers of v2", map[string]string{
			"cgconfig.conf": "group a { io { io.bfq.weight = 300; io.weight = 200; } }\n"},
			[]string{"weight: 300", "io.weight = 200: gives way to io.bfq.weight = 300"}, nil},
		{"two versions", map[string]string{
			"cgconfig.conf": "group a { memory { memory.max = 1G; memory.limit_in_bytes = 2G; } }\n"},
			[]string{"max: 1GiB", "memory.limit_in_bytes = 2G: gives way to memory.max = 1G"}, nil},
		{"a weight below the kernel's", map[string]string{"cgconfig.conf": "group a { blkio { blkio.weight = 5; } }\n"},
			[]string{"is a weight of 2, as of 10"}, nil},
		{"a burst without a quota", map[string]string{
			"cgconfig.conf": "group a { cpu { cpu.cfs_quota_us = -1; cpu.cfs_burst_us = 5000; } }\n"},
			[]string{"a burst without a quota"}, []string{"  burst:"}},
		{"what every group has", map[string]string{"cgconfig.conf": "group a { cpu { cpu.cfs_quota_us = -1; } }\n"},
			[]string{"cpu.cfs_quota_us = -1 is what every group has"}, nil},
		{"numbers of the kernel", map[string]string{"cgconfig.conf": "group a { cpu { cpu.shares = 0x400; } memory { " +
			"memory.limit_in_bytes = 0x100000; } }\ngroup b { cpu { cpu.shares = 02000; } }\n"},
			[]string{"weight: 100", "max: 1MiB"}, nil},
		{"weights of devices by their older name", map[string]string{
			"a.service": "[Service]\nBlockIODeviceWeight=/dev/sda 500\n"},
			[]string{"on: /dev/sda", "weight: 100"}, nil},
		{"a template's drop-ins and an instance's", map[string]string{
			"a@.service": "[Service]\nCPUQuota=50%\n", "a@.service.d/x.conf": "[Service]\nMemoryMax=1G\n",
			"a@b.service.d/y.conf": "[Service]\nTasksMax=5\n"},
			[]string{"{unit: 'a@b.service'}", "tasks: 5", "except: [{unit: 'a@b.service'}]",
				"each instance has these limits"}, nil},
		{"values of the start",
			map[string]string{"a.slice": "[Slice]\nStartupAllowedCPUs=0\nStartupAllowedMemoryNodes=0\n" +
				"MemoryZSwapWriteback=no\n"}, []string{"StartupAllowedCPUs=0: a policy has no values for the start",
				"StartupAllowedMemoryNodes=0: a policy", "MemoryZSwapWriteback=no: a policy has no key"}, nil},
		{"drop-ins of many slices", map[string]string{"user-.slice.d/x.conf": "[Slice]\nTasksMax=5\n"},
			[]string{"for every unit whose name begins with user-"}, []string{"holds every unit of the host"}},
		{"drop-ins of many slices, and one of them", map[string]string{"user-.slice.d/x.conf": "[Slice]\nTasksMax=5\n",
			"user-7.slice": "[Slice]\nCPUWeight=7\n"}, []string{"tasks: 5", "weight: 7"}, nil},
		{"a template whose slice has the instance's name", map[string]string{
			"user@.service": "[Service]\nSlice=user-%i.slice\nTasksMax=9\n", "b.slice": "[Slice]\nCPUWeight=7\n"},
			[]string{"Slice=user-%i.slice: systemd makes a slice for each instance", "weight: 7"}, nil},
		{"a service's limit beside its slice", map[string]string{
			"mydb.service": "[Service]\nSlice=mydb.slice\nMemoryMax=512M\n"},
			[]string{"has limits of its own, and so is a group of its own"}, []string{"slice: mydb.slice"}},
		{"settings that systemd does not read", map[string]string{
			"a.slice": "[Unit]\nCPUWeight=5\n[Slice]\nMemoryMax=1G\nNonsense=1\n"},
			[]string{"CPUWeight=5: it stands in [Unit]", "Nonsense=1: a slice has no such setting", "max: 1GiB"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var sources []policy.Source
			for _, name := range []string{"cgconfig.conf", "cgconfig.2.conf"} { // in their order
				if text, there := test.files[name]; there {
					sources = append(sources, policy.Source{Path: name, Text: text})
				}
			}
			for name, text := range test.files {
				if !strings.HasPrefix(name, "cgconfig") {
					sources = append(sources, policy.Source{Path: name, Text: text})
				}
			}
			r, err := importAs(sources)
			hold(t, sources, r, err)
			text := told(t, r, err)
			if err != nil {
				t.Fatal(text)
			}
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			for _, not := range test.not {
				if strings.Contains(text, not) {
					t.Errorf("%q is in\n%s", not, text)
				}
			}
			again(t, r)
		})
	}
}

// An exported file has what the kernel takes in the order in which it takes it, and no weight of a disk.
func TestExportLoads(t *testing.T) {
	p, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: `version: 1
groups:
  a: {role: batch, cpu: {weight: 5, idle: true, limit: 1.5, period: 50ms, burst: 10ms}, memory: {max: 1GiB, swap: 1GiB},
    io: [{weight: 5}, {on: '8:0', weight: 7}], groups: {b: {cpu: {cpus: '0', numa: 0}}}}
`}})
	if err != nil {
		t.Fatal(err)
	}
	x := libcgroup.Export(p, libcgroup.Options{})
	text := x.Files[0].Text
	at := -1
	for _, file := range []string{"cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.idle",
		"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"} {
		next := strings.Index(text, "\t"+file+" =")
		if next < 0 || next < at {
			t.Errorf("%s stands at %d, what goes before it at %d in\n%s", file, next, at, text)
		}
		at = next
	}
	for _, not := range []string{"\tblkio.", "\tcpuset."} {
		if strings.Contains(text, not) {
			t.Errorf("%q is in\n%s", not, text)
		}
	}
	left := ""
	for _, remark := range x.Left {
		left += remark.String() + "\n"
	}
	for _, want := range []string{"io.weight", "the group above has no CPUs"} {
		if !strings.Contains(left, want) {
			t.Errorf("no %q in %s", want, left)
		}
	}
}

// Rules of many users for one program have nothing to do with each other, and one for everybody below them is whole.
func TestRulesOfOtherUsers(t *testing.T) {
	text := lines(20_000, func(i int) string { return fmt.Sprintf("u%d:mysqld cpu g%d\n", i, i) })
	r, err := libcgroup.ImportRules([]policy.Source{{Path: "cgrules.conf", Text: text + "*:mysqld cpu rest\n"}})
	if err != nil {
		t.Fatal(err)
	}
	if said := told(t, r, nil); strings.Contains(said, "overlap") || strings.Contains(said, "except") ||
		!strings.Contains(said, "- {program: mysqld} #") {
		t.Error(said[len(said)-500:])
	}
}

package convert_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/berx"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
)

// lines is a file of so many bytes made of lines.
func lines(size int, line func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		b.WriteString(line(i))
	}
	return b.String()
}

// file is a large file of one kind.
type file struct {
	name string
	text func(size int) string
	file string
	do   func([]policy.Source) (*convert.Result, error)
}

// inOneLine is the same file without line ends.
func inOneLine(f file) file {
	many := f.text
	f.name, f.text = f.name+" in one line", func(size int) string { return strings.ReplaceAll(many(size), "\n", " ") }
	return f
}

// large are large files of each kind.
var large = []file{
	{"cgconfig", func(size int) string {
		return lines(size, func(i int) string {
			return fmt.Sprintf("group team%d/db%d {\n\tperm { task { uid = u%d; gid = dba; } admin { uid = root; gid "+
				"= root; } }\n\tcpu { cpu.shares = %d; }\n\tmemory { memory.limit_in_bytes = %dM; }\n}\n", i/50, i, i,
				100+i%2000, 1+i)
		})
	}, "cgconfig.conf", func(s []policy.Source) (*convert.Result, error) { return libcgroup.Import(s, nil) }},
	{"cgrules", func(size int) string {
		return lines(size,
			func(i int) string { return fmt.Sprintf("user%d:program%d\tcpu,memory\tteam%d/db%d\n", i, i%7, i/50, i) })
	}, "cgrules.conf", libcgroup.ImportRules},
	{"slice", func(size int) string {
		return "[Slice]\n" + lines(size, func(i int) string {
			return fmt.Sprintf("# a comment %d\nCPUWeight=%d\nIOReadBandwidthMax=\n", i, 1+i%10000)
		})
	}, "a.slice", unitfile.Import},
	{"berx", func(size int) string {
		text := lines(size, func(i int) string {
			return fmt.Sprintf(
				`{"name": "BX%d", "diskgroup": "DATA", "subsystems": [{"subsystem": "blkio", `+
					`"limits": [{"file": "blkio.throttle.read_bps_device", "limit": %d}]}], `+
					`"processes": ["ora_p.*_BX%d$"]},`+"\n", i, 1<<20+i, i)
		})
		return `{"base": "/sys/fs/cgroup", "myroot": "ORACLE", "subsystems": ["blkio"], "groups": [` + "\n" +
			strings.TrimSuffix(text, ",\n") + "]}\n"
	}, "cgconfig.json", berx.Import},
}

func BenchmarkImportOf10MB(b *testing.B) {
	for _, l := range large {
		b.Run(l.name, func(b *testing.B) {
			sources := []policy.Source{{Path: l.file, Text: l.text(10 << 20)}}
			b.SetBytes(int64(len(sources[0].Text)))
			for b.Loop() {
				if _, err := l.do(sources); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// repeated is a file that says one thing again and again, between a beginning and an end.
func repeated(name, path, begin, line, end string, do func([]policy.Source) (*convert.Result, error)) file {
	return file{name, func(size int) string {
		return begin + lines(size, func(i int) string { return strings.ReplaceAll(line, "#", fmt.Sprint(i)) }) + end
	}, path, do}
}

// config imports a cgconfig.conf, rules a cgrules.conf, units the files of units that a text holds, one after a line
// "-- NAME --" each.
func config(s []policy.Source) (*convert.Result, error) { return libcgroup.Import(s, nil) }

// withRules imports a cgconfig.conf with the rules that stand behind it.
func withRules(s []policy.Source) (*convert.Result, error) {
	groups, rules, _ := strings.Cut(s[0].Text, "-- rules --\n")
	return libcgroup.Import([]policy.Source{{Path: s[0].Path, Text: groups}},
		[]policy.Source{{Path: "cgrules.conf", Text: rules}})
}

func units(s []policy.Source) (*convert.Result, error) {
	var all []policy.Source
	for part := range strings.SplitSeq(s[0].Text, "-- ") {
		if name, text, ok := strings.Cut(part, " --\n"); ok {
			all = append(all, policy.Source{Path: name, Text: text})
		}
	}
	return unitfile.Import(all)
}

// hard are files that once took time that grew with the square of their length, or that would where a list is searched
// for each of its items.
var hard = []file{
	inOneLine(large[0]), inOneLine(large[3]),
	repeated("open groups", "cgconfig.conf", "", "group a {\n", "", config),
	repeated("open groups in one line", "cgconfig.conf", "", "group a { ", "", config),
	repeated("one group again and again", "cgconfig.conf", "", "group a { cpu { cpu.shares = #; } }\n", "", config),
	repeated("limits of devices", "cgconfig.conf", "group a { blkio {\n",
		"blkio.throttle.read_bps_device = \"8:# 1\";\n", "} }\n", config),
	repeated("counters", "cgconfig.conf", "group a { cpu {\n", "cpu.x#.stat = 1;\n", "} }\n", config),
	repeated("signs", "cgconfig.conf", "", "= } ; # = \n", "", config),
	repeated("templates", "cgconfig.conf", "", "template t/%u/# { cpu { } }\n", "", config),
	repeated("owners", "cgconfig.conf", "default { perm { task { uid = a; dperm = 1; } admin { uid = a; } } }\n",
		"group g# { cpu { } }\n", "", config),
	repeated("what was carried along", "cgconfig.conf", "", "#bulkhead schedules: []\n#bulkhead agent: {}\n",
		"", config),
	repeated("rules of one group", "cgrules.conf", "", "u# cpu g\n", "", libcgroup.ImportRules),
	repeated("rules of programs", "cgrules.conf", "", "*:p# cpu g#\n", "", libcgroup.ImportRules),
	repeated("rules of directories", "cgrules.conf", "", "*:/opt/#/* cpu g#\n", "", libcgroup.ImportRules),
	repeated("rules of Unix groups", "cgrules.conf", "", "@g# cpu g#\n", "", libcgroup.ImportRules),
	repeated("rules that overlap", "cgrules.conf", "", "u#:/opt/* cpu g#\n*:q# cpu h#\n", "", libcgroup.ImportRules),
	repeated("rules that take out", "cgrules.conf", "", "u# cpu x# ignore\n@g# cpu g#\n", "", libcgroup.ImportRules),
	repeated("rules of a group with limits", "cgconfig.conf", "group g { cpu { cpu.shares = 5; } memory "+
		"{ memory.limit_in_bytes = 1G; } }\n-- rules --\n", "u# cpu g\n", "", withRules),
	repeated("rules of two lines", "cgrules.conf", "a cpu g\n", "% memory g#\n", "", libcgroup.ImportRules),
	repeated("settings of a service", "x", "-- a.service --\n[Service]\n", "Unknown#=1\n", "CPUQuota=5%\n", units),
	repeated("services of a slice", "x", "", "-- s#.service --\n[Service]\nSlice=a.slice\n", "", units),
	repeated("services with limits", "x", "", "-- s#.service --\n[Service]\nCPUWeight=5\n", "", units),
	repeated("slices", "x", "", "-- s#.slice --\n[Slice]\nCPUShares=#0\n", "", units),
	repeated("instances", "x", "-- a@.service --\n[Service]\nCPUWeight=5\n",
		"-- a@#.service.d/x.conf --\n[Service]\nMemoryMax=1G\n", "", units),
	repeated("weights of disks", "x", "-- a.slice --\n[Slice]\n", "IODeviceWeight=/dev/d# 5\n", "", units),
	repeated("units that include each other", "x",
		"-- b.service --\n[Service]\nCPUWeight=5\n-- a.service --\n[Service]\n",
		".include b.service\n", "", units),
	repeated("keys of an object", "a.json", `{"groups": [], "x": {"a": 1`, `, "k#": 1`, "}}\n", berx.Import),
	repeated("lists in lists", "a.json", `{"groups": [`, "[", "", berx.Import),
	repeated("patterns of a group", "a.json", `{"groups": [{"name": "g", "processes": ["x"`, `, "p#"`, "]}]}\n",
		berx.Import),
	repeated("CPUs", "cgconfig.conf", "group a { cpuset { cpuset.cpus = \"0", ",0-65535", "\"; } }\n", config),
}

// The time that a file takes grows with its length: eight times the length take eight times as long, and at most twice
// that, and not sixty-four times. CPU time is measured, so that a busy machine changes little; the better of two
// counts.
func TestTimeGrowsWithTheLength(t *testing.T) {
	for _, l := range slices.Concat(large, hard) {
		took := func(size int) time.Duration {
			best := time.Hour
			for range 2 {
				sources := []policy.Source{{Path: l.file, Text: l.text(size)}}
				begin := cpuTime(t)
				_, err := l.do(sources)
				if best = min(best, cpuTime(t)-begin); err != nil && slices.ContainsFunc(large,
					func(f file) bool { return f.name == l.name }) {
					t.Fatalf("%s: %v", l.name, err)
				}
			}
			return best
		}
		size := 1 << 13
		if l.file == "cgrules.conf" { // each of their rules may have 64 exceptions
			size = 1 << 12
		}
		small, big := took(size), took(8*size)
		for range 3 { // the garbage of one measurement may be collected in another
			if big <= 16*small {
				break
			}
			big = min(big, took(8*size))
		}
		t.Logf("%s: %s for %d bytes, %s for eight times as many", l.name, small.Round(time.Microsecond), size,
			big.Round(time.Microsecond))
		if big > 16*small+30*time.Millisecond {
			t.Errorf("%s: %s for %d bytes and %s for eight times as many", l.name, small, size, big)
		}
	}
}

// cpuTime is what this process has used so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

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

// The time that a file takes grows with its length: two megabytes need four times as much as half a one, and not
// sixteen times. CPU time is measured, so that a busy machine changes little.
func TestTimeGrowsWithTheLength(t *testing.T) {
	for _, l := range slices.Concat(large, []file{inOneLine(large[0]), inOneLine(large[3])}) {
		took := func(size int) time.Duration {
			sources := []policy.Source{{Path: l.file, Text: l.text(size)}}
			begin := cpuTime(t)
			if _, err := l.do(sources); err != nil {
				t.Fatalf("%s: %v", l.name, err)
			}
			return cpuTime(t) - begin
		}
		small, big := took(1<<19), took(1<<21)
		t.Logf("%s: %s for 0.5 MB, %s for 2 MB", l.name, small.Round(time.Millisecond), big.Round(time.Millisecond))
		if big > 10*small+time.Second {
			t.Errorf("%s: %s for 0.5 MB and %s for 2 MB", l.name, small, big)
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

package resolve

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

func TestParseAssignment(t *testing.T) {
	tests := []struct {
		text, on, group, place string
		key                    policy.Key
		value                  policy.Value
	}{
		{"mysql23761:cpu.limit=8", "", "mysql23761", "", policy.KeyCPULimit, policy.Cores(8_000_000)},
		{"mysql23761/backup:cpu.limit=150%", "", "mysql23761/backup", "", policy.KeyCPULimit, policy.Cores(1_500_000)},
		{"reports:memory.max=8 GiB", "", "reports", "", policy.KeyMemoryMax, policy.Bytes(8 << 30)},
		{"reports:memory.high=4%", "", "reports", "", policy.KeyMemoryHigh, policy.MemoryPercent(4 * policy.One)},
		{"reports:memory.max=max", "", "reports", "", policy.KeyMemoryMax, policy.Unlimited{}},
		{"reports:io.read.bandwidth=10MB/s", "/dev/sdb", "reports", "/dev/sdb", policy.KeyIOReadBandwidth,
			policy.Rate(10_000_000)},
		{"reports:io.write.iops=500", "/data/", "reports", "/data", policy.KeyIOWriteIOPS, policy.IOPS(500)},
		{"reports:io.write.iops=500", "8:16", "reports", "8:16", policy.KeyIOWriteIOPS, policy.IOPS(500)},
		{"reports:io.write.iops=500", "", "reports", "", policy.KeyIOWriteIOPS, policy.IOPS(500)},
		{"reports:memory.huge=1GiB", "2MiB", "reports", "2MB", policy.KeyMemoryHuge, policy.Bytes(1 << 30)},
		{"reports:tasks=100", "", "reports", "", policy.KeyTasks, policy.Count(100)},
		{"reports:oom_score_adj=-5", "", "reports", "", policy.KeyOOMScoreAdj, policy.Count(-5)},
		{"reports:cpu.cpus=0-1", "", "reports", "", policy.KeyCPUCPUs, policy.IDs{Set: idset.New(0, 1)}},
		{"reports:cpu.idle=true", "", "reports", "", policy.KeyCPUIdle, policy.Flag(true)},
	}
	for _, test := range tests {
		group, s, err := parse.Assignment(test.text, test.on)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		if group != test.group || s.Key != test.key || s.On != test.place || !policy.SameValue(s.Value, test.value) {
			t.Errorf("%s --on %q: group %q, %+v", test.text, test.on, group, s)
		}
	}
}

// TestBadAssignments holds what a person sees for a wrong argument.
func TestBadAssignments(t *testing.T) {
	var b strings.Builder
	for _, test := range [][2]string{
		{"", ""}, {"reports", ""}, {"reports:cpu.limit", ""}, {"reports:cpu.limit=", ""}, {"cpu.limit=1", ""},
		{"a b:cpu.limit=1", ""}, {"../x:cpu.limit=1", ""}, {":cpu.limit=1", ""}, {"a//b:cpu.limit=1", ""},
		{"reports:cpu.limt=1", ""}, {"reports:limit=1", ""}, {"reports:=1", ""},
		{"reports:memory.max=48G", ""}, {"reports:cpu.limit=0", ""}, {"reports:cpu.limit=-1", ""},
		{"reports:tasks=many", ""},
		{"reports:io.read.iops=5", "sdb"}, {"reports:io.read.iops=5", "asm:1"}, {"reports:cpu.limit=1", "/dev/sdb"},
		{"reports:memory.huge=1GiB", ""}, {"reports:memory.huge=1GiB", "3MiB"}, {"reports:memory.huge=1MiB", "2MiB"},
		{"日本:cpu.limit=1", ""}, {"a\xff:cpu.limit=1", ""}, {"a:cpu.limit=\x1b[2J", ""},
	} {
		_, _, err := parse.Assignment(test[0], test[1])
		if err == nil {
			t.Errorf("set %q --on %q is taken", test[0], test[1])
			continue
		}
		fmt.Fprintf(&b, "set %q --on %q\n%s\n\n", test[0], test[1], err)
	}
	for _, text := range []string{"reports", "reports:cpu.limt", "reports:cpu.limit=1", ""} {
		_, _, err := parse.Target(text)
		if err == nil {
			t.Errorf("unset %q is taken", text)
			continue
		}
		fmt.Fprintf(&b, "unset %q\n%s\n\n", text, err)
	}
	checkGolden(t, "testdata/assignments.txt", b.String())
}

func TestParseTarget(t *testing.T) {
	group, key, err := parse.Target("mysql23761/backup:io.read.bandwidth")
	if group != "mysql23761/backup" || key != policy.KeyIOReadBandwidth || err != nil {
		t.Error(group, key, err)
	}
}

// FuzzAssignment holds that an argument is refused with problems or means a setting that, printed,
// means the same again.
func FuzzAssignment(f *testing.F) {
	for _, seed := range [][2]string{
		{"mysql23761:cpu.limit=8", ""}, {"a/b:memory.max=48G", ""}, {"a:io.read.bandwidth=10MiB/s", "/dev/sdb"},
		{"a:memory.huge=1GiB", "2MiB"}, {"a:cpu.cpus=0-3,8", ""}, {"a:cpu.burst=20us", ""}, {"=:=", "0:0"},
		{"a:memory.low=12.5%", ""},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, on string) {
		group, s, err := parse.Assignment(text, on)
		if err != nil {
			if problems, ok := err.(policy.Problems); !ok || len(problems) != 1 || problems[0].Msg == "" {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		again := group + ":" + string(s.Key) + "=" + s.Value.String()
		g, back, err := parse.Assignment(again, on)
		if err != nil || g != group || !back.Equal(s) {
			t.Fatalf("%q means %v, which is written %q and means %v, %v", text, s, again, back, err)
		}
		if _, _, err := parse.Target(group + ":" + string(s.Key)); err != nil {
			t.Fatal(err)
		}
		Setting(s, testHost(), testResolver())
	})
}

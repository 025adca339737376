package policy

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/idset"

	"pgregory.net/rapid"
)

func TestValues(t *testing.T) {
	tests := []struct {
		key  Key
		text string
		want Value
	}{
		{KeyMemoryMax, "8GiB", Bytes(8 << 30)},
		{KeyMemoryMax, "8 GiB", Bytes(8 << 30)},
		{KeyMemoryMax, "8GB", Bytes(8_000_000_000)},
		{KeyMemoryMax, "1.5GiB", Bytes(3 << 29)},
		{KeyMemoryMax, "0.1KiB", Bytes(102)}, // 102.4
		{KeyMemoryMax, "1kB", Bytes(1000)},
		{KeyMemoryMax, "1KB", Bytes(1000)},
		{KeyMemoryMax, "7B", Bytes(7)},
		{KeyMemoryMax, "1PiB", Bytes(1 << 50)},
		{KeyMemoryMax, "4%", MemoryPercent(4_000_000)},
		{KeyMemoryMax, "12.5 %", MemoryPercent(12_500_000)},
		{KeyMemoryMax, "100%", MemoryPercent(100_000_000)},
		{KeyMemoryMax, "max", Unlimited{}},
		{KeyMemorySwap, "0", Bytes(0)},
		{KeyMemorySwap, "0GiB", Bytes(0)},
		{KeyIOReadBandwidth, "10MiB/s", Rate(10 << 20)},
		{KeyIOReadBandwidth, "10 MB/s", Rate(10_000_000)},
		{KeyIOReadBandwidth, "1B/s", Rate(1)},
		{KeyIOReadIOPS, "500", IOPS(500)},
		{KeyCPULimit, "1.5", Cores(1_500_000)},
		{KeyCPULimit, "150%", Cores(1_500_000)},
		{KeyCPULimit, "0.5 %", Cores(5000)},
		{KeyCPULimit, "2", Cores(2_000_000)},
		{KeyCPUWeight, "1", Weight(1)},
		{KeyCPUWeight, "10000", Weight(10000)},
		{KeyCPUPeriod, "100ms", Duration(100 * time.Millisecond)},
		{KeyCPUPeriod, "1s", Duration(time.Second)},
		{KeyCPUBurst, "20us", Duration(20 * time.Microsecond)},
		{KeyCPUBurst, "20µs", Duration(20 * time.Microsecond)},
		{KeyCPUBurst, "1.5ms", Duration(1500 * time.Microsecond)},
		{KeyCPUBurst, "0", Duration(0)},
		{KeyCPUIdle, "true", Flag(true)},
		{KeyCPUCPUs, "0-3,8", IDs{idset.New(0, 1, 2, 3, 8)}},
		{KeyCPUCPUs, "max", Unlimited{}},
		{KeyMemoryOOM, "pause", OOM("pause")},
		{KeyOOMScoreAdj, "-1000", Count(-1000)},
		{KeyTasks, "8192", Count(8192)},
		{KeyMemorySwappiness, "0", Count(0)},
	}
	for _, test := range tests {
		got, wrong := LimitOf(test.key).Parse(test.text)
		if wrong != nil {
			t.Errorf("%s: %q: %s", test.key, test.text, wrong.Msg)
		} else if !SameValue(got, test.want) {
			t.Errorf("%s: %q is %T %s, want %T %s", test.key, test.text, got, got, test.want, test.want)
		}
	}
}

// Every text here is refused, and the fault says what is listed.
func TestFaults(t *testing.T) {
	tests := []struct {
		key       Key
		text, say string
	}{
		{KeyMemoryMax, "48G", "48GB (48000000000 bytes) or 48GiB (51539607552 bytes)"},
		{KeyMemoryMax, "48g", "48GB (48000000000 bytes) or 48GiB"},
		{KeyMemoryMax, "1k", "1kB (1000 bytes) or 1KiB (1024 bytes)"},
		{KeyMemoryMax, "48", "it could mean 48B (bytes) or 48GiB"},
		{KeyMemoryMax, "1073741824", "it could mean 1073741824B (bytes) or 1073741824KiB"},
		{KeyMemoryMax, "8 gallons", "8GB"},
		{KeyMemoryMax, "8xyz", "unknown unit"},
		{KeyMemoryMax, "101%", "more than all"},
		{KeyMemoryMax, "99999999999PiB", "too large"},
		{KeyMemoryMax, "0.1B", "too small"},
		{KeyMemoryMax, "0", "stop the group"},
		{KeyMemoryMax, "-1GiB", "negative"},
		{KeyMemoryMax, "", "not a size"},
		{KeyMemoryMax, "GiB", "not a size"},
		{KeyMemoryMax, "1.5.5GiB", "not a plain decimal"},
		{KeyMemoryMax, "+1GiB", "not a plain decimal"},
		{KeyMemoryMax, "1,5GiB", "comma"},
		{KeyMemoryMax, strings.Repeat("9", 100000) + "GiB", "not a size"},
		{KeyMemoryLow, "max", "no value"},
		{KeyIOReadBandwidth, "10M", "10MB/s (10000000 bytes a second) or 10MiB/s (10485760 bytes a second)"},
		{KeyIOReadBandwidth, "10M/s", "10MB/s"},
		{KeyIOReadBandwidth, "10MB", "a size, not a rate"},
		{KeyIOReadBandwidth, "10", "10B/s (bytes a second) or 10MiB/s"},
		{KeyIOReadBandwidth, "10Mbit/s", "in bits"},
		{KeyIOReadBandwidth, "10Mbps", "in bits"},
		{KeyIOReadBandwidth, "101%", "more than all that the disk can do"},
		{KeyIOWriteIOPS, "0%", "would stop the group"},
		{KeyIOReadIOPS, "5k", "not a number"},
		{KeyIOReadIOPS, "5.5", "not a whole"},
		{KeyCPULimit, "1,5", "comma"},
		{KeyCPULimit, "150 percent", "unknown unit"},
		{KeyCPULimit, "1e3", "not a plain decimal"},
		{KeyCPULimit, "0x10", "not a plain decimal"},
		{KeyCPULimit, "010", "could mean 10 or, as YAML reads it, octal 8"},
		{KeyCPULimit, "0.0000001", "too small"},
		{KeyCPUPeriod, "100", "100us or 100ms"},
		{KeyCPUPeriod, "0", "outside 1ms to 1s"},
		{KeyCPUPeriod, "5m", "unknown unit"},
		{KeyCPUBurst, "0.5us", "too small"},
		{KeyCPUWeight, "0", "outside 1 to 10000"},
		{KeyCPUWeight, "1 share", "not a number"},
		{KeyCPUIdle, "yes", "neither"},
		{KeyCPUCPUs, "3-1", "backwards"},
		{KeyCPUCPUs, "", "empty"},
		{KeyCPUCPUs, "0-99999999", "above"},
		{KeyCPUCPUs, "a", "not a number"},
		{KeyMemoryOOM, "never", "not known"},
		{KeyOOMScoreAdj, "--5", "not a number"},
		{KeyOOMScoreAdj, "1001", "outside"},
		{KeyTasks, "99999999999999999999", "outside"},
	}
	for _, test := range tests {
		got, wrong := LimitOf(test.key).Parse(test.text)
		switch {
		case wrong == nil:
			t.Errorf("%s: %.40q is taken for %s", test.key, test.text, got)
		case !strings.Contains(wrong.Msg+" "+wrong.Hint, test.say):
			t.Errorf("%s: %.40q: %q (hint %q) does not say %q", test.key, test.text, wrong.Msg, wrong.Hint, test.say)
		}
	}
}

func TestStrings(t *testing.T) {
	tests := []struct {
		value Value
		want  string
	}{
		{Bytes(8 << 30), "8GiB"}, {Bytes(3 << 29), "1.5GiB"}, {Bytes(500_000_000), "500MB"}, {Bytes(0), "0"},
		{Bytes(12345), "12345B"}, {Bytes(1 << 20), "1MiB"},
		{Bytes(math.MaxInt64), "9223372036854775807B"},
		{Rate(10 << 20), "10MiB/s"}, {Rate(50_000_000), "50MB/s"}, {Rate(1000), "1kB/s"},
		{Cores(1_500_000), "1.5"}, {Cores(2_000_000), "2"}, {Cores(1), "0.000001"},
		{MemoryPercent(4_000_000), "4%"}, {MemoryPercent(12_500_000), "12.5%"},
		{Duration(100 * time.Millisecond), "100ms"}, {Duration(1500 * time.Microsecond), "1500us"},
		{Duration(time.Second), "1s"}, {Duration(0), "0"},
		{IDs{idset.New(0, 1, 2, 3, 8)}, "0-3,8"}, {Unlimited{}, "max"}, {Flag(false), "false"},
	}
	for _, test := range tests {
		if got := test.value.String(); got != test.want {
			t.Errorf("%T %#v prints %q, want %q", test.value, test.value, got, test.want)
		}
	}
	for b, want := range map[Bytes]string{25_125_558_681: "23.4 GiB", 1 << 30: "1 GiB", 1023: "1023 B",
		1536: "1.5 KiB"} {
		if got := b.Human(); got != want {
			t.Errorf("%d for people is %q, want %q", b, got, want)
		}
	}
}

func TestPercentOf(t *testing.T) {
	if got := MemoryPercent(5 * One).Of(25_125_558_681); got != 1_256_277_934 {
		t.Errorf("5%% is %d", got)
	}
	if got := MemoryPercent(100 * One).Of(math.MaxInt64); got != math.MaxInt64 {
		t.Errorf("100%% of everything is %d", got)
	}
}

// drawValue draws any value that a limit can have.
func drawValue(t *rapid.T, l *Limit) Value {
	if l.lift && rapid.IntRange(0, 9).Draw(t, "lifted") == 0 {
		return Unlimited{}
	}
	lowest := int64(1)
	if l.Zero {
		lowest = 0
	}
	from := func(low, high int64) int64 { return rapid.Int64Range(low, high).Draw(t, "n") }
	sample, _ := l.Unit.read(map[Key]string{KeyMemoryOOM: "kill", KeyCPUIdle: "true"}[l.Key])
	if sample == nil {
		for _, text := range []string{"1", "1GiB", "1MB/s", "1Mbit/s", "1ms"} {
			if v, wrong := l.Unit.read(text); wrong == nil {
				sample = v
				break
			}
		}
	}
	switch sample.(type) {
	case Bytes:
		if l.Key != KeyMemoryHuge && rapid.Bool().Draw(t, "percent") {
			return MemoryPercent(from(1, 100*One))
		}
		return Bytes(from(lowest, math.MaxInt64))
	case Rate:
		return Rate(from(1, math.MaxInt64))
	case BitRate:
		return BitRate(from(1, math.MaxInt64))
	case Cores:
		return Cores(from(1, math.MaxInt64))
	case Duration:
		low, high := int64(1000), int64(1_000_000)
		if l.Zero {
			low = 0
		}
		return Duration(time.Duration(from(low, high)) * time.Microsecond)
	case Weight:
		return Weight(from(1, 10000))
	case IOPS:
		return IOPS(from(1, math.MaxInt32))
	case Count:
		switch l.Key {
		case KeyOOMScoreAdj:
			return Count(from(-1000, 1000))
		case KeyMemorySwappiness:
			return Count(from(0, 200))
		}
		return Count(from(1, pidMaxLimit))
	case Flag:
		return Flag(rapid.Bool().Draw(t, "flag"))
	case OOM:
		return OOM(rapid.SampledFrom(oomWords).Draw(t, "oom"))
	case IDs:
		return IDs{idset.New(rapid.SliceOfN(rapid.IntRange(0, 500), 1, 20).Draw(t, "ids")...)}
	}
	t.Fatalf("no way to draw a value of %s (%T)", l.Key, sample)
	return nil
}

// What a value prints is what a person may write for it: in an argument, in JSON, and in the file.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &limits[rapid.IntRange(0, len(limits)-1).Draw(t, "key")]
		want := drawValue(t, l)
		got, wrong := l.Parse(want.String())
		if wrong != nil || !SameValue(got, want) {
			t.Fatalf("%s: %s reads back as %v (%+v)", l.Key, want, got, wrong)
		}
		s := Setting{Key: l.Key, Value: want, On: "/data", Dev: "8:16", Raw: "x", From: "class c", Pos: Pos{"f", 1, 2}}
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Setting
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if !back.Equal(s) || back.Pos != s.Pos || back.From != s.From || back.Raw != s.Raw || back.On != s.On {
			t.Fatalf("%s reads back as %+v", data, back)
		}
	})
}

func TestSettingJSON(t *testing.T) {
	s := Setting{Key: KeyCPULimit, Value: Cores(1_500_000), Raw: "150%", From: "group", Pos: Pos{"p.yaml", 3, 4}}
	data, err := json.Marshal(s)
	want := `{"key":"cpu.limit","value":"1.5","raw":"150%","pos":{"file":"p.yaml","line":3,"column":4},"from":"group"}`
	if err != nil || string(data) != want {
		t.Errorf("%s, %v; want %s", data, err, want)
	}
	for _, bad := range []string{`{"key":"cpu.limits","value":"1"}`, `{"key":"cpu.limit","value":"x"}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), &s); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestSettings(t *testing.T) {
	ss := Settings{}.With(Setting{Key: KeyTasks, Value: Count(5)}).
		With(Setting{Key: KeyIOReadIOPS, On: "/data", Dev: "8:16", Value: IOPS(1)}).
		With(Setting{Key: KeyIOReadIOPS, Dev: "8:0", Value: IOPS(2)}).
		With(Setting{Key: KeyCPUWeight, Value: Weight(7)})
	var keys []Key
	for _, s := range ss {
		keys = append(keys, s.Key)
	}
	if want := []Key{KeyCPUWeight, KeyTasks, KeyIOReadIOPS, KeyIOReadIOPS}; !slices.Equal(keys, want) {
		t.Errorf("order %v, want %v", keys, want)
	}
	for _, on := range []string{"/data", "8:16"} {
		if s, ok := ss.Get(KeyIOReadIOPS, on); !ok || s.Value != IOPS(1) {
			t.Errorf("on %s: %v %v", on, s, ok)
		}
	}
	if _, ok := ss.Get(KeyIOReadIOPS, "8:32"); ok {
		t.Error("there is a limit on 8:32")
	}
	replaced := ss.With(Setting{Key: KeyIOReadIOPS, On: "/dev/sdb", Dev: "8:16", Value: IOPS(9)})
	if s, _ := replaced.Get(KeyIOReadIOPS, "8:16"); len(replaced) != len(ss) || s.Value != IOPS(9) {
		t.Errorf("With leaves %v", replaced)
	}
	if s, _ := ss.Get(KeyIOReadIOPS, "8:16"); s.Value != IOPS(1) {
		t.Error("With changed its receiver")
	}
	if len(ss.All(KeyIOReadIOPS)) != 2 || !ss.Equal(ss.With(ss[0])) || ss.Equal(replaced) || ss.Equal(ss[1:]) {
		t.Error("All or Equal is wrong")
	}
	if SameValue(Bytes(1), Rate(1)) || SameValue(nil, Bytes(1)) || !SameValue(nil, nil) ||
		!SameValue(IDs{idset.New(1)}, IDs{idset.New(1)}) {
		t.Error("SameValue is wrong")
	}
}

func TestHugePageNames(t *testing.T) {
	for size, name := range map[int64]string{64 << 10: "64KB", 2 << 20: "2MB", 1 << 30: "1GB", 16 << 30: "16GB"} {
		if got := HugePageName(size); got != name {
			t.Errorf("%d is %q, want %q", size, got, name)
		}
		if got := HugePageSize(name); got != size {
			t.Errorf("%q is %d, want %d", name, got, size)
		}
	}
	for _, bad := range []string{"", "2", "MB", "2mb", "-1MB", "99999999999GB"} {
		if got := HugePageSize(bad); got != 0 {
			t.Errorf("%q is %d", bad, got)
		}
	}
}

// A rate reads as it was asked for, and what nobody writes as a person would say it.
func TestRateForPeople(t *testing.T) {
	for n, want := range map[Rate]string{
		0: "0 B/s", 1: "1 B/s", 10_000_000: "10 MB/s", 10 << 20: "10 MiB/s", 500 << 20: "500 MiB/s", 1 << 30: "1 GiB/s",
		1_500_000_000: "1.5 GB/s", 12_345_678: "12.3 MB/s", 12_345_000: "12.3 MB/s",
		4095: "4095 B/s", 54_321: "54.3 kB/s",
	} {
		if got := n.Human(); got != want {
			t.Errorf("%d is %q, want %q", int64(n), got, want)
		}
	}
}

package systemd

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func row(t interface{ Fatalf(string, ...any) }, name string) *Row {
	r, ok := RowOf(name)
	if !ok {
		t.Fatalf("no row %s", name)
	}
	return r
}

func TestEncode(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       any
		lines      []string
	}{
		{"CPUWeight", "100", uint64(100), []string{"CPUWeight=100"}},
		{"CPUWeight", "idle", uint64(0), []string{"CPUWeight=idle"}},
		{"CPUWeight", "", Infinity, []string{"CPUWeight="}},
		{"CPUShares", "512", uint64(512), []string{"CPUShares=512"}},
		{"CPUShares", "", Infinity, []string{"CPUShares="}},
		{"CPUQuotaPerSecUSec", "1500000", uint64(1500000), []string{"CPUQuota=150%"}},
		{"CPUQuotaPerSecUSec", "1234567", uint64(1230000), []string{"CPUQuota=123%"}},
		{"CPUQuotaPerSecUSec", "1", uint64(10000), []string{"CPUQuota=1%"}},
		{"CPUQuotaPerSecUSec", "max", Infinity, []string{"CPUQuota="}},
		{"CPUQuotaPeriodUSec", "50000", uint64(50000), []string{"CPUQuotaPeriodSec=50000us"}},
		{"CPUQuotaPeriodUSec", "", Infinity, []string{"CPUQuotaPeriodSec="}},
		{"AllowedCPUs", "0-3,9", []byte{0x0f, 0x02}, []string{"AllowedCPUs=", "AllowedCPUs=0-3,9"}},
		{"AllowedMemoryNodes", "", []byte{}, []string{"AllowedMemoryNodes="}},
		{"MemoryMax", "max", Infinity, []string{"MemoryMax=infinity"}},
		{"MemoryLow", "0", uint64(0), []string{"MemoryLow=0"}},
		{"TasksMax", "8192", uint64(8192), []string{"TasksMax=8192"}},
		{"IOReadBandwidthMax", "/dev/sda 1048576\n/dev/mapper/vg-a b 5\n",
			[]DeviceValue{{"/dev/sda", 1048576}, {"/dev/mapper/vg-a b", 5}},
			[]string{"IOReadBandwidthMax=", "IOReadBandwidthMax=/dev/sda 1048576",
				`IOReadBandwidthMax="/dev/mapper/vg-a b" 5`}},
		{"IODeviceWeight", "", []DeviceValue{}, []string{"IODeviceWeight="}},
		{"IOWriteIOPSMax", "/dev/a%b max", []DeviceValue{{"/dev/a%b", Infinity}},
			[]string{"IOWriteIOPSMax=", "IOWriteIOPSMax=/dev/a%%b infinity"}},
		{"OOMPolicy", "continue", "continue", []string{"OOMPolicy=continue"}},
		{"MemoryAccounting", "yes", true, []string{"MemoryAccounting=yes"}},
	} {
		r := row(t, c.name)
		p, err := r.Encode(c.text)
		if err != nil || p.Name != c.name || !reflect.DeepEqual(p.Value, c.want) {
			t.Errorf("encode %s=%q: %#v, %v, want %#v", c.name, c.text, p.Value, err, c.want)
		}
		if lines, err := r.Lines(c.text); err != nil || !slices.Equal(lines, c.lines) {
			t.Errorf("lines of %s=%q: %q, %v, want %q", c.name, c.text, lines, err, c.lines)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, texts := range map[string][]string{
		"CPUWeight":          {"0", "10001", "max", "-1", "1.5", "ten"},
		"IOWeight":           {"idle", "0"},
		"CPUShares":          {"1", "262145"},
		"CPUQuotaPerSecUSec": {"0", "", "18446744073709551615", "150%"},
		"CPUQuotaPeriodUSec": {"999", "1000001"},
		"AllowedCPUs":        {"a", "3-1", "70000", "1,,2"},
		"MemoryMax":          {"0", "", "5%", "1G", "18446744073709551615"},
		"IOReadBandwidthMax": {"/dev/sda", "sda 5", "/dev/../sda 5", "/dev/sda 0", "/dev/sda 5\n/dev/sda 6",
			"/dev/sda five"},
		"OOMPolicy":    {"", "pause"},
		"IOAccounting": {"", "on", "true"},
		"TasksMax":     {"0", "50%"},
	} {
		for _, text := range texts {
			if p, err := row(t, name).Encode(text); err == nil {
				t.Errorf("%s=%q gives %#v, want an error", name, text, p.Value)
			}
		}
	}
	for _, r := range Table() {
		if text, err := r.Decode(map[string]int{}); err == nil {
			t.Errorf("%s takes a map for %q", r.Name, text)
		}
	}
}

// What is encoded decodes to the same, and encodes to the same again.
func TestEncodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.SampledFrom(Table()).Draw(t, "row")
		number := func() string {
			return strconv.FormatUint(rapid.Uint64Range(r.Min, r.Max).Draw(t, "number"), 10)
		}
		var text string
		switch r.Form {
		case FormFlag:
			text = rapid.SampledFrom([]string{"yes", "no"}).Draw(t, "flag")
		case FormWord:
			text = rapid.SampledFrom(r.Words).Draw(t, "word")
		case FormSet:
			bits := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bits")
			text = decodeSet(bits).String()
		case FormDevices:
			paths := rapid.SliceOfNDistinct(rapid.StringMatching(`/dev/[a-z%"\\ ]{0,4}[a-z]`), 0, 3,
				rapid.ID[string]).Draw(t, "paths")
			var lines []string
			for _, path := range paths {
				lines = append(lines, path+" "+number())
			}
			text = strings.Join(lines, "\n")
		default:
			text = number()
		}
		p, err := r.Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		back, err := r.Decode(p.Value)
		if err != nil || !same(r, back, text) || r.Step == 0 && back != text {
			t.Errorf("%s=%q travels as %#v and decodes to %q, %v", r.Name, text, p.Value, back, err)
		}
		again, err := r.Encode(back)
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%s: %q encodes to %#v, %v, want %#v", r.Name, back, again, err, p)
		}
		if _, err := r.Lines(text); err != nil {
			t.Error(err)
		}
	})
}

func FuzzEncode(f *testing.F) {
	for _, text := range []string{"max", "0-3", "/dev/sda 5\n/dev/sdb 6", "idle", "yes", "18446744073709551615", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range Table() {
			p, err := r.Encode(text)
			if err != nil {
				continue
			}
			if back, err := r.Decode(p.Value); err != nil || !same(r, back, text) {
				t.Errorf("%s=%q decodes to %q, %v", r.Name, text, back, err)
			}
			lines, err := r.Lines(text)
			for _, line := range lines {
				if err != nil || strings.ContainsAny(line, "\n\x00") || !strings.HasPrefix(line, r.Setting+"=") {
					t.Errorf("%s=%q gives the line %q, %v", r.Name, text, line, err)
				}
			}
		}
	})
}

func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, r := range Table() {
		if names[r.Name] || r.Since < 200 || r.Source == "" || r.Setting == "" || r.Until > 0 && r.Until <= r.Since {
			t.Errorf("row %+v", r)
		}
		names[r.Name] = true
		if r.Form == FormFlag && r.V1+r.V2 != "" || r.Form != FormFlag && r.V2 == "" {
			t.Errorf("%s names the files %q and %q", r.Name, r.V1, r.V2)
		}
		if _, ok := RowOf(r.Stronger); r.Stronger != "" && !ok {
			t.Errorf("%s yields to %s, which is not there", r.Name, r.Stronger)
		}
		if r.Form.Signature() == "t" && (r.Max == 0 || r.Max == math.MaxUint64) {
			t.Errorf("%s has no range", r.Name)
		}
	}
}

func TestRoute(t *testing.T) {
	for _, c := range []struct {
		name    string
		version int
		unit    string
		cgroups int
		want    Route
		why     string
	}{
		{"MemoryHigh", 252, "slice", 2, ByProperty, ""},
		{"MemoryHigh", 252, "slice", 1, ByFile, "writes it nowhere"},
		{"MemoryMax", 247, "scope", 1, ByProperty, ""},
		{"MemoryMax", 219, "slice", 1, ByFile, "since 231"},
		{"MemoryLimit", 219, "slice", 1, ByProperty, ""},
		{"MemoryLimit", 258, "slice", 2, ByFile, "dropped"},
		{"IOReadIOPSMax", 252, "service", 1, ByFile, "writes it nowhere"},
		{"IOReadIOPSMax", 252, "service", 2, ByProperty, ""},
		{"IOReadBandwidthMax", 252, "service", 1, ByProperty, ""},
		{"AllowedCPUs", 252, "service", 1, ByFile, "writes it nowhere"},
		{"AllowedCPUs", 243, "service", 2, ByFile, "since 244"},
		{"MemoryZSwapMax", 252, "service", 2, ByFile, "since 253"},
		{"MemoryZSwapMax", 253, "service", 2, ByProperty, ""},
		{"OOMPolicy", 252, "service", 2, ByNone, "at a unit's start"},
		{"OOMPolicy", 252, "scope", 2, ByFile, "since 253"},
		{"OOMPolicy", 257, "slice", 2, ByFile, "never"},
		{"CPUAccounting", 252, "slice", 1, ByProperty, ""},
	} {
		route, why := row(t, c.name).Route(Version{Number: c.version}, c.unit, c.cgroups)
		if route != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s of a %s, systemd %d, cgroup v%d: %s, %q, want %s, %q", c.name, c.unit, c.version, c.cgroups,
				route, why, c.want, c.why)
		}
	}
}

// same says whether two texts stand for the same value of a property.
func same(r *Row, a, b string) bool {
	one, err1 := r.Encode(a)
	other, err2 := r.Encode(b)
	return err1 == nil && err2 == nil && reflect.DeepEqual(one, other)
}

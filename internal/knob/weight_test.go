package knob

import (
	"slices"
	"strconv"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// bfqHost has BFQ, and iocost on cgroup v2.
func bfqHost() *host.Facts {
	f := debian12()
	f.BFQ, f.IOCost = true, true
	return f
}

func TestWeightOnADisk(t *testing.T) {
	for _, test := range []struct {
		via    string
		weight policy.Weight
		file   string // that has a value for it
		want   string
	}{
		{policy.ViaIOCost, 1000, "io.weight", "1000"},
		{policy.ViaBFQ, 1000, "io.bfq.weight", "100"},
		{policy.ViaBFQ, 10, "io.bfq.weight", "1"},
		{policy.ViaBFQ, 1, "io.bfq.weight", "1"},
		{policy.ViaBFQ, 10000, "io.bfq.weight", "1000"},
		{policy.ViaBFQ, 10, "blkio.bfq.weight_device", "1"},
		{policy.ViaCFQ, 1000, "blkio.weight_device", "100"},
		{policy.ViaCFQ, 10, "blkio.weight_device", "10"},
	} {
		s := policy.Settings{{Key: policy.KeyIOWeight, Dev: "8:0", Via: test.via, Value: test.weight}}
		var files []string
		for _, r := range ioWeightRows() {
			if r.Instances(s) == nil {
				continue
			}
			files = append(files, r.File)
			if got, ok, err := r.Encode(Input{Settings: s, On: "8:0"}); r.File == test.file &&
				(got != test.want || !ok || err != nil) {
				t.Errorf("%s of %d by %s: %q, %t, %v, want %q", r.File, test.weight, test.via, got, ok, err, test.want)
			}
		}
		if !slices.Contains(files, test.file) {
			t.Errorf("by %s: files %q", test.via, files)
		}
	}
	names := func(f *host.Facts) (files []string) {
		for _, r := range RowsFor(f) {
			if r.via != "" {
				files = append(files, r.File)
			}
		}
		return files
	}
	if got := names(debian12()); got != nil {
		t.Errorf("without iocost and BFQ: %q", got)
	}
	if got := names(bfqHost()); !slices.Equal(got, []string{"io.weight", "io.bfq.weight"}) {
		t.Errorf("with both: %q", got)
	}
}

func TestDiskRows(t *testing.T) {
	for _, test := range []struct {
		file, got, parsed string
		same, not         string
	}{
		{CostQoS, "", "enable=0", "enable=0", "enable=1"},
		{CostQoS, "enable=0 ctrl=auto rpct=0.00", "enable=0", "enable=0", "enable=1"},
		{CostQoS, "enable=1 ctrl=auto rpct=0.00", "enable=1 ctrl=auto rpct=0.00", "enable=1", "enable=0"},
		{CostModel, "", "ctrl=auto", "ctrl=auto", "ctrl=user model=linear rbps=1"},
		{CostModel, "ctrl=auto model=linear rbps=5", "ctrl=auto", "ctrl=auto", "ctrl=user rbps=5"},
		{CostModel, "ctrl=user model=linear rbps=5 rseqiops=6", "ctrl=user model=linear rbps=5 rseqiops=6",
			"ctrl=user model=linear rbps=5", "ctrl=user rbps=6"},
		{"queue.scheduler", "bfq\n", "bfq", "bfq", "none"},
	} {
		r := DiskRow(test.file)
		if got := r.Parse(test.got); got != test.parsed {
			t.Errorf("%s %q: %q, want %q", test.file, test.got, got, test.parsed)
		}
		if !r.Same(test.same, test.got) || r.Same(test.not, test.got) {
			t.Errorf("%s %q: like %q %t, like %q %t", test.file, test.got, test.same, r.Same(test.same, test.got),
				test.not, r.Same(test.not, test.got))
		}
	}
	if DiskRow("io.max") != nil {
		t.Error("io.max is of groups")
	}
}

// systemd makes BFQ's weight of the one that it is told: what it is told must come to ours again. The property has the
// disks of both files.
func TestWeightByProperty(t *testing.T) {
	bfqs, iocosts := row(t, "io.bfq.weight"), row(t, "io.weight")
	slice := func(version int) Unit { return Unit{Name: "a.slice", Version: systemd.Version{Number: version}} }
	disks := map[string][]string{"io.bfq.weight": {"8:0"}}
	devices := func(file string) []string { return disks[file] }
	for bfq, told := range map[string]string{"1": "1", "100": "100", "101": "111", "181": "991", "1000": "10000"} {
		text := func(_, _ string) string { return bfq }
		set, ok := bfqs.Properties(slice(252), devices, text)
		if !ok || len(set) != 1 || set[0].Name != "IODeviceWeight" || set[0].Text != "/dev/block/8:0 "+told {
			t.Errorf("%s: %v, %t, want %s", bfq, set, ok, told)
		}
		if n, _ := strconv.Atoi(told); n > 100 && strconv.Itoa(100+(n-100)*900/9900) != bfq {
			t.Errorf("systemd makes %d of %s, want %s", 100+(n-100)*900/9900, told, bfq)
		}
		if set, ok := bfqs.Properties(slice(247), devices, text); ok {
			t.Errorf("before 250: %v", set)
		}
	}
	disks["io.weight"] = []string{"8:16", "8:32"}
	text := func(file, device string) string {
		return map[string]string{"io.bfq.weight": "101", "io.weight8:16": "500", "io.weight8:32": "default"}[file+
			map[bool]string{true: device}[file == "io.weight"]]
	}
	for _, r := range []*Row{bfqs, iocosts} {
		set, ok := r.Properties(slice(252), devices, text)
		if !ok || len(set) != 1 || set[0].Text != "/dev/block/8:16 500\n/dev/block/8:0 111" {
			t.Errorf("%s: %v, %t", r.File, set, ok)
		}
	}
	if set, ok := iocosts.Properties(slice(247), devices, text); !ok || len(set) != 1 {
		t.Errorf("before 250: %v, %t", set, ok)
	}
}

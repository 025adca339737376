package metrics

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// The table has a row for each figure of a Usage and no other, under the name that it has in the JSON of status.
func TestFieldsAreWhatUsageHolds(t *testing.T) {
	names := map[string]bool{}
	var leaves func(prefix string, of reflect.Type)
	leaves = func(prefix string, of reflect.Type) {
		for i := range of.NumField() {
			tag, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			name, typ := prefix+tag, of.Field(i).Type
			if typ.Kind() == reflect.Pointer {
				typ = typ.Elem()
			}
			switch typ.Kind() {
			case reflect.Slice:
				leaves(name+"[].", typ.Elem())
			case reflect.Map:
				for _, key := range Resources {
					leaves(name+"."+key+".", typ.Elem())
				}
			case reflect.Struct:
				leaves(name+".", typ)
			case reflect.String: // the device
			default:
				names[name] = true
			}
		}
	}
	leaves("", reflect.TypeFor[Usage]())
	for _, f := range Fields {
		if !names[f.Name] {
			t.Errorf("row %q is no figure of a Usage, or there twice", f.Name)
		}
		delete(names, f.Name)
		if f.Unit == "" || f.Kind == "" || f.Help == "" || f.V1.File == "" && f.V2.File == "" {
			t.Errorf("row %q is not complete: %+v", f.Name, f)
		}
		if f.value != nil { // it is the figure of that name
			var u Usage
			*f.value(&u) = new(int64(7))
			text, err := json.Marshal(u)
			group, key, _ := strings.Cut(f.Name, ".")
			if want := `{"` + group + `":{"` + key + `":7}}`; err != nil || string(text) != want {
				t.Errorf("row %q sets %s, want %s", f.Name, text, want)
			}
		}
	}
	if len(names) > 0 {
		t.Errorf("figures without a row: %v", slices.Sorted(maps.Keys(names)))
	}
}

// sampleAt is a sample so many seconds after the epoch.
func sampleAt(seconds int64, u Usage) Sample {
	return Sample{At: time.Unix(seconds, 0), Usage: u, Found: true}
}

func TestDelta(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	before := sampleAt(10, Usage{
		Memory: Memory{Current: n(900), OOMKills: n(3)}, CPU: CPU{Total: n(1_000_000)},
		IO:       []IO{{Device: "8:0", ReadBytes: 100, Reads: 1}},
		Pressure: map[string]Pressure{"memory": {Some: &Stall{Avg10: 1, Total: 50}}},
	})
	after := sampleAt(14, Usage{
		Memory: Memory{Current: n(400), OOMKills: n(4)}, CPU: CPU{Total: n(3_000_000), User: n(5)},
		IO:       []IO{{Device: "8:0", ReadBytes: 300, Reads: 5}, {Device: "8:16", Writes: 8}},
		Pressure: map[string]Pressure{"memory": {Some: &Stall{Avg10: 2, Total: 90}, Full: &Stall{Total: 7}}},
	})
	d := after.Since(before)
	want := Usage{
		Memory: Memory{Current: n(400), OOMKills: n(1)}, CPU: CPU{Total: n(2_000_000), User: n(5)},
		IO:       []IO{{Device: "8:0", ReadBytes: 200, Reads: 4}, {Device: "8:16", Writes: 8}},
		Pressure: map[string]Pressure{"memory": {Some: &Stall{Avg10: 2, Total: 40}, Full: &Stall{Total: 7}}},
	}
	if !reflect.DeepEqual(d.Usage, want) || d.Anew || d.Span != 4*time.Second {
		t.Errorf("delta %s over %v, anew %v; want %s", show(d.Usage), d.Span, d.Anew, show(want))
	}
	if rate := d.Rate(d.CPU.Total); rate != 500_000 {
		t.Errorf("%v µs a second", rate)
	}
	if rate := d.Rate(d.Tasks.Current); rate == rate {
		t.Errorf("what was not counted has a rate of %v", rate)
	}
	if *after.Usage.CPU.Total != 3_000_000 || after.Usage.IO[0].Reads != 5 ||
		after.Usage.Pressure["memory"].Some.Total != 90 {
		t.Errorf("the sample has changed: %s", show(after.Usage))
	}
}

// What a database did is known where it answered both times.
func TestWorkSince(t *testing.T) {
	answered := func(n int64) Sample { return Sample{At: time.Unix(n, 0), Work: 1000 * n} }
	silent := Sample{At: time.Unix(2, 0), WorkErr: errors.New("timeout")}
	for name, c := range map[string]struct {
		before, after Sample
		want          int64
	}{"both": {answered(1), answered(3), 2000}, "not at the end": {answered(1), silent, 0},
		"not at the begin": {silent, answered(3), 0}} {
		if d := c.after.Since(c.before); d.Work != c.want {
			t.Errorf("it answered %s: %d", name, d.Work)
		}
	}
}

// A group that was made anew counts from nothing, whichever of its counters tells it.
func TestDeltaOfAGroupMadeAnew(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	stalled := func(us int64) Usage {
		return Usage{Pressure: map[string]Pressure{"io": {Full: &Stall{Total: us}}}}
	}
	for name, c := range map[string]struct {
		before, after, want Usage
		anew                bool
	}{
		"a counter": {Usage{CPU: CPU{Total: n(9)}}, Usage{CPU: CPU{Total: n(4)}}, Usage{CPU: CPU{Total: n(4)}},
			true},
		"a device": {Usage{IO: []IO{{"8:0", 9, 0, 9, 0}}}, Usage{IO: []IO{{"8:0", 10, 0, 2, 0}}},
			Usage{IO: []IO{{"8:0", 1, 0, 2, 0}}}, true},
		"pressure": {stalled(9), stalled(4), stalled(4), true},
		"a gauge falls": {Usage{Tasks: Tasks{Current: n(9)}}, Usage{Tasks: Tasks{Current: n(4)}},
			Usage{Tasks: Tasks{Current: n(4)}}, false},
		"it is gone": {Usage{CPU: CPU{Total: n(9)}}, Usage{}, Usage{}, false},
	} {
		d := sampleAt(1, c.after).Since(sampleAt(0, c.before))
		if !reflect.DeepEqual(d.Usage, c.want) || d.Anew != c.anew {
			t.Errorf("%s: %s, anew %v; want %s, %v", name, show(d.Usage), d.Anew, show(c.want), c.anew)
		}
	}
	if d := sampleAt(1, Usage{}).Since(sampleAt(2, Usage{})); !d.Anew {
		t.Error("a clock that went back is not seen")
	}
}

// counted is a kernel with one group that has memory and pids, and how often each of its files was read.
func counted(t *testing.T) (k *cgroupfake.Kernel, a cgroup.Dir, read map[string]int) {
	t.Helper()
	k = cgroupfake.New([]host.Hierarchy{
		{ID: procfs.UnifiedID, Version: 2, Controllers: []string{"memory", "pids"}, Mount: "/sys/fs/cgroup/unified",
			Root: "/"},
	}, cgroupfake.Options{})
	top := cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: "/"}
	a = top.Child("a")
	if err := errors.Join(k.Enable(top, []string{"memory", "pids"}), k.Make(a)); err != nil {
		t.Fatal(err)
	}
	read = map[string]int{}
	k.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "read" {
			read[o.File.Name]++
		}
		return nil
	})
	return k, a, read
}

// Only the files of the fields that are asked for are read.
func TestReadOfSomeFields(t *testing.T) {
	k, a, read := counted(t)
	u, err := Read(k.Tree, a, "memory.high_hits", "pressure.memory.full.total_us")
	if err != nil || u.Memory.HighHits == nil || u.Memory.Current != nil || u.Pressure["memory"].Full == nil {
		t.Errorf("read %s, %v", show(u), err)
	}
	if want := []string{"memory.events", "memory.pressure"}; !slices.Equal(slices.Sorted(maps.Keys(read)), want) {
		t.Errorf("the files %v were read, want %v", slices.Sorted(maps.Keys(read)), want)
	}
}

func TestReadPutsHugePagesTogether(t *testing.T) {
	k := cgroupfake.New([]host.Hierarchy{
		{ID: procfs.UnifiedID, Version: 2, Controllers: []string{"pids", "hugetlb"}, Mount: "/sys/fs/cgroup/unified",
			Root: "/"},
	}, cgroupfake.Options{})
	top := cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: "/"}
	if err := errors.Join(k.Enable(top, []string{"hugetlb", "pids"}), k.Make(top.Child("a"))); err != nil {
		t.Fatal(err)
	}
	k.Set(top.Child("a").File("hugetlb.2MB.current"), "4194304")
	k.Set(top.Child("a").File("hugetlb.1GB.current"), "1073741824")
	k.Set(top.Child("a").File("cpu.pressure"), "some avg10=12.50 avg60=0.00 avg300=0.00 total=7")
	u, err := Read(k.Tree, top.Child("a"))
	if err != nil || *u.Memory.Huge != 4194304+1073741824 || u.Pressure["cpu"].Some.Avg10 != 12.5 ||
		u.Memory.Current != nil {
		t.Errorf("usage %+v, %v", u, err)
	}
}

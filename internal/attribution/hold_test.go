package attribution

import (
	"errors"
	"slices"
	"testing"
)

// A suspect is held in what more of the waiting is blamed on, to a tenth; a database, the victim and whoever has groups
// below never are.
func TestHoldOf(t *testing.T) {
	w := &Window{Host: Host{CPUs: 2, EachCPU: map[int]float64{0: 1, 1: 0.5},
		Disks: map[string]Disk{"sda": {IO: IO{WrittenBytes: 210e6, Writes: 420, Reads: 1000, ReadBytes: 4e6},
			Seconds: 2}}},
		Groups: []Group{
			{Name: "victim", CPU: new(0.5), Waited: new(0.5), EachCPU: map[int]float64{0: 0.5},
				Pressure: map[string]float64{"io": 0.3}, IO: map[string]IO{"sda": {ReadBytes: 4e6, Reads: 1000}}},
			{Name: "victim/part", CPU: new(0.2)},
			{Name: "reports", Role: "batch", CPU: new(0.5), EachCPU: map[int]float64{0: 0.5}},
			{Name: "backup", Role: "helper", CPU: new(0.2), EachCPU: map[int]float64{1: 0.2},
				IO: map[string]IO{"sda": {WrittenBytes: 200e6, Writes: 400}}},
			{Name: "idle", CPU: new(0.01)},
			{Name: "other", Role: "database", CPU: new(1.0)},
			{Name: "above", CPU: new(1.0), Above: true},
		}}
	r, err := Of(w, "victim")
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string][]string{
		"reports": {"reports:cpu.limit=0.05"},
		"backup":  {"backup:io.write.bandwidth=20000kB/s", "backup:io.write.iops=40"},
	} {
		h, err := w.HoldOf(r, group, false)
		if err != nil || !slices.Equal(h.Assign, want) {
			t.Errorf("%s: %+v, %v; want %v", group, h, err, want)
		}
		if err == nil && w.Used(group, h) <= 0 {
			t.Errorf("%s uses nothing of it", group)
		}
	}
	if is := w.Moved("victim", &Hold{Resource: "disk", device: "sda"}); is == nil || *is < 1000 {
		t.Errorf("the victim did %v on the disk", is)
	}
	// Where the kernel does not count it by disk it is what the victim itself did, whatever the suspect does.
	uncounted := func(suspect IO) *float64 {
		disk := Disk{IO: IO{Reads: 1000, ReadBytes: 4e6}.plus(suspect), Seconds: 1}
		other := &Window{Host: Host{CPUs: 2, Disks: map[string]Disk{"sda": disk}}, Groups: []Group{
			{Name: "victim", Tasks: &IO{ReadBytes: 4e6, Reads: 1000}},
			{Name: "suspect", Tasks: &IO{ReadBytes: suspect.ReadBytes, Reads: suspect.ReadBytes / 4096}}}}
		return other.Moved("victim", &Hold{Resource: "disk", device: "sda"})
	}
	free, less := uncounted(IO{ReadBytes: 100e6, Reads: 763}), uncounted(IO{ReadBytes: 10e6, Reads: 76})
	if free == nil || less == nil || *free != *less {
		t.Errorf("the victim does the same, and is said to do %v beside a suspect, %v where that is held", free, less)
	}
	if is := w.Moved("victim", &Hold{Resource: "cpu"}); is != nil {
		t.Errorf("a hold of CPUs is about a disk: %v", *is)
	}
	// Page cache that is written later and counted as nobody's is held by the CPU time of who writes it; what is
	// counted as the group's, or goes there directly, by a limit of the disk.
	for _, tt := range []struct {
		late, counted bool
		want          string
	}{{true, false, "backup:cpu.limit=0.02"}, {false, false, "backup:io.write.bandwidth=20600kB/s"},
		{true, true, "backup:io.write.bandwidth=20000kB/s"}} {
		b := &w.Groups[3]
		b.IO, b.Tasks = map[string]IO{"sda": {WrittenBytes: 200e6, Writes: 400}}, nil
		if !tt.counted {
			b.IO, b.Tasks = nil, &IO{WrittenBytes: 206e6, Writes: 400}
		}
		h, err := w.HoldOf(r, "backup", tt.late)
		if err != nil || h.Assign[0] != tt.want || h.Late != (tt.late && !tt.counted) || h.Resource != "disk" {
			t.Errorf("%+v: %+v, %v", tt, h, err)
		}
	}
	for group, want := range map[string]error{"victim": ErrItself, "victim/part": ErrItself, "idle": ErrIdle,
		"other": ErrDatabase, "above": ErrAbove, "nobody": ErrNoGroup} {
		if h, err := w.HoldOf(r, group, false); !errors.Is(err, want) {
			t.Errorf("%s: %+v, %v; want %v", group, h, err, want)
		}
	}
}

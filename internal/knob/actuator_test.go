package knob

import (
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/host"
)

// Knob files on the model keep what every kind of change promises.
func TestFilesActuator(t *testing.T) {
	k := cgroupfake.New([]host.Hierarchy{
		{ID: "cpu", Version: 1, Controllers: []string{"cpu"}, Mount: "/sys/fs/cgroup/cpu", Root: "/"},
		{ID: "blkio", Version: 1, Controllers: []string{"blkio"}, Mount: "/sys/fs/cgroup/blkio", Root: "/"},
	}, cgroupfake.Options{})
	for _, f := range []struct {
		hierarchy, file, key string
		values               []string
		refused              string
	}{
		{"cpu", "cpu.shares", "", []string{"2048", "100"}, "many"},
		{"cpu", "cpu.cfs_quota_us", "", []string{"50000"}, "1"},
		{"blkio", "blkio.throttle.read_bps_device", "8:16", []string{"1048576", "5"}, "x"},
	} {
		d := cgroup.Dir{Hierarchy: f.hierarchy, Path: "/g"}
		if there, _ := k.Exists(d); !there {
			if err := k.Make(d); err != nil {
				t.Fatal(err)
			}
		}
		conformance.Run(t, conformance.Case{
			Actuator: Files{Tree: k}, Target: cgroup.File{Dir: d, Name: f.file, Key: f.key}.Target(),
			Values: f.values, Refused: f.refused, Gone: d.Child("gone").File(f.file).String(),
		})
	}
}

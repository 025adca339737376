package plan

import (
	"testing"

	"bulkhead/internal/cgroup"
)

// What a file held is said as it is written, so that a conflict names what counts.
func TestHeldIsAsWritten(t *testing.T) {
	dir := cgroup.Dir{Hierarchy: "memory", Path: "/g"}
	blkio := cgroup.Dir{Hierarchy: "blkio", Path: "/g"}
	o := Observation{Dirs: map[cgroup.Dir]map[string]string{
		dir: {
			"memory.oom_control":    "oom_kill_disable 1\nunder_oom 0\noom_kill 3\n",
			"memory.limit_in_bytes": "9223372036854771712",
			"cgroup.clone_children": "0",
		},
		blkio: {"blkio.throttle.read_bps_device": "8:0 1048576\n8:16 5"},
	}}
	for _, test := range []struct {
		file  cgroup.File
		value string
		there bool
	}{
		{dir.File("memory.oom_control"), "1", true},
		{dir.File("memory.limit_in_bytes"), "-1", true},
		{dir.File("cgroup.clone_children"), "0", true},
		{dir.File("memory.soft_limit_in_bytes"), "", false},
		{cgroup.File{Dir: blkio, Name: "blkio.throttle.read_bps_device", Key: "8:16"}, "5", true},
		{cgroup.File{Dir: blkio, Name: "blkio.throttle.read_bps_device", Key: "8:32"}, "", true},
	} {
		if value, there := o.Held(test.file.Target()); value != test.value || there != test.there {
			t.Errorf("%s: %q, %v, want %q, %v", test.file, value, there, test.value, test.there)
		}
	}
}

package cgroup_test

import (
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/procfs"
)

// Owners and mount options on the model keep what every kind of change promises.
func TestActuators(t *testing.T) {
	k := model()
	group := dir(procfs.UnifiedID, "/a b[1]") // a name with what addresses use themselves
	must(t, k.Make(group))
	owners := cgroup.Owners{Tree: k.Tree}
	for _, name := range []string{cgroup.OwnerOf("cgroup.procs"), cgroup.OwnedDir} {
		conformance.Run(t, conformance.Case{
			Actuator: owners, Target: group.File(name).Target(), Values: []string{"5:6 0600", "0:7 -"}, Refused: "root",
			Gone: dir(procfs.UnifiedID, "/gone").File(name).String(),
		})
	}
	option := dir(procfs.UnifiedID, "/").File(cgroup.FavorDynmods).Target()
	conformance.Run(t, conformance.Case{
		Actuator: cgroup.MountOptions{Tree: k.Tree}, Target: option, Values: []string{"on"}, Refused: "max",
	})
}

// Files are told apart by their text, whatever their directories are called.
func TestParseFile(t *testing.T) {
	for _, f := range []cgroup.File{
		dir("cpu", "/").File("cpu.shares"), dir("name=systemd", "/a:b/c d").File("tasks"),
		{Dir: dir("blkio", "/x[1]"), Name: "blkio.weight_device", Key: "8:16"},
		dir(procfs.UnifiedID, "/a").File(cgroup.OwnedRest),
	} {
		if got, ok := cgroup.ParseFile(f.String()); !ok || got != f {
			t.Errorf("%q is read as %+v, %t", f, got, ok)
		}
	}
	for _, text := range []string{"", "cpu", "cpu:shares", "cpu:/a/", "cpu:/a/x]"} {
		if f, ok := cgroup.ParseFile(text); ok {
			t.Errorf("%q is read as %+v", text, f)
		}
	}
}

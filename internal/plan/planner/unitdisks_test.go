package planner

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// systemd leaves the lines of disks in the kernel's files when it forgets a setting, so they are taken out before. Of a
// setting that is asked for on other disks still, the others are named no more.
func TestDisksThatAreAskedNoMore(t *testing.T) {
	const limited = "rbps=max wbps=max riops=700 wiops=max"
	f := systemdHosts["unified"]()
	f.Devices = append(f.Devices, blockdev.Device{Number: "253:0", Name: "dm-0", Kind: blockdev.Volume, Disk: "253:0",
		Slaves: []string{"8:0"}})
	in := input(f, group("a", settings("group", "memory.max", policy.Bytes(1<<30), "io.read.iops@8:0",
		policy.IOPS(700))))
	member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a")
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	db := cgroup.Dir{Hierarchy: "unified", Path: "/system.slice/mariadb.service"}
	in.Observed.Dirs[db]["io.max"] = "8:0 " + limited + "\n8:16 " + limited + "\n"
	in.Systemd.Kept = map[string]layout.Kept{"mariadb.service": {Group: "a", Dir: db.Path,
		Ours: []string{"IOReadIOPSMax"}}}
	in.Systemd.Set = map[string][]string{"mariadb.service": {"IOReadIOPSMax"}}
	const lifted = "write unified:/system.slice/mariadb.service/io.max 8:16 rbps=max wbps=max riops=max wiops=max"
	steps := func(want ...string) (writes []plan.Step) {
		t.Helper()
		p := Make(in)
		for _, s := range p.Steps {
			if f, is := cgroup.FileOf(s.Target); is && f.Dir == db {
				writes = append(writes, s)
			}
		}
		got := slices.DeleteFunc(brief(p), func(s string) bool {
			return strings.HasPrefix(s, "keep ") || !strings.Contains(s, "mariadb.service")
		})
		if !slices.Equal(got, want) {
			t.Errorf("steps %q, want %q", got, want)
		}
		return writes
	}
	for _, s := range steps(lifted) {
		if s.Unit != "mariadb.service" || !strings.Contains(s.Do, "8:0 700") || strings.Contains(s.Do, "8:16") {
			t.Errorf("by %s: %s", s.Unit, s.Do)
		}
	}
	first, volume := strings.Replace(lifted, "8:16", "8:0", 1), strings.Replace(lifted, "8:16", "253:0", 1)
	was := in.Observed.Dirs[db]["io.max"]
	in.Observed.Dirs[db]["io.max"] += "253:0 " + limited + "\n"
	steps(lifted, volume) // by file, as systemd would take the disk below
	in.Observed.Dirs[db]["io.max"] = was
	asked := in.Classified.Groups[0].Settings
	in.Classified.Groups[0].Settings = append(slices.Clone(asked), policy.Setting{Key: policy.KeyIOReadIOPS,
		On: "/gone", Lost: "there is no such path", Value: policy.IOPS(700)})
	steps() // one of them may be what is asked for
	in.Classified.Groups[0].Settings = settings("group", "memory.max", policy.Bytes(1<<30))
	for _, s := range steps(first, lifted, "revert mariadb.service") {
		if s.Unit != "" || !s.Optional || s.Undo != limited {
			t.Errorf("%+v", s)
		}
	}
	in.Systemd.Set = nil
	steps() // they are the unit's own

	in.Release = []string{""}
	steps(first, lifted, "revert mariadb.service")
	old := layout.Kept{Group: "a", Dir: "/system.slice/old-mariadb.service", Ours: []string{"IOReadIOPSMax"}}
	in.Observed.Dirs[cgroup.Dir{Hierarchy: "unified", Path: old.Dir}] =
		map[string]string{"io.max": "8:0 " + limited}
	in.Systemd.Kept["old-mariadb.service"] = old
	steps(first, lifted, strings.Replace(first, "mariadb", "old-mariadb", 1), "revert mariadb.service",
		"revert old-mariadb.service") // systemd reads the files of both at once
	in.Systemd.Kept = map[string]layout.Kept{"mariadb.service": {Group: "a", Dir: db.Path,
		Ours: []string{"MemoryMax"}}}
	steps("revert mariadb.service")
}

// On v1 limits on operations are written by file. A service has no directory for its IO as long as nothing asks systemd
// for one, and what nobody asks for any more is lifted.
func TestOperationsOfAServiceOnV1(t *testing.T) {
	const file = "blkio.throttle.read_iops_device"
	db := cgroup.Dir{Hierarchy: "blkio", Path: "/system.slice/everykey.service"}
	for name, test := range map[string]struct {
		files map[string]string // nil: no directory
		asked policy.Settings
		want  string
	}{
		"no directory": {nil, settings("group", "io.read.iops@8:0", policy.IOPS(700)),
			`700 everykey.service [{"name":"IOAccounting","text":"yes"}] [{"name":"IOAccounting","text":"no"}]`},
		"none yet": {map[string]string{file: ""}, settings("group", "io.read.iops@8:0", policy.IOPS(700)),
			"700   0"},
		"asked no more": {map[string]string{file: "8:0 700"}, settings("group", "tasks", policy.Count(9)), "0   700"},
	} {
		f := systemdHosts["hybrid"]()
		in := input(f, group("a", test.asked))
		member(&in, inUnit(10, "mysqld", "/system.slice/everykey.service", f), "a")
		answers(&in, 252)
		in.Systemd.Kept = map[string]layout.Kept{"everykey.service": {Group: "a", Dir: db.Path}}
		if test.files != nil {
			in.Observed.Dirs[db] = test.files
		}
		var got []string
		for _, s := range Make(in).Steps {
			if f, is := cgroup.FileOf(s.Target); is && f.Dir == db {
				got = append(got, strings.Join([]string{s.New, s.Unit, s.Do, s.Undo}, " "))
			}
		}
		if len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

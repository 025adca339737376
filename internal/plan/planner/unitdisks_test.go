package planner

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// systemd leaves the lines of disks in the kernel's files when it forgets a setting, so they are taken out before. Of a
// setting that is asked for on other disks still, the others are named no more.
func TestDisksThatAreAskedNoMore(t *testing.T) {
	const limited = "rbps=max wbps=max riops=700 wiops=max"
	f := systemdHosts["unified"]()
	in := input(f, group("a", settings("group", "memory.max", policy.Bytes(1<<30), "io.read.iops@8:0",
		policy.IOPS(700))))
	member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a")
	answers(&in, 252)
	inPlaceUnderSystemd(&in)
	db := cgroup.Dir{Hierarchy: "unified", Path: "/system.slice/mariadb.service"}
	in.Observed.Dirs[db]["io.max"] = "8:0 " + limited + "\n8:16 " + limited + "\n"
	in.Systemd.Kept = map[string]layout.Kept{"mariadb.service": {Group: "a", Dir: db.Path}}
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
	first := strings.Replace(lifted, "8:16", "8:0", 1)
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
}

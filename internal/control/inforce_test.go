package control

import (
	"slices"
	"testing"

	"bulkhead/internal/inspect"
)

// What somebody else has limited is found in the files of groups and in the properties of units, with who is in it;
// what bulkhead has set is not among it.
func TestLimitsOfOthers(t *testing.T) {
	m := newMachine(t, "252.39")
	m.service("db.service", "/usr/sbin/mysqld", "TasksMax=321", "MemoryMax=2147483648")
	m.must(m.kernel.Make(at("/batch")))
	m.must(m.kernel.Enable(at("/"), []string{"memory", "pids"}))
	m.must(m.kernel.Write(at("/batch").File("memory.max"), "1073741824"))
	job := m.start("/usr/bin/report --all")
	m.must(m.kernel.Move(at("/batch"), job))
	m.refresh()
	m.start("/usr/bin/backup all")
	m.apply(jobs)
	groups, units, err := inspect.InForce(t.Context(), m.Controller)
	m.must(err)
	if len(groups) != 1 || groups[0].Path != "/batch" || groups[0].Processes != "1 process now: report" ||
		len(groups[0].Files) != 1 || groups[0].Files[0].Name != "memory.max" ||
		groups[0].Files[0].Text != "1073741824" {
		t.Errorf("groups %+v", groups)
	}
	var lines []string
	for _, u := range units {
		if u.Name == "db.service" {
			lines = u.Lines
		}
	}
	for _, want := range []string{"MemoryMax=2147483648", "TasksMax=321"} {
		if !slices.Contains(lines, want) {
			t.Errorf("db.service: %q is not among %q", want, lines)
		}
	}
}

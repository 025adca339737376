package control

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/api"
)

// When the plan was done and only what units had before could not be written down, the verb says that it is in force.
func TestInForceAlthoughUnitsAreNotWrittenDown(t *testing.T) {
	const one = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n"
	try := func(fails int) (calls, inForce int) {
		m := newMachine(t, "252.39")
		m.service("db.service", "/usr/sbin/mysqld", "TasksMax=321", "MemoryMax=2147483648")
		m.start("/usr/bin/backup all")
		m.apply(appAndJobs)
		disk := &faultyFS{before: m.refresh}
		m.onDisk(disk)
		disk.fail, disk.calls = func(n int) error { return errIf(n == fails, syscall.EIO) }, 0
		_, err := m.do(api.Request{Verb: "apply", Sources: m.policy(one)})
		calls = disk.calls
		disk.fail = nil
		limit, read := m.kernel.Read(at(dbDir).File("memory.max"))
		m.must(read)
		_, pending := m.Store.Pending()
		if err == nil || pending || limit != gib2 {
			return calls, 0
		}
		if !errors.Is(err, syscall.EIO) || api.CodeOf(err) != api.CodeFailed || api.HintOf(err) == "" ||
			!strings.Contains(err.Error(), "the change is in force") {
			t.Errorf("call %d of %d: it is in force, and the verb says %v", fails, calls, err)
		}
		return calls, 1
	}
	calls, _ := try(-1)
	found := 0
	for i := range 12 {
		_, is := try(calls - 1 - i)
		found += is
	}
	if found == 0 {
		t.Errorf("no call of the last 12 of %d fails after the commit", calls)
	}
}

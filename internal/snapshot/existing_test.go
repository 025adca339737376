package snapshot

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/systemd"
	"testing"
)

// No directory that bulkhead made makes a slice of others' its root group.
func TestRootOverADirectory(t *testing.T) {
	kept := map[string]layout.Kept{"db.slice": {Dir: "/db.slice"}}
	const none = "none"
	for at, want := range map[string]string{
		"/bulkhead":                           "bulkhead",
		"/bulkhead/db1/db":                    none,
		"/bulkhead.db1":                       "",
		"/bulkhead.db1/db":                    "",
		"/bulkhead.a.slice":                   "",
		"/scylla.slice/bulkhead.s.service":    "",
		"/bulkhead.slice":                     "bulkhead",
		`/my\x2droot.slice`:                   "my-root",
		"/bulkhead.slice/bulkhead-a.slice":    none,
		"/system.slice/system-bulkhead.slice": none,
		"/scylla.slice/scylla-helper.slice":   none,
		`/scylla.slice/scylla-helper.slice/my\x2droot-scylla\x2dhelper.service/members`: "my-root",
		"/bulkhead.slice/bulkhead-a.slice/bulkhead-a.service":                           "bulkhead",
		"/db.slice": none,
	} {
		got, ok := rootOver(cgroup.Dir{Hierarchy: "unified", Path: at}, kept)
		if ok != (want != none) || ok && got != want {
			t.Errorf("%s: %q, %v; want %q", at, got, ok, want)
		}
	}
}

// While a service starts or stops, or is not yet its own program, nobody knows whose it is.
func TestBetween(t *testing.T) {
	exes := map[int]string{10: "mariadbd", 11: "systemd-executor", 12: "systemd", 13: "sh"}
	for _, c := range []struct {
		state string
		main  int
		want  bool
	}{
		{"activating", 0, true}, {"activating", 10, true}, {"deactivating", 10, true},
		{"failed", 0, true}, {"inactive", 0, true},
		{"active", 10, false}, {"reloading", 10, false}, {"active", 13, false}, {"active", 0, false},
		{"active", 11, true}, {"active", 12, true}, {"active", 99, true},
	} {
		if got := isBetween(&systemd.Unit{ActiveState: c.state, MainPID: c.main}, exes, true); got != c.want {
			t.Errorf("%s with the main process %q: %v", c.state, exes[c.main], got)
		}
	}
	for _, c := range []struct {
		state  string
		queued bool
		want   bool
	}{
		{"inactive", false, false}, {"failed", false, false}, {"active", false, false},
		{"inactive", true, true}, {"deactivating", true, true}, {"activating", false, true},
	} {
		if got := isBetween(&systemd.Unit{ActiveState: c.state, Queued: c.queued}, exes, false); got != c.want {
			t.Errorf("%s with nothing in it and a job %v: %v", c.state, c.queued, got)
		}
	}
}

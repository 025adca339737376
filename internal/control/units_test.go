package control

import (
	"maps"
	"slices"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
)

func TestSettingsOfAPlan(t *testing.T) {
	set := func(unit string, names ...string) plan.Step {
		s := plan.Step{Op: plan.OpWrite, Unit: unit}
		for _, name := range names {
			s.Set = append(s.Set, systemd.Assignment{Name: name})
		}
		return s
	}
	got := settings(plan.Plan{Steps: []plan.Step{
		set("a.service", "MemoryMax"), set("a.service", "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec"), set("a.service", "MemoryMax"),
		set("b.slice", "TasksMax"), {Op: plan.OpMakeDir, Unit: "c.slice"},
	}})
	want := map[string][]string{"a.service": {"MemoryMax", "CPUQuota", "CPUQuotaPeriodSec"}, "b.slice": {"TasksMax"}}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

// No directory that bulkhead made makes a slice of others' its root group.
func TestRootOverADirectory(t *testing.T) {
	kept := map[string]plan.Kept{"db.slice": {Dir: "/db.slice"}}
	for at, want := range map[string]string{
		"/bulkhead":                           "bulkhead",
		"/bulkhead/db1/db":                    "",
		"/bulkhead.slice":                     "bulkhead",
		`/my\x2droot.slice`:                   "my-root",
		"/bulkhead.slice/bulkhead-a.slice":    "",
		"/system.slice/system-bulkhead.slice": "",
		"/scylla.slice/scylla-helper.slice":   "",
		`/scylla.slice/scylla-helper.slice/my\x2droot-scylla\x2dhelper.service/members`: "my-root",
		"/bulkhead.slice/bulkhead-a.slice/bulkhead-a.service":                           "bulkhead",
		"/db.slice": "",
	} {
		if got, ok := rootOver(cgroup.Dir{Hierarchy: "unified", Path: at}, kept); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v; want %q", at, got, ok, want)
		}
	}
}

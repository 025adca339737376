package transaction

import (
	"maps"
	"slices"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
)

func TestSettingsOfAPlan(t *testing.T) {
	set := func(unit string, names ...string) plan.Step {
		var all []systemd.Assignment
		for _, name := range names {
			all = append(all, systemd.Assignment{Name: name})
		}
		return plan.Step{Unit: unit, Change: change.Change{Do: systemd.Assigned(all)}}
	}
	got := settings(plan.Plan{Steps: []plan.Step{
		set("a.service", "MemoryMax"), set("a.service", "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec"),
		set("a.service", "MemoryMax"),
		set("b.slice", "TasksMax"), {Change: change.Of(cgroup.Dir{}.Target(), "", cgroup.There), Unit: "c.slice"},
	}})
	want := map[string][]string{"a.service": {"MemoryMax", "CPUQuota", "CPUQuotaPeriodSec"}, "b.slice": {"TasksMax"},
		"c.slice": {"CPUAccounting", "IOAccounting", "MemoryAccounting",
			"TasksAccounting"}} // which have systemd make its directories
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

package transaction

import (
	"maps"
	"slices"
	"testing"

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
		set("a.service", "MemoryMax"), set("a.service", "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec"),
		set("a.service", "MemoryMax"),
		set("b.slice", "TasksMax"), {Op: plan.OpMakeDir, Unit: "c.slice"},
	}})
	want := map[string][]string{"a.service": {"MemoryMax", "CPUQuota", "CPUQuotaPeriodSec"}, "b.slice": {"TasksMax"},
		"c.slice": {"CPUAccounting", "IOAccounting", "MemoryAccounting",
			"TasksAccounting"}} // which have systemd make its directories
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

package bench

import (
	"maps"
	"testing"

	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// The shapes of the scenarios about protection hold for a host on which policies cost nothing, and tell each policy
// that does harm: by as much as a root group of weight 10,000 did (kernel 6.18, cgroup v1).
func TestProtectionIsJudged(t *testing.T) {
	type figures = map[string]map[string]float64 // by arm
	sound := func(arms ...string) figures {
		all := figures{}
		for _, arm := range append(arms, "alone", scenario.Again) {
			all[arm] = map[string]float64{"tps": 1000, "isolation": 100, "p95": 8, "p99": 10,
				"batch.conservation": 95, "login.longest": 20}
		}
		all["beside"] = map[string]float64{"tps": 300, "isolation": 30, "p99": 60}
		return all
	}
	for name, tt := range map[string]struct {
		arms  []string
		harms []map[string]map[string]float64 // each is told
	}{
		"commits": {[]string{"governed", "few", "held", "inside", "slices"}, []figures{
			{"held": {"tps": 60, "isolation": 6, "p99": 500}}, {"few": {"isolation": 90}}, {"inside": {"p99": 14}},
			{"governed": {"isolation": 97}}, {"slices": {"tps": 1100}}, {"held": {"batch.conservation": 70}},
		}},
		"commits-postgres": {[]string{"governed", "few", "held", "inside", "slices"}, []figures{
			{"held": {"tps": 60, "isolation": 6, "p99": 500}}, {"inside": {"isolation": 94}},
		}},
		"bystander": {[]string{"held", "slices"}, []figures{
			{"held": {"p99": 21}}, {"slices": {"p99": 9}}, {"held": {"batch.conservation": 70}},
		}},
		"strangers": {[]string{"held"}, []figures{
			{"held": {"isolation": 94}}, {"held": {"login.longest": 201}}, {"held": {"tps": 290}},
		}},
	} {
		s, err := scenario.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		held := func(by figures) (all bool, why string) {
			trials := map[string]*trial{}
			for arm, f := range by {
				trials[arm] = &trial{figures: f}
			}
			r := &rounds{fitted: &fitted{scenario: s}, all: []map[string]*trial{trials}}
			for _, shape := range s.Shape {
				if f := r.find(shape); !f.Held {
					return false, f.What + ": " + f.Verdict
				}
			}
			return true, ""
		}
		if ok, why := held(sound(tt.arms...)); !ok {
			t.Errorf("%s: of a sound host: %s", name, why)
		}
		for _, harm := range tt.harms {
			by := sound(tt.arms...)
			for arm, f := range harm {
				maps.Copy(by[arm], f)
			}
			if ok, why := held(by); ok || why == "" || why[len(why)-len(proof.DoesNotHold):] != proof.DoesNotHold {
				t.Errorf("%s: %v is not told (%s)", name, harm, why)
			}
		}
	}
}

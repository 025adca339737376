package sloloop

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
)

// A weight of the policy may be lowered; that of an idle group has no effect.
func TestWeights(t *testing.T) {
	own := policy.Setting{Key: policy.KeyCPUWeight, Value: policy.Weight(100)}
	idle := policy.Setting{Key: policy.KeyCPUIdle, Value: policy.Flag(true)}
	for _, c := range []struct {
		settings policy.Settings
		want     float64
	}{{policy.Settings{own}, 100}, {policy.Settings{own, idle}, 0}, {nil, 0}} {
		if got := weightOf(&classify.Group{Settings: c.settings}); got.Ceiling != c.want {
			t.Errorf("%v: %g, not %g", c.settings, got.Ceiling, c.want)
		}
	}
}

// The lowest weight is cpu.idle, unless the policy names a floor.
func TestLowestWeightIsIdle(t *testing.T) {
	reports := slo.Knob{Group: "reports", Key: policy.KeyCPUWeight}
	for _, c := range []struct {
		floor, value float64
		text, told   string
	}{
		{0, 1, "reports:cpu.idle=true", "idle"}, {0, 301, "reports:cpu.weight=301", "301"},
		{1, 1, "reports:cpu.weight=1", "1"}, {50, 50, "reports:cpu.weight=50", "50"},
	} {
		weight := candidate{limited: true}
		weight.Knob, weight.Floor, weight.Ceiling = reports, c.floor, 3000
		l := &Loops{host: &host{knobs: []candidate{weight}}}
		o := l.host.override(reports, c.value)
		if o.Text != c.text || !strings.HasPrefix(o.Text, "reports:"+string(o.Key)+"=") {
			t.Errorf("floor %g, value %g: %+v", c.floor, c.value, o)
		}
		if told := l.amount(reports, c.value); told != c.told {
			t.Errorf("floor %g, value %g: told as %q", c.floor, c.value, told)
		}
		one := &loop{state: slo.State{Held: map[slo.Knob]slo.Held{reports: {Value: c.value}}},
			cold: map[slo.Knob]candidate{reports: weight}}
		if held := l.held(t.Context(), one, time.Now()); len(held) != 1 || held[0].Limit+"="+held[0].Value != c.text {
			t.Errorf("floor %g, value %g: held %+v", c.floor, c.value, held)
		}
		// A weight that a person has set, or one that the policy has no more, is not the loop's to make idle.
		l.host.knobs = nil
		if o := l.host.override(reports, c.value); o.Key != policy.KeyCPUWeight {
			t.Errorf("value %g of nobody's: %+v", c.value, o)
		}
	}
}

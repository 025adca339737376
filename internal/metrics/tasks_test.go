package metrics

import (
	"math"
	"testing"
	"time"
)

func TestLoadAverageApproachesTheSample(t *testing.T) {
	l := Loads{}
	sample := map[string]TaskStates{"db": {Running: 3, Blocked: 1}, "idle": {Total: 9}}
	for range 12 { // one minute
		l = l.Next(sample, LoadEvery)
	}
	want := Load{4 * (1 - 1/math.E), 4 * (1 - math.Exp(-1./5)), 4 * (1 - math.Exp(-1./15))}
	for i := range want {
		if math.Abs(l["db"][i]-want[i]) > 1e-9 {
			t.Errorf("after a minute of 4 tasks: %v, want %v", l["db"], want)
		}
	}
	if l["idle"] != (Load{}) {
		t.Errorf("nine sleeping tasks make a load of %v", l["idle"])
	}
	// The kernel may be late: what counts is the time that has passed.
	once := Loads{}.Next(sample, time.Minute)
	if math.Abs(once["db"][0]-want[0]) > 1e-9 {
		t.Errorf("one sample after a minute: %v, want %v", once["db"][0], want[0])
	}
	if l = l.Next(nil, LoadEvery); len(l) != 0 {
		t.Errorf("groups that are gone are kept: %v", l)
	}
}

package sampling

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
)

// Who has the last sample gets its age alone; who has another one, or none, gets all.
func TestSampleTravelsOnce(t *testing.T) {
	o := NewObserver(Options{Host: host.New("/"), State: t.TempDir(), Every: 50 * time.Millisecond,
		Self:  func() (observe.Agent, error) { return observe.Agent{}, nil },
		Tasks: func() (map[string]metrics.TaskStates, metrics.Loads) { return nil, nil }})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	asked := func(query string) *observe.Sample {
		t.Helper()
		one := o.Asked(httptest.NewRequest("GET", "/v1/samples"+query, nil), time.Second)
		text, err := json.Marshal(one)
		got := &observe.Sample{}
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := asked(""); got != nil {
		t.Errorf("before the first sample there is %+v", got)
	}
	o.See(ctx, Nothing(nil))
	for began := time.Now(); o.Last() == nil || !o.Last().Has(observe.Stat); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("no sample is taken")
		}
	}
	end()
	o.Wait(time.Minute)
	whole := asked("")
	if whole.Same || whole.Host.CPUs != o.Last().Host.CPUs || len(whole.Collectors) == 0 {
		t.Fatalf("who has none gets %+v", whole)
	}
	had := whole.At.UnixNano()
	age := asked(fmt.Sprint("?unless=", had))
	if !age.Same || len(age.Collectors) != 0 || age.Age <= whole.Age {
		t.Errorf("who has it gets %+v", age)
	}
	if got := asked(fmt.Sprint("?unless=", had-1)); got.Same || len(got.Collectors) != len(whole.Collectors) {
		t.Errorf("who has another one gets %+v", got)
	}
}

package sampling

import (
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// Every collector has a source, and every figure that is read of this machine has a row with as many labels.
func TestSources(t *testing.T) {
	o := NewObserver(Options{Host: host.New("/"), State: t.TempDir(),
		Self:  func() (observe.Agent, error) { return observe.Agent{}, nil },
		Tasks: func() (map[string]metrics.TaskStates, metrics.Loads) { return nil, nil }})
	if n := len(o.Readings()); n != len(observe.Parts) {
		t.Errorf("there are sources of %d collectors", n)
	}
	s := &observe.Sample{}
	for part, source := range New(host.New("/")).Sources() {
		put, err := source(t.Context(), &collect.Meter{})
		if err != nil {
			t.Errorf("%s: %v", part, err)
			continue
		}
		put(s)
		s.Collectors = append(s.Collectors, observe.Reading{Name: part, Told: true})
	}
	rows := map[string]bool{}
	for i := range observe.Table {
		r := &observe.Table[i]
		if r.OfGroup() || r.Part == observe.OfAgent {
			continue
		}
		rows[r.Name] = true
		r.Each(s, func(_ float64, labels ...string) {
			if len(labels) != len(r.Labels) {
				t.Errorf("%s has the labels %q for %q", r.Name, labels, r.Labels)
			}
		})
	}
	if len(s.Host.Figures) < 20 {
		t.Errorf("%d figures of the host were read", len(s.Host.Figures))
	}
	for _, f := range s.Host.Figures {
		if name := "bulkhead_host_" + f.Name; !rows[name] && !rows[name+"_total"] {
			t.Errorf("no row shows %s", f.Name)
		}
	}
	if s.Host.Busy == 0 || s.Host.Memory["MemTotal"] == 0 {
		t.Errorf("busy for %v, memory %v", s.Host.Busy, s.Host.Memory)
	}
}

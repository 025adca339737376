package bench

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/host"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

func demoScenario(t *testing.T) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Find("demo")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEstimate(t *testing.T) {
	s := demoScenario(t)
	if takes := Estimate(s, Options{}); takes < 2*time.Minute || takes > 4*time.Minute {
		t.Errorf("the demo takes %v", takes)
	}
	if smoke := Estimate(s, Options{Smoke: true}); smoke > 75*time.Second {
		t.Errorf("the smoke run takes %v", smoke)
	}
	if needs := PackagesOf(s); !slices.Equal(needs, []string{"mariadb-server", "sysbench"}) {
		t.Errorf("it needs %v", needs)
	}
}

// The demo is fitted to the machine.
func TestFit(t *testing.T) {
	for _, tt := range []struct {
		machine machine
		want    map[string]float64
	}{
		{machine{cpus: 2, available: 512 << 20},
			map[string]float64{"hogs": 16, "threads": 4, "readers": 1, "memory_hog": 128, "memory_max": 64}},
		{machine{cpus: 64, available: 1 << 40},
			map[string]float64{"hogs": 512, "threads": 128, "readers": 32, "memory_hog": 1024, "memory_max": 256}},
	} {
		r := &fitted{scenario: demoScenario(t), machine: tt.machine}
		r.fit()
		for name, want := range tt.want {
			if r.scale[name] != want {
				t.Errorf("on %d CPUs %s is %v, want %v", tt.machine.cpus, name, r.scale[name], want)
			}
		}
	}
}

// A machine that is too small is told what the scenario needs.
func TestLarge(t *testing.T) {
	enough := machine{cpus: 4, available: 1 << 30, free: 4 << 30, facts: &host.Facts{}}
	for name, tt := range map[string]struct {
		change func(*machine, *scenario.Needs)
		want   string
	}{
		"enough": {func(*machine, *scenario.Needs) {}, ""},
		"CPUs":   {func(_ *machine, n *scenario.Needs) { n.CPUs = 8 }, "needs 8 CPUs, and there are 4"},
		"NUMA":   {func(_ *machine, n *scenario.Needs) { n.NUMA = 2 }, "needs 2 NUMA nodes"},
		"memory": {func(m *machine, _ *scenario.Needs) { m.available = 100 << 20 }, "needs 128 MiB of memory"},
		"apart":  {func(_ *machine, n *scenario.Needs) { n.Apart = true }, "those of others too"},
		"disk":   {func(m *machine, _ *scenario.Needs) { m.free = 1 << 20 }, "needs 1024 MiB free"},
	} {
		m, s := enough, demoScenario(t)
		tt.change(&m, &s.Needs)
		err := (&fitted{scenario: s, machine: m, host: host.New("/")}).large()
		var required *process.RequirementError
		if tt.want == "" && err != nil || tt.want != "" &&
			(!errors.As(err, &required) || !strings.Contains(err.Error(), tt.want) || required.Hint == "") {
			t.Errorf("%s: %v, want %q with a hint", name, err, tt.want)
		}
	}
}

// A peer whose files are not there is left out and named, and what speaks of it is not judged.
func TestLeaveOut(t *testing.T) {
	s, err := scenario.Find("cpu-weight")
	if err != nil {
		t.Fatal(err)
	}
	facts := &host.Facts{Hierarchies: []host.Hierarchy{{ID: "0", Version: 2}},
		Controllers: []host.Controller{{Name: "cpu", Hierarchy: "0"}}}
	r := &fitted{scenario: s, machine: machine{facts: facts}, omitted: map[string]string{}}
	r.leaveOut()
	if len(r.omitted) != 1 || !strings.Contains(r.omitted["slices"], "cpu are those of cgroup v1") {
		t.Errorf("left out %v", r.omitted)
	}
	judged := 0
	for _, shape := range s.Shape {
		if f := (&rounds{fitted: r}).find(shape); f.Verdict != proof.NotJudged {
			judged++
		}
	}
	if judged != len(s.Shape)-1 {
		t.Errorf("%d of %d shapes are judged, want all but the one of slices", judged, len(s.Shape))
	}
	facts.Hierarchies[0].Version = 1
	r.omitted = map[string]string{}
	if r.leaveOut(); len(r.omitted) != 0 {
		t.Errorf("on cgroup v1 left out %v", r.omitted)
	}
}

// What a bound gives way to is in terms of what its shape measures.
func TestNoise(t *testing.T) {
	figures := func(x map[string]float64) *trial { return &trial{figures: x} }
	r := &rounds{
		fitted: &fitted{scenario: &scenario.Scenario{Control: "alone",
			Loads: []scenario.Load{{Name: "a"}, {Name: "b"}}}},
		all: []map[string]*trial{{
			"alone":        figures(map[string]float64{"tps": 80, "p95": 9, "a.tps": 80, "b.tps": 40}),
			scenario.Again: figures(map[string]float64{"tps": 120, "p95": 11, "a.tps": 120, "b.tps": 40}),
		}},
	}
	for measure, want := range map[string][2]float64{
		"held.isolation":                                  {80, 120},
		"held.p95 / ((alone.p95+again.p95)/2)":            {90, 110},
		"held.b.isolation":                                {100, 100},
		"(held.a.tps+held.b.tps)/(free.a.tps+free.b.tps)": {100 * 120 / 140., 100 * 160 / 140.},
	} {
		e, err := scenario.ParseExpression(measure)
		if err != nil {
			t.Fatal(err)
		}
		n := r.noise(scenario.Shape{Measure: e})
		if n == nil || math.Abs(float64(n.Low)-want[0]) > 1e-9 || math.Abs(float64(n.High)-want[1]) > 1e-9 {
			t.Errorf("%s: %+v, want %v", measure, n, want)
		}
	}
}

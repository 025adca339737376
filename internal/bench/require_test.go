package bench

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"newname", "oldname"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	found, err := find([]program{{name: "newname", pkg: "a"}, {name: "newer", pkg: "b", older: "oldname"}})
	if err != nil || found["newname"] != filepath.Join(dir, "newname") || found["newer"] != filepath.Join(dir, "oldname") {
		t.Errorf("found %v, %v", found, err)
	}
	_, err = find([]program{{name: "newname", pkg: "a"}, {name: "absent1-x", pkg: "b"}, {name: "absent2-x", pkg: "b"}, {name: "absent3-x", pkg: "c"}})
	var required *RequirementError
	if !errors.As(err, &required) {
		t.Fatalf("error is %v", err)
	}
	if !strings.Contains(required.Error(), "absent1-x, absent2-x, absent3-x") || required.Hint != "apt-get install --no-install-recommends b c" {
		t.Errorf("it says %q, hint %q: want every program and each package once", required, required.Hint)
	}
}

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
	if takes := Estimate(s, Options{}); takes < 3*time.Minute || takes > 8*time.Minute {
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
		{machine{cpus: 2, available: 512 << 20}, map[string]float64{"hogs": 16, "threads": 4, "limit": 1, "memory_hog": 128, "memory_max": 64}},
		{machine{cpus: 64, available: 1 << 40}, map[string]float64{"hogs": 512, "threads": 128, "limit": 32, "memory_hog": 1024, "memory_max": 256}},
	} {
		r := &run{scenario: demoScenario(t), machine: tt.machine}
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
		"disk":   {func(m *machine, _ *scenario.Needs) { m.free = 1 << 20 }, "needs 1024 MiB free"},
	} {
		m, s := enough, demoScenario(t)
		tt.change(&m, &s.Needs)
		err := (&run{scenario: s, machine: m, host: host.New("/")}).large()
		var required *RequirementError
		if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, &required) || !strings.Contains(err.Error(), tt.want) || required.Hint == "") {
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
	facts := &host.Facts{Hierarchies: []host.Hierarchy{{ID: "0", Version: 2}}, Controllers: []host.Controller{{Name: "cpu", Hierarchy: "0"}}}
	r := &run{scenario: s, machine: machine{facts: facts}, omitted: map[string]string{}}
	r.leaveOut()
	if len(r.omitted) != 1 || !strings.Contains(r.omitted["slices"], "cpu are those of cgroup v1") {
		t.Errorf("left out %v", r.omitted)
	}
	judged := 0
	for _, shape := range s.Shape {
		if f := r.find(shape); f.Verdict != proof.NotJudged {
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

func TestDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://me:pw@db.example/shop":      "",
		"mysql://me@127.0.0.1:3307/shop":     "",
		"postgresql://me@127.0.0.1:1/shop":   "begins with \"postgresql\", not with mysql or mariadb",
		"mysql://me:geheim@/shop":            "names no host",
		"mysql://db.example/shop":            "names no user or no database",
		"mysql://me@db.example:99999/shop":   "has port \"99999\"",
		"mysql://me:geheim@db.example:x/sho": "is not a URL",
	} {
		in := &instance{Database: scenario.Database{Name: "db", Engine: "mariadb", DSN: dsn}, engine: mariadb}
		err := in.readDSN()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dsn, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestCleanVersion(t *testing.T) {
	for in, want := range map[string]string{
		"5.5.5-10.11.19-MariaDB-0+deb12u1": "10.11.19-MariaDB",
		"11.8.2-MariaDB":                   "11.8.2-MariaDB",
		"8.0.35":                           "8.0.35",
	} {
		if got := cleanVersion(in); got != want {
			t.Errorf("version %q is read as %q, want %q", in, got, want)
		}
	}
}

// What a bound gives way to is in terms of what its shape measures.
func TestNoise(t *testing.T) {
	figures := func(x map[string]float64) *trial { return &trial{figures: x} }
	r := &run{
		scenario: &scenario.Scenario{Control: "alone", Loads: []scenario.Load{{Name: "a"}, {Name: "b"}}},
		rounds: []map[string]*trial{{
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

package bench

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
)

// made is a load of n transactions a second for ten seconds, all of one latency.
func made(tps, ms float64) load {
	l := load{transactions: int64(10 * tps), elapsed: 10 * time.Second}
	for range 10 {
		l.perSecond = append(l.perSecond, tps)
	}
	l.histogram = []bucket{{ms: ms, count: l.transactions}}
	return l
}

// threeRounds is what three rounds on a machine that drifts from 5,000 to 4,000 transactions may measure.
func threeRounds() map[string][]sample {
	samples := map[string][]sample{}
	for _, solo := range []float64{5000, 4500, 4000} {
		add := func(phase string, share, ms float64, u map[string]usage) {
			samples[phase] = append(samples[phase], sample{load: made(solo*share, ms), usage: u})
		}
		add(phaseAlone, 1.01, 0.4, nil)
		add(phaseNeighboursFree, 0.1, 15, nil)
		add(phaseNeighboursHeld, 0.98, 0.42, map[string]usage{
			groupDatabase: {CPU: 1.9, Written: -1, Peak: -1, OOMKills: -1},
			groupCPU:      {CPU: 0.03, Written: -1, Peak: -1, OOMKills: -1},
			groupMemory:   {CPU: 0.01, Written: 0, Peak: 256 << 20, OOMKills: 2},
			groupDisk:     {CPU: 0.01, Written: 20 << 20, Peak: -1, OOMKills: -1},
		})
		add(phaseStrangersHeld, 0.97, 0.41, nil)
		add(phaseStrangersFree, 0.09, 16, nil)
		add(phaseAloneAgain, 0.99, 0.4, nil)
	}
	return samples
}

func TestSummarize(t *testing.T) {
	results, control := summarize(threeRounds())
	want := map[string]float64{
		phaseAlone: 101, phaseNeighboursFree: 10, phaseNeighboursHeld: 98,
		phaseStrangersHeld: 97, phaseStrangersFree: 9, phaseAloneAgain: 99,
	}
	if len(results) != len(want) {
		t.Fatalf("%d phases, want %d", len(results), len(want))
	}
	for _, r := range results {
		// The drift of the machine over the rounds is not in it.
		if math.Abs(r.Isolation-want[r.Name]) > 0.1 {
			t.Errorf("%s: isolation is %.2f %%, want %v", r.Name, r.Isolation, want[r.Name])
		}
	}
	if r := results[1]; math.Abs(r.Impact-3650) > 1 || r.P95 != 15 || len(r.Rates) != 3 || r.Rate != 450 {
		t.Errorf("beside hogs: %+v", r)
	}
	if math.Abs(control.Low-98.02) > 0.1 || math.Abs(control.High-98.02) > 0.1 {
		t.Errorf("the control spreads from %v to %v", control.Low, control.High)
	}
}

func TestJudge(t *testing.T) {
	phase := func(name string, isolation float64) PhaseResult { return PhaseResult{Name: name, Isolation: isolation} }
	tests := []struct {
		name              string
		hogs, strangers   float64
		needed, without   float64
		heldHogs, heldAll bool
	}{
		{"both", 98, 97, 95, 10, true, true},
		{"just", 95, 95, 95, 10, true, true},
		{"hogs only", 98, 94.9, 95, 10, true, false},
		{"none", 49, 49, 95, 10, false, false},
		{"harmless neighbours", 98, 97, 95, 50, false, false},
		{"not measured", math.NaN(), 99, 95, 10, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			verdicts, all := judge([]PhaseResult{
				phase(phaseNeighboursFree, tt.without), phase(phaseNeighboursHeld, tt.hogs),
				phase(phaseStrangersFree, 9), phase(phaseStrangersHeld, tt.strangers),
			}, tt.needed)
			if verdicts[0].Held != tt.heldHogs || all != tt.heldAll {
				t.Errorf("verdicts %+v, all %v", verdicts, all)
			}
			if verdicts[0].Without != tt.without || verdicts[0].Harmless != (tt.without >= 50) || verdicts[1].Without != 9 {
				t.Errorf("without a policy: %+v", verdicts)
			}
		})
	}
}

func TestRequired(t *testing.T) {
	if got := required(false, Spread{Low: 97, High: 103}); got != 95 {
		t.Errorf("on a quiet machine %v %% are required", got)
	}
	if got := required(false, Spread{Low: 91, High: 109}); got != 91 {
		t.Errorf("on a noisy machine %v %% are required, want what it does alone", got)
	}
	if got := required(true, Spread{Low: 99}); got >= 95 {
		t.Errorf("a smoke run requires %v %%", got)
	}
}

// exampleDemo is a demo as it would be after its last round.
func exampleDemo() *demo {
	return &demo{
		options: DemoOptions{Rounds: 3, Seconds: 10}.withDefaults(),
		machine: machine{
			cpus: 2, dir: "/var/tmp",
			facts: &host.Facts{
				MemTotal: 24 << 30, Kernel: host.Version{Text: "6.1.0-18-amd64"},
				Hierarchies: []host.Hierarchy{{ID: "unified", Version: 2}},
				Controllers: []host.Controller{{Name: "cpu", Hierarchy: "unified"}},
			},
			mount: host.Mount{Type: "ext4"},
			disk:  host.Device{Name: "sda"},
		},
		server:  &server{port: 33061, socket: "/var/tmp/bulkhead-demo-1/run/mysqld.sock", version: "10.11.19-MariaDB"},
		load:    generator{program: "/usr/bin/sysbench", threads: 4},
		sizes:   sizes{threads: 4, hogs: 16, cpuLimit: 1, memory: 1 << 30, memoryMax: 256 << 20, writeRate: 20 << 20},
		notes:   []Note{{Group: groupDisk, Key: "io.write.bandwidth", Text: "direct IO only: buffered writes are written back by the kernel's own threads, which no v1 limit holds"}},
		samples: threeRounds(),
	}
}

func TestReportGolden(t *testing.T) {
	var out bytes.Buffer
	if err := exampleDemo().result().WriteText(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.golden", out.Bytes())
	for i, line := range strings.Split(out.String(), "\n") {
		if n := len([]rune(line)); n > 120 {
			t.Errorf("line %d is %d columns wide", i+1, n)
		}
	}
}

func TestReportNotHeld(t *testing.T) {
	d := exampleDemo()
	d.samples[phaseStrangersHeld] = d.samples[phaseStrangersFree]
	r := d.result()
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if r.Held || !strings.Contains(out.String(), "NOT HELD") {
		t.Errorf("a database that was not protected is reported as\n%s", out.String())
	}
}

func TestReportWanted(t *testing.T) {
	for _, tt := range []struct {
		with, without, required float64
		want                    string
	}{
		{98, 10, 95, "wanted 95.0 %"},
		{98, 10, 84, "wanted 95.0 %"},
		{90, 10, 84, "wanted 95.0 %, or no less than alone against alone: 84.0 %"},
		{80, 10, 84, "wanted 84.0 %"},
		{94, 10, 95, "wanted 95.0 %"},
		{98, 60, 95, "these neighbours did too little harm to prove anything"},
	} {
		v := Verdict{With: tt.with, Without: tt.without, Required: tt.required, Harmless: tt.without >= 50}
		if got := v.wanted(); got != tt.want {
			t.Errorf("%+v: %q, want %q", v, got, tt.want)
		}
	}
}

func TestReportNoise(t *testing.T) {
	for _, tt := range []struct {
		again float64
		noisy bool
	}{{0.99, false}, {0.8, true}, {1.3, true}} {
		d := exampleDemo()
		d.samples[phaseAloneAgain][1].load = made(4500*tt.again, 0.4)
		var out bytes.Buffer
		if err := d.result().WriteText(&out); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "with care"); got != tt.noisy {
			t.Errorf("alone again at %v of alone: warned is %v", tt.again, got)
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update renews it):\n%s\nwant\n%s", name, got, want)
	}
}

package attribution_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// counted is what agents sampled at a time, of a victim whose neighbours had so much of its waiting.
func counted(at time.Time, cpu time.Duration, b *observe.Blame) record.Tick {
	read := []observe.Part{observe.CPU, observe.Threads, observe.Blamed}
	s := &observe.Sample{At: at, Host: observe.Host{CPUs: 2, Counting: &observe.Counting{On: b != nil, Why: "no BTF"}},
		Groups: []observe.Group{{Group: "victim", Role: "database", Blame: b,
			Threads: &observe.Switching{Waited: new(7 * cpu)}}, {Group: "reports"}, {Group: "quiet"}}}
	for i := range s.Groups {
		s.Groups[i].Usage.CPU.Total = new(cpu.Microseconds())
	}
	for _, p := range read {
		s.Collectors = append(s.Collectors, observe.Reading{Name: p, On: true, Told: true})
	}
	return record.TickOf(s, read)
}

// What BPF programs counted is taken as it is, also of a neighbour that came later, and rows say so.
func TestCountedRows(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	before := counted(begin, seconds(10), &observe.Blame{Limited: seconds(1), Own: seconds(2), Outside: seconds(3),
		Groups: map[string]time.Duration{"reports": seconds(4)}, Others: seconds(1)})
	after := counted(begin.Add(10*time.Second), seconds(15), &observe.Blame{Limited: seconds(2), Own: seconds(4),
		Outside: seconds(6), Older: seconds(0.25), Groups: map[string]time.Duration{"reports": seconds(8),
			"late": seconds(5)}, Others: seconds(1.25)})
	r, err := attribution.Of(attribution.Between(before, after), "victim")
	if err != nil {
		t.Fatal(err)
	}
	one := r.Resources[0]
	want := map[string]float64{"own limit": 0.1, "own load": 0.2, "outside": 0.3, "reports": 0.4, "late": 0.5,
		"unexplained": 0.05}
	for _, row := range one.Rows {
		name := string(row.Who)
		if row.Who == attribution.Other {
			name = row.Group
		}
		if math.Abs(row.Seconds-want[name]) > 1e-9 {
			t.Errorf("%s has %v, want %v", name, row.Seconds, want[name])
		}
		if row.Who != attribution.Unexplained && row.Grade != attribution.Counted {
			t.Errorf("%s is %q", name, row.Grade)
		}
		delete(want, name)
	}
	if len(want) > 0 || math.Abs(one.Waited-1.55) > 1e-9 || math.Abs(one.Part-1.55/2.05) > 1e-9 ||
		!strings.Contains(one.Source, "BPF programs") {
		t.Errorf("%v is missing; %+v", want, one)
	}
}

// Where none count, files of the kernel tell, and the source says why.
func TestSourceSaysWhyNothingIsCounted(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	w := attribution.Between(counted(begin, time.Second, nil), counted(begin.Add(10*time.Second), 2*time.Second, nil))
	r, err := attribution.Of(w, "victim")
	if err != nil {
		t.Fatal(err)
	}
	one := r.Resources[0]
	if math.Abs(one.Waited-0.7) > 1e-9 || !strings.Contains(one.Source, "schedstat") ||
		!strings.Contains(one.Source, "no BPF programs count (no BTF)") {
		t.Errorf("%+v", one)
	}
	for _, row := range one.Rows {
		if row.Who == attribution.Other && row.Grade != attribution.Estimated {
			t.Errorf("%+v", row)
		}
	}
}

// A group that hardly runs and hardly waits has nothing to explain, whatever the part of that little time is.
func TestWhoHardlyWaitsHasNothingToExplain(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	for wait, nothing := range map[time.Duration]bool{5 * time.Millisecond: true, 50 * time.Millisecond: false} {
		before := counted(begin, time.Second, &observe.Blame{Groups: map[string]time.Duration{"reports": time.Second}})
		after := counted(begin.Add(time.Second), time.Second+15*time.Millisecond,
			&observe.Blame{Groups: map[string]time.Duration{"reports": time.Second + wait}})
		r, err := attribution.Of(attribution.Between(before, after), "victim")
		if err != nil {
			t.Fatal(err)
		}
		if r.Nothing != nothing {
			t.Errorf("of a wait of %s in a second: %s", wait, r.Verdict)
		}
	}
}

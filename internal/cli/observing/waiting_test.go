package observing

import (
	"strings"
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/sampling"
)

// waited is a state directory with the record of five minutes of a group without a database: in every look of 10 s its
// threads got a CPU 1000 times, after 80 µs each, but in the last three after 30 ms each, and a task waited for half of
// the time.
func waited(t *testing.T) string {
	t.Helper()
	state := t.TempDir()
	r := record.New(record.Options{Dir: sampling.RecordIn(state)})
	defer r.Close()
	seconds, stalled := 0.0, 0.0
	for i := range 31 {
		switch {
		case i > 27:
			seconds, stalled = seconds+30, stalled+5
		case i > 0:
			seconds += 0.08
		}
		of := []string{"reports", "batch", ""}
		figure := func(value float64, metric string, labels ...string) record.Figure {
			key := record.KeyOf("bulkhead_group_"+metric, append(of[:3:3], labels...)...)
			return record.Figure{Key: key, Value: value}
		}
		at := begin.Add(time.Duration(i) * 10 * time.Second)
		r.Take(record.Tick{At: at, Parts: []record.Part{
			{Name: observe.Threads, Read: at, Figures: []record.Figure{figure(seconds, "cpu_waiting_seconds_total"),
				figure(float64(250*i), "context_switches_total", "involuntary"),
				figure(float64(750*i), "context_switches_total", "voluntary")}},
			{Name: observe.Pressure, Read: at, Figures: []record.Figure{
				figure(stalled, "pressure_seconds_total", "cpu", "some"),
				figure(3, "pressure_seconds_total", "io", "some")}}}})
	}
	return state
}

func TestHistogramOfWaiting(t *testing.T) {
	got, err := verb(waited(t), "histogram", "reports", "--at", "2026-11-20 01:05")
	want := `reports, from 2026-11-20 01:00:00 to 2026-11-20 01:05:00

Waits of its threads for a CPU, by how long one took on average in each look

TOOK          LOOKS  WAITS  OF WAITS  WAITED  OF TIME
up to 100 µs  27     27000  90.0 %    2.16 s  2.3 %    ###########################
up to 50 ms   3      3000   10.0 %    90 s    97.7 %   ###
all           30     30000  100.0 %   92.2 s  100.0 %

Time in which a task of it waited, as a part of each look; how long these looks were

WAITED FOR  CPU    MEMORY  DISKS
nothing     4m30s          5m0s
up to 50 %  30s

`
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := verb(waited(t), "histogram", "other", "--at", "2026-11-20 01:05"); err == nil ||
		!strings.Contains(err.Error(), "neither response times nor waits of other") {
		t.Errorf("of another group: %s, %v", got, err)
	}
}

package attribution_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// atDisks is what agents sampled at a time: v waited for io, by PSI, and so its requests; all groups wrote page cache
// that no directory counts, and the disk did what they wrote.
func atDisks(at time.Time, io time.Duration, b *observe.DiskBlame, writes map[string]uint64) record.Tick {
	read := []observe.Part{observe.CPU, observe.Pressure, observe.Threads, observe.DiskStats, observe.Blamed}
	s := &observe.Sample{At: at, Host: observe.Host{CountingDisks: &observe.Counting{On: b != nil, Why: "old kernel"}}}
	all := 0.0
	for _, name := range []string{"backup", "batch", "v"} {
		g := observe.Group{Group: name, Threads: &observe.Switching{WrittenBytes: writes[name]}}
		if name == "v" {
			g.DiskBlame = b
			g.Usage.Pressure = map[string]metrics.Pressure{"io": {Some: &metrics.Stall{Total: io.Microseconds()}}}
		}
		all += float64(writes[name])
		s.Groups = append(s.Groups, g)
	}
	for _, f := range []struct {
		name      string
		direction string
		value     float64
	}{{"disk_bytes", "write", all}, {"disk_bytes", "read", 0}, {"disk_operations", "write", all / 4096},
		{"disk_operations", "read", 0}, {"disk_operation_seconds", "write", float64(at.Unix() % 1000)},
		{"disk_operation_seconds", "read", 0}} {
		s.Host.Figures = append(s.Host.Figures, observe.Figure{Name: f.name, Labels: []string{"sda", f.direction},
			Value: f.value})
	}
	for _, p := range read {
		s.Collectors = append(s.Collectors, observe.Reading{Name: p, On: true, Told: true})
	}
	return record.TickOf(s, read)
}

// diskRows are the rows of the disks of v between two times, by who they blame.
func diskRows(t *testing.T, before, after record.Tick) (attribution.Resource, map[string]attribution.Row) {
	t.Helper()
	r, err := attribution.Of(attribution.Between(before, after), "v")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]attribution.Row{}
	sum := 0.0
	for _, row := range r.Resources[1].Rows {
		name := string(row.Who)
		if row.Who == attribution.Other {
			name = row.Group
		}
		rows[name] = row
		sum += row.Seconds
	}
	if math.Abs(sum-r.Resources[1].Waited) > 1e-9 {
		t.Errorf("rows are %v, waited %v", sum, r.Resources[1].Waited)
	}
	return r.Resources[1], rows
}

// Whose requests the disk had is taken as it was counted, scaled to what PSI says was waited. What the kernel wrote
// back is divided by who wrote page cache, and that is estimated.
func TestCountedAtDisks(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	zero := map[string]uint64{}
	wrote := map[string]uint64{"batch": 300 << 20, "v": 100 << 20}
	before := atDisks(begin, 0, &observe.DiskBlame{Groups: map[string]time.Duration{"backup": 0}}, zero)
	after := atDisks(begin.Add(10*time.Second), seconds(5), &observe.DiskBlame{Service: seconds(20), Own: seconds(2),
		Outside: seconds(1), WrittenBack: seconds(4), Others: seconds(1),
		Groups: map[string]time.Duration{"backup": seconds(12)}}, wrote)
	one, rows := diskRows(t, before, after)
	if !strings.Contains(one.Source, "BPF programs on requests of disks") || math.Abs(one.Waited-0.5) > 1e-9 {
		t.Errorf("%+v", one)
	}
	for name, want := range map[string]struct {
		seconds float64
		grade   attribution.Grade
	}{
		"backup":      {0.5 * 12 / 40, attribution.Counted},
		"batch":       {0.5 * 4 / 40 * 3 / 4, attribution.Estimated},
		"own load":    {0.5 * (2 + 4.0/4) / 40, attribution.Estimated},
		"outside":     {0.5 * 1 / 40, attribution.Counted},
		"unexplained": {0.5 * 1 / 40, ""},
		"disk itself": {0.5 * 20 / 40, attribution.Counted},
	} {
		if got := rows[name]; math.Abs(got.Seconds-want.seconds) > 1e-9 || got.Grade != want.grade {
			t.Errorf("%s: %v %q, want %v %q", name, got.Seconds, got.Grade, want.seconds, want.grade)
		}
	}
}

// For time in which it waited and had no request that was seen, use tells, as it does where none was counted; the
// source says why.
func TestDisksWithoutCountedRequests(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	wrote := map[string]uint64{"batch": 300 << 20, "v": 100 << 20}
	before := atDisks(begin, 0, &observe.DiskBlame{Groups: map[string]time.Duration{"backup": 0}}, map[string]uint64{})
	after := atDisks(begin.Add(10*time.Second), seconds(5), &observe.DiskBlame{Own: seconds(0.5),
		Groups: map[string]time.Duration{"backup": seconds(0.5)}}, wrote)
	_, rows := diskRows(t, before, after)
	if got := rows["backup"]; math.Abs(got.Seconds-0.05) > 1e-9 || got.Grade != attribution.Counted {
		t.Errorf("%+v", got)
	}
	if got := rows["batch"]; math.Abs(got.Seconds-0.4*3/4) > 1e-3 || got.Grade != attribution.Estimated {
		t.Errorf("%+v", got)
	}
	one, rows := diskRows(t, atDisks(begin, 0, nil, map[string]uint64{}),
		atDisks(begin.Add(10*time.Second), seconds(5), nil, wrote))
	if !strings.Contains(one.Source, "no BPF programs count (old kernel)") ||
		rows["batch"].Grade != attribution.Estimated || rows["backup"].Seconds != 0 {
		t.Errorf("%+v", one)
	}
}

// What a disk takes for requests themselves is a row and no suspect: who waits for that alone has nobody to blame, and
// who is a little in its way is the first. Others of its own requests are its own load, and a suspect.
func TestDiskItselfIsNoSuspect(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	seconds := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	for _, c := range []struct {
		service, own, backup float64
		first                attribution.Who // "" of none
		verdict              string
	}{
		{10, 0, 0, "", "Nothing to explain: v waits for 50 % of its time for disks, and nobody has 5.0 % of it " +
			"alone. Disks take 50 % for its requests themselves."},
		{8, 0, 2, attribution.Other, "backup is the first suspect: because of it v waits for disks 10 % of its time."},
		{1.25, 8.75, 0, attribution.OwnLoad, "v waits most for itself: for disks 44 % of its time."},
	} {
		before := atDisks(begin, 0, &observe.DiskBlame{Groups: map[string]time.Duration{"backup": 0}}, nil)
		after := atDisks(begin.Add(10*time.Second), seconds(5), &observe.DiskBlame{Service: seconds(c.service),
			Own: seconds(c.own), Groups: map[string]time.Duration{"backup": seconds(c.backup)}}, nil)
		r, err := attribution.Of(attribution.Between(before, after), "v")
		if err != nil {
			t.Fatal(err)
		}
		_, rows := diskRows(t, before, after)
		if got := rows["disk itself"]; math.Abs(got.Share-c.service/10) > 1e-9 || got.Grade != attribution.Counted {
			t.Errorf("%+v: %+v", c, got)
		}
		var first attribution.Who
		if len(r.Suspects) > 0 {
			first = r.Suspects[0].Who
		}
		if first != c.first || r.Verdict != c.verdict || r.Nothing != (c.first == "") {
			t.Errorf("%+v: the first is %q: %s", c, first, r.Verdict)
		}
	}
}

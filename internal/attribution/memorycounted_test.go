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
	"bulkhead/internal/observe/top"
)

// memoryRows are the rows of memory of a group, by who they blame. Together they are what was waited.
func memoryRows(t *testing.T, w *attribution.Window, group string) (attribution.Resource, map[string]attribution.Row) {
	t.Helper()
	r, err := attribution.Of(w, group)
	if err != nil {
		t.Fatal(err)
	}
	one := r.Resources[2]
	rows := map[string]attribution.Row{}
	sum := 0.0
	for _, row := range one.Rows {
		name := string(row.Who)
		if row.Who == attribution.Other {
			name = row.Group
		}
		rows[name] = row
		sum += row.Seconds
	}
	if math.Abs(sum-one.Waited) > 1e-9 {
		t.Errorf("rows are %v, waited %v", sum, one.Waited)
	}
	return one, rows
}

// reached has limits on memory of groups reached, for a group below them.
func reached(w *attribution.Window, group string, limits ...string) {
	held := holders{}
	w.Holders = held.of
	for _, of := range limits {
		held[group] = append(held[group], top.Holder{Group: of, Limit: top.Limit{Key: "memory.max",
			Held: "1G", How: "reached 7 times a second", Command: "ease it"}})
	}
}

// What was counted in reclaim because of a limit of its own, that it reached, is that limit's, and so is the rest of
// PSI's wait, which was not in reclaim. The row is counted when nine tenths of it are. What was counted because of the
// host is not its limit's.
func TestOwnLimitOnMemoryIsCounted(t *testing.T) {
	for _, c := range []struct {
		reclaim attribution.Reclaim
		limit   float64
		grade   attribution.Grade
	}{
		{attribution.Reclaim{Limit: 0.095}, 0.1, attribution.Counted},
		{attribution.Reclaim{Limit: 0.05}, 0.1, attribution.Estimated},
		{attribution.Reclaim{Limit: 0.06, Host: 0.02}, 0.08, attribution.Estimated},
		{attribution.Reclaim{Limit: 0.08, Host: 0.02}, 0.08, attribution.Counted},
		{attribution.Reclaim{Limit: 0.3, Host: 0.1}, 0.075, attribution.Counted}, // clocks, and groups below it
		{attribution.Reclaim{Host: 0.1}, 0, ""},
	} {
		w := window()
		w.Groups[0].Reclaim = &c.reclaim
		reached(w, "victim", "victim")
		one, rows := memoryRows(t, w, "victim")
		got := rows["own limit"]
		if math.Abs(got.Seconds-c.limit) > 1e-9 || got.Grade != c.grade ||
			c.limit > 0 && (got.Command != "ease it" || !strings.Contains(got.Did, "reached 7 times")) {
			t.Errorf("%+v: %+v", c, got)
		}
		if others := rows["reports"]; (others.Seconds > 0) != (c.reclaim.Host > 0) ||
			others.Seconds > 0 && others.Grade != attribution.Estimated {
			t.Errorf("%+v: others have %+v", c, others)
		}
		if one.Waited != 0.1 || one.Grade != attribution.Counted || !strings.Contains(one.Source, "memory.pressure") ||
			!strings.Contains(one.Source, "BPF programs on reclaim") {
			t.Errorf("%+v", one)
		}
	}
}

// A limit of a group above it is divided among those below that, and what was counted because of the host among all;
// both are estimated, as nobody tells whose pages were taken for whom.
func TestSharedLimitAndHostAreApart(t *testing.T) {
	w := window()
	w.Groups[0].Name, w.Groups[1].Name = "shared/victim", "shared/reports"
	w.Groups = append(w.Groups, attribution.Group{Name: "shared", Above: true}, attribution.Group{Name: "far",
		Faults: new(5000.0)})
	w.Host.Faults = nil // nobody else
	w.Host.Disks = nil
	w.Groups[2].Faults = nil
	w.Groups[0].Tasks = nil
	w.Groups[0].Reclaim = &attribution.Reclaim{Limit: 0.03, Host: 0.06}
	reached(w, "shared/victim", "shared")
	one, rows := memoryRows(t, w, "shared/victim")
	limit, host := 0.03+0.01, 0.06 // 0.01 were not in reclaim
	for name, want := range map[string]float64{"shared/reports": limit*9/10 + host*9/15, "far": host * 5 / 15,
		"own load": limit/10 + host/15} {
		if got := rows[name]; math.Abs(got.Seconds-want) > 1e-9 || got.Grade != attribution.Estimated {
			t.Errorf("%s: %v %s, want %v", name, got.Seconds, got.Grade, want)
		}
	}
	if !strings.Contains(one.Source, "whose limit they share; page faults and reads of groups") {
		t.Errorf("%q", one.Source)
	}
	w.Groups[0].Reclaim = nil // without BPF programs the limit has all
	if _, rows = memoryRows(t, w, "shared/victim"); rows["far"].Seconds != 0 ||
		math.Abs(rows["shared/reports"].Seconds-0.09) > 1e-9 {
		t.Errorf("%+v", rows)
	}
}

// Without PSI of the group its wait is that of reclaim. What a limit had of it that nobody knows is nobody's, and what
// the host had is divided, whatever figures of the host say.
func TestReclaimIsTheWaitWithoutPSI(t *testing.T) {
	w := window()
	delete(w.Groups[0].Pressure, "memory")
	w.Host.Scanned = nil
	w.Groups[0].Reclaim = &attribution.Reclaim{Limit: 0.05, Host: 0.03}
	w.Host.NotCountingReclaim = ""
	one, rows := memoryRows(t, w, "victim")
	if !one.Known || math.Abs(one.Waited-0.08) > 1e-9 || one.Part != one.Waited || one.Grade != attribution.Counted ||
		!strings.HasPrefix(one.Source, "no PSI of the group: time of its threads in reclaim, counted by BPF") ||
		!strings.Contains(one.Source, "of no group's limit it is known") {
		t.Errorf("%+v", one)
	}
	if got := rows["unexplained"].Seconds; math.Abs(got-0.05) > 1e-9 {
		t.Errorf("%v are nobody's", got)
	}
	if got := rows["reports"]; got.Seconds < 0.02 || got.Grade != attribution.Estimated {
		t.Errorf("%+v", got)
	}
	reached(w, "victim", "victim")
	if _, rows = memoryRows(t, w, "victim"); math.Abs(rows["own limit"].Seconds-0.05) > 1e-9 ||
		rows["own limit"].Grade != attribution.Counted || rows["unexplained"].Seconds > 1e-9 {
		t.Errorf("%+v", rows)
	}
	w.Groups[0].Reclaim = &attribution.Reclaim{}
	if one, _ = memoryRows(t, w, "victim"); !one.Known || one.Waited != 0 {
		t.Errorf("it was in no reclaim: %+v", one)
	}
}

// Of groups below it the time counts, too, and is no more than all of it. What those below do is its own load.
func TestReclaimOfGroupsBelow(t *testing.T) {
	w := window()
	delete(w.Groups[0].Pressure, "memory")
	w.Groups[1].Name = "victim/dump"
	w.Groups[0].Reclaim, w.Groups[1].Reclaim = &attribution.Reclaim{Host: 0.4}, &attribution.Reclaim{Host: 0.3}
	one, rows := memoryRows(t, w, "victim")
	if math.Abs(one.Waited-0.7) > 1e-9 || rows["own load"].Share < 0.5 || rows["victim/dump"].Seconds != 0 {
		t.Errorf("%+v", one)
	}
	w.Groups[1].Reclaim.Host = 0.9
	if one, _ = memoryRows(t, w, "victim"); one.Waited != 1 {
		t.Errorf("it waited for %v of the time", one.Waited)
	}
	w.Groups[0].Reclaim = nil // then it is not known of its own threads
	if one, _ = memoryRows(t, w, "victim"); one.Known {
		t.Errorf("%+v", one)
	}
}

// ofReclaim is what agents sampled at a time, of a group with PSI or without.
func ofReclaim(at time.Time, psi *time.Duration, r *observe.Reclaim) record.Tick {
	read := []observe.Part{observe.CPU, observe.Pressure, observe.Blamed}
	s := &observe.Sample{At: at, Groups: []observe.Group{{Group: "v", Reclaim: r}}}
	s.Host.CountingReclaim = &observe.Counting{On: r != nil, Why: "old kernel"}
	s.Groups[0].Usage.CPU.Total = new(at.Unix())
	if psi != nil {
		s.Groups[0].Usage.Pressure = map[string]metrics.Pressure{"memory": {Some: &metrics.Stall{
			Total: psi.Microseconds()}}}
	}
	for _, p := range read {
		s.Collectors = append(s.Collectors, observe.Reading{Name: p, On: true, Told: true})
	}
	return record.TickOf(s, read)
}

// What agents sampled of reclaim comes into the window, and where nothing was counted the source says why.
func TestReclaimOfTheRecord(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	end := begin.Add(10 * time.Second)
	w := attribution.Between(ofReclaim(begin, nil, &observe.Reclaim{Limit: time.Second, Host: time.Second}),
		ofReclaim(end, nil, &observe.Reclaim{Limit: 3 * time.Second, Host: 2 * time.Second}))
	if one, _ := memoryRows(t, w, "v"); !one.Known || math.Abs(one.Waited-0.3) > 1e-9 {
		t.Errorf("%+v", one)
	}
	if r := w.Groups[0].Reclaim; math.Abs(r.Limit-0.2) > 1e-9 || math.Abs(r.Host-0.1) > 1e-9 {
		t.Errorf("%+v", r)
	}
	one, _ := memoryRows(t, attribution.Between(ofReclaim(begin, nil, nil), ofReclaim(end, nil, nil)), "v")
	if one.Known || one.Source != "no PSI of the group; no BPF programs count (old kernel)" {
		t.Errorf("%+v", one)
	}
	one, _ = memoryRows(t, attribution.Between(ofReclaim(begin, new(time.Second), nil),
		ofReclaim(end, new(2*time.Second), nil)), "v")
	if math.Abs(one.Waited-0.1) > 1e-9 || !strings.Contains(one.Source, "group; no BPF programs count (old kernel)") {
		t.Errorf("%+v", one)
	}
}

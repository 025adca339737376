package slosim

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/observe/record"
)

// What an agent recorded beside a real MariaDB 10.11 on two CPUs: two rounds of a load in four steps of 20 s, in the
// second beside four busy shells, with compilers and a virtual machine of others on the same CPUs (27 November 2026,
// TestSLORecordIsSimulated of test/e2e with RECORD_INTO).
const (
	realRecord = "testdata/mariadb.record"
	realGroup  = "mysql42499"
)

// A real record is read window by window, and what the simulation says of it is that the model does not fit: others,
// whom nobody may lower, had the CPUs.
func TestRealRecord(t *testing.T) {
	reach, err := record.Survey(realRecord)
	if err != nil || reach.Damaged > 0 {
		t.Fatalf("%+v, %v", reach, err)
	}
	segments, err := record.Open(realRecord, reach.From, reach.To)
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	r, err := read(t.Context(), segments, realGroup, reach.From, reach.To)
	if err != nil || r.check() != nil {
		t.Fatal(err, r.check())
	}
	d := r.day
	if d.CPUs != 2 || string(d.Target.Signal) != "heartbeat" || len(d.Groups) != 1 || d.Groups[0].Name != "reports" {
		t.Fatalf("%+v", d)
	}
	known, busy, batch := 0, 0.0, 0.0
	for w, is := range d.Known {
		if !is {
			continue
		}
		known++
		busy += (d.Load[w] + d.Others[w] + d.Groups[0].Used[w]) * window.Seconds()
		batch += d.Groups[0].Used[w] * window.Seconds()
		if d.Load[w] < 0 || d.Others[w] < 0 || d.Groups[0].Wanted[w] < d.Groups[0].Used[w] {
			t.Errorf("window %d: load %v, others %v, used %v of %v", w, d.Load[w], d.Others[w], d.Groups[0].Used[w],
				d.Groups[0].Wanted[w])
		}
	}
	if all := reach.To.Sub(reach.From); float64(known)*window.Seconds() < all.Seconds()-15 ||
		busy > 1.05*d.CPUs*all.Seconds() || batch <= 0 || all < 3*time.Minute {
		t.Errorf("%d windows of %s are known, in which CPUs were busy for %.1f s, %.1f of it the batch's", known, all,
			busy, batch)
	}
	text, err := verb(realRecord, realGroup, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var v view
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if v.Recorded.Windows != 38 || v.Recorded.Missed != 15 || *v.Fit <= poorFit || len(v.Rules) != 6 {
		t.Errorf("%+v, fit %v, %d rules", v.Recorded, *v.Fit, len(v.Rules))
	}
	if len(v.Said) != 1 || !strings.HasPrefix(v.Said[0].Text, "nothing: ") {
		t.Errorf("in mode advise the loop says %+v", v.Said)
	}
	if text, err = verb(realRecord, realGroup); err != nil || !strings.Contains(text, "That is a poor fit") {
		t.Errorf("%v\n%s", err, text)
	}
}

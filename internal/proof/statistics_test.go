package proof

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// A percentile is the smallest bound that enough transactions did not exceed.
func TestPercentile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOfN(rapid.Int64Range(0, 1000), 1, 20).Draw(t, "counts")
		p := rapid.Float64Range(0.1, 100).Draw(t, "p")
		var l []Bucket
		var total int64
		for i, c := range counts {
			l = append(l, Bucket{MS: float64(i + 1), Count: c})
			total += c
		}
		got := Percentile(l, p)
		if total == 0 {
			if !math.IsNaN(got) {
				t.Fatalf("percentile of nothing is %v", got)
			}
			return
		}
		var upTo, before int64
		for _, b := range l {
			if b.MS <= got {
				upTo += b.Count
			}
			if b.MS < got {
				before += b.Count
			}
		}
		need := float64(total) * p / 100
		if float64(upTo) < need-0.5 || float64(before) > need+0.5 {
			t.Fatalf("p%v of %v is %v: %d up to it, %d before it, %v needed", p, counts, got, upTo, before, need)
		}
	})
}

// The rows of the response-time histogram hold every answer once, and their durations add up.
func TestRespond(t *testing.T) {
	rows := Respond([]Bucket{{0.5, 100}, {5, 10}, {5.1, 4}, {60, 2}, {2000, 1}})
	if len(rows) != 10 {
		t.Fatalf("%d rows, want nine ranges and a total", len(rows))
	}
	calls, duration, share := int64(0), 0.0, 0.0
	for _, r := range rows[:9] {
		calls, duration, share = calls+r.Calls, duration+r.Duration, share+r.Percent
	}
	total := rows[9]
	if total.Range != "TOTAL" || calls != total.Calls || calls != 117 || math.Abs(duration-total.Duration) > 1e-9 ||
		math.Abs(share-100) > 1e-9 {
		t.Errorf("rows add up to %d calls, %v s, %v %%; the total is %+v", calls, duration, share, total)
	}
	if first := rows[0]; first.Range != "0 - 5 ms" || first.Calls != 110 || first.Min != 0.5 || first.Max != 5 {
		t.Errorf("the first row is %+v", first)
	}
	if last := rows[8]; last.Range != "1,000 - ∞ ms" || last.Calls != 1 || last.Duration != 2 {
		t.Errorf("the last row is %+v", last)
	}
	for _, r := range Respond(nil) {
		if r.Calls != 0 || r.Percent != 0 {
			t.Errorf("of nothing: %+v", r)
		}
	}
}

func TestDistribute(t *testing.T) {
	var values []float64
	for i := range 100 {
		values = append(values, float64(i+1))
	}
	d := Distribute(append(values, nan))
	if d.Count != 100 || d.Min != 1 || d.P01 != 1 || d.P05 != 5 || d.P50 != 50 || d.P99 != 99 || d.Max != 100 ||
		d.Mean != 50.5 || math.Abs(float64(d.Stdev)-28.866) > 0.001 {
		t.Errorf("distribution is %+v", d)
	}
	if d := Distribute(nil); d.Count != 0 || !math.IsNaN(float64(d.P50)) || !math.IsNaN(float64(d.Mean)) {
		t.Errorf("of nothing: %+v", d)
	}
}

func TestJudge(t *testing.T) {
	control := &Range{Median: 100, Low: 88, High: 108}
	none := Figure(nan)
	for name, tt := range map[string]struct {
		finding Finding
		noise   bool
		want    string
	}{
		"above": {Finding{Measured: Range{Median: 96}, Least: 95, Most: none, Unit: "%"}, false, Holds},
		"below": {Finding{Measured: Range{Median: 90}, Least: 95, Most: none, Unit: "%"}, false,
			DoesNotHold},
		"below, in the noise": {Finding{Measured: Range{Median: 90}, Least: 95, Most: none, Unit: "%"}, true,
			HoldsNoise},
		"below the noise": {Finding{Measured: Range{Median: 80}, Least: 95, Most: none, Unit: "%"}, true,
			DoesNotHold},
		"a ratio":           {Finding{Measured: Range{Median: 0.9}, Least: 0.95, Most: none}, true, HoldsNoise},
		"most":              {Finding{Measured: Range{Median: 1.2}, Least: none, Most: 1.15}, true, DoesNotHold},
		"most in the noise": {Finding{Measured: Range{Median: 1.07}, Least: none, Most: 1.05}, true, HoldsNoise},
		"harm is no noise": {Finding{Measured: Range{Median: 60}, Least: none, Most: 50, Unit: "%"}, true,
			DoesNotHold},
		"not in each round": {Finding{Measured: Range{Median: 96}, Missing: 1, Least: 95, Most: none}, true,
			NotDecided},
		"not measured": {Finding{Measured: Range{Median: none}, Least: 1, Most: none}, true, NotMeasured},
	} {
		if tt.noise {
			tt.finding.Noise = control
		}
		if got := Judge(tt.finding); got.Verdict != tt.want || got.Held != (tt.want == Holds || tt.want == HoldsNoise) {
			t.Errorf("%s: %q, held %v, want %q", name, got.Verdict, got.Held, tt.want)
		}
	}
}

// What a document measured is reproduced, or its direction is, or it is contradicted; a difference within the noise
// decides nothing.
func TestJudgeOfADocument(t *testing.T) {
	none := Figure(nan)
	noise := &Range{Low: 95, High: 105}
	for name, tt := range map[string]struct {
		x     Figure
		claim Claim
		least Figure
		want  string
	}{
		"the figure":             {2.1, Claim{Figure: 2.2, More: true}, none, Reproduced},
		"within the factor":      {1.2, Claim{Figure: 2.2, More: true}, none, Reproduced},
		"far":                    {5, Claim{Figure: 2.2, More: true}, none, DirectionOnly},
		"the other direction":    {0.84, Claim{Figure: 2.2, More: true}, none, Contradicted},
		"near, other direction":  {0.9, Claim{Figure: 1.1, More: true}, none, Contradicted},
		"in the noise":           {1.03, Claim{Figure: 1.1, More: true}, none, NotDecided},
		"no effect at all":       {1, Claim{Figure: 1.1, More: true}, none, NotDecided},
		"less":                   {0.3, Claim{Figure: 0.287}, none, Reproduced},
		"less, and it is more":   {1.2, Claim{Figure: 0.287}, none, Contradicted},
		"a direction":            {7, Claim{Figure: none, More: true}, none, DirectionOnly},
		"not in it":              {0.5, Claim{Figure: none, More: true}, none, Contradicted},
		"that there is no harm":  {0.97, Claim{Figure: 1}, none, Reproduced},
		"and there is":           {0.3, Claim{Figure: 1}, none, Contradicted},
		"below the bound":        {1.2, Claim{Figure: 2.2, More: true}, 1.5, DoesNotHold},
		"of nothing, not so far": {0, Claim{Figure: none, More: true, None: -1}, none, DirectionOnly},
	} {
		if tt.claim.Within = 2; tt.claim.None == 0 {
			tt.claim.None = 1
		}
		tt.claim.Noise = noise
		got := Judge(Finding{Measured: Range{Median: tt.x}, Least: tt.least, Most: none, Document: &tt.claim})
		if held := tt.want == Reproduced || tt.want == DirectionOnly; got.Verdict != tt.want || got.Held != held {
			t.Errorf("%s: %q, held %v, want %q", name, got.Verdict, got.Held, tt.want)
		}
	}
}

// On a machine on which the control arm differs from itself by more than a tenth nothing is decided, neither way.
func TestDecide(t *testing.T) {
	shape := func() []Finding {
		return []Finding{{Verdict: Holds, Held: true}, {Verdict: DoesNotHold}, {Verdict: NotJudged}}
	}
	r := &Result{Control: Range{Low: 88, High: 101}, Shape: shape()}
	r.Decide()
	if r.Held || r.Shape[0].Held || r.tally() != "0 of 2 shapes hold, 2 not decided" {
		t.Errorf("on a busy machine: held %v, %s", r.Held, r.tally())
	}
	r = &Result{Control: Range{Low: 95, High: 101}, Shape: shape()}
	r.Decide()
	if r.Held || r.tally() != "1 of 2 shapes hold" {
		t.Errorf("on a quiet machine: held %v, %s", r.Held, r.tally())
	}
	r = &Result{Smoke: true, Control: Range{Low: 50, High: 101}, Shape: shape()[:1]}
	if r.Decide(); !r.Held {
		t.Error("a smoke run has its own bounds")
	}
}

func TestFindingInWords(t *testing.T) {
	none := Figure(nan)
	for name, tt := range map[string]struct {
		finding          Finding
		measured, wanted string
	}{
		"a bound": {Finding{Measured: Range{Median: 96}, Least: 95, Most: none, Unit: "%"}, "96 %",
			"at least 95 %"},
		"noise that counts": {Finding{Measured: Range{Median: 90}, Least: 95, Most: none, Unit: "%",
			Noise: &Range{Low: 72, High: 128}}, "90 %", "at least 95 %, or 72 % as alone"},
		"noise above": {Finding{Measured: Range{Median: 1.2}, Least: none, Most: 1.15,
			Noise: &Range{Low: 72, High: 128}}, "1.20", "at most 1.15, or 1.28 as alone"},
		"noise within the bound": {Finding{Measured: Range{Median: 90}, Least: 95, Most: none, Unit: "%",
			Noise: &Range{Low: 98, High: 102}}, "90 %", "at least 95 %"},
		"of many": {Finding{Measured: Range{Median: 1000.4}, Least: none, Most: 1000, Unit: "ms"},
			"1000.4 ms", "at most 1,000 ms"},
		"hardly beyond": {Finding{Measured: Range{Median: 1.00004}, Least: none, Most: 1}, "1.00004",
			"at most 1"},
	} {
		f := Judge(tt.finding)
		if f.measured() != tt.measured || f.wanted() != tt.wanted {
			t.Errorf("%s: %q, wanted %q", name, f.measured(), f.wanted())
		}
	}
}

package proof

import (
	"math"
	"slices"
)

// nan is a figure that was not measured.
var nan = math.NaN()

// measured gives the values that are numbers, in order.
func measured(values []float64) []float64 {
	sorted := slices.DeleteFunc(slices.Clone(values), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	slices.Sort(sorted)
	return sorted
}

// Over gives median, lowest and highest of some values; what was not measured does not count.
func Over(values []float64) Range {
	s := measured(values)
	if len(s) == 0 {
		return Range{Figure(nan), Figure(nan), Figure(nan)}
	}
	return Range{Figure(Median(s)), Figure(s[0]), Figure(s[len(s)-1])}
}

// OverRounds is Over, with how many of the values were not measured where others were.
func OverRounds(values []float64) (over Range, missing int) {
	if n := len(measured(values)); n > 0 {
		missing = len(values) - n
	}
	return Over(values), missing
}

// Median of the values; NaN when there are none.
func Median(values []float64) float64 {
	s := measured(values)
	if len(s) == 0 {
		return nan
	}
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// Distribution is how some values lie: percentiles, mean and standard deviation.
type Distribution struct {
	Count int    `json:"count"`
	Min   Figure `json:"min"`
	P01   Figure `json:"p01"`
	P05   Figure `json:"p05"`
	P10   Figure `json:"p10"`
	P25   Figure `json:"p25"`
	P50   Figure `json:"p50"`
	P75   Figure `json:"p75"`
	P90   Figure `json:"p90"`
	P95   Figure `json:"p95"`
	P99   Figure `json:"p99"`
	Max   Figure `json:"max"`
	Mean  Figure `json:"mean"`
	Stdev Figure `json:"stdev"`
}

// Distribute makes the distribution of some values.
func Distribute(values []float64) Distribution {
	s := measured(values)
	at := func(p float64) Figure { return Figure(Quantile(s, p)) }
	var sum, squares float64
	for _, x := range s {
		sum += x
	}
	mean := sum / float64(len(s)) // NaN of none
	for _, x := range s {
		squares += (x - mean) * (x - mean)
	}
	return Distribution{
		Count: len(s), Min: at(0), P01: at(1), P05: at(5), P10: at(10), P25: at(25), P50: at(50), P75: at(75),
		P90: at(90),
		P95: at(95), P99: at(99), Max: at(100), Mean: Figure(mean), Stdev: Figure(math.Sqrt(squares / float64(len(s)))),
	}
}

// Variation is the standard deviation of some values in percent of their mean; NaN of fewer than two.
func Variation(values []float64) float64 {
	d := Distribute(values)
	if d.Count < 2 {
		return nan
	}
	return 100 * float64(d.Stdev/d.Mean)
}

// maxExchanged is up to how many pairs every exchange is tried: there are two to the power of them.
const maxExchanged = 12

// Exchanged is the range of a figure over every way to exchange the two members of n pairs that mean the same. Each
// call is told which pairs are exchanged; of more than 12 pairs only the first are. Nil of fewer than two pairs, and
// where the figure is no number.
func Exchanged(n int, of func(exchanged []bool) float64) *Range {
	var figures []float64
	exchanged := make([]bool, n)
	for choice := range 1 << min(n, maxExchanged) {
		for i := range min(n, maxExchanged) {
			exchanged[i] = choice>>i&1 == 1
		}
		figures = append(figures, of(exchanged))
	}
	if all := Over(figures); n > 1 && !math.IsNaN(float64(all.Low)) {
		return &all
	}
	return nil
}

// Quantile is the smallest of the sorted values that p percent do not exceed (nearest rank).
func Quantile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return nan
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Impact is by how much a latency rose over the one it is held against, in percent; one that fell had no impact.
func Impact(with, alone float64) float64 {
	if math.IsNaN(with) || math.IsNaN(alone) || alone <= 0 {
		return nan
	}
	return max(0, 100*(with/alone-1))
}

// Percentile is the latency in milliseconds that p percent of the answers did not exceed; NaN of none.
func Percentile(histogram []Bucket, p float64) float64 {
	var total int64
	for _, b := range histogram {
		total += b.Count
	}
	if total == 0 {
		return nan
	}
	need := max(1, int64(float64(total)*p/100+0.5)) // rounded as sysbench rounds
	var seen int64
	for _, b := range histogram {
		if seen += b.Count; seen >= need {
			return b.MS
		}
	}
	return histogram[len(histogram)-1].MS
}

// Mean is the mean latency of a histogram; NaN of none.
func Mean(histogram []Bucket) float64 {
	var total int64
	var sum float64
	for _, b := range histogram {
		total += b.Count
		sum += b.MS * float64(b.Count)
	}
	if total == 0 {
		return nan
	}
	return sum / float64(total)
}

// Merge puts histograms together.
func Merge(all ...[]Bucket) []Bucket {
	counts := map[float64]int64{}
	for _, h := range all {
		for _, b := range h {
			counts[b.MS] += b.Count
		}
	}
	merged := make([]Bucket, 0, len(counts))
	for ms, n := range counts {
		merged = append(merged, Bucket{ms, n})
	}
	slices.SortFunc(merged, func(a, b Bucket) int {
		switch {
		case a.MS < b.MS:
			return -1
		case a.MS > b.MS:
			return 1
		}
		return 0
	})
	return merged
}

// Response is one row of the response-time histogram: a range of response times and what fell into it. All times are in
// milliseconds but Duration, which is in seconds.
type Response struct {
	Range    string  `json:"range"`
	Duration float64 `json:"duration_seconds"`
	Percent  float64 `json:"percent_of_duration"`
	Calls    int64   `json:"calls"`
	Mean     Figure  `json:"mean_ms"`
	Min      Figure  `json:"min_ms"`
	Max      Figure  `json:"max_ms"`
}

// edges part the response times, in milliseconds; behind the last there is no end.
var edges = []struct {
	ms   float64
	text string
}{
	{5, "0 - 5"}, {10, "5 - 10"}, {15, "10 - 15"}, {20, "15 - 20"}, {25, "20 - 25"}, {50, "25 - 50"}, {100, "50 - 100"},
	{1000, "100 - 1,000"}, {math.Inf(1), "1,000 - ∞"},
}

// Respond makes the response-time histogram, its last row the TOTAL.
func Respond(histogram []Bucket) []Response {
	rows := make([]Response, 0, len(edges)+1)
	total := rowOf("TOTAL", histogram)
	from := 0.0
	for _, e := range edges {
		var inside []Bucket
		for _, b := range histogram {
			if b.MS > from && b.MS <= e.ms || b.MS == 0 && from == 0 {
				inside = append(inside, b)
			}
		}
		row := rowOf(e.text+" ms", inside)
		if total.Duration > 0 {
			row.Percent = 100 * row.Duration / total.Duration
		}
		rows = append(rows, row)
		from = e.ms
	}
	if total.Duration > 0 {
		total.Percent = 100
	}
	return append(rows, total)
}

// CallsWithin is how many percent of the calls took up to so many milliseconds; NaN of none.
func CallsWithin(histogram []Bucket, ms float64) float64 {
	var inside, all int64
	for _, b := range histogram {
		if all += b.Count; b.MS <= ms {
			inside += b.Count
		}
	}
	return 100 * float64(inside) / float64(all)
}

// TimeBetween is how many percent of the time of all calls those took that lasted longer than from and up to to
// milliseconds; NaN of none.
func TimeBetween(histogram []Bucket, from, to float64) float64 {
	inside, all := 0.0, 0.0
	for _, b := range histogram {
		took := b.MS * float64(b.Count)
		if all += took; b.MS > from && b.MS <= to {
			inside += took
		}
	}
	return 100 * inside / all
}

func rowOf(name string, buckets []Bucket) Response {
	r := Response{Range: name, Min: Figure(nan), Max: Figure(nan), Mean: Figure(Mean(buckets))}
	for _, b := range buckets {
		if b.Count == 0 {
			continue
		}
		r.Calls += b.Count
		r.Duration += b.MS * float64(b.Count) / 1000
		if math.IsNaN(float64(r.Min)) || b.MS < float64(r.Min) {
			r.Min = Figure(b.MS)
		}
		if math.IsNaN(float64(r.Max)) || b.MS > float64(r.Max) {
			r.Max = Figure(b.MS)
		}
	}
	return r
}

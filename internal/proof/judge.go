package proof

import (
	"fmt"
	"math"
)

// Judge says what a measurement over the rounds means for a shape.
func Judge(f Finding) Finding {
	x, least, most := float64(f.Measured.Median), float64(f.Least), float64(f.Most)
	f.Held = false
	if math.IsNaN(x) {
		f.Verdict = NotMeasured
		return f
	}
	if f.Missing > 0 {
		f.Verdict = NotDecided
		return f
	}
	f.Verdict = Holds
	if x < least || x > most { // a bound that is not there is NaN, and nothing is below it
		low, high := f.allowed()
		f.Verdict = HoldsNoise
		if x < least && !(x >= low) || x > most && !(x <= high) {
			f.Verdict = DoesNotHold
			return f
		}
	}
	if f.Document != nil {
		f.Verdict = f.Document.judge(x)
	}
	f.Held = f.Verdict != Contradicted && f.Verdict != NotDecided
	return f
}

// judge says what a measurement means for what the document measured.
func (c *Claim) judge(x float64) string {
	figure, none := float64(c.Figure), float64(c.None)
	near := x == figure || x/figure >= 1/c.Within && x/figure <= c.Within
	switch {
	case figure == none && near: // that it has no effect
		return Reproduced
	case figure == none:
		return Contradicted
	case c.Noise != nil && x >= none*float64(c.Noise.Low)/100 && x <= none*float64(c.Noise.High)/100:
		return NotDecided
	case x == none || (x > none) != c.More:
		return Contradicted
	case !near: // also where there is no figure
		return DirectionOnly
	}
	return Reproduced
}

// allowed are the bounds that the noise gives, NaN where it gives none: a bound beyond being alone, of harm that is
// wanted for instance, does not give way.
func (f Finding) allowed() (low, high float64) {
	low, high = math.NaN(), math.NaN()
	if f.Noise == nil {
		return low, high
	}
	whole := 1.0
	if f.Unit == "%" {
		whole = 100
	}
	if x := float64(f.Noise.Low) / 100 * whole; float64(f.Least) <= whole && x < float64(f.Least) {
		low = x
	}
	if x := float64(f.Noise.High) / 100 * whole; float64(f.Most) >= whole && x > float64(f.Most) {
		high = x
	}
	return low, high
}

// Quiet says whether the control arm differs from itself by no more than a tenth, so that figures mean something.
func Quiet(control Range) bool { return !(float64(control.Low) < 90) && !(float64(control.High) > 111) }

// Decided says whether the machine was quiet enough for verdicts. A smoke run has its own bounds.
func (r *Result) Decided() bool { return r.Smoke || Quiet(r.Control) }

// Decide judges the whole: where the machine was too busy nothing is decided.
func (r *Result) Decide() {
	r.Held = true
	for i := range r.Shape {
		f := &r.Shape[i]
		if !r.Decided() && f.judged() && f.Verdict != NotMeasured {
			f.Verdict, f.Held = NotDecided, false
		}
		r.Held = r.Held && (f.Held || !f.judged())
	}
}

func (f *Finding) judged() bool { return f.Verdict != NotJudged && f.Verdict != Beyond }

// tally counts the shapes: "3 of 5 hold, 1 contradicted, 1 not decided".
func (r *Result) tally() string {
	held, judged, others := 0, 0, map[string]int{}
	for _, f := range r.Shape {
		if f.Held {
			held++
		}
		if f.judged() {
			judged++
		}
		others[f.Verdict]++
	}
	text := fmt.Sprintf("%d of %d shapes hold", held, judged)
	for _, word := range []string{Contradicted, NotDecided, Beyond} {
		if n := others[word]; n > 0 {
			text += fmt.Sprintf(", %d %s", n, word)
		}
	}
	return text
}

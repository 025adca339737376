package proof

import "math"

// Judge says what a measurement over the rounds means for a shape.
func Judge(f Finding) Finding {
	x, least, most := float64(f.Measured.Median), float64(f.Least), float64(f.Most)
	f.Held = false
	switch {
	case math.IsNaN(x):
		f.Verdict = NotMeasured
		return f
	case !(x < least) && !(x > most): // a bound that is not there is NaN, and nothing is below it
		f.Verdict, f.Held = Holds, true
		return f
	}
	f.Verdict = DoesNotHold
	low, high := f.allowed()
	if x < least && x >= low || x > most && x <= high {
		f.Verdict, f.Held = HoldsNoise, true
	}
	return f
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

// Quiet says whether the control arm differs from itself little enough that figures mean something.
func Quiet(control Range) bool { return float64(control.Low) >= 90 && float64(control.High) <= 111 }

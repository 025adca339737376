package proof

import "math"

// Judge says what a measurement over the rounds means for a shape. control is the noise: what the control arm is of itself, in
// percent; percent says that the bound is one too, and not a ratio.
func Judge(f Finding, noise bool, control Range) Finding {
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
	if !noise {
		return f
	}
	whole := 1.0
	if f.Unit == "%" {
		whole = 100
	}
	low, high := float64(control.Low)/100*whole, float64(control.High)/100*whole
	if x < least && least <= whole && x >= low || x > most && most >= whole && x <= high {
		f.Verdict, f.Held = HoldsNoise, true
	}
	return f
}

// Quiet says whether the control arm differs from itself little enough that figures mean something.
func Quiet(control Range) bool { return float64(control.Low) >= 90 && float64(control.High) <= 111 }

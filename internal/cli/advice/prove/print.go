package prove

import (
	"fmt"
	"io"
	"math"
	"slices"

	"bulkhead/internal/advise/proved"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/proof"
)

// Print says what was found, without the reply; that something is worse is left to the verb, as its error.
func (r *Result) Print(out io.Writer) {
	render.Printf(out, "%s: %s of %d s without and with the change\n", r.Measured, proof.Plural(r.Rounds, "round"),
		r.Seconds)
	for _, set := range r.Settings {
		render.Printf(out, "  %s\n", set)
	}
	rows := [][]string{{"FIGURE", "BEFORE", "AFTER", "DIFFERENCE", "NOISE (A/A)", ""}}
	for _, f := range r.Figures {
		rows = append(rows, []string{f.Name, amount(f.Before, f.Unit), amount(f.After, f.Unit),
			percent(f.Difference.Median), percent(f.Spread.Low) + " to " + percent(f.Spread.High), f.Verdict})
	}
	render.Table(out, rows)
	for _, n := range r.Notes {
		render.Printf(out, "note: %s\n", n)
	}
	switch r.Verdict {
	case proved.Worse: // is an error of the verb
	case proved.Better:
		render.Println(out, "better beyond the noise: the change is kept")
	default:
		render.Println(out, "no difference beyond the noise: the change is kept, `bulkhead tune rollback` takes it "+
			"back")
	}
}

// amount is a figure with its unit; small ones have decimals.
func amount(x proof.Figure, unit string) string {
	text := proof.Number(float64(x))
	if math.Abs(float64(x)) < 100 {
		text = fmt.Sprintf("%.2f", float64(x))
	}
	if slices.Contains([]string{"", "/s"}, unit) {
		return text + unit
	}
	return text + " " + unit
}

func percent(x proof.Figure) string {
	if math.IsNaN(float64(x)) {
		return "-"
	}
	return fmt.Sprintf("%+.1f %%", math.Round(float64(x)*10)/10+0) // no minus before 0
}

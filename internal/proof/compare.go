package proof

import (
	"fmt"
	"io"
	"math"
)

// Outcome is what became of one scenario of several.
type Outcome struct {
	Scenario string  `json:"scenario"`
	Result   *Result `json:"result,omitempty"`
	LeftOut  string  `json:"left_out,omitempty"` // why it did not run
	Failed   string  `json:"failed,omitempty"`
}

// WriteOutcomes prints several results, shortly.
func WriteOutcomes(w io.Writer, all []Outcome) error {
	rows := [][]string{{"scenario", "shape", "measured", "wanted", "verdict"}}
	for _, o := range all {
		switch {
		case o.LeftOut != "":
			rows = append(rows, []string{o.Scenario, "left out: " + o.LeftOut})
		case o.Failed != "":
			rows = append(rows, []string{o.Scenario, "FAILED: " + o.Failed})
		default:
			for i, f := range o.Result.Shape {
				name := o.Scenario
				if i > 0 {
					name = ""
				}
				rows = append(rows, []string{name, f.What, f.measured(), f.wanted(), f.Verdict})
			}
		}
	}
	_, err := io.WriteString(w, table(rows, 2))
	return err
}

// Comparison is two results of one scenario side by side.
type Comparison struct {
	Scenario string       `json:"scenario"`
	A        string       `json:"a"` // when and where
	B        string       `json:"b"`
	Rows     []Difference `json:"rows"`
}

// Difference is one figure of one arm in both.
type Difference struct {
	Arm    string `json:"arm"`
	Figure string `json:"figure"`
	A      Range  `json:"a"`
	B      Range  `json:"b"`
	Change Figure `json:"change_percent"`
	// Beyond is true when the rounds of the two do not overlap. Nil: one of them has no spread, being of one round or
	// not measured.
	Beyond *bool `json:"beyond_the_spread"`
}

// compared are the figures that a comparison shows.
var compared = []string{"tps", "p50", "p95", "p99", "p999", "isolation", "isol01"}

// Compare sets two results side by side.
func Compare(a, b *Result) (*Comparison, error) {
	if a.Scenario != b.Scenario {
		return nil, fmt.Errorf("compare results: one is of %q, the other of %q", a.Scenario, b.Scenario)
	}
	c := &Comparison{Scenario: a.Scenario, A: a.origin(), B: b.origin()}
	for i := range a.Arms {
		for j := range b.Arms {
			if a.Arms[i].Name != b.Arms[j].Name {
				continue
			}
			for _, figure := range compared {
				x, inA := a.Arms[i].Figures[figure]
				y, inB := b.Arms[j].Figures[figure]
				if !inA || !inB {
					continue
				}
				c.Rows = append(c.Rows, Difference{
					Arm: a.Arms[i].Text, Figure: figure, A: x, B: y,
					Change: Figure(100 * (float64(y.Median)/float64(x.Median) - 1)),
					Beyond: beyond(x, y, min(a.Rounds, b.Rounds)),
				})
			}
		}
	}
	return c, nil
}

// beyond says whether two ranges over so many rounds do not overlap; nil when that is not known.
func beyond(x, y Range, rounds int) *bool {
	for _, f := range []Figure{x.Low, x.High, y.Low, y.High} {
		if math.IsNaN(float64(f)) {
			rounds = 0
		}
	}
	if rounds < 2 {
		return nil
	}
	apart := y.Low > x.High || y.High < x.Low
	return &apart
}

func (r *Result) origin() string {
	return fmt.Sprintf("%s, %s of %d s, %s", r.Started.Format("2006-01-02 15:04"), Plural(r.Rounds, "round"), r.Seconds,
		r.Machine)
}

// WriteText prints the comparison for people.
func (c *Comparison) WriteText(w io.Writer) error {
	rows := [][]string{{"arm", "figure", "A", "B", "change", ""}}
	arm := ""
	for _, d := range c.Rows {
		name := d.Arm
		if name == arm {
			name = ""
		}
		arm = d.Arm
		word := "within the spread"
		switch {
		case d.Beyond == nil:
			word = "spread not known"
		case *d.Beyond:
			word = "beyond the spread"
		}
		rows = append(rows, []string{name, d.Figure, plain(float64(d.A.Median)), plain(float64(d.B.Median)),
			fmt.Sprintf("%s %%", signed(float64(d.Change))), word})
	}
	_, err := fmt.Fprintf(w, "%s\nA: %s\nB: %s\n\n%s", c.Scenario, c.A, c.B, table(rows, 2, 3, 4))
	return err
}

func signed(x float64) string {
	if x > 0 {
		return "+" + fixed(x, 1)
	}
	return fixed(x, 1)
}

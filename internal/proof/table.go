package proof

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// WriteText prints the result for people.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	r.writeHead(&b)
	r.writeArms(&b)
	r.writeCells(&b)
	r.writeUse(&b)
	r.writeResponses(&b)
	r.writeShape(&b)
	if len(r.Notes) > 0 {
		b.WriteString("What this host does not hold, or not wholly:\n")
		for _, n := range r.Notes {
			b.WriteString(wrap(n, 108, "  "))
		}
		b.WriteString("\n")
	}
	word := "The shape holds."
	switch {
	case !r.Decided():
		word = "NOT DECIDED: alone, the database differs from itself by more than a tenth. Run it on a quieter machine."
	case !r.Held:
		word = "THE SHAPE DOES NOT HOLD."
	case r.Smoke:
		word = "The shape holds, as far as a smoke run judges it."
	}
	b.WriteString(word + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Result) writeHead(b *strings.Builder) {
	fmt.Fprintf(b, "%s: %s\n", r.Scenario, r.Title)
	if r.Smoke {
		b.WriteString("a smoke run: one short round against lower bounds; its figures say little\n")
	}
	if r.Document != "" {
		b.WriteString(wrap("repeats "+r.Document+": "+r.Reports, 108, ""))
		b.WriteString(wrap("mechanism: "+r.Mechanism, 108, ""))
	}
	fmt.Fprintf(b, "%s; load average before %s\n", r.Machine, r.Load)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(b, "%s: %s\n", name, r.Versions[name])
	}
	if len(r.Scale) > 0 {
		parts := make([]string, len(r.Scale))
		for i, s := range r.Scale {
			parts[i] = s.text()
		}
		b.WriteString(wrap("scale: "+strings.Join(parts, ", "), 108, ""))
	}
	b.WriteString("\n")
}

// text is one quantity with where it comes from: "hogs = max(16, 8*cpus) = 16".
func (s Scale) text() string {
	text := s.Name + " = " + s.Formula
	if value := plain(s.Value); value != s.Formula {
		text += " = " + value
	}
	if s.Unit != "" {
		text += " " + s.Unit
	}
	if s.Document != "" {
		text += " (document: " + s.Document + ")"
	}
	return text
}

// figureOf is the median of a figure of an arm; NaN when it has none.
func (a *Arm) figureOf(name string) float64 {
	if f, found := a.Figures[name]; found {
		return float64(f.Median)
	}
	return nan
}

// answered is a load of an arm: its text and the figures of it.
type answered struct {
	text string
	tps  Range
	of   func(figure string) float64 // the median over the rounds
}

// loadsOf are the loads of an arm that were measured. That of a scenario with one load has the arm's text, and isol-01
// and the latency impact of it are over the seconds of all rounds.
func (r *Result) loadsOf(a *Arm) (all []answered) {
	if len(r.Loads) < 2 {
		return []answered{{a.Text, a.Figures["tps"], func(figure string) float64 {
			switch figure {
			case "isol01":
				return float64(a.Isolation.P01)
			case "impact":
				return float64(a.Impact.Mean)
			}
			return a.figureOf(figure)
		}}}
	}
	for _, name := range r.Loads {
		if tps, measured := a.Figures[name+".tps"]; measured {
			all = append(all, answered{a.Text + ": " + name, tps,
				func(figure string) float64 { return a.figureOf(name + "." + figure) }})
		}
	}
	return all
}

func (r *Result) writeArms(b *strings.Builder) {
	rows := [][]string{{"arm", "per second", "min", "max", "p50", "p95", "p99", "p99.9", "isolation", "isol-01",
		"latency impact"}}
	for i := range r.Arms {
		a := &r.Arms[i]
		if a.Omitted != "" {
			rows = append(rows, []string{a.Text, "left out: " + a.Omitted})
			continue
		}
		for _, l := range r.loadsOf(a) {
			rows = append(rows, []string{
				l.text, Number(float64(l.tps.Median)), Number(float64(l.tps.Low)), Number(float64(l.tps.High)),
				milliseconds(l.of("p50")), milliseconds(l.of("p95")), milliseconds(l.of("p99")),
				milliseconds(l.of("p999")), percent(l.of("isolation")), percent(l.of("isol01")),
				percent(l.of("impact")),
			})
		}
	}
	b.WriteString(table(rows, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
	fmt.Fprintf(b,
		"\nMedians of %s of %d s an arm. Isolation is the rate against being alone in the same round, isol-01 that\n"+
			"of the worst second in a hundred, latency impact the mean rise of the latency of a second. "+
			"Alone against\n"+
			"alone, which is the noise: %s to %s.\n\n",
		Plural(r.Rounds,
			"interleaved round"), r.Seconds, percent(float64(r.Control.Low)), percent(float64(r.Control.High)))
}

// useFigures are what the table of use shows of a group or a database.
var useFigures = []struct {
	figure, title string
	text          func(float64) string
}{
	{"cpu", "CPU", func(x float64) string { return fixed(x, 2) }},
	{"throttled", "throttled", percent},
	{"cpu_pressure", "CPU pressure", percent},
	{"memory", "memory", sizeText},
	{"memory_peak", "peak", sizeText},
	{"swap", "swap", sizeText},
	{"oom_kills", "kills", Number},
	{"read", "read/s", sizeText},
	{"written", "written/s", sizeText},
	{"write_ops", "writes/s", Number},
	{"sent", "sent/s", sizeText},
	{"packets_sent", "packets/s", Number},
	{"received", "received/s", sizeText},
	{"packets_received", "packets/s", Number},
	{"wire_out", "limited out", bitsText},
	{"wire_in", "limited in", bitsText},
	{"drops", "drops", Number},
}

// Users names what an arm has figures of use for, in order.
func (a *Arm) users() []string {
	found := map[string]bool{}
	for name := range a.Figures {
		who, figure, ok := strings.Cut(name, ".")
		if ok && figure == "cpu" {
			found[who] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// writeUse prints what groups, databases and the machine used.
func (r *Result) writeUse(b *strings.Builder) {
	head := []string{"arm", "who"}
	for _, u := range useFigures {
		head = append(head, u.title)
	}
	head = append(head, "load", "in state D")
	rows := [][]string{head}
	for i := range r.Arms {
		a := &r.Arms[i]
		text := a.Text
		for _, who := range a.users() {
			row := []string{text, who}
			for _, u := range useFigures {
				row = append(row, u.text(a.figureOf(who+"."+u.figure)))
			}
			rows, text = append(rows, row), ""
		}
		machine := make([]string, len(head))
		machine[0], machine[1], machine[2] = text, "machine", fixed(a.figureOf("busy"), 2)
		machine[len(head)-2], machine[len(head)-1] = fixed(a.figureOf("load"), 1), fixed(a.figureOf("blocked"), 1)
		rows = append(rows, machine)
	}
	if len(rows) > 1 {
		right := make([]int, len(head)-2)
		for i := range right {
			right[i] = i + 2
		}
		b.WriteString(table(keepFilled(rows), right...) + "\n")
	}
}

// keepFilled leaves out columns in which nothing was measured.
func keepFilled(rows [][]string) [][]string {
	var kept [][]string
	for range rows {
		kept = append(kept, nil)
	}
	for c := range rows[0] {
		filled := false
		for _, row := range rows[1:] {
			filled = filled || c < len(row) && row[c] != "" && row[c] != "-"
		}
		if !filled {
			continue
		}
		for i, row := range rows {
			cell := ""
			if c < len(row) {
				cell = row[c]
			}
			kept[i] = append(kept[i], cell)
		}
	}
	return kept
}

// writeResponses prints the response-time histograms of the arms.
func (r *Result) writeResponses(b *strings.Builder) {
	if cellsOf(r) != nil { // of so many the page has them
		return
	}
	for i := range r.Arms {
		a := &r.Arms[i]
		if a.Name == "again" || len(a.Histogram) == 0 {
			continue
		}
		rows := [][]string{{"response time", "duration", "%", "calls", "mean", "min", "max"}}
		for _, p := range a.Responses {
			if p.Calls == 0 && p.Range != "TOTAL" {
				continue
			}
			rows = append(rows, p.cells())
		}
		fmt.Fprintf(b, "%s:\n%s\n", a.Text, table(rows, 1, 2, 3, 4, 5, 6))
	}
}

// cells are those of a row of the histogram of response times.
func (p Response) cells() []string {
	return []string{p.Range, fixed(p.Duration, 2) + " s", fixed(p.Percent, 1), Number(float64(p.Calls)),
		milliseconds(float64(p.Mean)), milliseconds(float64(p.Min)), milliseconds(float64(p.Max))}
}

// writeShape prints what was wanted beside what was measured.
func (r *Result) writeShape(b *strings.Builder) {
	rows := [][]string{{"shape", "document", "measured", "min", "max", "wanted", "verdict"}}
	for _, f := range r.Shape {
		rows = append(rows, []string{f.What, f.Reports, f.measured(), f.text(f.Measured.Low), f.text(f.Measured.High),
			f.wanted(), f.Verdict})
	}
	b.WriteString(table(keepFilled(rows), 2, 3, 4) + "\n")
	for _, text := range r.contradictions() {
		b.WriteString(wrap(text, 108, ""))
	}
}

// contradictions says of each finding that is the opposite of the document's why that is so.
func (r *Result) contradictions() (all []string) {
	for _, f := range r.Shape {
		if f.Verdict == Contradicted {
			why := "nobody has looked into the reason"
			if f.Document.Because != "" {
				why = f.Document.Because
			}
			all = append(all, "Contradicted, "+f.What+": "+why)
		}
	}
	return all
}

// text writes one of the finding's figures.
func (f Finding) text(x Figure) string {
	if math.IsNaN(float64(x)) {
		return "-"
	}
	text := plain(float64(x))
	if f.Unit != "" {
		text += " " + f.Unit
	}
	return text
}

// measured is the median; so many digits of one that does not hold that it is not the bound itself.
func (f Finding) measured() string {
	x, text := float64(f.Measured.Median), f.text(f.Measured.Median)
	for _, bound := range []Figure{f.Least, f.Most} {
		if y := float64(bound); f.Verdict == DoesNotHold && x != y && math.Abs(x-y) < 0.005*math.Abs(y) {
			text = strings.TrimSpace(strconv.FormatFloat(x, 'g', 6, 64) + " " + f.Unit)
		}
	}
	if f.Missing > 0 {
		text += fmt.Sprintf(" (none in %s)", Plural(f.Missing, "round"))
	}
	return text
}

// wanted is the bound in words, with what the noise makes of it, and what reproduces the document.
func (f Finding) wanted() string {
	least, most := !math.IsNaN(float64(f.Least)), !math.IsNaN(float64(f.Most))
	low, high := f.allowed()
	or := ""
	for _, x := range []float64{low, high} {
		if !math.IsNaN(x) {
			or += ", or " + f.text(Figure(x)) + " as alone"
		}
	}
	var all []string
	switch {
	case least && most:
		all = append(all, f.text(f.Least)+" to "+f.text(f.Most)+or)
	case least:
		all = append(all, "at least "+f.text(f.Least)+or)
	case most:
		all = append(all, "at most "+f.text(f.Most)+or)
	}
	if c := f.Document; c != nil {
		switch {
		case !math.IsNaN(float64(c.Figure)):
			all = append(all, fmt.Sprintf("%s within a factor of %s", f.text(c.Figure), plain(c.Within)))
		case c.More:
			all = append(all, "more than "+f.text(c.None))
		default:
			all = append(all, "less than "+f.text(c.None))
		}
	}
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, "; ")
}

// plain writes a number with as many decimals as tell something.
func plain(x float64) string {
	switch a := math.Abs(x); {
	case math.IsNaN(x):
		return "-"
	case x == math.Trunc(x) || a >= 1000:
		return Number(x)
	case a >= 100:
		return fixed(x, 1)
	case a >= 1:
		return fixed(x, 2)
	}
	return fixed(x, 3)
}

func fixed(x float64, decimals int) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, x)
}

// bitsText writes bytes a second as limits on interfaces are written.
func bitsText(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "-"
	}
	return fixed(8*x/1e6, 1) + " Mbit/s"
}

func sizeText(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "-"
	}
	return BytesText(int64(x))
}

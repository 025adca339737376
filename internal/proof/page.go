package proof

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
)

// WritePage writes the result as one page that needs no network: its plots are in it.
func (r *Result) WritePage(w io.Writer) error {
	if err := page.Execute(w, r.view()); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// view is what the page shows.
type view struct {
	*Result
	Rows     [][]string
	Use      [][]string
	Findings [][]string
	Noise    string
	Plots    []template.HTML
	Answers  []answers
	When     string
}

// answers is the response-time histogram of one arm.
type answers struct {
	Arm  string
	Rows [][]string
}

func (r *Result) view() view {
	v := view{
		Result: r, Noise: percent(float64(r.Control.Low)) + " to " + percent(float64(r.Control.High)),
		When: r.Started.Format("2006-01-02 15:04 MST"),
	}
	for i := range r.Arms {
		a := &r.Arms[i]
		if a.Omitted != "" {
			v.Rows = append(v.Rows, []string{a.Text, "left out: " + a.Omitted})
			continue
		}
		for _, l := range r.loadsOf(a) {
			v.Rows = append(v.Rows, []string{
				l.text, Number(float64(l.tps.Median)), Number(float64(l.tps.Low)) + " – " + Number(float64(l.tps.High)),
				milliseconds(l.of("p50")), milliseconds(l.of("p95")), milliseconds(l.of("p99")),
				milliseconds(l.of("p999")), percent(l.of("isolation")), percent(l.of("isol01")),
				percent(l.of("impact")),
			})
		}
		for _, who := range a.users() {
			row := []string{a.Text, who}
			for _, u := range useFigures {
				row = append(row, u.text(a.figureOf(who+"."+u.figure)))
			}
			v.Use = append(v.Use, row)
		}
		if a.Name != "again" && len(a.Histogram) > 0 {
			table := answers{Arm: a.Text}
			for _, p := range a.Responses {
				table.Rows = append(table.Rows, p.cells())
			}
			v.Answers = append(v.Answers, table)
		}
	}
	if len(v.Use) > 0 {
		head := []string{"arm", "who"}
		for _, u := range useFigures {
			head = append(head, u.title)
		}
		v.Use = keepFilled(append([][]string{head}, v.Use...))
	}
	for _, f := range r.Shape {
		spread := ""
		if !math.IsNaN(float64(f.Measured.Low)) {
			spread = f.text(f.Measured.Low) + " – " + f.text(f.Measured.High)
		}
		v.Findings = append(v.Findings, []string{f.What, f.Reports, f.measured(), spread, f.wanted(), f.Verdict})
	}
	pictures := r.Pictures()
	for _, name := range slices.Sorted(maps.Keys(pictures)) {
		v.Plots = append(v.Plots, template.HTML(pictures[name])) // every text in them is escaped where they are drawn
	}
	return v
}

// Contradictions says why findings are the opposite of what the document says.
func (v view) Contradictions() []string { return v.contradictions() }

// Cells gives the table of a matrix.
func (v view) Cells() [][]string { return v.cellRows() }

// Texts gives the quantities of the scale as text.
func (v view) Texts() []string {
	var all []string
	for _, s := range v.Scale {
		all = append(all, s.text())
	}
	return all
}

var page = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Scenario}}: {{.Title}}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font-family: sans-serif; max-width: 70rem; margin: 1rem auto; padding: 0 1rem; color: #111; background: #fff }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem }
td, th { border-bottom: 1px solid #ccc; padding: 0.25rem 0.7rem; text-align: right }
td:first-child, th:first-child { text-align: left } .words td { text-align: left }
pre { background: #f4f4f4; padding: 0.7rem; overflow-x: auto }
svg { width: 100%; height: auto; margin: 0.7rem 0 } .held { color: #006d3c } .not { color: #a40000; font-weight: bold }
</style></head><body>
<h1>{{.Scenario}}: {{.Title}}</h1>
{{if .Document}}<p>Repeats {{.Document}}, which reports: {{.Reports}}.
Mechanism: {{.Mechanism}}.</p>{{end}}
<p>{{.When}}, {{.Rounds}} interleaved rounds of {{.Seconds}} s an arm{{if .Smoke}}, a smoke run:
its figures say little{{end}}.<br>{{.Machine}}; load average before: {{.Load}}.
{{range $name, $v := .Versions}}<br>{{$name}}: {{$v}}{{end}}</p>
{{with .Texts}}<p>Scale: {{range $i, $t := .}}{{if $i}}, {{end}}{{$t}}{{end}}.</p>{{end}}
<p class="{{if .Held}}held{{else}}not{{end}}">{{if .Held}}The shape holds.{{else if .Decided}}The shape does not
hold.{{else}}Not decided:
alone, the database differs from itself by more than a tenth.{{end}}</p>{{range .Contradictions}}
<p>{{.}}.</p>{{end}}
<table class="words">
<tr><th>shape</th><th>document</th><th>measured</th><th>lowest – highest</th><th>wanted</th><th>verdict</th></tr>
{{range .Findings}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
<table>
<tr><th>arm</th><th>per second</th><th>lowest – highest</th><th>p50</th><th>p95</th>
<th>p99</th><th>p99.9</th><th>isolation</th><th>isol-01</th><th>latency impact</th></tr>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
<p>Alone against alone, which is the noise: {{.Noise}}.</p>
{{with .Cells}}<table>{{range .}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
{{end}}{{with .Settings}}<p>Settings of the server: {{.}}.</p>
{{end}}{{range .Plots}}{{.}}
{{end}}
{{if .Use}}<h2>What was used</h2><table>{{range .Use}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>{{end}}
<h2>Response times</h2>
{{range .Answers}}<h3>{{.Arm}}</h3>
<table><tr><th>range</th><th>duration</th><th>%</th><th>calls</th><th>mean</th><th>min</th><th>max</th></tr>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
{{end}}
{{range $name, $text := .Policy}}<h2>Policy: {{$name}}</h2><pre>{{$text}}</pre>{{end}}
{{if .Notes}}<h2>What this host does not hold, or not wholly</h2><ul>{{range .Notes}}<li>{{.}}</li>{{end}}</ul>{{end}}
</body></html>
`))

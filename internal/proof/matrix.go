package proof

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Cell is the combination of a matrix that an arm is of.
type Cell struct {
	Page    string `json:"page"` // "2MiB"
	Size    string `json:"size"` // the scenario's name for how large the database is
	SizeMiB int    `json:"size_mib"`
	Clients int    `json:"clients"`
}

// cellsOf are the arms that are cells of a matrix and were measured, the second run of the control arm left out.
func cellsOf(r *Result) (all []*Arm) {
	for i := range r.Arms {
		if a := &r.Arms[i]; a.Cell != nil && len(a.Rounds) > 0 && a.Name != "again" {
			all = append(all, a)
		}
	}
	return all
}

// figureEnding is a figure whose name ends so: that of the one database of a matrix.
func (a *Arm) figureEnding(end string) float64 {
	for name := range a.Figures {
		if strings.HasSuffix(name, "."+end) {
			return a.figureOf(name)
		}
	}
	return nan
}

// cellRows is the table of a matrix, its head first; nil without one. What a Redis copied while it saved is told of one
// alone.
func (r *Result) cellRows() (rows [][]string) {
	cells := cellsOf(r)
	if len(cells) == 0 {
		return nil
	}
	rows = [][]string{{"pages", "database", "clients", "per second", "min", "max", "page tables", "page faults"}}
	saves := !math.IsNaN(cells[0].figureEnding("copied"))
	if saves {
		rows[0] = append(rows[0], "p99", "copied", "fork")
	}
	rows[0] = append(rows[0], "proved by")
	for _, a := range cells {
		tps := a.Figures["tps"]
		row := []string{a.Cell.Page, fmt.Sprintf("%s, %d MiB", a.Cell.Size, a.Cell.SizeMiB),
			Number(float64(a.Cell.Clients)), Number(float64(tps.Median)), Number(float64(tps.Low)),
			Number(float64(tps.High)), sizeText(a.figureEnding("page_tables")), Number(a.figureEnding("page_faults"))}
		if saves {
			row = append(row, milliseconds(a.figureOf("p99")), sizeText(a.figureEnding("copied")),
				milliseconds(a.figureEnding("fork")))
		}
		rows = append(rows, append(row, a.Evidence))
	}
	return rows
}

// writeCells prints the matrix.
func (r *Result) writeCells(b *strings.Builder) {
	rows := r.cellRows()
	if rows == nil {
		return
	}
	proved := len(rows[0]) - 1
	var short [][]string
	for _, row := range rows {
		short = append(short, row[:proved])
	}
	b.WriteString(table(short, 2, 3, 4, 5, 6, 7, 8, 9, 10))
	b.WriteString("\nThe page size of each cell, by the last round:\n")
	for i, a := range cellsOf(r) {
		b.WriteString(wrap(a.Text+": "+rows[i+1][proved], 108, "  "))
	}
	if r.Settings != "" {
		b.WriteString(wrap("Settings of the server: "+r.Settings, 108, ""))
	}
	b.WriteString("\n")
}

// writeMatrix writes the matrix into a document.
func (r *Result) writeMatrix(b *strings.Builder) {
	for i, row := range r.cellRows() {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
		}
	}
	if r.Settings != "" {
		fmt.Fprintf(b, "\nSettings of the server: %s.\n", r.Settings)
	}
}

// matrixPlots are the curves of a matrix, by name: throughput over clients for each size of the database, and over
// sizes for each number of clients. Each page size is a curve.
func matrixPlots(r *Result) map[string]string {
	plots := map[string]plot{}
	add := func(name, title, xTitle string, a *Arm, x float64) {
		p := plots[name]
		p.title, p.xTitle, p.yTitle = title, xTitle, "transactions per second"
		at := slices.IndexFunc(p.lines, func(l line) bool { return l.name == a.Cell.Page })
		if at < 0 {
			at = len(p.lines)
			p.lines = append(p.lines, line{name: a.Cell.Page, colour: at})
		}
		l, tps := &p.lines[at], a.Figures["tps"]
		l.x, l.y = append(l.x, x), append(l.y, float64(tps.Median))
		l.low, l.high = append(l.low, float64(tps.Low)), append(l.high, float64(tps.High))
		plots[name] = p
	}
	cells := cellsOf(r)
	// A curve goes from the left to the right.
	slices.SortStableFunc(cells, func(a, b *Arm) int { return a.Cell.SizeMiB - b.Cell.SizeMiB })
	for _, a := range cells {
		add(fmt.Sprintf("clients-%d", a.Cell.Clients), fmt.Sprintf("%d clients: throughput by the size of the "+
			"database, median of the rounds, from the lowest to the highest", a.Cell.Clients), "MiB", a,
			float64(a.Cell.SizeMiB))
	}
	slices.SortStableFunc(cells, func(a, b *Arm) int { return a.Cell.Clients - b.Cell.Clients })
	for _, a := range cells {
		add("size-"+a.Cell.Size, fmt.Sprintf("a database of %d MiB (%s): throughput by clients, median of the rounds, "+
			"from the lowest to the highest", a.Cell.SizeMiB, a.Cell.Size), "clients", a, float64(a.Cell.Clients))
	}
	drawn := map[string]string{}
	for name, p := range plots {
		drawn[name] = p.svg()
	}
	return drawn
}

// documentPictures are the names of the plots that a document shows of the result; the page has them all.
func (r *Result) documentPictures() []string {
	if curves := slices.Sorted(maps.Keys(matrixPlots(r))); len(curves) > 0 {
		return curves
	}
	names := []string{"arms", "rate"}
	if pictures := r.Pictures(); swaps(r) {
		for _, name := range []string{"memory-free", "use-swap"} {
			if pictures[name] != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

package render

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/cli/render/columns"
	"bulkhead/internal/terminal"
)

// table collects rows, by Printf: each a line whose cells end at tabs.
type table struct {
	bytes.Buffer
	to io.Writer
}

// newTable begins a table with its headings.
func newTable(to io.Writer, headings ...string) *table {
	t := &table{to: to}
	_, _ = t.WriteString(strings.ToUpper(strings.Join(headings, "\t")) + "\n")
	return t
}

// end writes the table.
func (t *table) end() {
	for _, row := range t.rows() {
		_, _ = io.WriteString(t.to, row)
	}
}

// flush writes the table and an empty line.
func (t *table) flush() {
	t.end()
	Println(t.to)
}

// rows gives each row as it is written, in one line or several.
func (t *table) rows() []string {
	var g grid
	for line := range strings.Lines(t.String()) {
		g = append(g, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return g.rows(t.to)
}

// grid is a table: cells of rows that have equally many. Columns are as wide as what a terminal shows of them.
type grid [][]string

// Table writes a table, whose first row are its headings, and an empty line.
func Table(to io.Writer, rows [][]string) { grid(rows).print(to) }

// print writes the table and an empty line.
func (g grid) print(to io.Writer) {
	for _, row := range g.rows(to) {
		_, _ = io.WriteString(to, row)
	}
	Println(to)
}

// rows lays the rows out for a writer, without blanks at the ends of lines. Where its lines are too short for them,
// cells take several.
func (g grid) rows(to io.Writer) []string {
	widths := make([]int, len(g[0]))
	for _, row := range g {
		for i, cell := range row {
			row[i] = strings.TrimSuffix(terminal.Printable(cell), ", ")
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	if w, ok := to.(*printable); ok && w.width > 0 {
		columns.Fit(g, widths, w.width)
	}
	rows := make([]string, 0, len(g))
	for _, row := range g {
		var b strings.Builder
		rest := slices.Clone(row)
		for again := true; again; {
			var line strings.Builder
			again = false
			for i := range rest {
				cell, more, _ := columns.Cut(rest[i], widths[i])
				rest[i], again = more, again || more != ""
				line.WriteString(cell)
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+columns.Gap))
			}
			b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		}
		rows = append(rows, b.String())
	}
	return rows
}

// ListOr writes names with commas, or a word where there are none.
func ListOr(names []string, none string) string {
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, ", ")
}

// Package render turns the answers of verbs into text for people and into JSON for programs.
//
// A function named after the answer, such as Status, writes it as text to an io.Writer, by Printf and Println: these
// escape what others chose, such as the names of processes, and nothing else in the command line writes. A function
// that ends in View gives what JSON writes instead: its names are what scripts rely on, whatever the types inside are
// called. Nothing here reads the host or keeps anything, so all of it may be called from several goroutines at once.
package render

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"unicode/utf8"

	"bulkhead/internal/terminal"
)

// table begins a table with its headings.
func table(out io.Writer, headings ...string) *tabwriter.Writer {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = io.WriteString(w, strings.ToUpper(strings.Join(headings, "\t"))+"\n")
	return w
}

// flush ends a table with an empty line.
func flush(w *tabwriter.Writer) {
	Println(w)
	_ = w.Flush()
}

// grid is a table whose cells may hold a drawing, so that columns are as wide as what a terminal shows.
type grid [][]string

// print writes the table and an empty line, without blanks at the ends of lines.
func (g grid) print(w io.Writer) {
	widths := make([]int, len(g[0]))
	for _, row := range g {
		for i, cell := range row {
			row[i] = strings.TrimSuffix(terminal.Printable(cell), ", ")
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range g {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		Println(w, strings.TrimRight(b.String(), " "))
	}
	Println(w)
}

// The JSON of `discover disks`.

func dash(s string) string { return cmp.Or(s, "-") }

func dashZero(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Count says how many there are of something: "1 process", "3 processes".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// list gives the JSON form of each; none is [], never null.
func list[From, To any](from []From, view func(From) To) []To {
	to := make([]To, 0, len(from))
	for _, f := range from {
		to = append(to, view(f))
	}
	return to
}

// OrEmpty is a slice that is [] in JSON, never null.
func OrEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

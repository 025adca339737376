// Package columns says how wide the columns of a table get when its lines are too short for all of it. Its functions
// keep nothing.
package columns

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Gap is how many blanks are between two columns.
const Gap = 2

// least is how narrow a column may get.
const least = 6

// What a table that is too wide for a line pays for a cell of more than one line: for each line more, and for each word
// that is cut, which nobody can copy any more, behind a sign or anywhere, as for a number without its unit or a date
// without its time. The first column has the names that a reader looks for and types again: there it is dear.
const (
	costLine     = 2
	costSign     = 3
	costAnywhere = 12
	firstColumn  = 5
)

// Fit narrows the columns of a table, whose rows have as many cells as there are widths, to what is cheapest of all
// that goes into a line of so many letters. A table of which nothing does gets as narrow as it can. widths is changed.
func Fit(rows [][]string, widths []int, line int) {
	free := line - Gap*(len(widths)-1)
	total, narrowest := 0, 0
	for _, w := range widths {
		total, narrowest = total+w, narrowest+min(w, least)
	}
	if total <= free {
		return
	}
	free = max(free, narrowest)
	// cheapest[n] is what the columns so far cost in n letters, and chosen the width of each of them for it.
	cheapest := make([]int, free+1)
	chosen := make([][]int, len(widths))
	for i, natural := range widths {
		each := costs(rows, i, min(natural, free))
		next := make([]int, free+1)
		chosen[i] = make([]int, free+1)
		for n := range next {
			next[n] = math.MaxInt / 2
			for w := min(natural, least); w <= min(natural, n); w++ {
				if cost := cheapest[n-w] + each[w]; cost < next[n] {
					next[n], chosen[i][n] = cost, w
				}
			}
		}
		cheapest = next
	}
	natural := slices.Clone(widths)
	rest := free
	for i := len(widths) - 1; i >= 0; i-- {
		widths[i] = chosen[i][rest]
		rest -= widths[i]
	}
	for i := len(widths) - 1; i >= 0; i-- { // the texts are in the last columns
		more := min(rest, natural[i]-widths[i])
		widths[i], rest = widths[i]+more, rest-more
	}
}

// costs is what a column costs at each width up to its own. Of a long table the beginning tells.
func costs(rows [][]string, column, natural int) []int {
	const most = 100
	costs := make([]int, natural+1)
	for w := min(natural, least); w <= natural; w++ {
		for _, row := range rows[:min(len(rows), most)] {
			costs[w] += costOf(row[column], w, column == 0)
		}
	}
	return costs
}

func costOf(cell string, width int, first bool) (cost int) {
	for rest := cell; ; {
		_, more, breaks := Cut(rest, width)
		if more == "" {
			return cost
		}
		if rest = more; first {
			breaks *= firstColumn
		}
		cost += costLine + breaks
	}
}

// Cut divides a text behind what fits into a width: between two words, or within one behind a sign, or anywhere. It
// says what the place costs.
func Cut(text string, width int) (line, rest string, cost int) {
	if utf8.RuneCountInString(text) <= width {
		return text, "", 0
	}
	letters := []rune(text)
	indent := len(text) - len(strings.TrimLeft(text, " "))
	if at := strings.LastIndex(string(letters[:width+1]), " "); at > indent {
		line, rest = strings.TrimRight(text[:at], " "), strings.TrimLeft(text[at:], " ")
		if digit(line[len(line)-1]) {
			cost = costAnywhere
		}
		return line, rest, cost
	}
	line, cost = string(letters[:width]), costAnywhere
	if at := strings.LastIndexAny(line, "._/,=:;-"); at > 0 && at < len(line)-1 {
		line, cost = line[:at+1], costSign
	}
	return line, text[len(line):], cost
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

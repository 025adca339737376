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
	"strconv"
)

func dash(s string) string { return cmp.Or(s, "-") }

func dashZero(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func yesNo(b bool) string {
	return map[bool]string{true: "yes", false: "no"}[b]
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

package observing

import (
	"fmt"
	"strconv"
	"time"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/observe/top"
)

// printWaiting prints how long a group waited.
func (s Session) printWaiting(w *top.Waiting) {
	if w.Turns == nil {
		render.Printf(s.Out, "How long its threads waited for a CPU is not known: the kernel does not count it, or "+
			"`threads` was off.\n\n")
	} else {
		s.printTurns(w.Turns)
	}
	if w.Stalls == nil {
		render.Printf(s.Out, "For how much of the time a task of it waited is not known: the kernel has no PSI of the "+
			"group, or `pressure` was off.\n")
		return
	}
	s.printStalls(w.Stalls)
}

// printTurns prints how long threads waited for a CPU each time.
func (s Session) printTurns(all []top.Turns) {
	sum := top.Turns{}
	for _, r := range all {
		sum.Looks, sum.Turns, sum.Seconds = sum.Looks+r.Looks, sum.Turns+r.Turns, sum.Seconds+r.Seconds
	}
	render.Printf(s.Out, "Waits of its threads for a CPU, by how long one took on average in each look\n\n")
	rows := [][]string{{"TOOK", "LOOKS", "WAITS", "OF WAITS", "WAITED", "OF TIME", ""}}
	row := func(what string, r top.Turns, mark string) {
		rows = append(rows, []string{what, strconv.Itoa(r.Looks), strconv.FormatFloat(r.Turns, 'f', 0, 64),
			of(r.Turns, sum.Turns), took(r.Seconds), of(r.Seconds, sum.Seconds), mark})
	}
	for _, r := range all {
		if r.Looks == 0 {
			continue
		}
		what := "over " + took(r.Over)
		if r.UpTo != nil {
			what = "up to " + took(*r.UpTo)
		}
		row(what, r, bar(r.Turns/max(sum.Turns, 1)))
	}
	row("all", sum, "")
	render.Table(s.Out, rows)
}

// printStalls prints for how much of the time a task waited.
func (s Session) printStalls(all []top.Stalls) {
	render.Printf(s.Out, "Time in which a task of it waited, as a part of each look; how long these looks were\n\n")
	rows := [][]string{{"WAITED FOR", "CPU", "MEMORY", "DISKS"}}
	for _, r := range all {
		if r.CPU+r.Memory+r.Disk == 0 {
			continue
		}
		what := "nothing"
		if r.UpTo > 0 {
			what = "up to " + strconv.FormatFloat(100*r.UpTo, 'g', -1, 64) + " %"
		}
		rows = append(rows, []string{what, lasted(r.CPU), lasted(r.Memory), lasted(r.Disk)})
	}
	render.Table(s.Out, rows)
}

// of is a part as percents.
func of(part, whole float64) string {
	if whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part/whole)
}

// lasted is a time in seconds for people; nothing for none.
func lasted(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

package render

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/journal"
)

// History prints a table with the reason below each of its rows and, if asked, what was changed, and by which process.
func History(out io.Writer, entries []journal.Entry, long bool) {
	if len(entries) == 0 {
		Println(out, "nothing was changed yet")
		return
	}
	w := newTable(out, "no.", "when", "what", "rev", "who", "outcome", "changes")
	for _, e := range entries {
		outcome := e.Outcome
		if outcome == journal.Committed {
			outcome = "done"
		}
		by := e.By
		if !long {
			by = process.ReplaceAllString(by, "")
			by = strings.TrimSuffix(by, " (uid 0)")
		}
		Printf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\n", e.N, e.Time.Local().Format(time.DateTime),
			oneLine(strings.TrimSpace(e.Verb+" "+shortened(e.What))), dashZero(e.Revision), oneLine(dash(by)),
			dash(outcome), len(changesMade(e.Changes)))
	}
	rows := w.rows()
	_, _ = io.WriteString(out, rows[0])
	for i, e := range entries {
		_, _ = io.WriteString(out, rows[i+1])
		if reason := why(e); reason != "" {
			Printf(out, "     %s\n", oneLine(reason))
		}
		if !long {
			continue
		}
		for _, ch := range changesMade(e.Changes) {
			Printf(out, "     %s\n", changeText(ch))
		}
	}
}

// process is the part of who made a change that tells the process, as the agent writes it.
var process = regexp.MustCompile(`, pid \d+`)

// why is the reason that somebody gave and what there is to say of the change itself: neither hides the other.
func why(e journal.Entry) string {
	return strings.Join(slices.DeleteFunc([]string{e.Reason, e.Text}, func(s string) bool { return s == "" }), "; ")
}

// oneLine keeps what somebody gave, a reason of several lines, in its row of the table.
func oneLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ", "\r", " ").Replace(text)
}

// shortened keeps a line of the table readable: a move may name hundreds of processes.
func shortened(what string) string {
	const most = 60
	if runes := []rune(what); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return what
}

// changesMade leaves out the values that are recorded only so that a removed directory can be made again.
func changesMade(all []journal.Change) []journal.Change {
	return slices.DeleteFunc(slices.Clone(all), func(ch journal.Change) bool { return ch.Old == ch.New })
}

// changeText is one change in one line, with the value before and after it.
func changeText(ch journal.Change) string {
	what := string(ch.Kind) + " " + ch.Addr
	if ch.Name != "" {
		what += " (" + ch.Name + ")"
	}
	value := func(text string) string {
		return shortened(cmp.Or(strings.ReplaceAll(text, "\n", ", "), "none"))
	}
	return fmt.Sprintf("%s: %s -> %s", what, value(ch.Old), value(ch.New))
}

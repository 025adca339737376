package render

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/journal"
)

// History prints a table with the reason below each of its rows and, if asked, what was changed.
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
		Printf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\n", e.N, e.Time.Local().Format(time.DateTime),
			oneLine(strings.TrimSpace(e.Verb+" "+shortened(e.What))), dashZero(e.Revision), oneLine(dash(e.By)),
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
	return slices.DeleteFunc(slices.Clone(all),
		func(ch journal.Change) bool {
			return (ch.Op == journal.OpWrite || ch.Op == journal.OpSet) && ch.Old == ch.New
		})
}

// changeText is one change in one line, with the value before and after it.
func changeText(ch journal.Change) string {
	at := ch.Dir.Hierarchy + ":" + ch.Dir.Path
	switch ch.Op {
	case journal.OpMove:
		return fmt.Sprintf("move process %d (%s): %s:%s -> %s", ch.PID.PID, ch.Comm, ch.Dir.Hierarchy, ch.Old,
			ch.Dir.Path)
	case journal.OpOOMScore:
		return fmt.Sprintf("oom_score_adj of process %d (%s): %s -> %s", ch.PID.PID, ch.Comm, ch.Old, ch.New)
	case journal.OpSet:
		return fmt.Sprintf("set %s: %s -> %s", ch.Target, ch.Old, ch.New)
	case journal.OpWrite:
		return fmt.Sprintf("write %s/%s: %s -> %s", at, strings.TrimSpace(ch.File+" "+ch.Key), cmp.Or(ch.Old, "new"),
			ch.New)
	}
	return ch.Op + " " + at
}

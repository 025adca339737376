package policy

import (
	"strconv"
	"strings"
	"time"
)

// The bounds on host.reclaim: who changes the host waits for it, and others for them.
const (
	shortestReclaim = time.Second
	longestReclaim  = 10 * time.Minute
)

// reclaimField is `host: {reclaim: 30s}`.
func reclaimField() field[HostPart] {
	return field[HostPart]{
		name: "reclaim", doc: "How long the memory in use of a group may take to fall below a lower limit, 1s to 10m; else nothing is changed.",
		schema: schema{"type": "string", "default": "30s", "examples": []any{"30s", "2m"}},
		read: func(w *walker, v value, h *HostPart) {
			const hint = "write seconds or minutes: 30s, 2m"
			text, ok := w.text(v)
			if !ok {
				return
			}
			switch length, err := time.ParseDuration(text); {
			case err != nil:
				w.fail(v.Node, hint, "host.reclaim: %q is not a length of time", text)
			case length < shortestReclaim || length > longestReclaim:
				w.fail(v.Node, hint, "host.reclaim: %s is not between %s and %s", text, shortestReclaim, longestReclaim)
			default:
				h.Reclaim = Duration(length)
			}
		},
	}
}

// The bounds on host.history: at least what a person has to look at after a bad night.
const (
	fewestEntries = 10
	mostEntries   = 1000000
	shortestAge   = 24 * time.Hour
	longestAge    = 100 * 365 * 24 * time.Hour
)

// historyField is `host: {history: {entries: 5000, age: 400d}}`.
func historyField() field[HostPart] {
	history := object[History]{
		name: "host.history",
		fields: []field[History]{
			{
				name: "entries", doc: "How many entries of the history are kept, at least 10; older ones go.", schema: schema{"type": "integer", "minimum": fewestEntries, "maximum": mostEntries},
				read: func(w *walker, v value, h *History) {
					if n, ok := w.number(v, "a number of entries", fewestEntries, mostEntries); ok {
						h.Entries = int(n)
					}
				},
			},
			{
				name: "age", doc: "How old an entry of the history may become, in days or hours: 400d, 48h; at least a day.", schema: schema{"type": "string", "pattern": `^[0-9]+(d|h)$`, "examples": []any{"400d"}},
				read: func(w *walker, v value, h *History) {
					text, ok := w.text(v)
					if !ok {
						return
					}
					age, ok := daysOrHours(text)
					if !ok || age < shortestAge || age > longestAge {
						w.fail(v.Node, "write days or hours: 400d, 48h", "host.history.age: %q is no age between a day and a hundred years", text)
						return
					}
					h.Age = age
				},
			},
		},
	}
	return field[HostPart]{
		name: "history", doc: "How much of the history is kept, and with it of earlier revisions; all of it, up to 8 MiB, unless named.", schema: history.schema(),
		read: func(w *walker, v value, h *HostPart) { history.read(w, v, "host.history.", &h.History) },
	}
}

// daysOrHours reads "400d" or "48h".
func daysOrHours(text string) (time.Duration, bool) {
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}} {
		if number, is := strings.CutSuffix(text, unit.name); is {
			n, err := strconv.ParseUint(number, 10, 32)
			if err != nil || time.Duration(n) > longestAge/unit.length {
				return 0, false
			}
			return time.Duration(n) * unit.length, true
		}
	}
	return 0, false
}

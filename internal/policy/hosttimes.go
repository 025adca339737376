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
func reclaimField() FormKey[HostPart] {
	return FormKey[HostPart]{
		Name: "reclaim", Doc: "How long the memory in use of a group may take to fall below a lower limit, 1s to 10m; else nothing is changed.",
		Schema: JSONSchema{"type": "string", "default": "30s", "examples": []any{"30s", "2m"}},
		Read: func(v Item, h *HostPart) {
			const hint = "write seconds or minutes: 30s, 2m"
			text, ok := v.Text()
			if !ok {
				return
			}
			switch length, err := time.ParseDuration(text); {
			case err != nil:
				v.Fail(hint, "host.reclaim: %q is not a length of time", text)
			case length < shortestReclaim || length > longestReclaim:
				v.Fail(hint, "host.reclaim: %s is not between %s and %s", text, shortestReclaim, longestReclaim)
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
func historyField() FormKey[HostPart] {
	history := Form[History]{
		Name: "host.history",
		Keys: []FormKey[History]{
			{
				Name: "entries", Doc: "How many entries of the history are kept, at least 10; older ones go.", Schema: JSONSchema{"type": "integer", "minimum": fewestEntries, "maximum": mostEntries},
				Read: func(v Item, h *History) {
					if n, ok := v.Number("a number of entries", fewestEntries, mostEntries); ok {
						h.Entries = int(n)
					}
				},
			},
			{
				Name: "age", Doc: "How old an entry of the history may become, in days or hours: 400d, 48h; at least a day.", Schema: JSONSchema{"type": "string", "pattern": `^[0-9]+(d|h)$`, "examples": []any{"400d"}},
				Read: func(v Item, h *History) {
					text, ok := v.Text()
					if !ok {
						return
					}
					age, ok := daysOrHours(text)
					if !ok || age < shortestAge || age > longestAge {
						v.Fail("write days or hours: 400d, 48h", "host.history.age: %q is no age between a day and a hundred years", text)
						return
					}
					h.Age = age
				},
			},
		},
	}
	return FormKey[HostPart]{
		Name: "history", Doc: "How much of the history is kept, and with it of earlier revisions; all of it, up to 8 MiB, unless named.", Schema: history.Schema(),
		Read: func(v Item, h *HostPart) { history.Read(v, "host.history.", &h.History) },
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

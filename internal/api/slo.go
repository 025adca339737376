package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/policy"
)

// SLO is what a database is promised (`slo:` of the policy), how that goes, and what is done for it.
type SLO struct {
	Group  string `json:"group"`
	Mode   string `json:"mode"`   // "off", "advise" or "act"
	Signal string `json:"signal"` // "p95", "heartbeat", "waits" or "work"
	// Target and Value are in the unit of the signal: seconds, a part of its time, units of work in a second. Value is
	// that of the last look; nil while it is not known, and Unknown says why.
	Target  float64  `json:"target"`
	Value   *float64 `json:"value,omitempty"`
	Unknown string   `json:"unknown,omitempty"`
	// Slack is how far the value is from the target, as a part of it: below 0 the target is missed.
	Slack *float64 `json:"slack,omitempty"`
	// Windows counts those of 5 s whose value was known since the agent started, and Missed those of them that were
	// above the target at one look or more.
	Windows int64 `json:"windows"`
	Missed  int64 `json:"missed"`
	// Held are the limits that are lowered for it.
	Held []SLOHeld `json:"held,omitempty"`
	// Did is what was done last, or said, and why; At is when.
	Did string    `json:"did,omitempty"`
	At  time.Time `json:"at,omitzero"`
	// Error is why the limits that Held names could not be put in force.
	Error string `json:"error,omitempty"`
}

// SLOHeld is a limit that is lowered for a database.
type SLOHeld struct {
	Limit  string `json:"limit"` // "reports:cpu.limit"
	On     string `json:"on,omitempty"`
	Value  string `json:"value"`  // as `set` takes it
	Policy string `json:"policy"` // what the policy gives
	// Ends is when the group would end at the pace of the last minute, and Read which part of the directory Of it has
	// read from disks. Unknown is why Ends is not known.
	Ends    *time.Time `json:"ends,omitempty"`
	Read    *float64   `json:"read,omitempty"`
	Of      string     `json:"of,omitempty"`
	Unknown string     `json:"end_unknown,omitempty"`
}

// text is the limit with what is known of the end, in one line.
func (h *SLOHeld) text() string {
	text := h.Limit
	if h.On != "" {
		text += " on " + h.On
	}
	text += fmt.Sprintf("=%s (policy: %s", h.Value, h.Policy)
	switch {
	case h.Ends != nil:
		text += "; ends about " + Moment(*h.Ends, time.Now())
	case h.Unknown != "":
		text += "; when it ends is not known: " + h.Unknown
	}
	if h.Read != nil {
		text += fmt.Sprintf(", %.0f %% of %s read", 100**h.Read, h.Of)
	}
	return text + ")"
}

// Moment is a time to come for people, of a day from now on with its date.
func Moment(at, now time.Time) string {
	if at.Sub(now) > 20*time.Hour {
		return at.Local().Format("2006-01-02 15:04")
	}
	return at.Local().Format("15:04")
}

// Amount is a value of a signal for people: "12.5 ms", "4.1 %", "310/s".
func (s *SLO) Amount(v float64) string {
	switch s.Signal {
	case "waits":
		return strconv.FormatFloat(100*v, 'f', 1, 64) + " %"
	case "work":
		return strconv.FormatFloat(v, 'f', 0, 64) + "/s"
	}
	return time.Duration(v * float64(time.Second)).Round(10 * time.Microsecond).String()
}

// Text is all of it in one line.
func (s *SLO) Text() string {
	text := fmt.Sprintf("slo of %s (%s): %s", s.Group, s.Mode, s.Signal)
	switch {
	case s.Mode == "off":
		text += " " + s.Amount(s.Target) + " is not watched"
	case s.Value == nil:
		text += " not known (" + s.Unknown + "), target " + s.Amount(s.Target)
	default:
		text += fmt.Sprintf(" %s, target %s, slack %.0f %%; %s of %d missed", s.Amount(*s.Value), s.Amount(s.Target),
			100**s.Slack, policy.Counted(int(s.Missed), "window"), s.Windows)
	}
	var held []string
	for i := range s.Held {
		held = append(held, s.Held[i].text())
	}
	if held != nil {
		text += "; holds " + strings.Join(held, ", ")
	}
	if s.Did != "" {
		text += "; " + s.At.Local().Format(time.TimeOnly) + " " + s.Did
	}
	if s.Error != "" {
		text += "; NOT IN FORCE: " + s.Error
	}
	return text
}

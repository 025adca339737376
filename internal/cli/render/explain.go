package render

import (
	"io"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/classify"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy"
)

// Explanation prints why a process is where it is, and which limits reach it.
func Explanation(out io.Writer, e *inspect.Explanation) {
	Printf(out, "process %d (%s): ", e.Process.PID, e.Process.Comm)
	switch {
	case e.Group == "":
		Printf(out, "in no group: %s\n", e.Reason)
	case e.Placed:
		Printf(out, "in group %s, by the %s %s\n", e.Group, e.By, winner(e))
	default:
		Printf(out, "belongs to group %s, by the %s %s, and is not placed%s\n", e.Group, e.By, winner(e),
			unplaced(e))
	}
	if w := e.When; w != nil {
		Printf(out, "placed at %s, %s after its exec or change of user, %s\n", w.At.Local().Format(time.DateTime),
			w.Took.Round(time.Microsecond), w.How)
	}
	if e.Helper != "" {
		Println(out, e.Helper)
	}
	printCharges(out, e)
	w := newTable(out, "rule of group", "rule", "matches", "score", "why")
	for _, t := range e.Attempts {
		Printf(w, "%s\t%s\t%s\t%d\t%s\n", dash(t.Rule.Group), t.Rule.Text, yesNo(t.Matched), t.Score, t.Why)
	}
	w.flush()
	for _, level := range e.Levels {
		Printf(out, "limits of group %s\n", level.Group)
		if !printLimits(out, level.Limits) {
			Println(out, "  none")
		}
	}
	printOutside(out, e.Sockets)
	if e.Watched == 0 {
		return
	}
	Println(out)
	for _, b := range e.Biting {
		key := string(b.Key)
		if b.On != "" {
			key += " on " + b.On
		}
		Printf(out, "BITING: %s of group %s: %s (watched for %s)\n", key, b.Group, b.How, e.Watched)
	}
	if len(e.Biting) == 0 {
		Printf(out, "none of these limits held it back in the last %s\n", e.Watched)
	}
}

// printCharges says which groups hold the memory of a process, or what may be held elsewhere.
func printCharges(out io.Writer, e *inspect.Explanation) {
	if e.Charges == nil {
		if e.When != nil && e.When.Resident > 0 {
			Printf(out, "at most %s of its memory was charged before that and may stay charged where it was; "+
				"--exact tells\n", policy.Bytes(e.When.Resident).Human())
		}
		Println(out)
		return
	}
	Println(out)
	w := newTable(out, "memory", "charged to", "")
	for _, c := range e.Charges {
		what := "elsewhere: the limits of its group do not see it"
		switch {
		case c.Own:
			what = "where it is"
		case c.Dir == "":
			what = "no group"
		}
		Printf(w, "%s\t%s\t%s\n", policy.Bytes(c.Bytes).Human(), dash(c.Dir), what)
	}
	w.flush()
}

// unplaced says why a member is not where it belongs.
func unplaced(e *inspect.Explanation) string {
	if e.Reason == "" {
		return ": it is outside now; `bulkhead apply` or the agent's next look brings it in"
	}
	return ": " + e.Reason
}

// winner is the rule or the pin that decided: of those that match, the most specific one of the group.
func winner(e *inspect.Explanation) string {
	best, text := -1, ""
	for _, t := range e.Attempts {
		if !t.Matched || t.Rule.Group != e.Group || e.Group == "" {
			continue
		}
		if e.By == classify.ByPin {
			return t.Why
		}
		if t.Score > best {
			best, text = t.Score, t.Rule.Text
		}
	}
	return text
}

type explanationJSON struct {
	PID      int                   `json:"pid"`
	Comm     string                `json:"comm"`
	Exe      string                `json:"exe"`
	Args     []string              `json:"args"`
	UID      int                   `json:"uid"`
	Group    string                `json:"group,omitempty"`
	By       string                `json:"by,omitempty"`   // "rule" or "pin"
	Rule     string                `json:"rule,omitempty"` // the one that decided
	Placed   bool                  `json:"placed"`
	Reason   string                `json:"reason,omitempty"` // why it is in no group
	Helper   string                `json:"helper,omitempty"` // whom it serves, for a helper program
	Cgroups  map[string]string     `json:"cgroups"`          // where it is, by hierarchy
	Attempts []attemptJSON         `json:"attempts"`
	Levels   []inspect.LevelLimits `json:"levels"`
	// how it came to be placed; not there when no agent saw it come
	When    *api.PlacedAt       `json:"when,omitempty"`
	Biting  []inspect.Throttled `json:"biting"`            // what held one of the levels back while that was watched
	Watched int64               `json:"watched_ns"`        // 0: nothing was watched
	Charges []inspect.Charge    `json:"charges,omitempty"` // with --exact
}

type attemptJSON struct {
	Group   string `json:"group,omitempty"`
	Rule    string `json:"rule"`
	Matched bool   `json:"matched"`
	Score   int    `json:"score"`
	Why     string `json:"why"`
}

// ExplanationView is the JSON of explain.
func ExplanationView(e *inspect.Explanation) explanationJSON {
	v := explanationJSON{
		PID: e.Process.PID, Comm: e.Process.Comm, Exe: e.Process.Exe, Args: OrEmpty(e.Process.Args), UID: e.Process.UID,
		Group: e.Group, By: e.By, Rule: winner(e), Placed: e.Placed, Reason: e.Reason, Helper: e.Helper,
		Cgroups:  e.Process.Cgroups,
		Attempts: []attemptJSON{}, Levels: OrEmpty(e.Levels),
		When: e.When, Biting: OrEmpty(e.Biting), Watched: e.Watched.Nanoseconds(), Charges: e.Charges,
	}
	for _, t := range e.Attempts {
		v.Attempts = append(v.Attempts, attemptJSON{Group: t.Rule.Group, Rule: t.Rule.Text, Matched: t.Matched,
			Score: t.Score, Why: t.Why})
	}
	return v
}

package state

import (
	"fmt"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// Applied is the policy in force: the agent enforces this copy, never an unapplied edit.
type Applied struct {
	Revision int             `json:"revision"`
	Sources  []policy.Source `json:"sources"`
	At       time.Time       `json:"at"`
	By       string          `json:"by"`
	Reason   string          `json:"reason,omitempty"`
	// Like is the revision that a rollback went back to and this one repeats; 0 for one of its own.
	Like int `json:"like,omitempty"`
	// Flat says that a policy without a root group was applied without one. Earlier versions put the groups of such a
	// policy below a root group "bulkhead"; there they stay until the next apply.
	Flat bool `json:"flat,omitempty"`
}

// FormerRoot is the root group that earlier versions made when a policy named none.
const FormerRoot = "bulkhead"

// Root is the root group that the groups of a policy without one are below: FormerRoot when an earlier version applied
// it, else "".
func (a *Applied) Root() string {
	if a == nil || a.Flat {
		return ""
	}
	return FormerRoot
}

// Override is a change laid over the policy by `set`, until its end or `unset`.
type Override struct {
	ID     int        `json:"id"`
	Group  string     `json:"group"`
	Key    policy.Key `json:"key"`
	On     string     `json:"on,omitempty"`
	Text   string     `json:"text"` // the assignment as given: "mysql3306:cpu.limit=8"
	Ends   time.Time  `json:"ends,omitzero"`
	At     time.Time  `json:"at"`
	By     string     `json:"by"`
	Reason string     `json:"reason,omitempty"`
	Owner  int        `json:"owner,omitempty"` // user id of the owner of the group who set it; 0 is root
}

// BySLO is who sets overrides for what databases are promised (`slo:` of the policy).
const BySLO = "slo loop"

// IsSLO says whether the override is one of the loop's. A person's has an owner's or root's name.
func (o Override) IsSLO() bool { return o.By == BySLO }

// Ended says whether the override's time is over.
func (o Override) Ended(now time.Time) bool { return !o.Ends.IsZero() && !now.Before(o.Ends) }

// Origin says who has set the override, when and why.
func (o Override) Origin() string {
	text := fmt.Sprintf("override %d, set %s by %s", o.ID, o.At.Local().Format(time.DateTime), o.By)
	if o.Reason != "" {
		text += ": " + o.Reason
	}
	return text
}

// Describe says the override in one line.
func (o Override) Describe() string {
	text := fmt.Sprintf("override %d: %s", o.ID, o.Text)
	if o.On != "" {
		text += " on " + o.On
	}
	if !o.Ends.IsZero() {
		text += " until " + o.Ends.Local().Format(time.DateTime)
	}
	return text
}

// SameLimit says whether another override is for the same limit. The newer of the two replaces the other.
func (o Override) SameLimit(other Override) bool {
	return o.Group == other.Group && o.Key == other.Key && o.On == other.On
}

// Numbers are the highest numbers that were ever given.
type Numbers struct {
	Override int `json:"override"`
}

// Pin holds a process in a group against the rules, because `run` started it there or `move` put
// it there.
type Pin struct {
	Process procfs.ID `json:"process"`
	Boot    string    `json:"boot"`
	Group   string    `json:"group"`
	By      string    `json:"by"`              // "run" or "move", with the user
	Alone   bool      `json:"alone,omitempty"` // descendants do not follow
	Ends    time.Time `json:"ends,omitzero"`
	// Home is, of a command of `run`, where it was called from, by hierarchy: there it goes back to.
	Home map[string]string `json:"home,omitempty"`
}

// Freeze is a group whose processes are stopped until Ends.
type Freeze struct {
	Group string    `json:"group"`
	Ends  time.Time `json:"ends"`
	// EndsAfter is Ends in the time since the boot (procfs.SinceBoot), which nobody sets; 0 in what an earlier version
	// recorded.
	EndsAfter time.Duration `json:"ends_after,omitzero"`
	By        string        `json:"by"`
	Reason    string        `json:"reason,omitempty"`
	Boot      string        `json:"boot"`
	Owner     int           `json:"owner,omitempty"` // user id of the owner of the group who began it; 0 is root
}

// Ended says whether the freeze's time is over, by the clock or, since that may be set back, by the time since the
// boot.
func (f Freeze) Ended(now time.Time, sinceBoot time.Duration) bool {
	return !now.Before(f.Ends) || f.EndsAfter > 0 && sinceBoot >= f.EndsAfter
}

// Until is the end, for people.
func (f Freeze) Until() string { return f.Ends.Local().Format(time.DateTime) }

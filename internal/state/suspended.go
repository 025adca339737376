package state

import (
	"cmp"
	"fmt"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/policy"
)

// Lifted is a memory.high that was lifted because the group did nothing any more but wait for memory.
type Lifted struct {
	Group    string    `json:"group"`
	High     string    `json:"high"` // what it was, as the policy writes it
	At       time.Time `json:"at"`
	Why      string    `json:"why"`
	Revision int       `json:"revision"` // of the policy that it holds for
}

// String says it in one line.
func (l Lifted) String() string {
	return fmt.Sprintf("memory.high %s of %s at %s, until the next apply or `set %s:memory.high=…`: %s",
		l.High, l.Group, l.At.Local().Format(time.DateTime), l.Group, l.Why)
}

// Skipped is an open window that is not laid over the policy, because the guard saw it do harm. It holds until the
// window closes or the next apply.
type Skipped struct {
	Schedule string    `json:"schedule"`
	Revision int       `json:"revision"`
	Until    time.Time `json:"until"` // when the window closes
	Why      string    `json:"why"`
}

// String says it for people.
func (k Skipped) String() string {
	return fmt.Sprintf("schedule %s until %s: %s", k.Schedule, k.Until.Local().Format(time.DateTime), k.Why)
}

// Conflict is a limit that somebody else has changed since bulkhead put it in force.
type Conflict struct {
	Group string     `json:"group"`
	Key   policy.Key `json:"key"`
	change.Target
	// Dir, File and Device are those of a target that is a file. Earlier versions wrote them alone.
	Dir    cgroup.Dir `json:"dir"`
	File   string     `json:"file"`
	Device string     `json:"device,omitempty"`
	Wanted string     `json:"wanted"` // as the kernel writes it
	Found  string     `json:"found"`
	By     string     `json:"by,omitempty"` // who may have done it; "" when nothing tells
	First  time.Time  `json:"first"`
	Last   time.Time  `json:"last"`
	Count  int        `json:"count"` // how often since First
	// Left says that the value stays as it was found, until the next apply; Until that it stays so long.
	Left  bool      `json:"left,omitempty"`
	Until time.Time `json:"until,omitzero"`
	Boot  string    `json:"boot"`
}

// Where is the target whose value it is.
func (c Conflict) Where() change.Target {
	if c.Kind == "" {
		return cgroup.File{Dir: c.Dir, Name: c.File, Key: c.Device}.Target()
	}
	return c.Target
}

// Stays says whether the value that was found is left in place for now.
func (c Conflict) Stays(now time.Time) bool { return c.Left || now.Before(c.Until) }

// String says it in one line.
func (c Conflict) String() string {
	key := string(c.Key)
	if c.Device != "" {
		key += " of device " + c.Device
	}
	times := ""
	if c.Count > 1 {
		times = fmt.Sprintf(", %d times since %s", c.Count, c.First.Local().Format(time.DateTime))
	}
	what := "put right"
	switch {
	case c.Left:
		what = "left as it is until the next apply"
	case !c.Until.IsZero():
		what = "put right again after " + c.Until.Local().Format(time.TimeOnly) + ", as it comes too often"
	}
	where := c.Target.String()
	if c.File != "" {
		where = c.File + " of " + c.Dir.String()
	}
	return fmt.Sprintf("%s %s: %s held %q instead of %q at %s%s, by %s; %s",
		cmp.Or(c.Group, "(root group)"), key, where, c.Found, c.Wanted,
		c.Last.Local().Format(time.DateTime), times, cmp.Or(c.By, "an unknown process"), what)
}

package state

import (
	"fmt"
	"math"
	"slices"
	"time"

	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// Trial is a change in force that is undone unless somebody confirms it in time, or when the policy's guard sees it
// do harm.
type Trial struct {
	ID       string    `json:"id"` // "" is no trial
	Verb     string    `json:"verb"`
	What     string    `json:"what,omitempty"`
	By       string    `json:"by,omitempty"`
	Revision int       `json:"revision,omitempty"`
	At       time.Time `json:"at"`
	// Confirm is when it is undone unless it was confirmed; zero: nobody need confirm it.
	Confirm time.Time `json:"confirm,omitzero"`
	// Canary is the group that goes before the rest of a policy, which is applied when it did well; "" is no canary.
	Canary string `json:"canary,omitempty"`
	// Guard is what the policy's guard watches; nil when it does not, or does no more.
	Guard *Watch `json:"guard,omitempty"`
	// Owner is the user id of the owner of a group who made it; 0 is root, or a schedule.
	Owner int `json:"owner,omitempty"`
	// Watchdog is the process that undoes it in time, the agent alive or not.
	Watchdog procfs.ID `json:"watchdog,omitzero"`
}

// Before is what was in force before a change on trial.
type Before struct {
	Trial     string          `json:"trial"`   // its id
	Applied   *Applied        `json:"applied"` // nil: nothing
	Overrides []Override      `json:"overrides"`
	Released  map[string]bool `json:"released"`
	Lifted    []Lifted        `json:"lifted,omitempty"`
	Windows   []string        `json:"windows,omitempty"` // schedules that were open
	Tuned     []Tuned         `json:"tuned,omitempty"`
}

// Named is the change in words.
func (t *Trial) Named() string {
	return journal.Entry{Verb: t.Verb, Revision: t.Revision}.Title() + " by " + t.By
}

// Overdue says whether the time to confirm it is over. It is, too, when the clock was set back to before the change.
func (t *Trial) Overdue(now time.Time) bool {
	return !t.Confirm.IsZero() && (!now.Before(t.Confirm) || now.Before(t.At.Add(-time.Minute)))
}

// Postpone shifts all its deadlines by d.
func (t *Trial) Postpone(d time.Duration) {
	t.At = t.At.Add(d)
	if !t.Confirm.IsZero() {
		t.Confirm = t.Confirm.Add(d)
	}
	if t.Guard != nil {
		t.Guard.Until = t.Guard.Until.Add(d)
	}
}

// Late is why an overdue change is undone.
func (t *Trial) Late() string {
	return "nobody confirmed it by " + t.Confirm.Local().Format(time.DateTime)
}

// Canary is a policy that waits for one of its groups: that group has its limits already, the others follow when it
// did well.
type Canary struct {
	Group   string          `json:"group"` // "" is no canary
	Sources []policy.Source `json:"sources,omitempty"`
	By      string          `json:"by,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	Force   bool            `json:"force,omitempty"`
	// ConfirmWithin is for the whole of it.
	ConfirmWithin time.Duration `json:"confirm_within,omitempty"`
	Migrate       bool          `json:"migrate,omitempty"`
}

// Watch is what a guard asks after a change, and what it keeps of the time before.
type Watch struct {
	Until   time.Time           `json:"until"`
	For     time.Duration       `json:"for"`
	Window  time.Duration       `json:"window"`
	Before  time.Duration       `json:"before"`
	Clauses []policy.Guarded    `json:"clauses"`
	Groups  map[string]Baseline `json:"groups"`
	// Domains are those of SELinux that must be denied nothing from Since on.
	Domains []string  `json:"domains,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// Baseline is one group before a change.
type Baseline struct {
	Kills int64 `json:"oom_kills"` // so far
	// Work in a second; nil when nothing is known of it, and then no fall is seen.
	Work *Work `json:"work,omitempty"`
	// Spread is how far windows of that time were from it, and Windows how many there were.
	Spread  Work `json:"spread,omitzero"`
	Windows int  `json:"windows,omitempty"`
}

// Work is what a group does in a second, by the database's own counter or by the kernel's.
type Work struct {
	Counter string  `json:"counter,omitempty"` // of the database, which the policy's dsn names; "" is the kernel's two
	DB      float64 `json:"db,omitempty"`
	CPU     float64 `json:"cpu,omitempty"` // cores
	IO      float64 `json:"io,omitempty"`  // operations of disks
}

// Less than this is no work that could fall: an idle database, whose figures are noise.
const (
	leastDB  = 1.0  // per second
	leastCPU = 0.02 // cores
	leastIO  = 5.0  // operations per second
)

// LeastWindows is of how many windows before a change the usual work and its spread can be told.
const LeastWindows = 5

// TakeIn makes the median of windows the usual work, and their median absolute deviation its spread. It says whether
// there were enough, and enough was done in them.
func (b *Baseline) TakeIn(windows []Work) bool {
	if len(windows) < LeastWindows {
		return false
	}
	median := func(of func(Work) float64) float64 {
		var all []float64
		for _, w := range windows {
			all = append(all, of(w))
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	db, cpu, io := func(w Work) float64 { return w.DB }, func(w Work) float64 { return w.CPU },
		func(w Work) float64 { return w.IO }
	usual := Work{Counter: windows[0].Counter, DB: median(db), CPU: median(cpu), IO: median(io)}
	if _, _, enough := usual.Fell(usual); !enough {
		return false
	}
	b.Work, b.Windows = &usual, len(windows)
	b.Spread = Work{DB: median(func(w Work) float64 { return math.Abs(w.DB - usual.DB) }),
		CPU: median(func(w Work) float64 { return math.Abs(w.CPU - usual.CPU) }),
		IO:  median(func(w Work) float64 { return math.Abs(w.IO - usual.IO) })}
	return true
}

// beyond is how many median absolute deviations below the median are no chance: three standard deviations of figures
// that are spread normally.
const beyond = 3 * 1.4826

// Unusual says whether as little work as that is outside of the spread before; of the kernel's counters all have to be.
func (b *Baseline) Unusual(w Work) bool {
	low := func(usual, spread, now float64) bool { return usual-now > beyond*spread }
	if b.Work.Counter != "" {
		return low(b.Work.DB, b.Spread.DB, w.DB)
	}
	return (b.Work.CPU < leastCPU || low(b.Work.CPU, b.Spread.CPU, w.CPU)) &&
		(b.Work.IO < leastIO || low(b.Work.IO, b.Spread.IO, w.IO))
}

// Sureness says how alike the windows before were: half of them are within the median absolute deviation.
func (b *Baseline) Sureness() string {
	share := 0.0
	for _, f := range []struct{ usual, spread, least float64 }{
		{b.Work.DB, b.Spread.DB, leastDB}, {b.Work.CPU, b.Spread.CPU, leastCPU}, {b.Work.IO, b.Spread.IO, leastIO},
	} {
		if f.usual >= f.least {
			share = max(share, f.spread/f.usual)
		}
	}
	return fmt.Sprintf("half of the %d windows before were within %.0f %% of their median", b.Windows, 100*share)
}

// Fell says by how much work has fallen against the time before, 0 to 1, and which figures say so; ok is false when
// there was too little work to tell. Of the kernel's counters the one counts that fell least: a warm cache, or a
// limit on one resource alone, is no harm yet.
func (w Work) Fell(before Work) (share float64, how string, ok bool) {
	if before.Counter != "" {
		if before.DB < leastDB {
			return 0, "", false
		}
		how = fmt.Sprintf("%.1f to %.1f %s per second, by the database", before.DB, w.DB, before.Counter)
		return 1 - w.DB/before.DB, how, true
	}
	share = 2
	if before.CPU >= leastCPU {
		share, how = 1-w.CPU/before.CPU, fmt.Sprintf("%.2f to %.2f cores, by the kernel", before.CPU, w.CPU)
	}
	if before.IO >= leastIO {
		if f := 1 - w.IO/before.IO; f < share {
			share, how = f, fmt.Sprintf("%.0f to %.0f disk operations per second, by the kernel", before.IO, w.IO)
		}
	}
	return share, how, share <= 1
}

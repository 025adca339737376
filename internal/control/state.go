package control

import (
	"encoding/json"
	"fmt"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
)

// Names of the documents in the state directory.
const (
	docApplied   = "applied"
	docOverrides = "overrides"
	docReleased  = "released"
	docPins      = "pins"
	docFreezes   = "freezes"
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

// ended says whether the override's time is over.
func (o Override) ended(now time.Time) bool { return !o.Ends.IsZero() && !now.Before(o.Ends) }

// Pin holds a process in a group against the rules, because `run` started it there or `move` put
// it there.
type Pin struct {
	Process host.ProcID `json:"process"`
	Boot    string      `json:"boot"`
	Group   string      `json:"group"`
	By      string      `json:"by"`              // "run" or "move", with the user
	Alone   bool        `json:"alone,omitempty"` // descendants do not follow
	Ends    time.Time   `json:"ends,omitzero"`
	// Home is, of a command of `run`, where it was called from, by hierarchy: there it goes back to.
	Home map[string]string `json:"home,omitempty"`
}

// Freeze is a group whose processes are stopped until Ends.
type Freeze struct {
	Group  string    `json:"group"`
	Ends   time.Time `json:"ends"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Boot   string    `json:"boot"`
	Owner  int       `json:"owner,omitempty"` // user id of the owner of the group who began it; 0 is root
}

// state is every document at once, as a verb sees it.
type state struct {
	applied   *Applied // nil before the first apply
	overrides []Override
	released  map[string]bool // by group path; "" is everything
	pins      []Pin
	ended     []Pin // past their end, of processes that live: they go back
	freezes   []Freeze
	lifted    []Lifted
	skipped   []Skipped
	conflicts []Conflict
	windows   []string // schedules that the history says are open
	canary    *Canary  // nil when there is none
}

// loadState reads the documents. Freezes and pins of another boot, pins of processes that are gone,
// and overrides whose end has passed are left out: they hold nothing any more.
func (c *Controller) loadState(boot string, now time.Time) (*state, error) {
	s := &state{released: map[string]bool{}}
	var a Applied
	found, err := c.Store.Load(docApplied, &a)
	if err != nil {
		return nil, fail(CodeFailed, "`bulkhead apply` puts it aside and writes a new one", "%w", err)
	}
	if found && a.Revision > 0 { // else the first one was undone
		s.applied = &a
	}
	var overrides []Override
	var pins []Pin
	var lifted []Lifted
	var skipped []Skipped
	var canary Canary
	for name, doc := range map[string]any{docOverrides: &overrides, docReleased: &s.released, docPins: &pins, docFreezes: &s.freezes, docWindows: &s.windows, docLifted: &lifted, docSkipped: &skipped, docConflicts: &s.conflicts, docCanary: &canary} {
		if _, err := c.Store.Load(name, doc); err != nil {
			return nil, fail(CodeFailed, "`bulkhead apply` puts it aside and goes on without", "%w", err)
		}
	}
	if s.released == nil {
		s.released = map[string]bool{}
	}
	if canary.Group != "" {
		s.canary = &canary
	}
	s.freezes, s.conflicts = ofBoot(s.freezes, boot), ofBootConflicts(s.conflicts, boot)
	s.keep(overrides, lifted, skipped, now)
	for _, p := range pins {
		switch {
		case p.Boot != boot || !c.Host.Alive(p.Process):
		case p.Ends.IsZero() || now.Before(p.Ends):
			s.pins = append(s.pins, p)
		default:
			s.ended = append(s.ended, p)
		}
	}
	return s, nil
}

// keep takes over what still holds: what an apply has replaced, and what has ended, does not.
func (s *state) keep(overrides []Override, lifted []Lifted, skipped []Skipped, now time.Time) {
	for _, l := range lifted {
		if s.applied != nil && l.Revision == s.applied.Revision {
			s.lifted = append(s.lifted, l)
		}
	}
	for _, k := range skipped {
		if s.applied != nil && k.Revision == s.applied.Revision && now.Before(k.Until) {
			s.skipped = append(s.skipped, k)
		}
	}
	for _, o := range overrides {
		if !o.ended(now) {
			s.overrides = append(s.overrides, o)
		}
	}
}

// Standing says which policy an agent of this state directory enforces.
func (c *Controller) Standing() string {
	_, s, err := c.recorded()
	switch {
	case err != nil:
		return fmt.Sprintf("nothing: %v", err)
	case s.applied == nil:
		return "nothing: no policy is applied yet"
	case s.released[""]:
		return fmt.Sprintf("nothing: revision %d is released until the next apply", s.applied.Revision)
	}
	return fmt.Sprintf("revision %d", s.applied.Revision)
}

// look is a look through sources with everything recorded laid over them.
func (s *state) look(sources []policy.Source) look {
	return look{sources: sources, overrides: s.overrides, released: s.released, pins: s.pins, ended: s.ended, lifted: s.lifted, skipped: s.skipped, conflicts: s.conflicts, canary: s.canary}
}

// mend puts damaged documents aside, with a warning each, so that apply and release, the two ways out, work
// without them. It needs the lock.
func (c *Controller) mend() error {
	var any json.RawMessage
	for _, name := range []string{docApplied, docOverrides, docReleased, docPins, docFreezes, docNetwork, docWindows, docTrial, docBefore, docCanary, docLifted, docSkipped, docConflicts, docGone} {
		if err := c.loadOrSetAside(name, &any); err != nil {
			return fail(CodeFailed, "", "%w", err)
		}
	}
	return nil
}

// recorded looks at the host and reads the documents.
func (c *Controller) recorded() (*host.Facts, *state, error) { return c.recordedAt(time.Time{}) }

// recordedAt is recorded with what has not ended at a time; zero is now.
func (c *Controller) recordedAt(at time.Time) (*host.Facts, *state, error) {
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, nil, fail(CodeFailed, "", "look at the host: %w", err)
	}
	s, err := c.loadState(facts.BootID, c.or(at))
	return facts, s, err
}

// nextOverrideID is one more than the largest in use.
func (s *state) nextOverrideID() int {
	next := 1
	for _, o := range s.overrides {
		next = max(next, o.ID+1)
	}
	return next
}

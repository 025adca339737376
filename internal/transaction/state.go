package transaction

import (
	"fmt"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// LoadState reads the documents that each pass needs, without what does not hold any more.
func (c *Controller) LoadState(boot string, now time.Time) (*state.Documents, error) {
	d, err := state.Load(c.Store)
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "`bulkhead apply` puts it aside and goes on without", "%w", err)
	}
	return d.Prune(state.Moment{Boot: boot, Now: now, Alive: c.Host.Proc.Alive}), nil
}

// Standing says which policy an agent of this state directory enforces.
func Standing(c *Controller) string {
	boot, err := audit.Boot(c.Host.Root)
	if err != nil {
		return fmt.Sprintf("nothing: %v", err)
	}
	s, err := c.LoadState(boot, c.Now())
	switch {
	case err != nil:
		return fmt.Sprintf("nothing: %v", err)
	case s.Applied == nil:
		return "nothing: no policy is applied yet"
	case s.Released[""]:
		return fmt.Sprintf("nothing: revision %d is released until the next apply", s.Applied.Revision)
	}
	return fmt.Sprintf("revision %d", s.Applied.Revision)
}

// OptionsOver is a look through sources with everything recorded laid over them.
func OptionsOver(s *state.Documents, sources []policy.Source) ViewOptions {
	return ViewOptions{Released: s.Released, Conflicts: s.Conflicts, Options: snapshot.Options{
		Sources: sources, Root: s.Applied.Root(), Overrides: s.Overrides, Pins: s.Pins, Ended: s.Ended,
		Lifted: s.Lifted, Skipped: s.Skipped, Canary: s.Canary, Tuned: s.Tuned,
	}}
}

// Recorded looks at the host and reads the documents.
func (c *Controller) Recorded() (*host.Facts, *state.Documents, error) {
	return RecordedAt(c, time.Time{})
}

// RecordedAt is Recorded with what has not ended at a time; zero is now.
func RecordedAt(c *Controller, at time.Time) (*host.Facts, *state.Documents, error) {
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	s, err := c.LoadState(facts.BootID, c.or(at))
	return facts, s, err
}

// RefuseReleased refuses to change a group that holds no limits until the next apply.
func RefuseReleased(s *state.Documents, group string) error {
	if policy.Released(s.Released, group) {
		return api.Errorf(api.CodeFailed, "`bulkhead apply` governs it again",
			"group %q was released: it holds no limits", group)
	}
	return nil
}

// StateOrNone is the recorded state, or an empty one: a damaged document must not stand between the DBA and the way
// out.
func StateOrNone(c *Controller, boot string) *state.Documents {
	s, err := c.LoadState(boot, time.Now())
	if err != nil {
		c.Log.Warn("releasing without the recorded state", "err", err)
		return &state.Documents{Released: map[string]bool{}}
	}
	return s
}

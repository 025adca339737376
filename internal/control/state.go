package control

import (
	"fmt"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// loadState reads the documents that each pass needs, without what does not hold any more.
func (c *Controller) loadState(boot string, now time.Time) (*state.Documents, error) {
	d, err := state.Load(c.Store)
	if err != nil {
		return nil, api.Errorf(api.CodeFailed, "`bulkhead apply` puts it aside and goes on without", "%w", err)
	}
	return d.Prune(state.Moment{Boot: boot, Now: now, Alive: c.Host.Proc.Alive}), nil
}

// Standing says which policy an agent of this state directory enforces.
func (c *Controller) Standing() string {
	_, s, err := c.recorded()
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

// lookOver is a look through sources with everything recorded laid over them.
func lookOver(s *state.Documents, sources []policy.Source) look {
	return look{
		sources: sources, root: s.Applied.Root(), overrides: s.Overrides, released: s.Released, pins: s.Pins,
		ended:  s.Ended,
		lifted: s.Lifted, skipped: s.Skipped, conflicts: s.Conflicts, canary: s.Canary,
	}
}

// recorded looks at the host and reads the documents.
func (c *Controller) recorded() (*host.Facts, *state.Documents, error) {
	return c.recordedAt(time.Time{})
}

// recordedAt is recorded with what has not ended at a time; zero is now.
func (c *Controller) recordedAt(at time.Time) (*host.Facts, *state.Documents, error) {
	facts, err := c.Host.Facts()
	if err != nil {
		return nil, nil, api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	s, err := c.loadState(facts.BootID, c.or(at))
	return facts, s, err
}

package control

import (
	"slices"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
)

// limitsDisks says whether a group has a limit on a device.
func limitsDisks(g classify.Group) bool {
	return slices.ContainsFunc(g.Settings, func(s policy.Setting) bool { return s.Dev != "" || s.Lost != "" })
}

// diskEvery is the shortest time between two looks at which disks there are. Limits are to follow a change within two
// seconds, and the full look that comes after it takes a part of these.
const diskEvery = 500 * time.Millisecond

// disksChanged says whether a disk came or went, or is stacked on others than at the last look, where the policy has
// limits for disks. It is called at every look and reads at most twice a second.
func (c *Reconciler) disksChanged(now time.Time) bool {
	v := c.memory.view
	if v == nil || !c.disks.due(now, diskEvery) {
		return false
	}
	if !slices.ContainsFunc(v.Classified.Groups, limitsDisks) {
		c.disks.text = ""
		return false
	}
	text, err := c.Host.Block.DiskShape()
	if err != nil {
		c.Log.Debug("which disks there are could not be told", "err", err)
		return false
	}
	return c.disks.differs(text)
}

// shape is a text that tells the disks, or the interfaces, apart from other ones, as it was when an agent looked last.
type shape struct {
	at   time.Time
	text string // "" before the first look
}

// due says whether it is time to look again.
func (s *shape) due(now time.Time, every time.Duration) bool {
	if now.Sub(s.at) < every {
		return false
	}
	s.at = now
	return true
}

// differs takes in what there is now and says whether it was otherwise before.
func (s *shape) differs(text string) bool {
	changed := s.text != "" && s.text != text
	s.text = text
	return changed
}

package reconcile

import (
	"slices"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/netshape"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
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

// linksEvery is how often an agent looks whether interfaces came, went or have another name.
const linksEvery = time.Second

// linksChanged says whether they did, where the policy has limits on interfaces.
func (c *Reconciler) linksChanged(now time.Time) bool {
	v := c.memory.view
	if v == nil || !c.IsHere() || !c.links.due(now, linksEvery) {
		return false
	}
	if !writesNetwork(c.memory.Parsed, v.Overrides) {
		c.links.text = ""
		return false
	}
	var text string
	if err := snapshot.WithNetwork(func(k *netshape.Kernel) (err error) {
		text, err = k.Shape()
		return err
	}); err != nil {
		c.Log.Debug("which interfaces there are could not be told", "err", err)
		return false
	}
	return c.links.differs(text)
}

// writesNetwork says whether a policy has limits on interfaces, be they there now or not.
func writesNetwork(p *policy.Policy, overrides []state.Override) bool {
	is := func(key policy.Key) bool { return strings.HasPrefix(string(key), "network.") }
	limits := func(all policy.Settings) bool {
		return slices.ContainsFunc(all, func(s policy.Setting) bool { return is(s.Key) })
	}
	return len(p.Host.Network) > 0 ||
		slices.ContainsFunc(overrides, func(o state.Override) bool { return is(o.Key) }) ||
		slices.ContainsFunc(p.Groups, func(g *policy.Group) bool { return limits(g.Settings) }) ||
		slices.ContainsFunc(p.Schedules, func(s policy.Schedule) bool {
			return slices.ContainsFunc(s.Set, func(set policy.Scheduled) bool { return limits(set.Settings) })
		})
}

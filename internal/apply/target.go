package apply

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// changeOf is what a step does to one target, in the words in which it is recorded.
func changeOf(s plan.Step) change.Change {
	c := change.Change{Target: s.Target, Old: s.Old, New: s.New, Undo: s.Undo}
	switch s.Op {
	case plan.OpMakeDir:
		c = change.Change{Target: s.Dir.Target(), New: cgroup.There}
	case plan.OpRemoveDir:
		c = change.Change{Target: s.Dir.Target(), Old: cgroup.There}
	case plan.OpWrite:
		c.Target = cgroup.File{Dir: s.Dir, Name: s.File, Key: s.Key}.Target()
		if s.Unit != "" {
			c.Do, c.Undo = systemd.Assigned(s.Set), systemd.Assigned(s.Unset)
		}
	case plan.OpMove:
		c.Target, c.New = cgroup.Membership(s.PID, s.Dir.Hierarchy), s.Dir.Path
	case plan.OpOOMScore:
		c.Target = s.PID.ScoreTarget()
	case plan.OpDropIn:
		c.Target = change.Target{Kind: unitfiles.KindDropIn, Addr: s.Unit}
	case plan.OpKeep:
		c.Target = change.Target{Kind: unitfiles.KindOverrides, Addr: s.Unit}
	case plan.OpRevert:
		c.Target = change.Target{Kind: unitfiles.KindOverrides, Addr: s.Unit}
		held := unitfiles.HeldFiles{Settings: s.Settings}
		if s.Kept != nil {
			held.Files = s.Kept.Overrides
		}
		c.New = held.String()
	case plan.OpNetwork:
		c = request.Of(*s.Net, s.NetUndo)
	}
	return c
}

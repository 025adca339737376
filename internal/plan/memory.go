package plan

import (
	"strconv"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// A memory limit between what cannot be reclaimed and what is charged now is reached in steps of an
// eighth of the way, but of at least 64 MiB: each write makes the kernel reclaim in the writer's context (v1 gives up
// with EBUSY, v2 goes on to the OOM killer), and a smaller bite is more likely to be found.
const (
	descentSteps = 8
	descentBite  = 64 << 20 // bytes
)

// isMemoryLimit says whether the row is the hard limit of memory: memory.max or memory.limit_in_bytes.
func isMemoryLimit(r *knob.Row) bool {
	return r.Controller == "memory" && len(r.Keys) == 1 && r.Keys[0] == policy.KeyMemoryMax
}

const finalReclaim = "memory that is reclaimed or swapped out comes back only when it is used again"

// lowerMemory lowers a hard limit, in steps where memory that is charged has to go.
func (p *planner) lowerMemory(dir cgroup.Dir, c knob.Change) {
	p.checkMemory(dir, c)
	last := p.writeStep(dir, c.Row, c.On, c.From, c.To)
	for _, text := range p.descent(dir, c) {
		step := p.writeStep(dir, c.Row, c.On, c.From, text)
		step.Risk = knob.RiskSlow
		step.Reason = last.Reason + "; in steps, so that the kernel can reclaim between them"
		p.addWrite(step)
		c.From = text
	}
	last.Old, last.Undo = c.From, c.Row.Reset(c.From)
	if p.isNew[dir] {
		last.Old = ""
	}
	if to := number(c.To); to >= 0 && p.o.Current[dir] > to {
		last.Final = finalReclaim
	}
	p.addWrite(last)
}

// descent gives the values to write before the last one, falling; nothing where nothing has to go.
func (p *planner) descent(dir cgroup.Dir, c knob.Change) []string {
	target, now := number(c.To), p.o.Current[dir]
	if target < 0 || now <= target || p.isNew[dir] {
		return nil
	}
	bite := max((now-target+descentSteps-1)/descentSteps, descentBite)
	page := max(p.in.Facts.PageSize, 4096)
	var values []string
	for at := now - bite; at > target; at -= bite {
		if from := number(c.From); from >= 0 && at >= from {
			continue
		}
		values = append(values, strconv.FormatInt(at-at%page, 10))
	}
	return values
}

// checkMemory refuses a limit that the group cannot get below: the kernel would answer with EBUSY on
// v1 and with the OOM killer on v2. What may be swapped out is taken off only where the policy says
// how much that is.
func (p *planner) checkMemory(dir cgroup.Dir, c knob.Change) {
	limit := number(c.To)
	if limit < 0 {
		return
	}
	group := p.groupOf(dir)
	swap := p.swapOf(group)
	room := policy.Bytes(limit + swap)
	hint := "raise memory.max, allow more swap, or use --force with --reason"
	with := ""
	if swap > 0 {
		with = " plus " + policy.Bytes(swap).Human() + " of swap"
	}
	if pinned := policy.Bytes(p.o.Pinned[dir]); pinned > room {
		p.refuse(group, hint, "memory.max %s%s is below the %s in %s that cannot be reclaimed (anonymous, shared and locked memory)",
			policy.Bytes(limit).Human(), with, pinned.Human(), dir)
		return
	}
	if held := policy.Bytes(p.heldBy(group)); held > room {
		p.refuse(group, hint, "memory.max %s%s is below the %s of anonymous and shared memory that the group's processes hold",
			policy.Bytes(limit).Human(), with, held.Human())
	}
}

// swapOf is the swap that the group's settings allow, at most what the host has.
func (p *planner) swapOf(group string) int64 {
	n := p.d.forest.byPath[group]
	if n == nil {
		return 0
	}
	if s, ok := n.settings.Get(policy.KeyMemorySwap, ""); ok {
		if swap, ok := s.Value.(policy.Bytes); ok {
			return min(int64(swap), p.in.Facts.SwapTotal)
		}
	}
	return 0
}

// heldBy is the memory that the processes of a group and of those below it hold.
func (p *planner) heldBy(group string) int64 {
	if p.held == nil {
		p.held = p.sumHeld()
	}
	return p.held[group]
}

// sumHeld adds up per group: private memory of every process, and of the shared memory the largest view
// of each group, because processes of one instance map the same segments.
func (p *planner) sumHeld() map[string]int64 {
	private, shared := make(map[string]int64), make(map[string]int64)
	for id, pl := range p.placed {
		part := p.sharedPart(id)
		private[pl.group] += p.o.Held[id] - part
		shared[pl.group] = max(shared[pl.group], part)
	}
	sums := make(map[string]int64, len(p.d.forest.nodes))
	for i := len(p.d.forest.nodes) - 1; i >= 0; i-- {
		n := p.d.forest.nodes[i]
		sums[n.path] += private[n.path] + shared[n.path]
		if n.parent != nil {
			sums[n.parent.path] += sums[n.path]
		}
	}
	return sums
}

func (p *planner) sharedPart(id host.ProcID) int64 {
	return min(p.o.HeldShared[id], p.o.Held[id])
}

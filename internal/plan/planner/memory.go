package planner

import (
	"cmp"
	"strconv"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/policy"
)

// A memory limit between what cannot be reclaimed and what is charged now is reached in steps of an eighth of the way,
// but of at least 64 MiB and, as long as that makes no more than 64 of them, at most 1 GiB: each write makes the kernel
// reclaim in the writer's context and nobody can stop it meanwhile, and a smaller bite is more likely to be found.
const (
	descentSteps = 8
	descentMost  = 64
	descentBite  = 64 << 20 // bytes
	descentLarge = 1 << 30  // bytes
)

// DefaultReclaim is how long the memory of a group may take to fall below a lower limit, unless host.reclaim says
// otherwise.
const DefaultReclaim = 30 * time.Second

const (
	fileMemsw       = "memory.memsw.limit_in_bytes"
	fileMemoryHigh  = "memory.high"
	fileMemoryUseV1 = "memory.usage_in_bytes"
	fileMemswUse    = "memory.memsw.usage_in_bytes"
	fileMemoryUseV2 = "memory.current"
)

// isMemoryLimit says whether the row is the hard limit of memory: memory.max or memory.limit_in_bytes.
func isMemoryLimit(r *knob.Row) bool {
	return r.Controller == "memory" && len(r.Keys) == 1 && r.Keys[0] == policy.KeyMemoryMax
}

const finalReclaim = "memory that is reclaimed or swapped out comes back only when it is used again"

// lowerMemory lowers a hard limit, in steps where memory that is charged has to go.
func (p *planner) lowerMemory(dir cgroup.Dir, c knob.Change) {
	p.checkMemory(dir, c)
	to := desired.Number(c.To)
	if to < 0 || p.charged(dir) <= to || p.isNew[dir] {
		p.addWrite(p.writeStep(dir, c.Row, c.On, c.From, c.To))
		return
	}
	if c.Row.Version == 2 && p.lowerByHigh(dir, c) {
		return
	}
	last := p.writeStep(dir, c.Row, c.On, c.From, c.To)
	wait := plan.Reclaim{Use: fileMemoryUseV1, To: to, Within: p.reclaimTime()}
	if c.Row.Version == 2 {
		wait.Use = fileMemoryUseV2
	}
	for _, text := range p.descent(dir, c.From, to) {
		step := p.writeStep(dir, c.Row, c.On, c.From, text)
		step.Risk, step.Reclaim = knob.RiskSlow, &wait
		step.Reason = last.Reason + "; in steps, so that the kernel can reclaim between them"
		p.addWrite(step)
		c.From = text
	}
	last.Old, last.Undo = c.From, c.Row.Parse(c.From)
	last.Reclaim, last.Final = &wait, finalReclaim
	p.addWrite(last)
}

// lowerByHigh lowers memory.max of cgroup v2 by way of memory.high, above which the kernel slows down and reclaims, and
// kills nobody: that goes down first, step by step and to a little below the limit, and back to what it was when the
// limit is there. It says whether there is such a file. It is written beside systemd, whose property would stay behind;
// a daemon-reload meanwhile gives back the value that it is to have in the end, and the limit is then not reached in
// time.
func (p *planner) lowerByHigh(dir cgroup.Dir, c knob.Change) bool {
	row, held := p.highOf(dir)
	if row == nil {
		return false
	}
	to := desired.Number(c.To)
	room := reclaimRoom(to)
	last := p.writeStep(dir, c.Row, c.On, c.From, c.To)
	at, wait := held, plan.Reclaim{Use: fileMemoryUseV2, To: to, Within: p.reclaimTime()}
	write := func(text, reason string) plan.Step {
		step := plan.Step{Op: plan.OpWrite, Group: last.Group, Dir: dir, File: row.File, Setting: last.Setting, Old: at,
			Undo: row.Parse(at), New: text, Reason: reason}
		at = text
		return step
	}
	page := max(p.in.Facts.PageSize, 4096)
	goal := strconv.FormatInt((to-room)/page*page, 10)
	for _, text := range append(p.descent(dir, held, to-room), goal) {
		if now := desired.Number(at); now >= 0 && now <= desired.Number(text) {
			continue
		}
		before := desired.Number(at)
		step := write(text, last.Reason+
			"; memory.high first, above which nobody is killed, and memory.max when there is no more in use")
		step.Risk = knob.RiskSlow
		if before >= 0 && before <= p.charged(dir) { // one that reclaims already
			w := wait
			w.Below, w.Push = before+room, step.Old
			step.Reclaim = &w
		}
		p.addWrite(step)
	}
	wait.Below, wait.Push = to, at
	last.Reclaim, last.Final = &wait, finalReclaim
	p.addWrite(last)
	if at != held {
		p.addWrite(write(held, "memory.max holds, and memory.high is what it was"))
	}
	return true
}

// highOf gives the row of memory.high and what the file holds at this point of the plan; nil where there is none.
func (p *planner) highOf(dir cgroup.Dir) (row *knob.Row, now string) {
	for _, r := range p.d.Rows[dir.Hierarchy] {
		if r.File != fileMemoryHigh {
			continue
		}
		if _, there := p.o.Dirs[dir][r.File]; !there {
			return nil, ""
		}
		if text, written := p.written[dir.File(r.File)]; written {
			return r, text
		}
		return r, p.now(dir, desired.Value{Row: r, File: r.File})
	}
	return nil, ""
}

// reclaimRoom is how far below a limit memory.high goes: a group that wants more is held at about memory.high, and
// memory.max is written only when there is less in use. Each CPU may have 256 KiB charged in advance
// (MEMCG_CHARGE_BATCH of 64 pages).
func reclaimRoom(limit int64) int64 {
	return max(min(max(limit/64, 1<<20), 16<<20, limit/4), 0)
}

// charged is the memory that a directory and those below it are charged now.
func (p *planner) charged(dir cgroup.Dir) int64 {
	current, _ := p.in.Memory.Charged(dir)
	return current
}

// reclaimTime is how long the memory of one directory may take to fall.
func (p *planner) reclaimTime() time.Duration {
	return cmp.Or(time.Duration(p.in.Host.Reclaim), DefaultReclaim)
}

// descent gives the values on the way from what is in use to a limit, falling and without the last one; nothing where
// nothing has to go.
func (p *planner) descent(dir cgroup.Dir, from string, to int64) []string {
	now := p.charged(dir)
	if now <= to {
		return nil
	}
	gap := now - to
	bite := max((gap+descentSteps-1)/descentSteps, descentBite)
	if bite > descentLarge {
		bite = max((gap+descentMost-1)/descentMost, descentLarge)
	}
	page := max(p.in.Facts.PageSize, 4096)
	var values []string
	for at := now - bite; at > to; at -= bite {
		if limit := desired.Number(from); limit >= 0 && at >= limit {
			continue
		}
		values = append(values, strconv.FormatInt(at-at%page, 10))
	}
	return values
}

// lowerMemsw lowers v1's limit of memory and swap together, which the kernel refuses as it does the other while more is
// in use.
func (p *planner) lowerMemsw(dir cgroup.Dir, c knob.Change) {
	step := p.writeStep(dir, c.Row, c.On, c.From, c.To)
	if to := desired.Number(c.To); to >= 0 && !p.isNew[dir] && p.charged(dir) > 0 {
		step.Reclaim = &plan.Reclaim{Use: fileMemswUse, To: to, Within: p.reclaimTime()}
	}
	p.addWrite(step)
}

// checkMemory refuses a limit that the group cannot get below: the kernel would answer with EBUSY on
// v1 and with the OOM killer on v2. What may be swapped out is taken off only where the policy says
// how much that is.
func (p *planner) checkMemory(dir cgroup.Dir, c knob.Change) {
	limit := desired.Number(c.To)
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
	if _, n := p.in.Memory.Charged(dir); policy.Bytes(n) > room {
		pinned := policy.Bytes(n)
		p.refuse(group, hint,
			"memory.max %s%s is below the %s in %s that cannot be reclaimed (anonymous, shared and locked memory)",
			policy.Bytes(limit).Human(), with, pinned.Human(), dir)
		return
	}
	if held := policy.Bytes(p.heldBy(group)); held > room {
		p.refuse(group, hint,
			"memory.max %s%s is below the %s of anonymous and shared memory that the group's processes hold",
			policy.Bytes(limit).Human(), with, held.Human())
	}
}

// swapOf is the swap that the group's settings allow, at most what the host has.
func (p *planner) swapOf(group string) int64 {
	n := p.d.Forest.ByPath[group]
	if n == nil {
		return 0
	}
	if s, ok := n.Settings.Get(policy.KeyMemorySwap, ""); ok {
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
		all, part := p.in.Memory.Held(id)
		part = min(part, all)
		private[pl.group] += all - part
		shared[pl.group] = max(shared[pl.group], part)
	}
	sums := make(map[string]int64, len(p.d.Forest.Nodes))
	for i := len(p.d.Forest.Nodes) - 1; i >= 0; i-- {
		n := p.d.Forest.Nodes[i]
		sums[n.Path] += private[n.Path] + shared[n.Path]
		if n.Parent != nil {
			sums[n.Parent.Path] += sums[n.Path]
		}
	}
	return sums
}

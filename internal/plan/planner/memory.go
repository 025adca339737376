package planner

import (
	"cmp"
	"strconv"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
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
func (w *writer) lowerMemory(dir cgroup.Dir, c knob.Change) {
	w.checkMemory(dir, c)
	to := desired.Number(c.To)
	if to < 0 || w.Charged(dir) <= to || w.IsNew[dir] {
		w.addWrite(w.writeStep(dir, c.Row, c.On, c.From, c.To))
		return
	}
	if c.Row.Version == 2 && w.lowerByHigh(dir, c) {
		return
	}
	last := w.writeStep(dir, c.Row, c.On, c.From, c.To)
	wait := plan.Reclaim{Use: fileMemoryUseV1, To: to, Within: w.reclaimTime()}
	if c.Row.Version == 2 {
		wait.Use = fileMemoryUseV2
	}
	for _, text := range w.descent(dir, c.From, to) {
		step := w.writeStep(dir, c.Row, c.On, c.From, text)
		step.Risk, step.Reclaim = knob.RiskSlow, &wait
		step.Reason = last.Reason + "; in steps, so that the kernel can reclaim between them"
		w.addWrite(step)
		c.From = text
	}
	if last.Old = c.From; last.Unit == "" {
		last.Undo = c.Row.Parse(c.From)
	}
	last.Reclaim, last.Final = &wait, finalReclaim
	w.addWrite(last)
}

// lowerByHigh lowers memory.max of cgroup v2 by way of memory.high, above which the kernel slows down and reclaims, and
// kills nobody: that goes down first, step by step and to a little below the limit, and back to what it was when the
// limit is there. It says whether there is such a file. It is written beside systemd, whose property would stay behind;
// a daemon-reload meanwhile gives back the value that it is to have in the end, and the limit is then not reached in
// time.
func (w *writer) lowerByHigh(dir cgroup.Dir, c knob.Change) bool {
	row, held := w.highOf(dir)
	if row == nil {
		return false
	}
	to := desired.Number(c.To)
	room := reclaimRoom(to)
	last := w.writeStep(dir, c.Row, c.On, c.From, c.To)
	at, wait := held, plan.Reclaim{Use: fileMemoryUseV2, To: to, Within: w.reclaimTime()}
	write := func(text, reason string) plan.Step {
		step := plan.Step{Change: change.Of(dir.File(row.File).Target(), at, text), Group: last.Group,
			Setting: last.Setting, Reason: reason}
		step.Undo, at = row.Parse(at), text
		return step
	}
	page := max(w.In.Facts.PageSize, 4096)
	goal := strconv.FormatInt((to-room)/page*page, 10)
	for _, text := range append(w.descent(dir, held, to-room), goal) {
		if now := desired.Number(at); now >= 0 && now <= desired.Number(text) {
			continue
		}
		before := desired.Number(at)
		step := write(text, last.Reason+
			"; memory.high first, above which nobody is killed, and memory.max when there is no more in use")
		step.Risk = knob.RiskSlow
		if before >= 0 && before <= w.Charged(dir) { // one that reclaims already
			w := wait
			w.Below, w.Push = before+room, step.Old
			step.Reclaim = &w
		}
		w.addWrite(step)
	}
	wait.Below, wait.Push = to, at
	last.Reclaim, last.Final = &wait, finalReclaim
	w.addWrite(last)
	if at != held {
		w.addWrite(write(held, "memory.max holds, and memory.high is what it was"))
	}
	return true
}

// highOf gives the row of memory.high and what the file holds at this point of the plan; nil where there is none.
func (w *writer) highOf(dir cgroup.Dir) (row *knob.Row, now string) {
	for _, r := range w.Desired.Rows[dir.Hierarchy] {
		if r.File != fileMemoryHigh {
			continue
		}
		if _, there := w.Observed.Dirs[dir][r.File]; !there {
			return nil, ""
		}
		if text, written := w.written[dir.File(r.File).Target()]; written {
			return r, text
		}
		return r, w.Now(dir, desired.Value{Row: r, File: r.File})
	}
	return nil, ""
}

// reclaimRoom is how far below a limit memory.high goes: a group that wants more is held at about memory.high, and
// memory.max is written only when there is less in use. Each CPU may have 256 KiB charged in advance
// (MEMCG_CHARGE_BATCH of 64 pages).
func reclaimRoom(limit int64) int64 {
	return max(min(max(limit/64, 1<<20), 16<<20, limit/4), 0)
}

// reclaimTime is how long the memory of one directory may take to fall.
func (w *writer) reclaimTime() time.Duration {
	return cmp.Or(time.Duration(w.In.Host.Reclaim), DefaultReclaim)
}

// descent gives the values on the way from what is in use to a limit, falling and without the last one; nothing where
// nothing has to go.
func (w *writer) descent(dir cgroup.Dir, from string, to int64) []string {
	now := w.Charged(dir)
	if now <= to {
		return nil
	}
	gap := now - to
	bite := max((gap+descentSteps-1)/descentSteps, descentBite)
	if bite > descentLarge {
		bite = max((gap+descentMost-1)/descentMost, descentLarge)
	}
	page := max(w.In.Facts.PageSize, 4096)
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
func (w *writer) lowerMemsw(dir cgroup.Dir, c knob.Change) {
	step := w.writeStep(dir, c.Row, c.On, c.From, c.To)
	if to := desired.Number(c.To); to >= 0 && !w.IsNew[dir] && w.Charged(dir) > 0 {
		step.Reclaim = &plan.Reclaim{Use: fileMemswUse, To: to, Within: w.reclaimTime()}
	}
	w.addWrite(step)
}

// checkMemory refuses a limit that the group cannot get below: the kernel would answer with EBUSY on
// v1 and with the OOM killer on v2. What may be swapped out is taken off only where the policy says
// how much that is.
func (w *writer) checkMemory(dir cgroup.Dir, c knob.Change) {
	limit := desired.Number(c.To)
	if limit < 0 {
		return
	}
	group := w.GroupOf(dir)
	swap := w.swapOf(group)
	room := policy.Bytes(limit + swap)
	hint := "raise memory.max, allow more swap, or use --force with --reason"
	with := ""
	if swap > 0 {
		with = " plus " + policy.Bytes(swap).Human() + " of swap"
	}
	if _, n := w.In.Memory.Charged(dir); policy.Bytes(n) > room {
		pinned := policy.Bytes(n)
		w.out.Refuse(group, hint,
			"memory.max %s%s is below the %s in %s that cannot be reclaimed (anonymous, shared and locked memory)",
			policy.Bytes(limit).Human(), with, pinned.Human(), dir)
		return
	}
	if held := policy.Bytes(w.heldBy(group)); held > room {
		w.out.Refuse(group, hint,
			"memory.max %s%s is below the %s of anonymous and shared memory that the group's processes hold",
			policy.Bytes(limit).Human(), with, held.Human())
	}
}

// swapOf is the swap that the group's settings allow, at most what the host has.
func (w *writer) swapOf(group string) int64 {
	n := w.Desired.Forest.ByPath[group]
	if n == nil {
		return 0
	}
	if s, ok := n.Settings.Get(policy.KeyMemorySwap, ""); ok {
		if swap, ok := s.Value.(policy.Bytes); ok {
			return min(int64(swap), w.In.Facts.SwapTotal)
		}
	}
	return 0
}

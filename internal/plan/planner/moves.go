package planner

import (
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
)

// sinceFast is the kernel that brought the option, and sinceStays the first one that says it cannot wholly take it back
// (measured on 6.18: "per threadgroup rwsem mechanism can't be disabled", and moves stay fast).
var (
	sinceFast  = host.Version{Major: 6, Minor: 0}
	sinceStays = host.Version{Major: 6, Minor: 18}
)

const staysFast = "this kernel takes the mount option back, and moves stay fast until it is booted again"

// switchMoves switches the kernel to faster moves where the policy asks for it, and back where it no longer does.
func (p *planner) switchMoves() {
	h, mounted := p.in.Facts.Hierarchy(procfs.UnifiedID)
	on := mounted && slices.Contains(h.Options, cgroup.FavorDynmods)
	switch want := p.in.Agent.FastMoves; {
	case want && on:
	case want && !mounted:
		p.cannotSwitch("agent.fast_moves: it is an option of cgroup2, and none is mounted; `mkdir " +
			"-p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified` gives one")
	case want && h.ReadOnly:
		p.cannotSwitch("agent.fast_moves: %s is mounted read-only", h.Mount)
	case want && !p.in.Facts.Kernel.AtLeast(sinceFast.Major, sinceFast.Minor):
		p.cannotSwitch("agent.fast_moves: kernel %s has no such option; %d.%d brought it", p.in.Facts.Kernel.Text,
			sinceFast.Major, sinceFast.Minor)
	case want:
		step := p.switchStep("off", "on",
			"agent.fast_moves is on: moves take microseconds, fork and exit a little more")
		if p.in.Facts.Kernel.AtLeast(sinceStays.Major, sinceStays.Minor) {
			step.Final = staysFast
		}
		p.steps = append(p.steps, step)
	case on:
		p.switchMovesBack()
	}
}

// switchMovesBack takes the option away if bulkhead has set it.
func (p *planner) switchMovesBack() {
	h, mounted := p.in.Facts.Hierarchy(procfs.UnifiedID)
	released := p.in.Release == nil || slices.Contains(p.in.Release, layout.RootGroup)
	if !mounted || !released || !p.o.Originals.FavorDynmods || !slices.Contains(h.Options, cgroup.FavorDynmods) {
		return
	}
	p.steps = append(p.steps, p.switchStep("on", "off", "agent.fast_moves is no longer on"))
	if p.in.Facts.Kernel.AtLeast(sinceStays.Major, sinceStays.Minor) {
		p.note(layout.RootGroup, "", "agent.fast_moves: %s", staysFast)
	}
}

// switchStep is optional: a host on which processes move slowly is held all the same.
func (p *planner) switchStep(from, to, why string) plan.Step {
	return plan.Step{
		Op: plan.OpWrite, Dir: plan.FavorDynmods.Dir, File: plan.FavorDynmods.Name, Old: from, New: to, Undo: from,
		Reason: why, Optional: true,
	}
}

func (p *planner) cannotSwitch(format string, args ...any) {
	p.note(layout.RootGroup, "", format, args...)
	p.notes[len(p.notes)-1].NotEnforced = true
}

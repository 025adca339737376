package hostwide

import (
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
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

// SwitchMoves switches the kernel to faster moves where the policy asks for it, and back where it no longer does.
func SwitchMoves(in *plan.Input, out *plan.Plan) {
	h, mounted := in.Facts.Hierarchy(procfs.UnifiedID)
	on := mounted && slices.Contains(h.Options, cgroup.FavorDynmods)
	switch want := in.Agent.FastMoves; {
	case want && on:
	case want && !mounted:
		cannotSwitch(out, "it is an option of cgroup2, and none is mounted; `mkdir "+
			"-p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified` gives one")
	case want && h.ReadOnly:
		cannotSwitch(out, "%s is mounted read-only", h.Mount)
	case want && !in.Facts.Kernel.AtLeast(sinceFast.Major, sinceFast.Minor):
		cannotSwitch(out, "kernel %s has no such option; %d.%d brought it", in.Facts.Kernel.Text,
			sinceFast.Major, sinceFast.Minor)
	case want:
		step := switchStep("off", "on", "agent.fast_moves is on: moves take microseconds, fork and exit a little more")
		if in.Facts.Kernel.AtLeast(sinceStays.Major, sinceStays.Minor) {
			step.Final = staysFast
		}
		out.Steps = append(out.Steps, step)
	case on:
		SwitchMovesBack(in, out)
	}
}

// SwitchMovesBack takes the option away if bulkhead has set it.
func SwitchMovesBack(in *plan.Input, out *plan.Plan) {
	h, mounted := in.Facts.Hierarchy(procfs.UnifiedID)
	released := in.Release == nil || slices.Contains(in.Release, layout.RootGroup)
	if !mounted || !released || !in.Observed.Originals.FavorDynmods ||
		!slices.Contains(h.Options, cgroup.FavorDynmods) {
		return
	}
	out.Steps = append(out.Steps, switchStep("on", "off", "agent.fast_moves is no longer on"))
	if in.Facts.Kernel.AtLeast(sinceStays.Major, sinceStays.Minor) {
		out.Note(layout.RootGroup, "", "agent.fast_moves: %s", staysFast)
	}
}

// switchStep is optional: a host on which processes move slowly is held all the same.
func switchStep(from, to, why string) plan.Step {
	return plan.Step{
		Change: change.Of(plan.FavorDynmods.Target(), from, to), Reason: why, Optional: true,
	}
}

func cannotSwitch(out *plan.Plan, format string, args ...any) {
	out.Note(layout.RootGroup, "agent.fast_moves", format, args...)
	out.Notes[len(out.Notes)-1].NotEnforced = true
}

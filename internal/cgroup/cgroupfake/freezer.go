package cgroupfake

import (
	"slices"
	"strings"
	"syscall"
)

// freezerFiles are v1's freezer. A group is frozen by itself or by an ancestor.
func freezerFiles() []*file {
	yes := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	return []*file{
		{name: "freezer.state", version: 1, controller: "freezer", place: notRoot, initial: "THAWED",
			read: func(k *kernel, g *group) string {
				switch {
				case k.frozen(g):
					return "FROZEN"
				case freezing(g):
					return "FREEZING"
				}
				return "THAWED"
			},
			write: func(_ *kernel, g *group, text string) error {
				text = strings.TrimSpace(text)
				if text != "FROZEN" && text != "THAWED" {
					return syscall.EINVAL
				}
				g.values["freezer.state"] = text
				return nil
			}},
		count("freezer.self_freezing", 1, "freezer", func(_ *kernel, g *group) int64 {
			return yes(g.values["freezer.state"] == "FROZEN")
		}).at(notRoot),
		count("freezer.parent_freezing", 1, "freezer", func(_ *kernel, g *group) int64 {
			return yes(freezing(g.parent))
		}).at(notRoot),
	}
}

// freezing says whether g or an ancestor was told to stop.
func freezing(g *group) bool {
	return slices.ContainsFunc(g.ancestors(), func(up *group) bool {
		return up.values["freezer.state"] == "FROZEN" || up.values["cgroup.freeze"] == "1"
	})
}

// frozen says whether it did, all processes below included.
func (ts *tasks) frozen(g *group) bool {
	if !freezing(g) {
		return false
	}
	stopped := true
	g.each(func(g *group) {
		for _, t := range ts.threadsIn(g) {
			stopped = stopped && !t.process.stuck
		}
	})
	return stopped
}

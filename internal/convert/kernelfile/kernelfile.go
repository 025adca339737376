// Package kernelfile turns what was written to the files of a control group, by the names of either version
// (cpu.shares, memory.max), into the limits of a policy's group.
//
// A caller fills Params with the files of one group and calls Carry: each file becomes a limit, or a remark that says
// why not. The files are those of the kernel's documents admin-guide/cgroup-v1 and admin-guide/cgroup-v2.
package kernelfile

import (
	"slices"
	"strings"

	"bulkhead/internal/convert"
)

// Controllers are those that there are, with what their files begin with where that is not their name.
var Controllers = []string{
	"cpu", "cpuacct", "cpuset", "memory", "blkio", "io", "pids", "hugetlb", "freezer", "devices", "net_cls", "net_prio",
	"perf_event",
	"ns", "rdma", "misc", "dmem", "debug", "cgroup",
}

// Known says whether a controller has a file of that name on some kernel.
func Known(file string) bool {
	controller, _, _ := strings.Cut(file, ".")
	_, whole := WholeControllers[controller]
	_, left := leftOut[file]
	size, rest, huge := hugeFile(file)
	switch {
	case carried[file] != nil, left, whole, file == "tasks", file == "cgroup.procs":
		return true
	case huge:
		return size != "" && (slices.Contains([]string{"limit_in_bytes", "max", "rsvd.limit_in_bytes", "rsvd.max"},
			rest) || counting(file))
	}
	return slices.Contains(Controllers, controller) && counting(file) || strings.HasPrefix(file, "blkio.") &&
		ioCounter(file)
}

// Carried says whether a policy has a key for what a file limits.
func Carried(file string) bool {
	_, _, huge := hugeFile(file)
	return carried[file] != nil || huge && !counting(file)
}

// Version is the version of control groups that has a file which is carried over, 0 when both have it.
func Version(file string) int {
	_, rest, huge := hugeFile(file)
	switch file {
	case "cpuset.cpus", "cpuset.mems", "pids.max", "cpu.idle":
		return 0
	case "cpu.weight", "cpu.max", "cpu.max.burst", "memory.min", "memory.low", "memory.high", "memory.max",
		"memory.swap.max", "memory.oom.group":
		return 2
	}
	switch {
	case !Carried(file):
		return 0
	case strings.HasPrefix(file, "io."), huge && strings.HasSuffix(rest, "max"):
		return 2
	}
	return 1
}

// UnknownController reports the name of a controller that no kernel has.
func UnknownController(in *convert.Input, name string, offset int) {
	in.Bad(offset, "controllers are "+strings.Join(Controllers, ", "), "there is no controller %q", convert.Clean(name))
}

// ParametersOf names the parameters of a controller that can be carried over.
func ParametersOf(controller string) string {
	var names []string
	for file := range carried {
		if of, _, _ := strings.Cut(file, "."); of == controller {
			names = append(names, file)
		}
	}
	if len(names) == 0 {
		return "see the kernel's documentation of control groups"
	}
	slices.Sort(names)
	return "of " + controller + " are carried over: " + strings.Join(names, ", ")
}

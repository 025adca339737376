package gather

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// groupOf is where a process is in the hierarchy of a controller: the directories from its own group up to the
// outermost one below the root, which has no limits.
type groupOf struct {
	dirs    []string
	version int
	reason  string // why there is none
}

func groupsOf(f *host.Facts, p *procfs.Process, controller string) groupOf {
	h, held := f.HierarchyOf(controller)
	where, in := p.Cgroups[h.ID]
	switch {
	case !held:
		return groupOf{reason: "no hierarchy of control groups holds " + controller}
	case !in:
		return groupOf{reason: "its control group is not known"}
	case h.Root != "/" && h.Root != "":
		return groupOf{reason: "the control groups are seen from within a container"}
	}
	g := groupOf{version: h.Version}
	for at := path.Clean(where); at != "/" && at != "."; at = path.Dir(at) {
		g.dirs = append(g.dirs, path.Join(h.Mount, at))
	}
	return g
}

// limitIn is the number in a file of a group; "max" is 1 << 62.
func limitIn(h *host.Host, dir, file string) (int64, error) {
	text, err := h.Root.ReadText(path.Join(dir, file))
	if err != nil || text == "max" {
		return 1 << 62, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number", path.Join(dir, file), text)
	}
	return n, nil
}

// least is the smallest limit of a file in the group and those above it, or most where none is smaller; at is its
// directory, "" where most is.
func (g groupOf) least(h *host.Host, file string, most int64, mostFrom string) (v fact.Value, at string) {
	if g.reason != "" {
		return fact.Unknown("%s", g.reason), ""
	}
	v = fact.Known(most, mostFrom)
	for _, dir := range g.dirs {
		n, err := limitIn(h, dir, file)
		if g.version == 2 && errors.Is(err, fs.ErrNotExist) { // no controller reaches down to here
			continue
		}
		if err != nil {
			return files.Because(err), ""
		}
		if n >= most {
			continue
		}
		most, at = n, dir
		v = fact.Known(n, path.Join(dir, file))
	}
	return v, at
}

// counter is a line "NAME NUMBER" of a file of a group.
func (g groupOf) counter(h *host.Host, dir, file, name string) (int64, bool) {
	text, err := h.Root.ReadText(path.Join(dir, file))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == name {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// groupNames are the facts that groupFacts gives.
var groupNames = []string{"instance.memory_limit", "instance.oom_kills", "instance.swap_limit",
	"instance.memory_protected", "instance.tasks_limit", "instance.throttled_percent", "instance.io_limits",
	"instance.huge_limit", "instance.transparent", "instance.node_share_least", "instance.node_share_most"}

// groupFacts are those of the control groups of a process. limited is the group whose memory limit is the smallest, ""
// where the host's memory is.
func groupFacts(h *host.Host, f *host.Facts, p *procfs.Process, v fact.Values) (limited string) {
	memory := groupsOf(f, p, "memory")
	limitFile, eventsFile := "memory.max", "memory.events"
	if memory.version == 1 {
		limitFile, eventsFile = "memory.limit_in_bytes", "memory.oom_control"
	}
	v["instance.memory_limit"], limited = memory.least(h, limitFile, f.MemTotal,
		"/proc/meminfo MemTotal, no group has a limit")
	v["instance.oom_kills"] = fact.Unknown("%s", memory.reason)
	if memory.reason == "" {
		v["instance.oom_kills"] = fact.Unknown("its group tells no oom_kill")
		if len(memory.dirs) == 0 {
			v["instance.oom_kills"] = fact.Known(int64(0), "it is in the root group")
		} else if n, told := memory.counter(h, memory.dirs[0], eventsFile, "oom_kill"); told {
			v["instance.oom_kills"] = fact.Known(n, path.Join(memory.dirs[0], eventsFile)+" oom_kill")
		}
	}
	v["instance.swap_limit"] = fact.Unknown("cgroup v1 has no limit of swap alone")
	v["instance.memory_protected"] = v["instance.swap_limit"]
	if memory.version == 2 {
		v["instance.swap_limit"], _ = memory.least(h, "memory.swap.max", f.SwapTotal,
			"/proc/meminfo SwapTotal, no limit")
		v["instance.memory_protected"] = memory.protected(h)
	}
	v["instance.tasks_limit"], _ = groupsOf(f, p, "pids").least(h, "pids.max", tasksOf(h), "/proc/sys/kernel/pid_max, "+
		"threads-max")
	v["instance.throttled_percent"] = groupsOf(f, p, "cpu").throttled(h)
	v["instance.io_limits"] = groupsOf(f, p, "blkio").ioLimits(h)
	v["instance.huge_limit"] = hugeLimit(h, f, p)
	v["instance.transparent"] = memory.transparent(h)
	v["instance.node_share_least"], v["instance.node_share_most"] = memory.nodeShares(h)
	return limited
}

// transparent is the memory of the group in transparent huge pages, without shared memory.
func (g groupOf) transparent(h *host.Host) fact.Value {
	switch {
	case g.reason != "":
		return fact.Unknown("%s", g.reason)
	case g.version != 2:
		return fact.Unknown("cgroup v1 does not tell it")
	case len(g.dirs) == 0:
		return fact.Unknown("it is in the root group")
	}
	if n, told := g.counter(h, g.dirs[0], "memory.stat", "anon_thp"); told {
		return fact.Known(n, path.Join(g.dirs[0], "memory.stat")+" anon_thp")
	}
	return fact.Unknown("its group tells no anon_thp (5.11)")
}

// hugeLimit is the least limit of huge pages of the default size.
func hugeLimit(h *host.Host, f *host.Facts, p *procfs.Process) fact.Value {
	if _, held := f.HierarchyOf("hugetlb"); !held {
		return fact.Known(int64(fact.Unlimited), "no hierarchy of control groups holds hugetlb")
	}
	size := fmt.Sprintf("%dMB", f.HugePage>>20)
	if gigas := f.HugePage >> 30; gigas > 0 {
		size = fmt.Sprintf("%dGB", gigas)
	}
	g := groupsOf(f, p, "hugetlb")
	file := "hugetlb." + size + ".max"
	if g.version == 1 {
		file = "hugetlb." + size + ".limit_in_bytes"
	}
	v, _ := g.least(h, file, fact.Unlimited, "no group has a limit")
	return v
}

// nodeShares are the shares of the group's memory, file cache left out, on the node with least and on that with most.
func (g groupOf) nodeShares(h *host.Host) (least, most fact.Value) {
	switch {
	case g.reason != "":
		least = fact.Unknown("%s", g.reason)
	case g.version != 2:
		least = fact.Unknown("cgroup v1 does not tell it in bytes")
	case len(g.dirs) == 0:
		least = fact.Unknown("it is in the root group")
	}
	if least.Unknown != "" {
		return least, least
	}
	file := path.Join(g.dirs[0], "memory.numa_stat")
	text, err := h.Root.ReadText(file)
	if err != nil {
		return files.Because(err), files.Because(err)
	}
	nodes, all := map[string]int64{}, int64(0)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "anon" && fields[0] != "shmem" {
			continue
		}
		for _, one := range fields[1:] {
			node, bytes, _ := strings.Cut(one, "=")
			if n, err := strconv.ParseInt(bytes, 10, 64); err == nil {
				nodes[node] += n
				all += n
			}
		}
	}
	if all == 0 {
		none := fact.Unknown("%s counts no memory", file)
		return none, none
	}
	low, high := int64(100), int64(0)
	for _, n := range nodes {
		low, high = min(low, n*100/all), max(high, n*100/all)
	}
	return fact.Known(low, file), fact.Known(high, file)
}

// ioLimits are the files with limits of I/O for the group or one above it.
func (g groupOf) ioLimits(h *host.Host) fact.Value {
	if g.reason != "" {
		return fact.Unknown("%s", g.reason)
	}
	files := []string{"io.max"}
	if g.version == 1 {
		files = nil
		for _, what := range []string{"read_bps", "write_bps", "read_iops", "write_iops"} {
			files = append(files, "blkio.throttle."+what+"_device")
		}
	}
	list := []string{}
	for _, dir := range g.dirs {
		for _, file := range files {
			if text, err := h.Root.ReadText(path.Join(dir, file)); err == nil && text != "" {
				list = append(list, path.Join(dir, file))
			}
		}
	}
	return fact.Known(list, strings.Join(files, ", ")+" of its groups")
}

// protected is the memory that the kernel keeps for the group: what every group above it grants, too.
func (g groupOf) protected(h *host.Host) fact.Value {
	v := fact.Known(int64(0), "it is in the root group")
	for i, dir := range g.dirs {
		own := int64(0)
		for _, file := range []string{"memory.low", "memory.min"} {
			n, err := limitIn(h, dir, file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return files.Because(err)
			}
			own = max(own, n)
		}
		if i == 0 || own < v.Is.(int64) {
			v = fact.Known(own, path.Join(dir, "memory.low")+", memory.min")
		}
	}
	return v
}

// throttled is the largest share of its periods in which a limit of CPU stopped the group, or one above it.
func (g groupOf) throttled(h *host.Host) fact.Value {
	if g.reason != "" {
		return fact.Unknown("%s", g.reason)
	}
	most, from := int64(0), "no group has a limit of CPU"
	for _, dir := range g.dirs {
		periods, told := g.counter(h, dir, "cpu.stat", "nr_periods")
		if n, has := g.counter(h, dir, "cpu.stat", "nr_throttled"); told && has && periods > 0 &&
			n*100/periods >= most {
			most, from = n*100/periods, fmt.Sprintf("%s nr_throttled %d of nr_periods %d", path.Join(dir, "cpu.stat"),
				n, periods)
		}
	}
	return fact.Known(most, from)
}

// tasksOf is how many tasks the host can have.
func tasksOf(h *host.Host) int64 {
	const unknown = 4 << 20 // the largest that the kernel takes (PID_MAX_LIMIT)
	most := int64(unknown)
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		if n, err := h.Root.ReadInt(file); err == nil {
			most = min(most, n)
		}
	}
	return most
}

package gather

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/cpu"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/host"
)

// numbers are the facts that one file holds as a number.
var numbers = map[string]string{
	"host.swappiness":        "/proc/sys/vm/swappiness",
	"host.overcommit":        "/proc/sys/vm/overcommit_memory",
	"host.zone_reclaim":      "/proc/sys/vm/zone_reclaim_mode",
	"host.numa_balancing":    "/proc/sys/kernel/numa_balancing",
	"host.huge_shm_group":    "/proc/sys/vm/hugetlb_shm_group",
	"host.max_map_count":     "/proc/sys/vm/max_map_count",
	"host.panic_on_oom":      "/proc/sys/vm/panic_on_oom",
	"host.ksm":               "/sys/kernel/mm/ksm/run",
	"host.thp_none":          "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none",
	"host.autogroup":         "/proc/sys/kernel/sched_autogroup_enabled",
	"host.hung_tasks":        "/proc/sys/kernel/hung_task_detect_count",
	"host.pid_max":           "/proc/sys/kernel/pid_max",
	"host.somaxconn":         "/proc/sys/net/core/somaxconn",
	"host.keepalive":         "/proc/sys/net/ipv4/tcp_keepalive_time",
	"host.aio_max":           "/proc/sys/fs/aio-max-nr",
	"host.io_uring_disabled": "/proc/sys/kernel/io_uring_disabled",
	"host.dirty_expire":      "/proc/sys/vm/dirty_expire_centisecs",
	"host.cache_pressure":    "/proc/sys/vm/vfs_cache_pressure",
	"host.syn_backlog":       "/proc/sys/net/ipv4/tcp_max_syn_backlog",
	"host.panic_on_oops":     "/proc/sys/kernel/panic_on_oops",
	"host.slow_start_idle":   "/proc/sys/net/ipv4/tcp_slow_start_after_idle",
}

// choices are the facts that one file holds as the word in brackets among others.
var choices = map[string]string{
	"host.thp":        "/sys/kernel/mm/transparent_hugepage/enabled",
	"host.thp_defrag": "/sys/kernel/mm/transparent_hugepage/defrag",
	"host.thp_shmem":  "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
}

// kernelFacts are those that single files of the kernel hold.
func kernelFacts(h *host.Host) fact.Values {
	values := fact.Values{}
	for name, file := range numbers {
		values[name] = files.Number(h, file)
	}
	for name, file := range choices {
		text, err := h.Root.ReadText(file)
		_, after, found := strings.Cut(text, "[")
		word, _, closed := strings.Cut(after, "]")
		switch {
		case err != nil:
			values[name] = files.Because(err)
		case !found || !closed:
			values[name] = fact.Unknown("%q shows no choice", text)
		default:
			values[name] = fact.Known(word, file)
		}
	}
	const clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
	values["host.clocksource"] = files.Text(h, clock)
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	values["host.port_low"], values["host.port_high"] = pair(h, ports)
	values["host.aio_percent"] = share(h, "/proc/sys/fs/aio-nr", "/proc/sys/fs/aio-max-nr")
	values["host.conntrack_percent"] = share(h, "/proc/sys/net/netfilter/nf_conntrack_count",
		"/proc/sys/net/netfilter/nf_conntrack_max")
	values["host.psi"] = fact.Known(h.Root.Exists("/proc/pressure/memory"), "/proc/pressure/memory")
	values["host.cmdline_elevator"] = onCmdline(h, "elevator=")
	values["host.cmdline_numa_off"] = onCmdline(h, "numa=off")
	values["host.mthp"] = mthp(h)
	values["host.zram"] = zram(h)
	values["host.selinux"] = selinux(h)
	values["host.selinux_booleans"] = booleans(h)
	values["host.old_unit_keys"] = oldKeys(h)
	values["host.tasks_percent"] = tasksUsed(h)
	values["host.missed"] = missed(h)
	values["host.clock_right"] = clockKept(h)
	values["host.removes_ipc"] = removesIPC(h)
	values["host.segments"] = bigNumber(h, "/proc/sys/kernel/shmall", 4096)
	values["host.files_most"] = bigNumber(h, "/proc/sys/fs/file-max", 1)
	values["host.nvme_timeout"] = bigNumber(h, "/sys/module/nvme_core/parameters/io_timeout", 1)
	values["host.tasks_most"] = fact.Known(tasksOf(h), "/proc/sys/kernel/pid_max, threads-max")
	values["host.zfs_cache"] = zfsCache(h)
	values["host.read_buffer"] = bigNumber(h, "/proc/sys/net/core/rmem_max", 1)
	values["host.write_buffer"] = bigNumber(h, "/proc/sys/net/core/wmem_max", 1)
	values["host.core_pattern"] = files.Text(h, "/proc/sys/kernel/core_pattern")
	values["host.zonelist_order"] = files.OrNone(files.Text, h, "/proc/sys/vm/numa_zonelist_order", "")
	const gigantic = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
	values["host.huge_gigantic"] = files.OrNone(func(h *host.Host, file string) fact.Value {
		return bigNumber(h, file, 1<<30)
	}, h, gigantic, int64(0))
	cpu.Facts(h, values)
	statFacts(h, values)
	virtualFacts(h, values)
	values["host.tuned_profile"] = files.OrNone(files.Text, h, "/etc/tuned/active_profile", "")
	return values
}

// pair reads a file of two numbers.
func pair(h *host.Host, file string) (low, high fact.Value) {
	text, err := h.Root.ReadText(file)
	if err != nil {
		return files.Because(err), files.Because(err)
	}
	fields := strings.Fields(text)
	if len(fields) != 2 {
		v := fact.Unknown("%q are not two numbers", text)
		return v, v
	}
	number := func(s string) fact.Value {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fact.Unknown("%q is no number", s)
		}
		return fact.Known(n, file)
	}
	return number(fields[0]), number(fields[1])
}

// share is how many percent one number is of another.
func share(h *host.Host, part, whole string) fact.Value {
	p, err := h.Root.ReadInt(part)
	if err != nil {
		return files.Because(err)
	}
	w, err := h.Root.ReadInt(whole)
	if err != nil {
		return files.Because(err)
	}
	if w <= 0 {
		return fact.Unknown("%s is %d", whole, w)
	}
	return fact.Known(p*100/w, part+" "+strconv.FormatInt(p, 10)+", "+whole+" "+strconv.FormatInt(w, 10))
}

// onCmdline says whether an argument of the kernel begins with a text.
func onCmdline(h *host.Host, begins string) fact.Value {
	text, err := h.Root.ReadText("/proc/cmdline")
	if err != nil {
		return files.Because(err)
	}
	has := slices.ContainsFunc(strings.Fields(text), func(a string) bool { return strings.HasPrefix(a, begins) })
	return fact.Known(has, "/proc/cmdline")
}

// mthp are the sizes of huge pages, other than the usual one, that any memory may get.
func mthp(h *host.Host) fact.Value {
	const dir = "/sys/kernel/mm/transparent_hugepage"
	return files.List(h, dir, dir+"/hugepages-*/enabled", func(entry string) string {
		size, is := strings.CutPrefix(entry, "hugepages-")
		if text, err := h.Root.ReadText(path.Join(dir, entry, "enabled")); err != nil || !is ||
			!strings.Contains(text, "[always]") {
			return ""
		}
		return size
	})
}

func zram(h *host.Host) fact.Value {
	text, err := h.Root.ReadText("/proc/swaps")
	if err != nil {
		return files.Because(err)
	}
	return fact.Known(strings.Contains(text, "/zram"), "/proc/swaps")
}

// zfsCache is the most that the cache of ZFS may take; 0 without ZFS.
func zfsCache(h *host.Host) fact.Value {
	const file = "/proc/spl/kstat/zfs/arcstats"
	text, err := h.Root.ReadText(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fact.Known(int64(0), file+" is not there")
	}
	if err != nil {
		return files.Because(err)
	}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "c_max" {
			if n, err := strconv.ParseInt(fields[2], 10, 64); err == nil {
				return fact.Known(n, file+" c_max")
			}
		}
	}
	return fact.Unknown("%s has no c_max", file)
}

const reservedPorts = "/proc/sys/net/ipv4/ip_local_reserved_ports"

// portRange are ports from one to another; text is what it was read from.
type portRange struct {
	low, high int64
	text      string
}

// reserved reads the ports that no outgoing connection gets: "8080,33060-33062".
func reserved(h *host.Host) ([]portRange, error) {
	text, err := h.Root.ReadText(reservedPorts)
	if err != nil {
		return nil, err //nolint:wrapcheck // with the file
	}
	var all []portRange
	for one := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(one), "-")
		low, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			continue
		}
		high := low
		if isRange {
			if high, err = strconv.ParseInt(last, 10, 64); err != nil {
				continue
			}
		}
		all = append(all, portRange{low, high, one})
	}
	return all, nil
}

// portReserved says whether a port is one of them.
func portReserved(h *host.Host, port int64) fact.Value {
	all, err := reserved(h)
	if err != nil {
		return files.Because(err)
	}
	for _, r := range all {
		if r.low <= port && port <= r.high {
			return fact.Known(true, reservedPorts+" "+r.text)
		}
	}
	return fact.Known(false, reservedPorts)
}

// portsToReserve is the list with the ports of the instances added that an outgoing connection could take, as the
// kernel writes it: in order, ports that follow each other as one range.
func portsToReserve(h *host.Host, set *fact.Set) fact.Value {
	all, err := reserved(h)
	if err != nil {
		return files.Because(err)
	}
	low, known := set.Host.Get("host.port_low").Is.(int64)
	high, known2 := set.Host.Get("host.port_high").Is.(int64)
	if !known || !known2 {
		return fact.Unknown("the range of ports of outgoing connections is not known")
	}
	for _, inst := range set.Instances {
		if port, is := inst.Values.Get("instance.port").Is.(int64); is && low <= port && port <= high {
			all = append(all, portRange{low: port, high: port})
		}
	}
	slices.SortFunc(all, func(a, b portRange) int { return cmp.Compare(a.low, b.low) })
	var joined []portRange
	for _, r := range all {
		if n := len(joined); n > 0 && r.low <= joined[n-1].high+1 {
			joined[n-1].high = max(joined[n-1].high, r.high)
			continue
		}
		joined = append(joined, r)
	}
	var list []string
	for _, r := range joined {
		text := strconv.FormatInt(r.low, 10)
		if r.high > r.low {
			text += "-" + strconv.FormatInt(r.high, 10)
		}
		list = append(list, text)
	}
	return fact.Known(strings.Join(list, ","), reservedPorts+", ports of the instances")
}

// machineFacts are those of the machine as a whole.
func machineFacts(h *host.Host) fact.Values {
	values := fact.Values{}
	facts, err := h.Facts()
	values["host.kernel"] = files.Text(h, "/proc/sys/kernel/osrelease")
	if err != nil {
		for _, name := range []string{"host.nodes", "host.cgroups", "host.node_memory",
			"host.node_free_least", "host.node_free_most", "host.node_huge_least", "host.node_huge_most"} {
			values[name] = files.Because(err)
		}
	} else {
		values["host.nodes"] = fact.Known(int64(len(facts.Nodes)), "/sys/devices/system/node")
		values["host.cgroups"] = cgroups(facts)
		nodeFacts(h, facts, values)
	}
	info, err := h.MemInfo()
	for name, key := range map[string]string{"host.memory": "MemTotal", "host.swap": "SwapTotal",
		"host.commit_limit": "CommitLimit", "host.committed": "Committed_AS", "host.page_tables": "PageTables",
		"host.huge_pages": "HugePages_Total", "host.huge_page": "Hugepagesize"} {
		n, has := info[key]
		switch {
		case err != nil:
			values[name] = files.Because(err)
		case !has:
			values[name] = fact.Unknown("/proc/meminfo has no %s", key)
		default:
			values[name] = fact.Known(n, "/proc/meminfo "+key)
		}
	}
	dirtyFacts(h, info["MemAvailable"], values)
	values["host.min_free_percent"] = fact.Unknown("vm.min_free_kbytes or MemTotal is not known")
	const reserve = "/proc/sys/vm/min_free_kbytes"
	if n, err := h.Root.ReadInt(reserve); err == nil && info["MemTotal"] > 0 {
		values["host.min_free_percent"] = fact.Known(n*1024*100/info["MemTotal"], reserve)
	}
	// Pages above the size that was set go when who uses them ends: a server that starts then does not find them.
	if n, known := values["host.huge_pages"].Is.(int64); known && info["HugePages_Surp"] > 0 {
		values["host.huge_pages"] = fact.Known(n-info["HugePages_Surp"],
			"/proc/meminfo HugePages_Total - HugePages_Surp")
	}
	values["host.huge_pool"] = values["host.huge_pages"]
	if n, known := values["host.huge_pages"].Is.(int64); known {
		values["host.huge_pool"] = fact.Known(n*info["Hugepagesize"], values["host.huge_pages"].From+", Hugepagesize")
	}
	values["host.page_tables_percent"] = fact.Unknown("PageTables or MemTotal is not known")
	if total := info["MemTotal"]; total > 0 {
		if tables, has := info["PageTables"]; has {
			values["host.page_tables_percent"] = fact.Known(tables*100/total, "/proc/meminfo PageTables, MemTotal")
		}
	}
	idle := values["host.huge_pages"]
	idleBytes := idle
	if idle.Unknown == "" {
		free := max(0, info["HugePages_Free"]-info["HugePages_Rsvd"])
		idle = fact.Known(free, "/proc/meminfo HugePages_Free - HugePages_Rsvd")
		idleBytes = fact.Known(free*info["Hugepagesize"], "/proc/meminfo HugePages_Free, HugePages_Rsvd, Hugepagesize")
	}
	values["host.huge_pages_idle"], values["host.huge_pages_idle_bytes"] = idle, idleBytes
	return values
}

func cgroups(f *host.Facts) fact.Value {
	const file = "/proc/self/mountinfo"
	_, unified := f.Unified()
	v1 := slices.ContainsFunc(f.Hierarchies, func(h host.Hierarchy) bool {
		return h.Version == 1 && len(h.Controllers) > 0
	})
	switch {
	case v1 && unified:
		return fact.Known("hybrid", file)
	case v1:
		return fact.Known("v1", file)
	case unified:
		return fact.Known("v2", file)
	}
	return fact.Unknown("no hierarchy of control groups is mounted here")
}

package gather

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/host"
)

// numbers are the facts that one file holds as a number.
var numbers = map[string]string{
	"host.swappiness":        "/proc/sys/vm/swappiness",
	"host.overcommit":        "/proc/sys/vm/overcommit_memory",
	"host.zone_reclaim":      "/proc/sys/vm/zone_reclaim_mode",
	"host.numa_balancing":    "/proc/sys/kernel/numa_balancing",
	"host.max_map_count":     "/proc/sys/vm/max_map_count",
	"host.panic_on_oom":      "/proc/sys/vm/panic_on_oom",
	"host.ksm":               "/sys/kernel/mm/ksm/run",
	"host.thp_none":          "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none",
	"host.autogroup":         "/proc/sys/kernel/sched_autogroup_enabled",
	"host.hung_tasks":        "/proc/sys/kernel/hung_task_detect_count",
	"host.somaxconn":         "/proc/sys/net/core/somaxconn",
	"host.keepalive":         "/proc/sys/net/ipv4/tcp_keepalive_time",
	"host.aio_max":           "/proc/sys/fs/aio-max-nr",
	"host.io_uring_disabled": "/proc/sys/kernel/io_uring_disabled",
}

// choices are the facts that one file holds as the word in brackets among others.
var choices = map[string]string{
	"host.thp":        "/sys/kernel/mm/transparent_hugepage/enabled",
	"host.thp_defrag": "/sys/kernel/mm/transparent_hugepage/defrag",
}

// kernelFacts are those that single files of the kernel hold.
func kernelFacts(h *host.Host) fact.Values {
	values := fact.Values{}
	for name, file := range numbers {
		values[name] = number(h, file)
	}
	for name, file := range choices {
		text, err := h.Root.ReadText(file)
		_, after, found := strings.Cut(text, "[")
		word, _, closed := strings.Cut(after, "]")
		switch {
		case err != nil:
			values[name] = because(err)
		case !found || !closed:
			values[name] = fact.Unknown("%q shows no choice", text)
		default:
			values[name] = fact.Known(word, file)
		}
	}
	const clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
	values["host.clocksource"] = textOf(h, clock)
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	values["host.port_low"], values["host.port_high"] = pair(h, ports)
	reserved := "/proc/sys/net/ipv4/ip_local_reserved_ports"
	values["host.reserved_ports"] = textOf(h, reserved)
	values["host.aio_percent"] = share(h, "/proc/sys/fs/aio-nr", "/proc/sys/fs/aio-max-nr")
	values["host.conntrack_percent"] = share(h, "/proc/sys/net/netfilter/nf_conntrack_count",
		"/proc/sys/net/netfilter/nf_conntrack_max")
	values["host.psi"] = fact.Known(h.Root.Exists("/proc/pressure/memory"), "/proc/pressure/memory")
	values["host.governors"] = governors(h)
	values["host.cmdline_elevator"] = elevator(h)
	profile := textOf(h, "/etc/tuned/active_profile")
	if _, err := h.Root.ReadText("/etc/tuned/active_profile"); errors.Is(err, fs.ErrNotExist) {
		profile = fact.Known("", "/etc/tuned/active_profile is not there")
	}
	values["host.tuned_profile"] = profile
	return values
}

// pair reads a file of two numbers.
func pair(h *host.Host, file string) (low, high fact.Value) {
	text, err := h.Root.ReadText(file)
	if err != nil {
		return because(err), because(err)
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
		return because(err)
	}
	w, err := h.Root.ReadInt(whole)
	if err != nil {
		return because(err)
	}
	if w <= 0 {
		return fact.Unknown("%s is %d", whole, w)
	}
	return fact.Known(p*100/w, part+" "+strconv.FormatInt(p, 10)+", "+whole+" "+strconv.FormatInt(w, 10))
}

func governors(h *host.Host) fact.Value {
	const cpus = "/sys/devices/system/cpu"
	names, err := h.Root.ReadDir(cpus)
	if err != nil {
		return because(err)
	}
	list := []string{}
	for _, n := range names {
		g, err := h.Root.ReadText(path.Join(cpus, n, "cpufreq/scaling_governor"))
		if err == nil && !slices.Contains(list, g) {
			list = append(list, g)
		}
	}
	if len(list) == 0 {
		return fact.Unknown("this machine shows no frequency governor, as most virtual machines")
	}
	slices.Sort(list)
	return fact.Known(list, cpus+"/cpu*/cpufreq/scaling_governor")
}

func elevator(h *host.Host) fact.Value {
	text, err := h.Root.ReadText("/proc/cmdline")
	if err != nil {
		return because(err)
	}
	has := slices.ContainsFunc(strings.Fields(text), func(a string) bool { return strings.HasPrefix(a, "elevator=") })
	return fact.Known(has, "/proc/cmdline")
}

// machineFacts are those of the machine as a whole.
func machineFacts(h *host.Host) fact.Values {
	values := fact.Values{}
	facts, err := h.Facts()
	if err != nil {
		for _, name := range []string{"host.kernel", "host.nodes", "host.cgroups"} {
			values[name] = because(err)
		}
	} else {
		values["host.kernel"] = fact.Known(facts.Kernel.Text, "/proc/sys/kernel/osrelease")
		values["host.nodes"] = fact.Known(int64(len(facts.Nodes)), "/sys/devices/system/node")
		values["host.cgroups"] = fact.Known(cgroups(facts), "/proc/self/mountinfo")
	}
	info, err := h.MemInfo()
	for name, key := range map[string]string{"host.memory": "MemTotal", "host.swap": "SwapTotal",
		"host.commit_limit": "CommitLimit", "host.committed": "Committed_AS", "host.page_tables": "PageTables",
		"host.huge_pages": "HugePages_Total"} {
		n, has := info[key]
		switch {
		case err != nil:
			values[name] = because(err)
		case !has:
			values[name] = fact.Unknown("/proc/meminfo has no %s", key)
		default:
			values[name] = fact.Known(n, "/proc/meminfo "+key)
		}
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

func cgroups(f *host.Facts) string {
	_, unified := f.Unified()
	v1 := slices.ContainsFunc(f.Hierarchies, func(h host.Hierarchy) bool {
		return h.Version == 1 && len(h.Controllers) > 0
	})
	switch {
	case v1 && unified:
		return "hybrid"
	case v1:
		return "v1"
	case unified:
		return "v2"
	}
	return "none"
}

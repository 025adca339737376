// Package cpu reads the facts of CPUs, and of what runs on them.
package cpu

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/host"
)

// Facts adds them to those of the host. It reads the name of every process.
func Facts(h *host.Host, values fact.Values) {
	values["host.governors"] = governors(h)
	values["host.energy_preferences"] = frequencyFile(h, "energy_performance_preference")
	values["host.sleep_latency"] = sleepLatency(h)
	values["host.migration_cost"] = firstNumber(h, "/sys/kernel/debug/sched/migration_cost_ns",
		"/proc/sys/kernel/sched_migration_cost_ns")
	values["host.base_slice"] = firstNumber(h, "/sys/kernel/debug/sched/base_slice_ns",
		"/sys/kernel/debug/sched/min_granularity_ns", "/proc/sys/kernel/sched_min_granularity_ns")
	values["host.irqbalance"] = running(h, "irqbalance")
	stat, err := h.Root.ReadText("/proc/stat")
	if err != nil {
		values["host.switches_per_cpu"], values["host.steal_percent"] = files.Because(err), files.Because(err)
	} else {
		values["host.switches_per_cpu"], values["host.steal_percent"] = switches(h, stat), steal(stat)
	}
	values["host.vulnerable"] = vulnerable(h)
	values["host.thermal_throttles"] = thermal(h)
}

// firstNumber reads the first of several files that is there: kernels have moved it.
func firstNumber(h *host.Host, paths ...string) fact.Value {
	for _, file := range paths {
		if n, err := h.Root.ReadInt(file); err == nil {
			return fact.Known(n, file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return files.Because(err)
		}
	}
	return fact.Unknown("%s is not there, as where debugfs is not mounted", paths[0])
}

// cpus is the directory of CPUs.
const cpus = "/sys/devices/system/cpu"

func governors(h *host.Host) fact.Value {
	v := frequencyFile(h, "scaling_governor")
	if list, read := v.Is.([]string); read && len(list) == 0 {
		return fact.Unknown("this machine shows no frequency governor, as most virtual machines")
	}
	return v
}

// frequencyFile is what the CPUs have in a file that is about their frequency.
func frequencyFile(h *host.Host, file string) fact.Value {
	return files.List(h, cpus, path.Join(cpus, "cpu*/cpufreq", file), func(entry string) string {
		text, _ := h.Root.ReadText(path.Join(cpus, entry, "cpufreq", file)) // none without
		return text
	})
}

// sleepLatency is what the deepest state that is not disabled takes to leave. All CPUs of a machine have the same ones.
func sleepLatency(h *host.Host) fact.Value {
	const dir = cpus + "/cpu0/cpuidle"
	names, err := h.Root.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fact.Unknown("this machine shows no states of sleep, as most virtual machines")
	}
	if err != nil {
		return files.Because(err)
	}
	v := fact.Known(int64(0), dir)
	for _, n := range names {
		off, err := h.Root.ReadInt(path.Join(dir, n, "disable"))
		if err != nil || off != 0 {
			continue
		}
		file := path.Join(dir, n, "latency")
		if latency, err := h.Root.ReadInt(file); err == nil && latency > v.Is.(int64) {
			v = fact.Known(latency, file)
		}
	}
	return v
}

// running says whether a program of a name runs.
func running(h *host.Host, name string) fact.Value {
	pids, err := h.Root.ReadDir("/proc")
	if err != nil {
		return files.Because(err)
	}
	for _, pid := range pids {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		file := path.Join("/proc", pid, "comm")
		if comm, err := h.Root.ReadText(file); err == nil && comm == name {
			return fact.Known(true, file)
		}
	}
	return fact.Known(false, "/proc/*/comm")
}

// switches is how often a CPU changed its task, on average since the host started.
func switches(h *host.Host, stat string) fact.Value {
	var all, counted int64
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && fields[0] == "ctxt":
			all, _ = strconv.ParseInt(fields[1], 10, 64)
		case len(fields) > 2 && len(fields[0]) > 3 && strings.HasPrefix(fields[0], "cpu"):
			counted++
		}
	}
	up, err := h.Root.ReadText("/proc/uptime")
	if err != nil {
		return files.Because(err)
	}
	first, _, _ := strings.Cut(up, " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil || seconds < 1 || counted == 0 || all == 0 {
		return fact.Unknown("/proc/stat and /proc/uptime do not tell it")
	}
	return fact.Known(int64(float64(all)/seconds)/counted, "/proc/stat ctxt, /proc/uptime")
}

// vulnerable are the weaknesses of the CPU that the kernel does not guard against.
func vulnerable(h *host.Host) fact.Value {
	const dir = cpus + "/vulnerabilities"
	return files.List(h, dir, dir, func(weakness string) string {
		text, err := h.Root.ReadText(path.Join(dir, weakness))
		if err != nil || !strings.HasPrefix(text, "Vulnerable") {
			return ""
		}
		return weakness
	})
}

// steal is the share of time since the start in which the host of a virtual machine gave a CPU to others.
func steal(stat string) fact.Value {
	first, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(first)
	const at = 8 // cpu user nice system idle iowait irq softirq steal
	if len(fields) <= at {
		return fact.Unknown("/proc/stat tells no steal")
	}
	var all, stolen int64
	for i, f := range fields[1 : at+1] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return fact.Unknown("/proc/stat: %q is no number", f)
		}
		if all += n; i == at-1 {
			stolen = n
		}
	}
	if all == 0 {
		return fact.Unknown("/proc/stat counts nothing")
	}
	return fact.Known(stolen*100/all, "/proc/stat, since the host started")
}

// thermal is how often the CPU that was slowed most was too hot.
func thermal(h *host.Host) fact.Value {
	throttles, counted := int64(0), false
	names, _ := h.Root.ReadDir(cpus)
	for _, n := range names {
		if c, err := h.Root.ReadInt(path.Join(cpus, n, "thermal_throttle/package_throttle_count")); err == nil {
			throttles, counted = max(throttles, c), true
		}
	}
	if !counted {
		return fact.Unknown("this machine does not count it, as virtual machines")
	}
	return fact.Known(throttles, cpus+"/cpu*/thermal_throttle/package_throttle_count")
}

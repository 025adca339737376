package gather

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
)

// dmi reads a word of the firmware about the machine; "" where there is none.
func dmi(h *host.Host, name string) string {
	text, err := h.Root.ReadText("/sys/class/dmi/id/" + name)
	if err != nil {
		return ""
	}
	return text
}

// virtualFacts say on what the kernel runs, and whose cloud that is.
func virtualFacts(h *host.Host, values fact.Values) {
	vendor, product := dmi(h, "sys_vendor"), dmi(h, "product_name")
	cloud := cloudOf(h, vendor, product)
	values["host.cloud"] = fact.Known(cloud, "/sys/class/dmi/id")
	cpu, err := h.Root.ReadText("/proc/cpuinfo")
	if err != nil && vendor == "" {
		values["host.virtual"] = files.Because(err)
		return
	}
	kind := ""
	switch {
	case strings.HasSuffix(product, ".metal"):
	case vendor == "QEMU", vendor == "Amazon EC2", cloud == "gcp", strings.Contains(product, "KVM"):
		kind = "kvm"
	case strings.HasPrefix(vendor, "VMware"):
		kind = "vmware"
	case vendor == "Microsoft Corporation" && product == "Virtual Machine":
		kind = "hyperv"
	case vendor == "innotek GmbH":
		kind = "virtualbox"
	case vendor == "Xen", h.Root.Exists("/sys/hypervisor/type"):
		kind = "xen"
	case isGuest(cpu):
		kind = "other"
	}
	values["host.virtual"] = fact.Known(kind, "/sys/class/dmi/id, /proc/cpuinfo")
}

func cloudOf(h *host.Host, vendor, product string) string {
	switch tag := dmi(h, "chassis_asset_tag"); {
	case vendor == "Amazon EC2", strings.Contains(dmi(h, "bios_version"), "amazon"):
		return "aws"
	case product == "Google Compute Engine":
		return "gcp"
	case tag == "7783-7084-3265-9085-8269-3286-77":
		return "azure"
	case tag == "OracleCloud.com":
		return "oracle"
	case vendor == "Alibaba Cloud":
		return "alibaba"
	case strings.HasPrefix(product, "OpenStack"):
		return "openstack"
	case vendor == "DigitalOcean", vendor == "Hetzner":
		return strings.ToLower(vendor)
	}
	return ""
}

// isGuest says whether the CPU tells its kernel that there is another one below it.
func isGuest(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		if name, flags, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			return slices.Contains(strings.Fields(flags), "hypervisor")
		}
	}
	return false
}

// nodeFacts are those of the NUMA nodes.
func nodeFacts(h *host.Host, f *host.Facts, values fact.Values) {
	least, most, smallest := int64(100), int64(0), int64(0)
	var fewest, largest int64 = -1, -1
	const dir = "/sys/devices/system/node"
	for _, n := range f.Nodes {
		if n.MemTotal == 0 {
			continue
		}
		if smallest == 0 || n.MemTotal < smallest {
			smallest = n.MemTotal
		}
		at := path.Join(dir, "node"+strconv.Itoa(n.ID))
		text, err := h.Root.ReadText(path.Join(at, "meminfo"))
		if err != nil {
			least, most = -1, -1
			continue
		}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(line, ":")
			if free, err := procfs.ParseAmount(value); err == nil && strings.HasSuffix(name, " MemFree") {
				least, most = min(least, free*100/n.MemTotal), max(most, free*100/n.MemTotal)
			}
		}
		sizes, _ := h.Root.ReadDir(path.Join(at, "hugepages"))
		sum := int64(0)
		for _, s := range sizes {
			pages, _ := h.Root.ReadInt(path.Join(at, "hugepages", s, "nr_hugepages"))
			sum += pages
		}
		if fewest < 0 || sum < fewest {
			fewest = sum
		}
		largest = max(largest, sum)
	}
	values["host.node_memory"] = fact.Known(smallest, dir+"/node*/meminfo MemTotal")
	values["host.node_free_least"] = fact.Known(least, dir+"/node*/meminfo MemFree")
	values["host.node_free_most"] = fact.Known(most, dir+"/node*/meminfo MemFree")
	if least < 0 || smallest == 0 {
		none := fact.Unknown("the memory of a node cannot be read")
		values["host.node_free_least"], values["host.node_free_most"] = none, none
	}
	values["host.node_huge_least"] = fact.Known(max(fewest, 0), dir+"/node*/hugepages")
	values["host.node_huge_most"] = fact.Known(max(largest, 0), dir+"/node*/hugepages")
}

// far says whether a process may run on CPUs of a node whose memory it may not use.
func far(h *host.Host, f *host.Facts, pid int) fact.Value {
	if f == nil {
		return fact.Unknown("the nodes of the host are not known")
	}
	file := path.Join("/proc", strconv.Itoa(pid), "status")
	text, err := h.Root.ReadText(file)
	if err != nil {
		return files.Because(err)
	}
	sets := map[string]idset.Set{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if name == "Cpus_allowed_list" || name == "Mems_allowed_list" {
			if sets[name], err = idset.Parse(strings.TrimSpace(value)); err != nil {
				return files.Because(err)
			}
		}
	}
	if len(sets) < 2 {
		return fact.Unknown("%s tells no Cpus_allowed_list or no Mems_allowed_list", file)
	}
	for _, n := range f.Nodes {
		inside := slices.Contains(sets["Mems_allowed_list"], n.ID)
		if len(n.CPUs.Intersect(sets["Cpus_allowed_list"])) > 0 && !inside && n.MemTotal > 0 {
			return fact.Known(true, file+" Cpus_allowed_list, Mems_allowed_list")
		}
	}
	return fact.Known(false, file+" Cpus_allowed_list, Mems_allowed_list")
}

// oldKeys are files of units that a person wrote with settings for cgroup v1, which systemd 258 does not read.
func oldKeys(h *host.Host) fact.Value {
	const dir = "/etc/systemd/system"
	names, err := h.Root.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fact.Known([]string{}, dir+" is not there")
	}
	if err != nil {
		return files.Because(err)
	}
	var files []string
	for _, n := range names {
		switch {
		case strings.HasSuffix(n, ".slice"), strings.HasSuffix(n, ".service"):
			files = append(files, path.Join(dir, n))
		case strings.HasSuffix(n, ".slice.d"), strings.HasSuffix(n, ".service.d"):
			inside, _ := h.Root.ReadDir(path.Join(dir, n))
			for _, f := range inside {
				if strings.HasSuffix(f, ".conf") {
					files = append(files, path.Join(dir, n, f))
				}
			}
		}
	}
	old := []string{"CPUShares=", "StartupCPUShares=", "MemoryLimit=", "BlockIOWeight=", "BlockIODeviceWeight=",
		"BlockIOReadBandwidth=", "BlockIOWriteBandwidth="}
	found := []string{}
	for _, file := range files {
		text, err := h.Root.ReadText(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			if slices.ContainsFunc(old, func(k string) bool { return strings.HasPrefix(strings.TrimSpace(line), k) }) &&
				!slices.Contains(found, file) {
				found = append(found, file)
			}
		}
	}
	slices.Sort(found)
	return fact.Known(found, dir)
}

// tasksUsed is the share of the tasks that the host can have.
func tasksUsed(h *host.Host) fact.Value {
	text, err := h.Root.ReadText("/proc/loadavg")
	if err != nil {
		return files.Because(err)
	}
	fields := strings.Fields(text)
	if len(fields) < 4 {
		return fact.Unknown("/proc/loadavg: %q tells no tasks", text)
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return fact.Unknown("/proc/loadavg: %q tells no tasks", text)
	}
	return fact.Known(n*100/tasksOf(h), "/proc/loadavg "+fields[3]+", /proc/sys/kernel/pid_max, threads-max")
}

// missed are the network interfaces that had no room for packets.
func missed(h *host.Host) fact.Value {
	const dir = "/sys/class/net"
	return files.List(h, dir, dir+"/*/statistics/rx_missed_errors", func(nic string) string {
		if n, err := h.Root.ReadInt(path.Join(dir, nic, "statistics/rx_missed_errors")); err != nil || n <= 0 {
			return ""
		}
		return nic
	})
}

// booleans of SELinux that are on and give databases more than they need.
func booleans(h *host.Host) fact.Value {
	const dir = "/sys/fs/selinux/booleans"
	list := []string{}
	for _, n := range []string{"mysql_connect_any", "nis_enabled"} {
		if text, err := h.Root.ReadText(path.Join(dir, n)); err == nil && strings.HasPrefix(text, "1") {
			list = append(list, n)
		}
	}
	return fact.Known(list, dir)
}

// dirtyFacts are at how much unwritten data the kernel begins to write, and stops writers.
func dirtyFacts(h *host.Host, available int64, values fact.Values) {
	for name, file := range map[string]string{"host.dirty_background": "/proc/sys/vm/dirty_background_",
		"host.dirty_limit": "/proc/sys/vm/dirty_"} {
		n, err := h.Root.ReadInt(file + "bytes")
		if err == nil && n > 0 {
			values[name] = fact.Known(n, file+"bytes")
			continue
		}
		percent, err := h.Root.ReadInt(file + "ratio")
		switch {
		case err != nil:
			values[name] = files.Because(err)
		case available <= 0:
			values[name] = fact.Unknown("/proc/meminfo has no MemAvailable")
		default:
			values[name] = fact.Known(available*percent/100, file+"ratio "+strconv.FormatInt(percent, 10)+
				" % of MemAvailable")
		}
	}
}

// statFacts are those of counters since the host started.
func statFacts(h *host.Host, values fact.Values) {
	counter := func(file, name string) fact.Value {
		text, err := h.Root.ReadText(file)
		if err != nil {
			return files.Because(err)
		}
		for line := range strings.Lines(text) {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == name {
				if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
					return fact.Known(n, file+" "+name)
				}
			}
		}
		return fact.Unknown("%s has no %s", file, name)
	}
	values["host.oom_kills"] = counter("/proc/vmstat", "oom_kill")
	values["host.listen_overflows"] = overflows(h)
}

// overflows are connections that a full queue dropped.
func overflows(h *host.Host) fact.Value {
	text, err := h.Root.ReadText("/proc/net/netstat")
	if err != nil {
		return files.Because(err)
	}
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "TcpExt:" {
			continue
		}
		at := slices.Index(names, "ListenOverflows")
		if at > 0 && at < len(fields) {
			if n, err := strconv.ParseInt(fields[at], 10, 64); err == nil {
				return fact.Known(n, "/proc/net/netstat TcpExt ListenOverflows")
			}
		}
		names = fields
	}
	return fact.Unknown("/proc/net/netstat tells no ListenOverflows")
}

// clockKept says whether something keeps the clock right (adjtimex(2)).
func clockKept(h *host.Host) fact.Value {
	if !h.Root.Live() {
		return fact.Unknown("the host is a copy")
	}
	const timeError = 5 // TIME_ERROR: the clock is not synchronised
	state, err := syscall.Adjtimex(&syscall.Timex{})
	if err != nil {
		return files.Because(err)
	}
	return fact.Known(state != timeError, "adjtimex(2)")
}

// removesIPC says whether logind takes away the shared memory of a user who has logged out.
func removesIPC(h *host.Host) fact.Value {
	if !h.Root.Exists("/run/systemd/system") {
		return fact.Known(false, "/run/systemd/system is not there")
	}
	value, from := true, "default of systemd-logind"
	var files []string
	for _, dir := range []string{"/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d",
		"/etc/systemd/logind.conf.d"} {
		names, _ := h.Root.ReadDir(dir)
		for _, n := range names {
			if strings.HasSuffix(n, ".conf") {
				files = append(files, path.Join(dir, n))
			}
		}
	}
	// By name over all directories; of one name the last directory counts.
	slices.SortStableFunc(files, func(a, b string) int { return strings.Compare(path.Base(a), path.Base(b)) })
	for _, file := range append([]string{"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"}, files...) {
		text, err := h.Root.ReadText(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			if v, is := strings.CutPrefix(strings.TrimSpace(line), "RemoveIPC="); is {
				value, from = settings.IsOn(v) && v != "", file
			}
		}
	}
	return fact.Known(value, from)
}

// bigNumber reads a file of a number that may be larger than an int64.
func bigNumber(h *host.Host, file string, times int64) fact.Value {
	text, err := h.Root.ReadText(file)
	if err != nil {
		return files.Because(err)
	}
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err != nil:
		return fact.Unknown("%q is no number", text)
	case n > uint64(fact.Unlimited/times):
		return fact.Known(int64(fact.Unlimited), file)
	}
	return fact.Known(int64(n)*times, file)
}

// selinux says what SELinux does.
func selinux(h *host.Host) fact.Value {
	const file = "/sys/fs/selinux/enforce"
	text, err := h.Root.ReadText(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fact.Known("off", file+" is not there")
	case err != nil:
		return files.Because(err)
	case text == "1":
		return fact.Known("enforcing", file)
	}
	return fact.Known("permissive", file)
}

// securityFacts are the label of a process, by SELinux, and its profile, by AppArmor.
func securityFacts(h *host.Host, pid int, v fact.Values) {
	dir := path.Join("/proc", strconv.Itoa(pid), "attr")
	se := selinux(h)
	v["instance.domain"] = fact.Known("", "SELinux is off")
	if se.Is != "off" {
		label, err := h.Root.ReadText(path.Join(dir, "current"))
		v["instance.domain"] = files.Because(err)
		if parts := strings.Split(strings.TrimRight(label, "\x00"), ":"); err == nil && len(parts) >= 3 {
			v["instance.domain"] = fact.Known(parts[2], path.Join(dir, "current"))
		}
	}
	v["instance.apparmor"] = fact.Known("", "AppArmor is off")
	if text, err := h.Root.ReadText("/sys/module/apparmor/parameters/enabled"); err == nil && text == "Y" {
		profile, err := h.Root.ReadText(path.Join(dir, "apparmor/current"))
		if errors.Is(err, fs.ErrNotExist) { // before 5.8 there is one file for all
			profile, err = h.Root.ReadText(path.Join(dir, "current"))
		}
		v["instance.apparmor"] = files.Because(err)
		if err == nil {
			v["instance.apparmor"] = fact.Known(strings.TrimRight(profile, "\x00"), path.Join(dir, "apparmor/current"))
		}
	}
}

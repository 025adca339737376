package gather

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/advise/gather/hugepages"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/rlimit"
)

// server is what is known of one instance.
type server struct {
	name    string
	engine  string
	user    string
	values  fact.Values
	limited string // the group whose memory limit is the smallest, "" for none
	group   string // its own group of memory
	trouble error  // why it was not asked
	need    hugepages.Need
}

// serverTime is how long one instance may take, AskTime with it: its option files may lie on a disk that hangs.
func (o Options) serverTime() time.Duration {
	const ofFiles = 4 * time.Second
	return o.in(ofFiles + settings.AskTime)
}

// servers finds the instances and reads what is known of each, side by side and each in its own time.
func servers(ctx context.Context, h *host.Host, o Options) ([]server, error) {
	instances, err := recognise.OfHost(h)
	if err != nil {
		return nil, err
	}
	machine, machineErr := h.Facts()
	var reading []area[server]
	var brief []server
	users := map[string]int{}
	for _, inst := range instances {
		users[inst.Engine+inst.User]++
	}
	for _, inst := range instances {
		brief = append(brief, server{name: inst.Name(), engine: inst.Engine, user: inst.User, values: nameFacts(inst)})
		reading = append(reading, start(o.serverTime(), func() server {
			s := server{name: inst.Name(), engine: inst.Engine, user: inst.User, values: nameFacts(inst)}
			s.read(ctx, h, inst, machine, machineErr, o, users[inst.Engine+inst.User] < 2)
			return s
		}))
	}
	var list []server
	for i, one := range reading {
		s, ok := one.wait(ctx)
		if !ok {
			s = brief[i]
			s.need = hugepages.Need{Instance: s.name, Told: true, Unknown: "no answer in time"}
			fillUnknown(s.values, fact.Instance, fact.Unknown("no answer within %s", o.serverTime()))
		}
		list = append(list, s)
	}
	return list, nil
}

// nameFacts are those that tell an instance from others.
func nameFacts(inst engine.Instance) fact.Values {
	v := fact.Values{}
	evidence := "process " + strconv.Itoa(inst.Main.PID)
	v["instance.engine"] = fact.Known(cmp.Or(inst.Flavor, inst.Engine), evidence)
	v["instance.version"] = fact.Unknown("it shows no version without being asked")
	if inst.Version != "" {
		v["instance.version"] = fact.Known(inst.Version, evidence+" or its data directory")
	}
	v["instance.port"] = fact.Unknown("it listens on no port")
	if inst.Port != 0 {
		v["instance.port"] = fact.Known(int64(inst.Port), "its listening socket")
	}
	return v
}

func (s *server) read(ctx context.Context, h *host.Host, inst engine.Instance, machine *host.Facts, machineErr error,
	o Options, alone bool) {
	if inst.Port != 0 {
		s.values["instance.port_reserved"] = portReserved(h, int64(inst.Port))
	}
	processFacts(h, inst.Main.PID, s.values)
	securityFacts(h, inst.Main.PID, s.values)
	p, err := process(h, inst)
	if err != nil {
		fillUnknown(s.values, fact.Instance, files.Because(err))
		return
	}
	s.values["instance.uid"] = fact.Known(int64(p.UID), "/proc/"+strconv.Itoa(p.PID)+"/status")
	s.values["instance.gid"] = fact.Known(int64(p.GID), "/proc/"+strconv.Itoa(p.PID)+"/status")
	s.values["instance.huge_shm"] = hugeShm(h, p)
	if machineErr == nil {
		s.limited = groupFacts(h, machine, p, s.values)
		if dirs := groupsOf(machine, p, "memory").dirs; len(dirs) > 0 {
			s.group = dirs[0]
		}
	} else {
		for _, name := range groupNames {
			s.values[name] = files.Because(machineErr)
		}
	}
	service, _ := unitsOf(p)
	s.values["instance.unit"] = fact.Known(service, "/proc/"+strconv.Itoa(p.PID)+"/cgroup")
	unitFacts(ctx, o, p, s.values)
	s.values["instance.cpus_far"] = far(h, machine, p.PID)
	s.values["instance.pam_limits"] = pamLimits(h, inst.User)
	s.values["instance.auto_upgraded"] = upgraded(h, packagesOf[cmp.Or(inst.Flavor, inst.Engine)])
	s.values["instance.rseq_off"] = rseqOff(h, p.PID)
	switch inst.Engine {
	case engine.Cassandra:
		s.values["instance.buffer"] = heap(p)
	case engine.Oracle:
		s.values["instance.buffer"] = segments(h, p.UID)
		if !alone {
			s.values["instance.buffer"] = fact.Unknown("several instances have one user, and so their segments " +
				"cannot be told apart")
		}
	}
	found, trouble := settings.Within(ctx, o.in(settings.AskTime), h, inst, p, o.login(inst))
	s.trouble = trouble
	found.Facts(inst, s.values)
	if machineErr == nil {
		s.huge(h, machine, inst, found)
	}
	fillUnknown(s.values, fact.Instance, fact.Unknown("bulkhead does not read this of %s", inst.Engine))
}

// fillUnknown gives facts of a scope that nobody read a reason.
func fillUnknown(v fact.Values, scope fact.Scope, reason fact.Value) {
	for _, row := range fact.Table {
		if _, read := v[row.Name]; row.Scope() == scope && !read && !slices.Contains(placeNames, row.Name) {
			v[row.Name] = reason
		}
	}
}

// heap is the heap of a Java virtual machine: the last -Xmx.
func heap(p *procfs.Process) fact.Value {
	v := fact.Unknown("no -Xmx is on its command line")
	for _, arg := range p.Args {
		if text, is := strings.CutPrefix(arg, "-Xmx"); is {
			if n, ok := settings.Size(text, 1); ok {
				v = fact.Known(n, arg+" on its command line")
			}
		}
	}
	return v
}

// segments is the SysV shared memory of a user that processes use: an SGA, where it is the one instance of the user.
func segments(h *host.Host, uid int) fact.Value {
	const file = "/proc/sysvipc/shm"
	text, err := h.Root.ReadText(file)
	if err != nil {
		return files.Because(err)
	}
	const sizeAt, usedAt, uidAt = 3, 6, 7 // key shmid perms size cpid lpid nattch uid
	var sum int64
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) <= uidAt || fields[uidAt] != strconv.Itoa(uid) || fields[usedAt] == "0" {
			continue
		}
		n, err := strconv.ParseInt(fields[sizeAt], 10, 64)
		if err != nil {
			return fact.Unknown("%s: %q is no size", file, fields[sizeAt])
		}
		sum += n
	}
	if sum == 0 {
		return fact.Unknown("its user has no SysV segments; with AMM the SGA lies in /dev/shm")
	}
	return fact.Known(sum, file+", segments of its user")
}

// pamLimits are the files of limits.conf(5) with lines for a user. Services of systemd do not read them.
func pamLimits(h *host.Host, user string) fact.Value {
	files := []string{"/etc/security/limits.conf"}
	names, err := h.Root.ReadDir("/etc/security/limits.d")
	if err == nil {
		slices.Sort(names)
		for _, n := range names {
			if strings.HasSuffix(n, ".conf") {
				files = append(files, path.Join("/etc/security/limits.d", n))
			}
		}
	}
	found := []string{}
	for _, file := range files {
		text, err := h.Root.ReadText(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			if fields := strings.Fields(line); len(fields) >= 4 && fields[0] == user && !slices.Contains(found, file) {
				found = append(found, file)
			}
		}
	}
	return fact.Known(found, "/etc/security/limits.conf, limits.d")
}

// limitsOf are the rows of /proc/PID/limits that are facts.
var limitsOf = map[string]string{"Max open files": "instance.open_files", "Max processes": "instance.processes",
	"Max locked memory": "instance.locked", "Max core file size": "instance.core_limit"}

// processFacts are those of the main process.
func processFacts(h *host.Host, pid int, v fact.Values) {
	dir := path.Join("/proc", strconv.Itoa(pid))
	v["instance.oom_score_adj"] = files.Number(h, path.Join(dir, "oom_score_adj"))
	status, err := h.Root.ReadText(path.Join(dir, "status"))
	for name, key := range map[string]string{"instance.swapped": "VmSwap", "instance.huge_used": "HugetlbPages",
		"instance.thp_off": "THP_enabled"} {
		v[name] = fact.Unknown("this kernel does not tell %s", key)
		if err != nil {
			v[name] = files.Because(err)
		}
		for line := range strings.Lines(status) {
			label, value, _ := strings.Cut(line, ":")
			if label != key {
				continue
			}
			from := path.Join(dir, "status") + " " + key
			if n, err := procfs.ParseAmount(value); err == nil && key == "THP_enabled" {
				v[name] = fact.Known(n == 0, from)
			} else if err == nil {
				v[name] = fact.Known(n, from)
			}
		}
	}
	limits, err := h.Root.ReadText(path.Join(dir, "limits"))
	all := rlimit.Parse(limits)
	for key, name := range limitsOf {
		v[name] = fact.Unknown("its limits do not name it")
		if err != nil {
			v[name] = files.Because(err)
		}
		if l, there := all[key]; there {
			v[name] = fact.Known(int64(min(l.Soft, 1<<50)), path.Join(dir, "limits")+" "+key)
		}
	}
	policy, err := h.Root.ReadSome(path.Join(dir, "numa_maps"), 4096) // the first line: the rest takes long
	v["instance.numa_policy"] = fact.Unknown("it has no mapping")
	if err != nil {
		v["instance.numa_policy"] = files.Because(err)
	} else if fields := strings.Fields(string(policy)); len(fields) > 1 && isPolicy(fields[1]) {
		v["instance.numa_policy"] = fact.Known(fields[1], path.Join(dir, "numa_maps")+", first line")
	}
}

// isPolicy says whether a word of numa_maps is one of mpol_to_str() of mm/mempolicy.c, with its nodes or without.
func isPolicy(word string) bool {
	return slices.ContainsFunc([]string{"default", "prefer", "bind", "interleave", "weighted", "local"},
		func(p string) bool { return strings.HasPrefix(word, p) })
}

// process is the main process of an instance.
func process(h *host.Host, inst engine.Instance) (*procfs.Process, error) {
	list, err := h.Proc.Processes(procfs.Options{PIDs: []int{inst.Main.PID}})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0].ID != inst.Main {
		return nil, procfs.ErrExited
	}
	return &list[0], nil
}

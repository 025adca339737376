package knob

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
)

// nothing is what is used instead of a limit that a host cannot hold, where nothing is.
const nothing = "nothing"

// gap is a limit that one version of cgroups has no file for.
type gap struct {
	key     policy.Key
	version int
	reason  string
	instead string // "" for nothing
}

var gaps = []gap{
	{policy.KeyMemoryMin, 1, "cgroup v1 has no memory.min", ""},
	{policy.KeyMemoryLow, 1,
		"cgroup v1 has no memory.low; its memory.soft_limit_in_bytes only says whom to reclaim from first, and " +
			"protects nothing", ""},
	{policy.KeyMemoryHigh, 1, "cgroup v1 has no memory.high; memory.max is what stops growth here", ""},
	{policy.KeyMemorySwappiness, 2, "cgroup v2 has no memory.swappiness; vm.swappiness holds for every group", ""},
	{policy.KeyCPURT, 2,
		"cgroup v2 has no real-time run time; real-time tasks are bounded for the whole host only " +
			"(kernel.sched_rt_runtime_us)", ""},
}

// Capabilities says for every key what holds it on this host: the hierarchy and files, or why not and
// what is used instead. has answers whether an existing directory shows a file; the root of a v2
// hierarchy lacks files that its children have, so "no" must come from another directory. It may be
// nil, and it may answer Unknown: then the kernel's version decides where it can.
func Capabilities(f *host.Facts, has func(hierarchy, file string) Verdict) []Capability {
	keys := policy.Keys()
	all := make([]Capability, 0, len(keys))
	for _, key := range keys {
		all = append(all, explain(key, f, has))
	}
	return all
}

// explain is the capability of one key; without has it is judged by the facts alone.
func explain(key policy.Key, f *host.Facts, has func(hierarchy, file string) Verdict) Capability {
	switch {
	case key == policy.KeyOOMScoreAdj:
		return explainOOMScore(f)
	case key == policy.KeyIOWeight:
		return explainIOWeight(f)
	case key.OfNetwork():
		return explainNetwork(key, f)
	}
	rows := serving(key, 0)
	if len(rows) == 0 {
		return no(key, "unknown key", "")
	}
	controller := rows[0].Controller
	h, ok := f.HierarchyOf(controller)
	if !ok {
		return no(key, unmounted(f, controller), "")
	}
	c := Capability{Key: key, Hierarchy: h.ID}
	if h.ReadOnly {
		c.Verdict, c.Reason, c.Instead = No, fmt.Sprintf("the hierarchy at %s is mounted read-only", h.Mount), nothing
		return c
	}
	rows = serving(key, h.Version)
	for _, g := range gaps {
		if len(rows) == 0 && g.key == key && g.version == h.Version {
			c.Verdict, c.Reason, c.Instead = No, g.reason, orNothing(g.instead)
			return c
		}
	}
	return c.judge(rows, f, has)
}

// judge fills in the verdict over the files of one key: the worst one counts.
func (c Capability) judge(rows []*Row, f *host.Facts, has func(hierarchy, file string) Verdict) Capability {
	c.Verdict = Yes
	var reasons []string
	for _, r := range rows {
		names := r.names(f)
		if len(names) == 0 {
			return no(c.Key, "this kernel has no huge pages", "")
		}
		c.Files = append(c.Files, names...)
		verdict, reason := r.present(names[0], c.Hierarchy, f, has)
		if verdict == No || verdict == Unknown && c.Verdict == Yes {
			c.Verdict, c.Instead = verdict, orNothing(r.Instead)
			reasons = nil
		}
		if verdict == c.Verdict && reason != "" && !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	if c.Verdict == No {
		c.Files = nil
	}
	c.Reason = strings.Join(reasons, "; ")
	return c
}

// present says whether a row's file is there, and else why not, or what it does not reach.
func (r *Row) present(name, hierarchy string, f *host.Facts, has func(hierarchy, file string) Verdict) (Verdict,
	string) {
	kernel := f.Kernel
	if !r.usable(kernel) {
		return No, fmt.Sprintf("%s came with kernel %s, this is %s", name, r.Since, kernel)
	}
	shown := Unknown
	if h, _ := f.Hierarchy(hierarchy); slices.Contains(h.Lacks, name) {
		shown = No
	} else if has != nil {
		shown = has(hierarchy, name)
	}
	switch {
	case shown == No && r.Option != "":
		return No, fmt.Sprintf("this kernel has no %s: it lacks %s", name, r.Option)
	case shown == No:
		return No, "this kernel has no " + name
	case kernel.Major > 0 && !r.Nests(kernel):
		return Unknown,
			fmt.Sprintf("kernels before %s refuse %s below another group, unless their distribution has changed that",
				r.Nested, name)
	case shown == Yes:
		return Yes, r.reach(f)
	case r.Option != "" && (r.OptionUntil == "" || kernel.Major == 0 || !kernel.Since(r.OptionUntil)):
		return Unknown, fmt.Sprintf("%s hangs on %s, and no group shows whether it is there", name, r.Option)
	case r.Late && kernel.Major == 0:
		return Unknown, fmt.Sprintf("%s came with kernel %s, and this kernel's version is not known", name, r.Since)
	}
	return Yes, r.reach(f)
}

// reach says what the row's limit does not hold on this host, "" when it holds all.
func (r *Row) reach(f *host.Facts) string {
	reasons := []string{r.Reach}
	switch memory, _ := f.HierarchyOf("memory"); {
	case r.Controller == "blkio" && r.Version == 2 && memory.Version == 2:
		reasons = nil
	case r.Controller == "memory" && r.Version == 1 && !f.Systemd && !f.Kernel.Since(hierarchicalSince):
		reasons = append(reasons, "children are held only where memory.use_hierarchy is 1")
	}
	if slices.Contains(r.serves, policy.KeyMemorySwap) && f.SwapTotal == 0 {
		reasons = append(reasons, "this host has no swap now")
	}
	return strings.Join(slices.DeleteFunc(reasons, func(s string) bool { return s == "" }), "; ")
}

// names lists the row's files: one for each huge page size of the host, else one.
func (r *Row) names(f *host.Facts) []string {
	if !r.PerSize {
		return []string{r.File}
	}
	var names []string
	for _, size := range f.HugePageSizes {
		names = append(names, r.Name(policy.HugePageName(size)))
	}
	return names
}

// serving lists the rows that decide a key; version 0 is both.
func serving(key policy.Key, version int) []*Row {
	var rows []*Row
	for _, r := range table {
		if slices.Contains(r.serves, key) && (version == 0 || r.Version == version) {
			rows = append(rows, r)
		}
	}
	return rows
}

// explainNetwork says what would hold a limit on an interface. Whether the kernel has it only a trial tells, which may
// load modules: `plan` makes it for a policy that asks.
func explainNetwork(key policy.Key, f *host.Facts) Capability {
	c := Capability{Key: key, Verdict: Unknown, Files: []string{"HTB classes"}}
	if key == policy.KeyNetworkIngressMin || key == policy.KeyNetworkIngressMax {
		c.Files = []string{"HTB classes of a virtual NIC"}
	}
	told := "a program or its ports tell"
	if SortsByNetCls(f) {
		told = "net_cls or its ports tell"
	}
	c.Reason = told + " the group's traffic; `plan` tries whether this kernel has it all, once a policy asks"
	return c
}

func explainOOMScore(f *host.Facts) Capability {
	c := Capability{Key: policy.KeyOOMScoreAdj, Verdict: Yes, Files: []string{"/proc/PID/oom_score_adj"}}
	if !f.SysResource {
		c.Reason = "raising only: going below a process's lowest value so far takes CAP_SYS_RESOURCE, which bulkhead " +
			"does not have here"
	}
	return c
}

// unmounted says why a controller has no hierarchy, with the command that gives it one.
func unmounted(f *host.Facts, controller string) string {
	c, ok := f.Controller(controller)
	switch {
	case !ok:
		return fmt.Sprintf("this kernel has no %s controller", controller)
	case !c.Enabled:
		return fmt.Sprintf("the %s controller is switched off at boot (cgroup_disable=%s)", controller, controller)
	case c.Hint != "":
		return fmt.Sprintf("the %s controller is not mounted; to mount it: %s", controller, c.Hint)
	default:
		return fmt.Sprintf("the %s controller is not mounted", controller)
	}
}

func no(key policy.Key, reason, instead string) Capability {
	return Capability{Key: key, Verdict: No, Reason: reason, Instead: orNothing(instead)}
}

func orNothing(instead string) string {
	if instead == "" {
		return nothing
	}
	return instead
}

// Caveat is what a person should know about one setting on one host.
type Caveat struct {
	Key         policy.Key `json:"key"`
	On          string     `json:"on,omitempty"`
	Text        string     `json:"text"`
	NotEnforced bool       `json:"not_enforced,omitempty"` // nothing holds the limit that was asked for
	// Partly: it is held, and nothing holds a part of what it is for, such as buffered writes on v1.
	Partly bool `json:"partly_enforced,omitempty"`
}

// Caveats lists what this host does not hold of a group's settings, or holds otherwise than asked, in
// the order of the settings: a key without a file, a value that this version lacks, a setting that
// another one overrules, and what a limit does not reach.
func Caveats(f *host.Facts, s policy.Settings) []Caveat {
	var caveats []Caveat
	told := map[Caveat]bool{}
	for _, setting := range s {
		if !limits(setting) || setting.Key.OfNetwork() { // no file of the kernel holds those
			continue
		}
		text, lost := caveat(f, s, setting)
		c := Caveat{Key: setting.Key, On: setting.On, Text: text, NotEnforced: lost, Partly: !lost && text != "" &&
			partly(f, setting.Key)}
		if text != "" && !told[c] {
			told[c] = true
			caveats = append(caveats, c)
		}
	}
	return caveats
}

// partly says whether nothing holds a part of what a key's limit is for: one on writing, where buffered writes escape
// it.
func partly(f *host.Facts, key policy.Key) bool {
	h, ok := f.HierarchyOf("blkio")
	return ok && slices.ContainsFunc(serving(key, h.Version), func(r *Row) bool {
		return r.Partly && r.reach(f) != "" && (key == policy.KeyIOWriteBandwidth || key == policy.KeyIOWriteIOPS)
	})
}

// caveat is what there is to say of one setting; lost means that nothing holds it.
func caveat(f *host.Facts, s policy.Settings, setting policy.Setting) (text string, lost bool) {
	c := explain(setting.Key, f, nil)
	if setting.Key == policy.KeyIOWeight && setting.Dev == "" && c.Verdict == Yes {
		return "without `on` it changes no disk, and none weighs by itself: `on: DISK` chooses one, and plan then " +
			"says what changes there", false
	}
	if setting.Key == policy.KeyIOWeight && c.Verdict == Yes {
		return "", false
	}
	if c.Verdict == No {
		return c.Reason + "; instead: " + c.Instead, true
	}
	if text := overruled(f, s, setting); text != "" {
		return text, setting.Key == policy.KeyCPUPeriod || setting.Key == policy.KeyCPUBurst
	}
	h, _ := f.Hierarchy(c.Hierarchy)
	switch {
	case setting.Key == policy.KeyMemorySwap && h.Version == 1 && !allOf(policy.KeyMemoryMax)(s):
		return "cgroup v1 limits memory and swap in one number, so memory.swap needs memory.max", true
	case setting.Value == policy.OOM("pause") && h.Version == 2:
		return "cgroup v2 does not pause a group that is out of memory; it kills", true
	case setting.Value == policy.OOM("kill-group") && h.Version == 1:
		return "cgroup v1 does not kill a group as a whole; it kills one process", true
	case setting.Key == policy.KeyMemoryOOM && c.Verdict == Yes:
		return "", false
	}
	return c.Reason, false
}

// overruled says which other setting, or which missing one, takes the place of this one.
func overruled(f *host.Facts, s policy.Settings, setting policy.Setting) string {
	idle, _, _ := get[policy.Flag](s, policy.KeyCPUIdle, "")
	switch {
	case setting.Key == policy.KeyCPUWeight && bool(idle) && setting.Value != policy.Weight(1) &&
		!f.Kernel.Since(idleSince):
		return "cpu.weight 1 stands in for cpu.idle, which this kernel lacks"
	case setting.Key == policy.KeyCPUPeriod && !anyOf(policy.KeyCPULimit)(s):
		return "cpu.period is not written without cpu.limit"
	case setting.Key == policy.KeyCPUBurst && !anyOf(policy.KeyCPULimit)(s):
		return "cpu.burst is not written without cpu.limit: there is nothing to save up"
	case setting.Key == policy.KeyCPUNUMA && anyOf(policy.KeyCPUCPUs)(s):
		return "cpu.numa is not used beside cpu.cpus, which goes before it"
	}
	return ""
}

package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// Check looks for what can never work on a host in resolved settings: above the host, above what
// the reserve or a parent leaves, or at odds with each other. Parents come before their children.
// Resolve has done it for the policy itself; it is needed again once overrides are laid over it.
func Check(f *host.Facts, h policy.HostPart, groups []Limits) (policy.Problems, []policy.Note) {
	r := resolution{facts: f, Report: yamlform.NewReport(nil)}
	checks{&r}.check(h, groups)
	return r.Problems(), r.notes
}

// bounds is what a group may use at most, by the keys that a child cannot have more of than its
// parent. On v1 the kernel refuses the child (EINVAL, EACCES); on v2 it takes a value that never acts.
type bounds map[policy.Key]bound

type bound struct {
	value policy.Value
	words string // whose it is: "mysql3306 may use"
	pos   policy.Pos
}

// exceeds says whether a value is more than a bound of the same type.
func exceeds(v, bound policy.Value) bool {
	switch v := v.(type) {
	case policy.Cores:
		return v > bound.(policy.Cores)
	case policy.Bytes:
		return v > bound.(policy.Bytes)
	case policy.IDs:
		return !v.Subset(bound.(policy.IDs).Set)
	}
	return false
}

// words is a setting in words: "cpu.limit 4, class standard".
func words(s policy.Setting) string {
	value := s.Value.String()
	if s.Raw != "" {
		value = s.Raw + " = " + value
	}
	text := fmt.Sprintf("%s %s", s.Key, value)
	if s.From != "" && s.From != "group" && s.From != "set" {
		text += " (" + s.From + ")"
	}
	return text
}

// smallMemory is less than any program runs in: what is below it, nobody meant.
const smallMemory policy.Bytes = 1 << 20

// The CPU period when none is asked for, the longest one, and the least run time in a period that the kernel takes
// (kernel/sched/core.c, max_cfs_quota_period and min_cfs_quota_period).
const (
	defaultPeriod = 100 * time.Millisecond
	longestPeriod = time.Second
	leastQuota    = time.Millisecond
)

// check checks groups against the host, their parents and themselves.
func (r checks) check(h policy.HostPart, groups []Limits) {
	allowed := map[string]bounds{"": r.reserveBounds(h)}
	for _, g := range groups {
		r.checkHost(g.Settings, g.Group)
		r.checkTogether(g.Settings, g.Group)
		allowed[g.Group] = r.checkWithin(g, allowed[g.Parent])
	}
	r.checkCeilings(h, groups)
	r.checkCollisions(groups)
	r.checkModels(groups)
	r.checkShares(h, groups)
}

// reserveBounds is what `host.reserve` leaves to the groups. Without one nothing is bounded here:
// what is above the host itself is found by checkHost.
func (r checks) reserveBounds(h policy.HostPart) bounds {
	b := make(bounds)
	if left := r.cores() - h.Reserve.CPU; h.Reserve.CPU > 0 && left > 0 {
		b[policy.KeyCPULimit] = bound{left, "host.reserve leaves", cmp.Or(h.Reserve.CPUPos, h.Reserve.Pos)}
	}
	if m, ok := h.Reserve.Memory.(policy.Bytes); ok && m > 0 && m < r.memory() {
		b[policy.KeyMemoryMax] = bound{r.memory() - m, "host.reserve leaves",
			cmp.Or(h.Reserve.MemoryPos, h.Reserve.Pos)}
	}
	return b
}

// checkWithin checks a group against what its parents leave it, and gives what it leaves its children.
func (r checks) checkWithin(g Limits, within bounds) bounds {
	inside := maps.Clone(within)
	for _, key := range []policy.Key{policy.KeyCPULimit, policy.KeyMemoryMax, policy.KeyCPUCPUs, policy.KeyMemoryNUMA} {
		s, ok := g.Settings.Get(key, "")
		if _, lifted := s.Value.(policy.Unlimited); !ok || lifted {
			continue
		}
		if b, bounded := within[key]; bounded && exceeds(s.Value, b.value) {
			r.Fail(s.Pos, "", "%s of %s is beyond the %s that %s", words(s), g.Group, b.value, b.words)
			r.Also(b.pos)
			continue
		}
		inside[key] = bound{s.Value, g.Group + " may use", s.Pos}
	}
	return inside
}

// checkHost reports what is above the host, too small for it, or not there.
func (r checks) checkHost(ss policy.Settings, group string) {
	for _, s := range ss {
		switch v := s.Value.(type) {
		case policy.Cores:
			if v > r.cores() {
				hint := ""
				if v >= 10*policy.One && s.Raw == "" && v/100 <= r.cores() {
					hint = fmt.Sprintf("a bare number is cores; %s percent of one core is written %s%%", v, v)
				}
				r.Fail(s.Pos, hint, "%s is above the host's %s", words(s), policy.Counted(len(r.facts.CPUs), "CPU"))
			}
		case policy.Bytes:
			r.checkBytes(s, v, group)
			r.checkLeast(s, v, group)
		case policy.IDs:
			r.checkIDs(s, v)
		case policy.Count:
			if most := min(r.facts.PIDMax, r.facts.ThreadsMax); s.Key == policy.KeyTasks && most > 0 &&
				int64(v) > most {
				r.Fail(s.Pos, "", "%s is above the host's %d (the smaller of kernel.pid_max and kernel.threads-max)",
					words(s), most)
			}
		}
	}
}

func (r checks) checkBytes(s policy.Setting, v policy.Bytes, group string) {
	switch s.Key {
	case policy.KeyMemorySwap:
		if int64(v) > r.facts.SwapTotal {
			r.note(s.Pos, group, "%s is above the host's swap of %s: it limits nothing here", words(s),
				policy.Bytes(r.facts.SwapTotal).Human())
		}
		return
	case policy.KeyMemoryHuge:
		if size := policy.HugePageSize(s.On); !slices.Contains(r.facts.HugePageSizes, size) {
			names := make([]string, len(r.facts.HugePageSizes))
			for i, have := range r.facts.HugePageSizes {
				names[i] = policy.Bytes(have).String()
			}
			r.Fail(s.Pos, "page sizes here: "+cmp.Or(yamlform.JoinWords(names), "none"),
				"this kernel has no huge pages of %s", policy.Bytes(size))
		}
	}
	if v > r.memory() {
		r.Fail(s.Pos, "", "%s is above the host's %s of memory", words(s), r.memory().Human())
	}
}

// checkLeast reports sizes that the kernel, which counts pages, rounds to nothing.
func (r checks) checkLeast(s policy.Setting, v policy.Bytes, group string) {
	page := policy.Bytes(cmp.Or(r.facts.PageSize, 4096))
	if s.Key == policy.KeyMemoryHuge {
		page = policy.Bytes(policy.HugePageSize(s.On))
	}
	switch {
	case v > 0 && v < page:
		r.Fail(s.Pos, "is the unit missing a letter? MiB, GiB", "%s is less than one page of memory, %s", words(s),
			page)
	case s.Key == policy.KeyMemoryMax && v < smallMemory:
		r.note(s.Pos, group, "%s is less than any program needs: its processes will be killed", words(s))
	}
}

func (r checks) checkIDs(s policy.Setting, v policy.IDs) {
	if s.Key == policy.KeyCPUCPUs {
		if missing := v.Minus(r.facts.CPUs); len(missing) > 0 {
			r.Fail(s.Pos, fmt.Sprintf("CPUs here: %s", r.facts.CPUs), "%s: CPU %s is not online on this host", s.Key,
				missing)
		}
		return
	}
	if s.Raw == "" { // with `numa:` the CPUs have said it already
		r.nodes(s.Pos, v)
	}
	for _, n := range r.facts.Nodes {
		if v.Contains(n.ID) && n.MemTotal == 0 && len(r.facts.Nodes) > 1 {
			r.Fail(s.Pos, "", "%s: NUMA node %d has no memory", s.Key, n.ID)
		}
	}
}

// checkQuota checks the limit of the CPU against its period, and gives the run time in each period. Without a period of
// its own a small limit gets a longer one.
func (r checks) checkQuota(ss policy.Settings) (limit policy.Setting, limited bool, quota, period time.Duration) {
	limit, _ = ss.Get(policy.KeyCPULimit, "")
	cores, limited := limit.Value.(policy.Cores)
	of := func(period time.Duration) time.Duration { // a limit that no host has must not overflow; checkHost reports it
		return time.Duration(min(cores, 1<<20*policy.One)) * (period / time.Microsecond) / policy.One * time.Microsecond
	}
	period, hint := defaultPeriod, fmt.Sprintf("ask for %s of a core at least", policy.Cores(policy.One/1000))
	s, fixed := ss.Get(policy.KeyCPUPeriod, "")
	if fixed {
		period, hint = time.Duration(s.Value.(policy.Duration)), "give cpu.period more, up to 1s"
	}
	switch quota = of(period); {
	case !limited || quota >= leastQuota:
		return limit, limited, quota, period
	case !fixed && of(longestPeriod) >= leastQuota:
		return limit, limited, leastQuota, leastQuota * policy.One / time.Duration(cores)
	case !fixed:
		period, quota = longestPeriod, of(longestPeriod)
	}
	r.Fail(limit.Pos, hint, "%s of a period of %s is %s, and the kernel takes no less than %s", words(limit),
		policy.Duration(period), policy.Duration(quota), policy.Duration(leastQuota))
	return limit, limited, quota, period
}

// checkTogether checks settings of one group against each other.
func (r checks) checkTogether(ss policy.Settings, group string) {
	limit, limited, quota, period := r.checkQuota(ss)
	if burst, ok := ss.Get(policy.KeyCPUBurst, ""); ok && burst.Value.(policy.Duration) > 0 {
		switch {
		case !limited:
			r.Fail(burst.Pos, "add cpu.limit, or write `burst: 0` to lift the one of a class",
				"cpu.burst has no cpu.limit to go above")
		case time.Duration(burst.Value.(policy.Duration)) > quota:
			r.Fail(burst.Pos, fmt.Sprintf("the kernel takes at most cpu.limit times cpu.period: %s",
				policy.Duration(quota)), "%s is more than %s in %s", words(burst), words(limit),
				policy.Duration(period))
		}
	}
	idle, _ := ss.Get(policy.KeyCPUIdle, "")
	if weight, ok := ss.Get(policy.KeyCPUWeight, ""); ok && idle.Value == policy.Flag(true) &&
		!weight.FromRole() {
		r.void(weight, group,
			"cpu.weight has no effect beside cpu.idle: an idle group has the least weight there is")
	}
	top, _ := ss.Get(policy.KeyMemoryMax, "")
	most, ok := top.Value.(policy.Bytes)
	if !ok {
		return
	}
	for _, key := range []policy.Key{policy.KeyMemoryMin, policy.KeyMemoryLow, policy.KeyMemoryHigh} {
		if s, ok := ss.Get(key, ""); ok {
			if b, sized := s.Value.(policy.Bytes); sized && b > most {
				r.void(s, group, "%s never acts: it is above %s", words(s), words(top))
			}
		}
	}
}

package advice

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/hugepool"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// goesWithPool are the rules whose changes belong to that of the pool of huge pages: without them a database that asks
// for SHM_HUGETLB gets none of it.
var goesWithPool = []string{"LIM-03", "MEM-52"}

const shmGroupSysctl = "vm.hugetlb_shm_group"

// shmGroupTaken says why the one group of the host that may have shared memory in huge pages is not set; "" is nothing.
func (s settable) shmGroupTaken(f advise.Finding) string {
	switch {
	case f.Change.Key != shmGroupSysctl:
	case s.shmGroup != 0:
		return fmt.Sprintf("%s is %d already, and who needs it would lose it: have %s in that group, too, or set it "+
			"to %s yourself", shmGroupSysctl, s.shmGroup, strings.Join(f.On, ", "), f.Change.Value)
	case len(s.shmGroups) > 1:
		return fmt.Sprintf("databases with the groups %s want it, and %s takes one: have all of them in one group "+
			"more, and set that", strings.Join(s.shmGroups, ", "), shmGroupSysctl)
	}
	return ""
}

// with adds to a change of the pool of huge pages the changes that belong to it, and limits of groups. They are taken
// back with the rule of the pool.
func (t tuning) with(findings []advise.Finding, on settable) tuning {
	isPool := func(s state.Tuned) bool {
		return s.Name == hugepool.Sysctl || hugepool.Is(s.Name) || s.Name == tunable.PoolAtBoot
	}
	if !slices.ContainsFunc(t.Settings, isPool) {
		return t
	}
	for _, f := range findings {
		takes := func(instance string) bool { return slices.Contains(on.takers, instance) }
		if !slices.Contains(goesWithPool, f.Rule) || !slices.ContainsFunc(f.On, takes) {
			continue
		}
		other := tuningOf(f, on)
		for _, s := range other.Settings {
			t.set(s.Name, s.Value, on)
		}
		if other.ByHand != "" {
			t.Besides = append(t.Besides, fmt.Sprintf("%s: %s (%s)", strings.Join(f.On, ", "), other.ByHand, f.Rule))
		}
	}
	for _, l := range on.limits {
		l.Rule = t.Rule
		t.Settings = append(t.Settings, l)
		t.Sets = append(t.Sets, l.Name+" = "+l.Value)
	}
	return t
}

// takers are the instances whose settings ask for pages of a pool.
func takers(set *fact.Set) (names []string) {
	for _, i := range set.Instances {
		v := i.Values
		pages, _ := v.Get("instance.huge_wanted").Is.(int64)
		asks := v.Get("instance.large_pages").Is == true
		switch v.Get("instance.engine").Is {
		case "postgresql":
			asks = slices.Contains([]any{"on", "try"}, v.Get("instance.huge_pages").Is)
		case "oracle":
			asks = pages > 0
		}
		if asks {
			names = append(names, i.Name)
		}
	}
	return names
}

// share is what the databases of a group take of the pool, in pages.
type share struct {
	pages   int64
	unknown bool
}

// limitsOfGroups are the limits of huge pages that this host's groups get with the pool; why a group gets none is
// printed. Where no policy is in force there is no group.
func limitsOfGroups(cmd *cobra.Command, c *transaction.Controller, set *fact.Set, page int64) ([]state.Tuned, error) {
	v, s, err := c.Membership(cmd.Context())
	if v == nil && s != nil && s.Applied == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	limits, notes := hugeLimits(set, v, page)
	if why := noHugeLimits(v.Facts); why != "" && len(limits) > 0 {
		limits, notes = nil, append(notes, "no group gets a limit of huge pages: "+why)
	}
	for _, n := range notes {
		render.Printf(cmd.ErrOrStderr(), "note: %s\n", n)
	}
	return limits, nil
}

// noHugeLimits says why groups of this host are not limited; "" is nothing.
func noHugeLimits(f *host.Facts) string {
	for _, c := range knob.Capabilities(f, nil) {
		if c.Key == policy.KeyMemoryHuge && c.Verdict == knob.No {
			return c.Reason
		}
	}
	if !f.Kernel.Since("5.7") {
		return "before Linux 5.7 a process that takes more than its limit is not refused, but ends by SIGBUS"
	}
	return ""
}

// hugeLimits are limits by which no group of a database takes more of the pool of huge pages than its databases do,
// with the margin of the pool. Page is the default size of huge pages, in bytes. Notes say who gets none, and why.
func hugeLimits(set *fact.Set, v *transaction.View, page int64) (limits []state.Tuned, notes []string) {
	all := takers(set)
	shares := map[string]share{}
	for _, inst := range v.Instances {
		name := inst.Name()
		at := slices.IndexFunc(set.Instances, func(o fact.Object) bool { return o.Name == name })
		if at < 0 || !slices.Contains(all, name) {
			continue
		}
		group := groupOf(v, inst.Main.PID)
		if group == "" {
			notes = append(notes, name+" is in no group of the policy: nothing limits its huge pages")
			continue
		}
		s := shares[group]
		values := set.Instances[at].Values
		pages, known := values.Get("instance.huge_wanted").Is.(int64)
		used, _ := values.Get("instance.huge_used").Is.(int64)
		s.pages += max(pages, used/max(page, 1))
		s.unknown = s.unknown || !known
		shares[group] = s
	}
	for _, group := range slices.Sorted(maps.Keys(shares)) {
		switch s := shares[group]; {
		case s.unknown:
			notes = append(notes, "how many huge pages the databases of group "+group+" take is not known: it gets no "+
				"limit")
		case ownLimit(v, group, page):
			notes = append(notes, "group "+group+" has a memory.huge of the policy or of `set`, which stays")
		case s.pages > 0:
			limits = append(limits, limitOf(group, s.pages, page))
		}
	}
	return limits, notes
}

// groupOf is the group in which a process belongs, "" for none and for one that was released.
func groupOf(v *transaction.View, pid int) string {
	for _, p := range v.Classified.Placements {
		if p.Process.PID == pid && !v.Released[p.Group] {
			return p.Group
		}
	}
	return ""
}

// limitOf is the limit of a group whose databases take so many pages, with 1 % as the pool has.
func limitOf(group string, pages, page int64) state.Tuned {
	const percent = 100
	size := (pages + pages/percent) * page
	return state.Tuned{Name: group + ":" + string(policy.KeyMemoryHuge), On: policy.Bytes(page).String(),
		Value: policy.Bytes(size).String()}
}

// ownLimit says whether a group has a limit of huge pages that tune did not set.
func ownLimit(v *transaction.View, group string, page int64) bool {
	for _, g := range v.Classified.Groups {
		s, has := g.Settings.Get(policy.KeyMemoryHuge, policy.HugePageName(page))
		if g.Path == group && has && !strings.HasPrefix(s.From, "tune apply ") {
			return true
		}
	}
	return false
}

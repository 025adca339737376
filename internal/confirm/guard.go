package confirm

import (
	"context"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/selinux/auditlog"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// GuardOf is what the policy of a view has watched; nil when nothing.
func GuardOf(v *transaction.View) *state.Watch {
	all := GuardsIn(v)
	if len(all) == 0 || len(v.Plan.Steps) == 0 {
		return nil
	}
	g := v.Policy.Guard
	return &state.Watch{For: g.For, Window: g.Window, Before: g.Before, Clauses: all}
}

// workIn is how much a group did in a second between two samples. A database that does not answer does nothing for
// anybody.
func workIn(d metrics.Delta, counter string) state.Work {
	io := d.AllIO()
	return state.Work{Counter: counter, DB: d.Rate(&d.Work), CPU: d.Rate(new(metrics.Value(d.CPU.Total))) / 1e6,
		IO: d.Rate(new(io.Reads + io.Writes))}
}

// GuardedGroup says where the figures of a watched group are.
func GuardedGroup(v *transaction.View, one policy.Guarded) metrics.Group {
	g := v.Counted(one.Group)
	g.Database = one.DSN
	return g
}

// GuardsIn are the groups of a view that its policy's guard watches.
func GuardsIn(v *transaction.View) (all []policy.Guarded) {
	if v.Policy == nil || v.Policy.Guard == nil {
		return nil
	}
	for _, one := range v.Policy.Guard.Groups {
		if v.HasGroup(one.Group) && !policy.Released(v.Released, one.Group) {
			all = append(all, one)
		}
	}
	return all
}

// longestPause is for how long a change waits to see what groups do before it, where no agent has seen that: meanwhile
// it holds the lock, and a release waits 5 s for it.
const longestPause = 3 * time.Second

// TakeBefore takes down how the groups are that are watched, before a change is made, and notes what it cannot tell.
// What has no source is an error: nobody would be warned.
func TakeBefore(ctx context.Context, c *transaction.Controller, v *transaction.View, w *state.Watch) (notes []string,
	err error) {
	for _, one := range w.Clauses {
		if err := sourced(v, one); err != nil {
			return nil, err
		}
	}
	if len(w.Domains) > 0 {
		log := &auditlog.Follower{Root: c.Host.Root, Since: w.Since}
		_, err := log.Next(c.Now())
		log.Close()
		if err != nil {
			return nil, api.Errorf(api.CodeFailed, "nothing was changed; denials are read from the log of auditd",
				"watch what SELinux denies: %w", err)
		}
	}
	w.Groups = map[string]state.Baseline{}
	var sampler metrics.Sampler
	defer sampler.Close()
	first := map[string]metrics.Sample{}
	for _, one := range w.Clauses {
		p := sampler.Take(ctx, v.Tree, GuardedGroup(v, one))
		if p.WorkErr != nil {
			return nil, api.Errorf(api.CodeFailed, "nothing was changed; `guard:` of the policy names the database",
				"ask the database of group %s how much it does: %w", one.Group, p.WorkErr)
		}
		first[one.Group] = p
		b := state.Baseline{Kills: metrics.Value(p.Usage.Memory.OOMKills)}
		if one.Throughput != nil {
			b.TakeIn(worksIn(c.Recent.Windows(one.Group, w.Before), sampler.Counter(one.DSN)))
		}
		w.Groups[one.Group] = b
	}
	if !slices.ContainsFunc(w.Clauses, func(one policy.Guarded) bool {
		return one.Throughput != nil &&
			w.Groups[one.Group].Work == nil
	}) {
		return nil, nil
	}
	// No agent has watched long enough: short windows now have to do.
	took := min(w.Window, longestPause)
	windows := map[string][]metrics.Delta{}
	for range state.LeastWindows {
		if err := transaction.Sleep(ctx, took/state.LeastWindows); err != nil {
			return nil, err
		}
		for _, one := range w.Clauses {
			next := sampler.Take(ctx, v.Tree, GuardedGroup(v, one))
			windows[one.Group] = append(windows[one.Group], next.Since(first[one.Group]))
			first[one.Group] = next
		}
	}
	for _, one := range w.Clauses {
		b := w.Groups[one.Group]
		if one.Throughput == nil || b.Work != nil {
			continue
		}
		if !b.TakeIn(worksIn(windows[one.Group], sampler.Counter(one.DSN))) {
			notes = append(notes,
				fmt.Sprintf("guard: group %s did too little in the %s before this change for a fall of its "+
					"throughput to be seen", one.Group, took))
		}
		w.Groups[one.Group] = b
	}
	return notes, nil
}

// sourced refuses what nothing on this host counts.
func sourced(v *transaction.View, one policy.Guarded) error {
	asks := func(controller string) bool {
		return slices.ContainsFunc(v.Plan.Want,
			func(w plan.Wanted) bool {
				return w.Group == one.Group && w.Row != nil && w.Row.Controller == controller
			})
	}
	member := v.Layout.Member(one.Group)
	var missing, hint string
	switch {
	case one.OOMKills != nil && !asks("memory"):
		missing, hint = "oom_kills", "give the group a memory limit: without one the kernel counts no kills for it"
	case one.Throttled != nil && !asks("cpu"):
		missing, hint = "throttled", "give the group a cpu.limit: without one nothing holds it back"
	case one.MemoryPressure != nil && member[procfs.UnifiedID].Path == "":
		missing, hint = "memory_pressure", "the group has no directory in cgroup v2, where pressure is counted: "+
			"watch oom_kills or throughput_falls instead"
	case one.Throughput != nil && one.DSN == "" && !asks("cpu") && !asks("blkio") && !asks("cpuacct"):
		missing, hint = "throughput_falls", "name the database with `dsn:`, or give the group a cpu limit or an io "+
			"limit: without either the kernel counts no work for it"
	default:
		return nil
	}
	return api.Errorf(api.CodeUsage, hint, "guard: %s of group %s has no source on this host: nothing was changed",
		missing, one.Group)
}

// verdict says which clause of a guard but throughput was broken between two samples; "" when none was. whole says that
// they are a window apart.
func verdict(one policy.Guarded, before state.Baseline, first, last metrics.Sample, whole bool) string {
	if one.OOMKills != nil {
		// After a reboot the group's directory is a new one.
		if n := metrics.Grown(before.Kills, metrics.Value(last.Usage.Memory.OOMKills)); n > *one.OOMKills {
			return fmt.Sprintf("group %s: the kernel killed %d of its processes for want of memory", one.Group, n)
		}
	}
	if !whole {
		return ""
	}
	d := last.Since(first)
	if full := d.Pressure["memory"].Full; one.MemoryPressure != nil && full != nil {
		if share := d.Rate(&full.Total) / 1e6; share > *one.MemoryPressure {
			return fmt.Sprintf("group %s: all its tasks waited for memory in %.0f %% of %s, more than %.0f %%",
				one.Group, 100*share, d.Span.Round(time.Second), 100**one.MemoryPressure)
		}
	}
	if one.Throttled != nil {
		throttled, periods := metrics.Value(d.CPU.ThrottledPeriods), metrics.Value(d.CPU.Periods)
		if share := float64(throttled) / float64(max(1, periods)); share > *one.Throttled {
			return fmt.Sprintf("group %s: its CPU limit held it back in %d of %d periods, more than %.0f %%",
				one.Group, throttled, periods, 100**one.Throttled)
		}
	}
	return ""
}

// fall says by how much the throughput of a group fell between two samples, when that is more than a guard allows and
// than windows differed before the change; 0 when it is not.
func fall(one policy.Guarded, before state.Baseline, first, last metrics.Sample, counter string) (fell float64,
	how string) {
	if one.Throughput == nil || before.Work == nil {
		return 0, ""
	}
	work := workIn(last.Since(first), counter)
	fell, how, ok := work.Fell(*before.Work)
	if !ok || fell <= *one.Throughput || fell < deep && !before.Unusual(work) {
		return 0, ""
	}
	if last.WorkErr != nil {
		how += fmt.Sprintf(" (which does not answer: %v)", last.WorkErr)
	}
	return fell, how
}

// A fall as deep as that counts in two windows in a row however much windows differed before; where it is total next to
// nothing is done any more.
const deep, total = 0.8, 0.95

// judge says which clause of a guard was broken in the samples of the last two windows; "" when none was. A fall of
// throughput counts when both windows have it, or when it is total and windows did not differ as much before.
func judge(one policy.Guarded, before state.Baseline, all []metrics.Sample, counter string,
	window time.Duration) string {
	begin := func(end int) int { // of the window that ends there; -1 when it is not whole
		for i := end - 1; i >= 0; i-- {
			if all[end].At.Sub(all[i].At) >= window {
				return i
			}
		}
		return -1
	}
	end := len(all) - 1
	mid := begin(end)
	if why := verdict(one, before, all[max(mid, 0)], all[end], mid >= 0); why != "" || mid < 0 {
		return why
	}
	fell, how := fall(one, before, all[mid], all[end], counter)
	times := "altogether"
	if fell > 0 && (fell < total || !before.Unusual(workIn(all[end].Since(all[mid]), counter))) {
		times = "in two windows in a row"
		if first := begin(mid); first < 0 {
			fell = 0
		} else if earlier, _ := fall(one, before, all[first], all[mid], counter); earlier == 0 {
			fell = 0
		}
	}
	if fell == 0 {
		return ""
	}
	return fmt.Sprintf("group %s: its throughput fell by %.0f %%, more than %.0f %%, %s: from %s; %s", one.Group,
		100*fell, 100**one.Throughput, times, how, before.Sureness())
}

// guardian samples the groups of one change while its guard watches them. It is for one goroutine.
type guardian struct {
	c       *transaction.Controller
	sampler metrics.Sampler
	view    *transaction.View
	samples map[string][]metrics.Sample // by group, of two windows and of uneven more
	denials denials
}

// close ends the watch.
func (g *guardian) close() {
	g.sampler.Close()
	g.denials.close()
}

// SampleEvery is the least time between two samples of a group.
const SampleEvery = time.Second

// uneven is how much longer than two windows two whole ones take, as samples come a little late: each window ends with
// the first sample after its time.
const uneven = 4 * SampleEvery

// look says what harm a change does; "" for none so far.
func (g *guardian) look(ctx context.Context, w *state.Watch) (string, error) {
	if why, err := g.denials.look(g.c, w); why != "" || err != nil {
		return why, err
	}
	if len(w.Clauses) == 0 {
		return "", nil
	}
	if g.view == nil {
		v, _, err := g.c.Current(ctx, transaction.ViewOptions{})
		if err != nil {
			return "", err
		}
		g.view, g.samples = v, map[string][]metrics.Sample{}
	}
	for _, one := range w.Clauses {
		before := w.Groups[one.Group]
		all := g.samples[one.Group]
		if len(all) > 0 && time.Since(all[len(all)-1].At) < SampleEvery {
			continue
		}
		last := g.sampler.Take(ctx, g.view.Tree, GuardedGroup(g.view, one))
		all = recent(append(all, last), w.Window)
		g.samples[one.Group] = all
		if why := judge(one, before, all, g.sampler.Counter(one.DSN), w.Window); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// recent leaves out samples that are older than two whole windows.
func recent(all []metrics.Sample, window time.Duration) []metrics.Sample {
	for len(all) > 1 && all[len(all)-1].At.Sub(all[1].At) >= 2*window+uneven {
		all = all[1:]
	}
	return all
}

// worksIn is how much a group did in a second of each window.
func worksIn(windows []metrics.Delta, counter string) (all []state.Work) {
	for _, d := range windows {
		all = append(all, workIn(d, counter))
	}
	return all
}

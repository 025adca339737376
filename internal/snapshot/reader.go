package snapshot

import (
	"context"
	"fmt"
	"slices"

	"bulkhead/internal/classify"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/resolve"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/state"
)

// read reads them; without a state directory there are none.
func (r *Reader) read(f *host.Facts) (got records) {
	if r.Store == nil {
		return got
	}
	got.made = r.Store.InBoot(f.BootID).Made()
	if f.Systemd {
		got.units, got.wrong = state.UnitRecords(r.Store)
	}
	return got
}

// Members looks at facts, processes, units and the policy, and tells who belongs to which group. It reads no limit.
// Problems of the policy, also against this host, come back as policy.Problems, together with what there is of the
// snapshot; where Options.Lenient goes on in spite of them it is in Snapshot.Problems.
func (r *Reader) Members(ctx context.Context, o Options) (*Snapshot, error) {
	s := &Snapshot{
		Facts: o.Facts, Overrides: o.Overrides, homes: homesOf(o.Pins, o.Ended), procs: r.Host.Proc, options: o,
		Expel: map[procfs.ID]bool{},
	}
	var err error
	if s.Facts == nil {
		if s.Facts, err = r.Host.Facts(); err != nil {
			return nil, fmt.Errorf("look at the host: %w", err)
		}
	}
	s.Tree, s.records = r.Tree(s.Facts), r.read(s.Facts)
	resolved, problems, err := r.resolve(o.Sources, s.Facts, o.Cache)
	if err != nil {
		return nil, err
	}
	s.Policy = placedBelow(resolved, o.Root)
	tune, more := policy.Found(s.Policy.Host.Tuned(state.Tunings(o.Tuned)), tunable.Host{Root: r.Host.Root}.Find)
	s.Tune, problems = tune, append(problems, more...)
	s.Names = layout.Names{Root: s.Policy.Host.Root, Former: r.roots(s.records)}
	procs := o.Processes
	if procs == nil {
		if procs, err = r.Host.Proc.Processes(procfs.Options{}); err != nil {
			return nil, fmt.Errorf("read the process table: %w", err)
		}
	}
	if o.Cache != nil {
		s.Instances = o.Cache.tracker.Recognise(procs, recognise.SourceOf(r.Host))
	} else {
		s.Instances = recognise.Instances(procs, recognise.SourceOf(r.Host))
	}
	problems = append(problems, r.classify(s, procs)...)
	if len(problems) > 0 {
		s.Problems = yamlform.Annotate(problems, o.Sources)
		if !o.Lenient || o.Cache == nil && outside(s.Problems, o.Sources) {
			return s, s.Problems
		}
	}
	s.Observed.Processes = procs
	r.observeUnits(ctx, s, false)
	s.Layout = layout.New(s.Facts, s.Names, layout.NewForest(s.Facts, s.Policy.Host, s.Classified.Groups), s.Systemd)
	for _, p := range o.Ended {
		s.Expel[p.Process] = true
	}
	s.Members = s.members()
	return s, nil
}

// classify lays everything over the groups of the policy, and tells which process belongs to which.
func (r *Reader) classify(s *Snapshot, procs []procfs.Process) policy.Problems {
	expand, place := classify.Expand, classify.Classify
	if c := s.options.Cache; c != nil {
		expand, place = c.memory.Expand, c.memory.Classify
	}
	groups, problems := r.expand(s, s.options.Canary, expand)
	groups = append(groups, classify.OthersGroups(s.Policy.Host, s.Facts.Systemd)...)
	groups, more := r.layAll(s, groups)
	problems = append(problems, more...)
	r.ReadMore(groups, procs)
	users := r.Host.Users
	s.Rules = classify.Input{
		Processes: procs, Instances: s.Instances, Self: s.options.Self, SelfExe: r.Exe,
		UserID: users.UserID, GroupID: users.GroupID, UserName: users.UserName, GroupName: users.GroupName,
		Pins: pinsOf(s.options.Pins), Alone: aloneOf(s.options.Pins), Settled: s.Names.Settled(s.Facts, s.Policy.Host),
	}
	if len(s.Overrides)+len(s.Open) > 0 {
		// The policy itself was held against the host by Resolve, before what is laid over it.
		more, _ := resolve.Check(s.Facts, s.Policy.Host, limitsOfGroups(groups))
		problems = append(problems, more...)
	}
	if c := s.options.Cache; c != nil {
		s.Rules.Room = c.placed + c.placed/16
		defer func() { c.placed = len(s.Classified.Placements) }()
	}
	s.Classified = place(groups, s.Rules)
	return append(problems, s.Classified.Problems...)
}

// Observe gives the snapshot with what the kernel holds of the groups and their members, and what there is on
// interfaces.
func (r *Reader) Observe(ctx context.Context, s *Snapshot) (*Snapshot, error) {
	next := *s
	if err := r.observe(ctx, &next); err != nil {
		return nil, err
	}
	if err := r.observeNetwork(&next, false, false); err != nil {
		if !s.options.Lenient {
			return nil, err
		}
		r.Log.Warn("interfaces are left as they are", "err", err)
	}
	return &next, nil
}

// outside says whether a problem lies outside the policy files: in an override, which was never sound.
func outside(problems policy.Problems, sources []policy.Source) bool {
	return slices.ContainsFunc(problems, func(p policy.Problem) bool {
		return !slices.ContainsFunc(sources, func(s policy.Source) bool { return s.Path == p.Pos.File })
	})
}

// ReadMore fills in what some rule of these groups asks for and nobody reads of every process. What cannot be read of
// one matches no such rule; that is what an explanation says.
func (r *Reader) ReadMore(groups []classify.Group, procs []procfs.Process) {
	env, ids := classify.NeedsEnv(groups), classify.NeedsGroups(groups)
	for i := range procs {
		p := &procs[i]
		if env && !p.Kernel && p.Env == nil {
			p.Env, _ = r.Host.Proc.Environ(p.PID)
		}
		if ids && p.Groups == nil {
			p.Groups, _ = r.Host.Proc.Groups(p.PID)
		}
	}
}

// Narrow is a snapshot of those processes alone, with their ancestors, over what an earlier one saw of the groups.
func (r *Reader) Narrow(s *Snapshot, processes []procfs.ID, earlier plan.Observation) *Snapshot {
	all := s.Observed.Processes
	byPID := make(map[int]int, len(all))
	for i := range all {
		byPID[all[i].PID] = i
	}
	wanted := map[int]bool{}
	for _, id := range processes {
		for i, there := byPID[id.PID]; there && !wanted[i]; i, there = byPID[all[i].PPID] {
			wanted[i] = true
		}
	}
	next := *s
	next.Observed = earlier
	next.Observed.Processes = nil
	pids := map[int]bool{}
	for i := range all {
		if wanted[i] {
			next.Observed.Processes = append(next.Observed.Processes, all[i])
			pids[all[i].PID] = true
		}
	}
	next.Classified.Placements = slices.DeleteFunc(slices.Clone(s.Classified.Placements),
		func(p classify.Placement) bool { return !pids[p.Process.PID] })
	next.Classified.Skips = slices.DeleteFunc(slices.Clone(s.Classified.Skips),
		func(s classify.Skip) bool { return !pids[s.Process.PID] })
	next.Members = next.members()
	r.observeHomes(&next)
	r.observeScores(&next)
	return &next
}

package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/journal"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/state"
)

// View is one look at the host through a policy: what is wanted, what runs, what is there.
type View struct {
	Facts      *host.Facts
	Tree       *cgroup.Tree
	Policy     *policy.Policy // resolved
	Names      plan.Names     // of what is ours on this host
	Instances  []engine.Instance
	Classified classify.Result
	Systemd    *plan.Systemd // nil without systemd, or when it could not be asked
	Layout     plan.Layout
	Observed   plan.Observation
	Plan       plan.Plan
	// Network is what there is on interfaces; nil when no group has to do with any.
	Network *plan.Network
	// Problems of the policy on this host as it is now; a view that has some was made all the same.
	Problems policy.Problems
	// Members are the placements, and the processes that nothing claims and that stay in the group they are in.
	Members   []classify.Placement
	Overrides []state.Override
	Open      []policy.Schedule // whose windows are open, and laid over the policy
	Released  map[string]bool

	// unlaid is what owners have set and that cannot be in force.
	unlaid map[int]plan.Note // by the override's number

	// releasing: made to give groups back, not to govern them.
	releasing bool
	askNodes  bool
	byAgent   bool     // made for one of its looks
	unasked   error    // why systemd could not be asked
	stale     []string // units whose records are of no use any more
	expel     map[procfs.ID]bool
	homes     map[procfs.ID]map[string]string // of commands of `run`

	conflicts []state.Conflict
	left      map[cgroup.File]string // what of it stays, with what was wanted

	procs procfs.FS // of the host

	rules classify.Input // what Classified was made from, for explain
}

// look says what a View is made from.
type look struct {
	sources   []policy.Source
	overrides []state.Override
	lifted    []state.Lifted
	skipped   []state.Skipped
	conflicts []state.Conflict
	released  map[string]bool
	canary    *state.Canary // whose settings take the place of its group's
	pins      []state.Pin
	ended     []state.Pin // whose processes leave their groups unless a rule keeps them
	// root is the root group that the groups are below, though the policy names none: an earlier version applied it.
	root string
	// processes is the process table, when the caller has one; else it is read.
	processes []procfs.Process
	// at is the time whose windows hold; zero is now.
	at time.Time
	// shares asks for the competitors of the root group, which effective shares need.
	shares bool
	// facts, when the caller has them.
	facts *host.Facts
	// lenient looks go on with what is sound when the policy has problems on the host as it is now: it was
	// applied once, and one ambiguous process or a disk that is gone must not stand in everybody's way.
	lenient bool
	// askNodes refuses a change of NUMA nodes under memory that is there.
	askNodes bool
	// memory, of a caller that looks again and again, spares what has not changed.
	memory *memory
	// forks that events told of, for a caller with a memory.
	forks []Fork
}

// memory is what one look leaves to the next: nothing of the kernel's state, only what would come out the
// same from the same input. It is for one goroutine.
type memory struct {
	tracker  engine.Tracker
	sources  []policy.Source
	parsed   *policy.Policy // of sources
	facts    *host.Facts    // that resolved is fitted to
	resolved *policy.Policy
	problems policy.Problems
	view     *View // of the last look
	// classifier places what comes until the next look, by the rules of classified.
	classifier *classify.Classifier
	classified *View
	// observed is what the last full look saw of the groups, nil when it may have changed since. Only place
	// uses it, which writes no limit.
	observed *plan.Observation
	movers   map[int]mover
	members  map[procfs.ID]struct{}   // at the last look that classified
	governed map[string]plan.Governed // units at the last full look
	recorded recorded
	lock     *journal.SharedLock // for the short way into a group; nil until it is taken
	// refused are the groups that the last look at every limit could not put in force.
	refused map[string]bool
	barred  map[string]bar // by group
	told    map[told]time.Time
	// highs are the directories that have a memory.high, by the last full look; watches is what was read at highAt.
	highs   map[cgroup.Dir]string
	watches map[cgroup.Dir]*stallWatch
	highAt  time.Time
	// retained is when the history was shortened the last time.
	retained time.Time
	settled  *standing // by the last full look; nil when not known
}

// resolve parses a policy and fits it to the host.
func (c *Controller) resolve(sources []policy.Source, f *host.Facts, m *memory) (*policy.Policy, policy.Problems, error) {
	if m != nil && m.facts == f && slices.Equal(m.sources, sources) {
		return m.resolved, slices.Clone(m.problems), nil
	}
	var parsed *policy.Policy
	if m != nil && m.parsed != nil && slices.Equal(m.sources, sources) {
		parsed = m.parsed
	} else {
		var err error
		if parsed, err = parse.Policy(sources); err != nil {
			if all := resolve.ProblemsOn(sources, f, c.resolver(f)); len(all) > 0 {
				err = all
			}
			return nil, nil, err
		}
	}
	resolved, problems := resolve.Policy(parsed, f, c.resolver(f))
	if m != nil {
		m.sources, m.parsed, m.facts, m.resolved, m.problems = sources, parsed, f, resolved, slices.Clone(problems)
	}
	return resolved, problems, nil
}

// view looks at the host through a policy. Problems of the policy, also against this host, come
// back as policy.Problems.
func (c *Controller) view(ctx context.Context, l look) (*View, error) {
	v, err := c.classify(ctx, l)
	if err != nil {
		return nil, err
	}
	if err := c.observe(ctx, v, l.shares); err != nil {
		return nil, err
	}
	if err := c.observeNetwork(v, false); err != nil {
		if !l.lenient {
			return nil, err
		}
		c.Log.Warn("interfaces are left as they are", "err", err)
	}
	v.plan()
	for _, id := range slices.Sorted(maps.Keys(v.unlaid)) {
		v.Plan.Notes = append(v.Plan.Notes, v.unlaid[id])
	}
	if l.memory != nil {
		seen := v.Observed
		seen.Processes = nil
		l.memory.observed = &seen
	}
	return v, nil
}

// classify does the part of a view that reads no knob: facts, processes, groups, membership.
func (c *Controller) classify(ctx context.Context, l look) (*View, error) {
	v := &View{Overrides: l.overrides, Released: l.released, Facts: l.facts, homes: homesOf(l.pins, l.ended), byAgent: l.memory != nil, conflicts: l.conflicts, askNodes: l.askNodes}
	v.leave(c.or(l.at))
	if v.Facts == nil {
		facts, err := c.Host.Facts()
		if err != nil {
			return nil, fail(CodeFailed, "", "look at the host: %w", err)
		}
		v.Facts = facts
	}
	v.Tree, v.procs = c.tree(v.Facts), c.Host.Proc
	resolved, problems, err := c.resolve(l.sources, v.Facts, l.memory)
	if err != nil {
		return nil, err
	}
	var former []string
	if c.Store != nil {
		former = c.madeRoots(v.Facts)
	}
	v.layOut(resolved, l.root, former)
	procs := l.processes
	if procs == nil {
		if procs, err = c.Host.Proc.Processes(procfs.Options{}); err != nil {
			return nil, fail(CodeFailed, "", "read the process table: %w", err)
		}
	}
	if l.memory != nil {
		v.Instances = l.memory.tracker.Recognise(procs, engine.SourceOf(c.Host))
	} else {
		v.Instances = engine.Recognise(procs, engine.SourceOf(c.Host))
	}
	groups, more := c.expand(v, l.canary)
	problems = append(problems, more...)
	groups, more = c.layAll(v, groups, l)
	problems = append(problems, more...)
	c.readMore(groups, procs)
	v.rules = classify.Input{
		Processes: procs, Instances: v.Instances, Self: c.Agent, SelfExe: c.exe,
		UserID: c.Host.Users.UserID, GroupID: c.Host.Users.GroupID, UserName: c.Host.Users.UserName, GroupName: c.Host.Users.GroupName,
		Pins: pinsOf(l.pins), Alone: aloneOf(l.pins),
	}
	if len(l.overrides)+len(v.Open) > 0 {
		// The policy itself was held against the host by Resolve, before what is laid over it.
		more, _ := resolve.Check(v.Facts, v.Policy.Host, limitsOfGroups(groups))
		problems = append(problems, more...)
	}
	v.Classified = classify.Classify(groups, v.rules)
	problems = append(problems, v.Classified.Problems...)
	if len(problems) > 0 {
		v.Problems = yamlform.Annotate(problems, l.sources)
		if !l.lenient || l.memory == nil && outside(v.Problems, l.sources) {
			return v, v.Problems
		}
	}
	v.Observed.Processes = procs
	c.observeUnits(ctx, v)
	v.Layout = plan.NewLayout(v.Facts, v.Policy.Host, v.Names, v.Classified.Groups, v.Systemd)
	v.expel = map[procfs.ID]bool{}
	for _, p := range l.ended {
		v.expel[p.Process] = true
	}
	if l.memory != nil {
		l.memory.view = v
		c.entrance.open(v)
		c.inherit(v, l.forks, time.Now())
	}
	v.Members = members(v)
	return v, nil
}

// outside says whether a problem lies outside the policy files: in an override, which was never sound.
func outside(problems policy.Problems, sources []policy.Source) bool {
	return slices.ContainsFunc(problems, func(p policy.Problem) bool {
		return !slices.ContainsFunc(sources, func(s policy.Source) bool { return s.Path == p.Pos.File })
	})
}

// byResidence marks a member that no rule and no pin claims.
const byResidence = "residence"

// members lists who is in a group or belongs to one, by pid.
func members(v *View) []classify.Placement {
	known := map[procfs.ID]bool{}
	for _, p := range v.Classified.Placements {
		known[p.Process.ID] = true
	}
	for _, s := range v.Classified.Skips {
		known[s.Process.ID] = true
	}
	all := slices.Clone(v.Classified.Placements)
	for _, p := range v.Observed.Processes {
		if known[p.ID] || v.expel[p.ID] {
			continue
		}
		if group, ok := v.Layout.Resident(&p); ok {
			all = append(all, classify.Placement{Process: p, Group: group, By: byResidence, Rule: "no rule matches it, and it stays in its group"})
		}
	}
	slices.SortFunc(all, func(a, b classify.Placement) int { return a.Process.PID - b.Process.PID })
	return all
}

// readMore fills in what some rule of these groups asks for and a look does not read of every process. What cannot be read of
// one matches no such rule; that is what Explain says.
func (c *Controller) readMore(groups []classify.Group, procs []procfs.Process) {
	env, ids := classify.NeedsEnv(groups), classify.NeedsGroups(groups)
	for i := range procs {
		p := &procs[i]
		if env && !p.Kernel && p.Env == nil {
			p.Env, _ = c.Host.Proc.Environ(p.PID)
		}
		if ids && p.Groups == nil {
			p.Groups, _ = c.Host.Proc.Groups(p.PID)
		}
	}
}

// layerOf is the layer of storage that a group's policy asks to limit on a target, and how devices share the limit.
// An override of it goes there too.
func layerOf(groups []classify.Group, group, on string) (policy.Layer, policy.Split) {
	for _, g := range groups {
		for _, s := range g.Settings {
			if g.Path == group && on != "" && s.On == on {
				return s.Layer, s.Split
			}
		}
	}
	return "", ""
}

// layAll lays over the settings of groups what holds beside the policy: windows, overrides, what was lifted.
func (c *Controller) layAll(v *View, groups []classify.Group, l look) ([]classify.Group, policy.Problems) {
	problems := c.numberOwners(groups)
	v.Open = openNow(v.Policy, l.skipped, c.or(l.at))
	groups, more := layWindows(groups, v.Open)
	problems = append(problems, more...)
	for _, o := range l.overrides {
		more := layOver(groups, o, v.Facts, c.resolverOf(v))
		if len(more) > 0 && o.Owner != 0 {
			// What an owner has set stands in nobody else's way.
			if v.unlaid == nil {
				v.unlaid = map[int]plan.Note{}
			}
			v.unlaid[o.ID] = plan.Note{Group: o.Group, Key: o.Key, Text: fmt.Sprintf("override %d by %s is not in force: %s", o.ID, o.By, more[0].Msg)}
			continue
		}
		problems = append(problems, more...)
	}
	return layLifted(groups, l.lifted, l.overrides), problems
}

// layOver puts an override over the settings of its group. That of a group that is not there now waits.
func layOver(groups []classify.Group, o state.Override, f *host.Facts, r resolve.Resolver) policy.Problems {
	_, s, err := parse.Assignment(o.Text, o.On)
	if err != nil {
		return asProblems(err)
	}
	s.Layer, s.Split = layerOf(groups, o.Group, s.On)
	settings, problems := resolve.Setting(s, f, r)
	if len(problems) > 0 {
		return problems
	}
	for i := range groups {
		if groups[i].Path != o.Group {
			continue
		}
		if o.Owner != 0 && !anyMaySet(groups[i].Owner, s, f) {
			return policy.Problems{{Msg: "the policy lets no owner of the group set this any more"}}
		}
		if p := overlap(groups[i], settings); p != nil {
			return policy.Problems{*p}
		}
		for _, s := range settings {
			s.From = "override " + itoa(o.ID)
			groups[i].Settings = groups[i].Settings.With(s)
		}
	}
	return nil
}

// overlap says what is wrong with an override that would replace limits which the policy has for something else.
func overlap(g classify.Group, settings policy.Settings) *policy.Problem {
	for _, s := range settings {
		if p := resolve.Overlaps(g.Path, g.Settings, s); p != nil {
			return p
		}
	}
	return nil
}

// limitsOfGroups lists what the groups ask for, for policy.Check.
func limitsOfGroups(groups []classify.Group) []resolve.Limits {
	all := make([]resolve.Limits, len(groups))
	for i, g := range groups {
		all[i] = resolve.Limits{Group: g.Path, Parent: g.Parent, Settings: g.Settings, Model: g.Model}
	}
	return all
}

func pinsOf(pins []state.Pin) map[procfs.ID]string {
	m := make(map[procfs.ID]string, len(pins))
	for _, p := range pins {
		m[p.Process] = p.Group
	}
	return m
}

// homesOf is where commands of `run` were called from.
func homesOf(lists ...[]state.Pin) map[procfs.ID]map[string]string {
	homes := map[procfs.ID]map[string]string{}
	for _, pins := range lists {
		for _, p := range pins {
			if p.Home != nil {
				homes[p.Process] = p.Home
			}
		}
	}
	return homes
}

// aloneOf is the pins that descendants do not take over.
func aloneOf(pins []state.Pin) map[procfs.ID]bool {
	m := map[procfs.ID]bool{}
	for _, p := range pins {
		if p.Alone {
			m[p.Process] = true
		}
	}
	return m
}

// current looks at the host through the applied policy with everything laid over it.
func (c *Controller) current(ctx context.Context, l look) (*View, *state.Documents, error) {
	if l.facts == nil {
		facts, err := c.Host.Facts()
		if err != nil {
			return nil, nil, fail(CodeFailed, "", "look at the host: %w", err)
		}
		l.facts = facts
	}
	s, err := c.loadState(l.facts.BootID, c.or(l.at))
	if err != nil {
		return nil, nil, err
	}
	if s.Applied == nil {
		return nil, s, errNotApplied()
	}
	facts, shares, at := l.facts, l.shares, l.at
	l = lookOver(s, s.Applied.Sources)
	l.facts, l.shares, l.at, l.lenient = facts, shares, at, true
	v, err := c.view(ctx, l)
	return v, s, err
}

// errNotApplied says that there is no applied policy yet.
func errNotApplied() error {
	return fail(CodeFailed, "write a policy (`bulkhead discover --as-policy` prints a starter) and `bulkhead apply` it", "no policy is applied on this host")
}

// notIn lists those of the directories that a process is not in, in the order of the hierarchies.
func (v *View) notIn(p procfs.Process, dirs map[string]cgroup.Dir) (list []cgroup.Dir) {
	for _, h := range v.Facts.Hierarchies {
		if d, is := dirs[h.ID]; is && p.Cgroups[h.ID] != d.Path {
			list = append(list, d)
		}
	}
	return list
}

// isReleased says whether a group or one above it was released.
func isReleased(released map[string]bool, group string) bool {
	for g, on := range released {
		if on && covers([]string{g}, group) {
			return true
		}
	}
	return false
}

// numberOwners gives the owners of groups their numbers on this host.
func (c *Controller) numberOwners(groups []classify.Group) (problems policy.Problems) {
	number := func(name, what string, at policy.Pos, id func(string) (int, bool)) int {
		if name == "" {
			return 0
		}
		n, known := id(name)
		if !known {
			problems = append(problems, policy.Problem{Pos: at, Msg: fmt.Sprintf("owner: there is no %s %q on this host", what, name),
				Hint: "names are looked up in /etc/passwd and /etc/group; write the number of one that only LDAP, SSSD or NIS knows"})
		}
		return n
	}
	for i := range groups {
		for j := range groups[i].Owner {
			o := &groups[i].Owner[j]
			o.UID = number(o.User, "user", o.Pos, c.Host.Users.UserID)
			o.GID = number(o.UnixGroup, "Unix group", o.Pos, c.Host.Users.GroupID)
		}
	}
	return problems
}

// looksAtOwners says whether a look reads who owns the files of groups. The agent does so where the policy has owners; who
// changes something also sees what an earlier policy left.
func looksAtOwners(v *View) bool {
	if !v.byAgent {
		return true
	}
	for _, g := range v.Classified.Groups {
		if len(g.Owner) > 0 {
			return true
		}
	}
	return false
}

package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// wish is a random desired state: groups with settings, the host's part, and who belongs where.
type wish struct {
	host    policy.HostPart
	groups  []classify.Group
	members map[int]string // index of the process → group; missing: none
	stays   map[int]string // index of a process that nothing claims → group that it is in and so stays in
}

var groupPool = []string{"a", "a/x", "a/x/p", "a/y", "b", "b/x", "c"}

func drawWish(t *rapid.T, processes int, label string) wish {
	w := wish{members: map[int]string{}}
	w.host.Root = rapid.SampledFrom([]string{"", "bulkhead", "ora"}).Draw(t, label+" root")
	if w.host.Root != "" && rapid.Bool().Draw(t, label+" weight") {
		w.host.Weight = 300
	}
	if rapid.Bool().Draw(t, label+" reserve") {
		w.host.Reserve = policy.Reserve{CPU: policy.One / 2, Memory: policy.Bytes(1 << 30)}
	}
	for _, name := range groupPool {
		parent := layout.ParentGroup(name)
		has := parent == "" || slices.ContainsFunc(w.groups, func(g classify.Group) bool { return g.Path == parent })
		if has && rapid.IntRange(0, 2).Draw(t, label+" has "+name) > 0 {
			w.groups = append(w.groups, group(name, drawSettings(t, label+" "+name)))
		}
	}
	w.groups = groupsOf(w.groups...).Groups
	for i := range processes {
		if n := rapid.IntRange(0, len(w.groups)).Draw(t, fmt.Sprintf("%s group of process %d", label, i)); n > 0 {
			w.members[i] = w.groups[n-1].Path
		}
	}
	return w
}

// drawSettings draws up to five limits of one group.
func drawSettings(t *rapid.T, label string) policy.Settings {
	pick := func(values ...policy.Value) policy.Value { return rapid.SampledFrom(values).Draw(t, label) }
	ids := func(n ...int) policy.Value { return policy.IDs{Set: idset.New(n...)} }
	size := func() policy.Value {
		return pick(policy.Bytes(256<<20), policy.Bytes(1<<30), policy.Bytes(3<<30), policy.Unlimited{})
	}
	makers := map[string]func() policy.Value{
		"cpu.weight": func() policy.Value { return pick(policy.Weight(1), policy.Weight(100), policy.Weight(1000)) },
		"cpu.limit": func() policy.Value {
			return pick(policy.Cores(300000), policy.Cores(1e6), policy.Cores(2500000), policy.Cores(333333))
		},
		"cpu.period": func() policy.Value {
			return pick(policy.Duration(10*time.Millisecond), policy.Duration(70*time.Millisecond))
		},
		"cpu.burst": func() policy.Value {
			return pick(policy.Duration(2*time.Millisecond), policy.Duration(20*time.Millisecond))
		},
		"cpu.idle": func() policy.Value { return pick(policy.Flag(true), policy.Flag(false)) },
		"cpu.cpus": func() policy.Value { return pick(ids(0), ids(1), ids(0, 1), ids(2, 3), ids(1, 2, 3)) },
		"cpu.rt": func() policy.Value {
			return pick(policy.Duration(20*time.Millisecond), policy.Duration(100*time.Millisecond))
		},
		"memory.numa": func() policy.Value { return pick(ids(0), ids(1), ids(0, 1)) },
		"memory.low":  size, "memory.high": size, "memory.max": size, "memory.swap": size,
		"memory.swappiness": func() policy.Value {
			return pick(policy.Count(1), policy.Count(60),
				policy.Count(100))
		},
		"memory.oom": func() policy.Value {
			return pick(policy.OOM("kill"), policy.OOM("pause"),
				policy.OOM("kill-group"))
		},
		"memory.huge@2MB": func() policy.Value {
			return pick(policy.Bytes(64<<20), policy.Bytes(2<<20),
				policy.Unlimited{})
		},
		"oom_score_adj":           func() policy.Value { return pick(policy.Count(-500), policy.Count(300)) },
		"tasks":                   func() policy.Value { return pick(policy.Count(100), policy.Count(8192)) },
		"io.read.bandwidth@8:0":   func() policy.Value { return pick(policy.Rate(10<<20), policy.Rate(100<<20)) },
		"io.read.bandwidth@8:16":  func() policy.Value { return pick(policy.Rate(10<<20), policy.Rate(33333333)) },
		"io.write.iops@8:0":       func() policy.Value { return pick(policy.IOPS(500), policy.IOPS(101)) },
		"io.write.bandwidth@8:16": func() policy.Value { return pick(policy.Rate(1<<20), policy.Unlimited{}) },
	}
	keys := make([]string, 0, len(makers))
	for key := range makers {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var pairs []any
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 5, rapid.ID[string]).Draw(t, label+" keys") {
		pairs = append(pairs, key, makers[key]())
	}
	return settings("group", pairs...)
}

// input gives what a plan for this wish starts from.
func (s *sim) input(w wish, processes []procfs.ID) plan.Input {
	in := plan.Input{Facts: s.facts, Host: w.host, Former: simNames.Former,
		Classified: classify.Result{Groups: w.groups},
		Observed:   s.observe(), Memory: modelMemory{kernel: s.kernel}}
	for i, id := range processes {
		if g := w.members[i]; g != "" {
			in.Classified.Placements = append(in.Classified.Placements,
				classify.Placement{Process: s.process(id), Group: g, Rule: "rule of " + g})
		}
	}
	return in
}

// run carries out a whole plan; every step must be accepted.
func (s *sim) run(t *rapid.T, p plan.Plan) {
	for i, step := range p.Steps {
		if err := s.do(step); err != nil {
			t.Fatalf("step %d: %v\n%s\nof\n%s", i+1, err,
				plan.Render(plan.Plan{Steps: []plan.Step{step}}, plan.RenderOptions{}),
				plan.Render(plan.Plan{Steps: p.Steps, Want: p.Want}, plan.RenderOptions{Facts: s.facts}))
		}
	}
}

// check holds the host against the plan: values, directories, membership, and that nothing is left to do.
func (s *sim) check(t *rapid.T, w wish, p plan.Plan, processes []procfs.ID) {
	for _, want := range p.Want {
		got, err := s.kernel.Read(want.File())
		if err != nil || !want.Row.Same(want.Value, got) {
			t.Fatalf("%s holds %q, %v; want %q", want.Target, got, err, want.Value)
		}
	}
	l := layout.New(s.facts, layout.Names{Root: w.host.Root}, layout.NewForest(s.facts, w.host, w.groups), nil)
	for _, h := range s.facts.Hierarchies {
		have := s.ours(h.ID)
		want := slices.DeleteFunc(slices.Clone(l.Dirs()), func(d cgroup.Dir) bool { return d.Hierarchy != h.ID })
		slices.SortFunc(have, layout.CompareDirs)
		slices.SortFunc(want, layout.CompareDirs)
		if !slices.Equal(have, want) {
			t.Fatalf("directories in %s: %v, want %v", h.ID, have, want)
		}
	}
	for i, id := range processes {
		for hierarchy, at := range s.kernel.Membership(id.PID) {
			want := "/"
			group := w.members[i]
			if group == "" {
				group = w.stays[i]
			}
			if dir, ok := l.Member(group)[hierarchy]; ok {
				want = dir.Path
			}
			if at != want {
				t.Fatalf("process %d of group %q is in %s:%s, want %s", id.PID, w.members[i], hierarchy, at, want)
			}
		}
	}
	if again := Make(s.input(w, processes)); len(again.Steps) > 0 {
		t.Fatalf("planning again gives steps:\n%s", plan.Render(again, plan.RenderOptions{Facts: s.facts}))
	}
}

// TestAnyStateToAnyState is the heart: from any desired state to any other the kernel accepts every
// step, the end is what was wanted and does not depend on the way, half a plan can be undone, and a
// release gives back the host as it was.
func TestAnyStateToAnyState(t *testing.T) {
	for name, facts := range hosts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { transition(t, facts()) })
		})
	}
}

const simProcesses = 5

func transition(t *rapid.T, facts *host.Facts) {
	s := newSim(facts)
	processes := s.populate()
	before := s.state()

	first, second := drawWish(t, simProcesses, "A"), drawWish(t, simProcesses, "B")
	p := Make(s.input(first, processes))
	s.run(t, p)
	s.check(t, first, p, processes)

	s.drift(t, p, processes)
	if rapid.Bool().Draw(t, "limits first") {
		in := s.input(second, processes)
		in.NoMoves = true
		s.run(t, Make(in))
	}
	second.stays = s.residents(second, processes)
	p = Make(s.input(second, processes))
	s.undoHalf(t, p, rapid.IntRange(0, len(p.Steps)).Draw(t, "killed after"))
	s.run(t, p)
	s.check(t, second, p, processes)

	direct := newSim(facts)
	directProcesses := direct.populate()
	for dir, enabled := range s.originals.Subtree { // stays enabled until a release, as A needed it
		if err := direct.kernel.Enable(dir, host.V1Names(enabled)); err != nil {
			t.Fatal(err)
		}
	}
	direct.run(t, Make(direct.input(second.claimed(), directProcesses)))
	here, there := s.dumpOurs(), direct.dumpOurs()
	if slices.ContainsFunc(p.Notes, func(n plan.Note) bool { return strings.Contains(n.Text, "is split by use") }) {
		here, there = withoutParts(here), withoutParts(there) // parts that fit stay as they are
	}
	if here != there {
		t.Fatalf("the way matters: over A\n%s\n%s", diff(there, here), plan.Render(p, plan.RenderOptions{Facts: facts}))
	}

	s.releaseOne(t, second, processes)
	in := s.input(second, processes)
	in.Release = []string{layout.RootGroup}
	release := Make(in)
	s.run(t, release)
	if after := s.state(); after != before {
		t.Fatalf("release left\n%s", diff(before, after))
	}
	in = s.input(second, processes)
	in.Released = map[string]bool{layout.RootGroup: true}
	if again := Make(in); len(again.Steps) > 0 {
		t.Fatalf("a released host gets steps:\n%s", plan.Render(again, plan.RenderOptions{}))
	}
}

// withoutParts leaves out of a dump what may be parts of a limit that directories share by use.
func withoutParts(dump string) string {
	lines := strings.Split(dump, "\n")
	return strings.Join(slices.DeleteFunc(lines,
		func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "blkio.throttle.") }), "\n")
}

// residents gives the group of the wish that each process sits in which the wish does not claim: of the
// first hierarchy that knows one, or one further in of the same line.
func (s *sim) residents(w wish, processes []procfs.ID) map[int]string {
	stays := map[int]string{}
	for i, id := range processes {
		if w.members[i] != "" {
			continue
		}
		at := s.kernel.Membership(id.PID)
		for _, h := range layout.New(s.facts, layout.Names{Root: w.host.Root},
			layout.NewForest(s.facts, w.host, w.groups), nil).Hierarchies() {
			name, _ := simNames.GroupOf(at[h.ID])
			known := slices.ContainsFunc(w.groups, func(g classify.Group) bool { return g.Path == name })
			if known && (stays[i] == "" || strings.HasPrefix(name, stays[i]+"/")) {
				stays[i] = name
			}
		}
	}
	return stays
}

// claimed is the wish with a claim on those that stay.
func (w wish) claimed() wish {
	w.members = maps.Clone(w.members)
	maps.Copy(w.members, w.stays)
	return w
}

// dumpOurs is what our directories hold.
func (s *sim) dumpOurs() (text string) {
	tops := map[string]bool{}
	for _, h := range s.facts.Hierarchies {
		for _, dir := range s.ours(h.ID) {
			tops[outermost(dir).Path] = true
		}
	}
	for _, top := range slices.Sorted(maps.Keys(tops)) {
		text += s.canonicalDump(top)
	}
	return text
}

// populate starts the processes: a chain of three and two alone.
func (s *sim) populate() []procfs.ID {
	var ids []procfs.ID
	for i := range simProcesses {
		parent := 0
		if i == 1 || i == 2 {
			parent = ids[i-1].PID
		}
		ids = append(ids, s.spawn(fmt.Sprintf("proc%d", i), parent))
	}
	return ids
}

// drift lets somebody else meddle: processes moved about in our tree, limits changed, groups made in it. What
// the kernel refuses does not happen.
func (s *sim) drift(t *rapid.T, p plan.Plan, processes []procfs.ID) {
	var dirs []cgroup.Dir
	for _, h := range s.facts.Hierarchies {
		dirs = append(dirs, s.ours(h.ID)...)
	}
	if len(dirs) == 0 {
		return
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "meddling") {
		dir := rapid.SampledFrom(dirs).Draw(t, fmt.Sprintf("where %d", i))
		switch how := rapid.IntRange(0, 2).Draw(t, fmt.Sprintf("how %d", i)); {
		case how == 0:
			_ = s.kernel.Move(dir, rapid.SampledFrom(processes).Draw(t, "whom"))
		case how == 1 && len(p.Want) > 0:
			w := rapid.SampledFrom(p.Want).Draw(t, "what")
			_ = s.kernel.Write(cgroup.File{Dir: dir, Name: w.File().Name, Key: w.File().Key}, w.Value)
		default:
			if dir.Hierarchy != "cpuset" { // a fresh cpuset is no state that an undo could give back
				_ = s.kernel.Make(dir.Child("theirs"))
			}
		}
	}
}

// undoHalf carries out the first steps of a plan and takes them back.
func (s *sim) undoHalf(t *rapid.T, p plan.Plan, n int) {
	before := s.state()
	for _, step := range p.Steps[:n] {
		if err := s.do(step); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range slices.Backward(p.Steps[:n]) {
		if err := s.undo(step); err != nil {
			t.Fatalf("undo: %v\n%s", err, plan.Render(plan.Plan{Steps: []plan.Step{step}}, plan.RenderOptions{}))
		}
	}
	if after := s.state(); before != after {
		t.Fatalf("undone after %d steps, but\n%s\n%s", n, diff(before, after),
			plan.Render(plan.Plan{Steps: p.Steps[:n]}, plan.RenderOptions{}))
	}
}

// releaseOne releases the first group, which must leave none of its directories and no member in our
// tree, and must then stay lifted.
func (s *sim) releaseOne(t *rapid.T, w wish, processes []procfs.ID) {
	if len(w.groups) == 0 {
		return
	}
	g := w.groups[0].Path
	in := s.input(w, processes)
	in.Release = []string{g}
	s.run(t, Make(in))
	for _, h := range s.facts.Hierarchies {
		for _, dir := range s.ours(h.ID) {
			if group, _ := simNames.GroupOf(dir.Path); group == g || layout.ParentGroup(group) == g {
				t.Fatalf("released group %s still has %v", g, dir)
			}
		}
	}
	in = s.input(w, processes)
	in.Released = map[string]bool{g: true}
	for _, step := range Make(in).Steps {
		if _, isBelow := layout.Below(g, step.Group); isBelow {
			t.Fatalf("a released group gets a step: %+v", step)
		}
	}
}

// diff gives the lines that only one of two texts has.
func diff(before, after string) string {
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	var out []string
	section := ""
	count := map[string]int{}
	walk := func(lines []string, by int) {
		for _, l := range lines {
			if strings.HasPrefix(l, "[") {
				section = l
			}
			count[section+" "+l] += by
		}
	}
	walk(a, -1)
	walk(b, 1)
	for line, n := range count {
		if n < 0 {
			out = append(out, "- "+line)
		} else if n > 0 {
			out = append(out, "+ "+line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

package desired

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// The weights of the kernel's fair scheduler, in the scale of cpu.shares (kernel/sched/sched.h).
const (
	weightDefault = 1024.0 // of a group, and of a task at nice 0
	weightIdle    = 3.0    // WEIGHT_IDLEPRIO
)

// Shares computes what each group can count on when everybody on the host wants all the CPU there is.
//
// The kernel shares the CPU between siblings by weight, level by level, so the part of group G of n CPUs is
//
//	n × Π over the levels from the top of the hierarchy down to G of
//	    weight / Σ weights of the siblings, itself included
//
// At the top, outermost groups (or our root group) compete with the host's other groups and, each as one of weight 1024
// (100 on v2), with what runs directly in the hierarchy's root; with nothing beside them one such competitor is
// assumed. The own processes of an inner group are one sibling beside its children. A group with
// cpu.idle counts 3 where the default is 1024, whatever its weight.
//
// No group gets more than its cap: its own cpu.limit or the nearest above it, or its number of CPUs. What
// a capped group leaves is split between its siblings by weight again, as the kernel does. Which CPUs a
// set names is not looked at: groups whose sets overlap only in part may get less.
//
// A group whose processes are elsewhere, in a unit that carries its limits or in a slice of an administrator's, has the
// same sum over the levels that lead there.
//
// Measured on two cores beside 16 busy shells of one session: our root group at the default weight gives the database
// in it 49 % of the machine (formula: 1/2), at weight 10000 it gives 98 % (formula: 102400/103424, 99 %).
func Shares(d *State, o *plan.Observation) []plan.Share {
	h, ok := d.facts.HierarchyOf("cpu")
	cores := float64(len(d.facts.CPUs))
	if !ok || cores == 0 || len(d.Forest.Nodes) == 1 {
		return nil
	}
	if !slices.ContainsFunc(d.Layout.Hierarchies(), func(l host.Hierarchy) bool { return l.ID == h.ID }) {
		return nil
	}
	s := sharer{d: d, o: o, hierarchy: h}
	rivals, against := rivalsOf(o.Siblings, h)
	root := d.Forest.Nodes[0]
	if d.Layout.Has(layout.RootGroup) {
		all := append([]contender{s.contender(root, cores)}, rivals...)
		s.walk(root, divide(cores, all)[0], cores)
	} else {
		s.split(root, cores, cores, cores, rivals)
	}
	for i := range s.out {
		s.out[i].Against = cmp.Or(s.out[i].Against, against)
		s.standOutside(&s.out[i], cores)
		s.out[i].Percent = 100 * s.out[i].Guaranteed / cores
	}
	return s.out
}

// standOutside gives a group whose processes sit in units beside our tree what these can count on where they are: the
// same sum over the levels that lead to them. It says so, for the group's own weight among bulkhead's counts only from
// the unit's next start in the group's slice on.
func (s *sharer) standOutside(share *plan.Share, cores float64) {
	dirs := s.d.Layout.Outside(share.Group, s.hierarchy.ID)
	if len(dirs) == 0 {
		return
	}
	share.Guaranteed = 0
	var units []string
	for _, d := range dirs {
		share.Guaranteed += s.from(d, cores)
		units = append(units, s.d.Layout.Governed[d].Unit)
	}
	if share.Limit > 0 {
		share.Guaranteed = min(share.Guaranteed, share.Limit*float64(len(dirs)))
	}
	share.Against = beside(dirs[0], units)
}

// from is what a directory gets of so many cores, from the top of its hierarchy down.
func (s *sharer) from(d cgroup.Dir, cores float64) float64 {
	for at, next := range levels(d) {
		cores = divide(cores, s.level(at, next))[0]
	}
	return cores
}

func beside(d cgroup.Dir, units []string) string {
	return "what runs beside " + strings.Join(units, ", ") + " in " + d.Parent().Path + ", and beside that"
}

// levels yields each directory above d with the one below it that leads there, from the top.
func levels(d cgroup.Dir) func(yield func(at, next cgroup.Dir) bool) {
	return func(yield func(at, next cgroup.Dir) bool) {
		var chain []cgroup.Dir
		for ; d.Path != "/"; d = d.Parent() {
			chain = append(chain, d)
		}
		for _, next := range slices.Backward(chain) {
			if !yield(next.Parent(), next) {
				return
			}
		}
	}
}

// level gives those who share the CPU in a directory, the one of interest first.
func (s *sharer) level(at, next cgroup.Dir) []contender {
	first := contender{weight: s.asked(next, weightDefault), most: inf}
	all := []contender{first}
	seen := map[cgroup.Dir]bool{next: true, s.d.Layout.Own(layout.RootGroup)[s.hierarchy.ID]: true}
	for _, sibling := range s.o.Beside[at] {
		switch weight := s.asked(sibling.Dir, s.scaled(sibling)); {
		case sibling.Dir == next:
			all[0].weight = weight
		case sibling.Dir == at: // what runs directly there
			for range sibling.Tasks {
				all = append(all, contender{weight: weightDefault, most: inf})
			}
		case !seen[sibling.Dir]:
			all = append(all, contender{weight: weight, most: inf})
		}
		seen[sibling.Dir] = true
	}
	for _, d := range s.d.Layout.Dirs() { // slices that are not there yet
		if d.Parent() == at && !seen[d] && s.d.Layout.Own(s.d.Layout.Owner[d])[s.hierarchy.ID] == d {
			all = append(all, contender{weight: s.asked(d, weightDefault), most: inf})
		}
	}
	if at.Path == "/" && s.d.Layout.Has(layout.RootGroup) {
		all = append(all, s.contender(s.d.Forest.Nodes[0], float64(len(s.d.facts.CPUs))))
	}
	return all
}

// asked is the weight that the plan leads to in a directory, else the one given.
func (s *sharer) asked(d cgroup.Dir, otherwise float64) float64 {
	for _, v := range s.d.Values[d] {
		otherwise = s.weightOf(v, otherwise)
	}
	return otherwise
}

// scaled is the weight of a directory in the scale of cpu.shares.
func (s *sharer) scaled(sibling plan.Sibling) float64 {
	switch {
	case sibling.Idle:
		return weightIdle
	case s.hierarchy.Version == 2:
		return float64(sibling.Weight) * weightDefault / 100
	}
	return float64(sibling.Weight)
}

func (s *sharer) weightOf(v Value, otherwise float64) float64 {
	switch v.File {
	case "cpu.shares":
		return float64(Number(v.Text))
	case "cpu.weight":
		return float64(Number(v.Text)) * weightDefault / 100
	}
	return otherwise
}

// contender is one of several siblings that share CPUs.
type contender struct {
	weight float64
	most   float64 // cores it can use at most
}

// divide splits cores by weight; what a contender cannot use goes to the others.
func divide(cores float64, all []contender) []float64 {
	parts := make([]float64, len(all))
	open := make([]bool, len(all))
	for i := range open {
		open[i] = true
	}
	for {
		weights, capped := 0.0, false
		for i, c := range all {
			if open[i] {
				weights += c.weight
			}
		}
		left := cores
		for i, c := range all {
			if open[i] && c.weight > 0 && cores*c.weight/weights >= c.most {
				parts[i], open[i], capped = c.most, false, true
				left -= c.most
			}
		}
		if !capped {
			for i, c := range all {
				if open[i] && c.weight > 0 {
					parts[i] = cores * c.weight / weights
				}
			}
			return parts
		}
		cores = max(left, 0)
	}
}

// rivalsOf gives the competitors of what is ours at the top of the hierarchy, and says who they are.
func rivalsOf(siblings []plan.Sibling, h host.Hierarchy) (rivals []contender, against string) {
	groups, tasks := 0, 0
	for _, s := range siblings {
		if s.Dir.Hierarchy != h.ID {
			continue
		}
		if s.Dir.Path == "/" {
			tasks += s.Tasks
			continue
		}
		groups++
		w := float64(s.Weight)
		if h.Version == 2 {
			w *= weightDefault / 100
		}
		if s.Idle {
			w = weightIdle
		}
		rivals = append(rivals, contender{weight: w, most: inf})
	}
	var who []string
	if groups > 0 {
		who = append(who, policy.Counted(groups, "other group"))
	}
	if tasks > 0 {
		who = append(who, policy.Counted(tasks, "competitor")+" directly in the root")
	}
	if groups+tasks == 0 {
		tasks = 1
		who = append(who, "one assumed competitor")
	}
	for range tasks {
		rivals = append(rivals, contender{weight: weightDefault, most: inf})
	}
	return rivals, strings.Join(who, " and ") + " beside bulkhead's groups"
}

const inf = 1e18 // cores: no cap

// sharer walks the groups.
type sharer struct {
	d         *State
	o         *plan.Observation
	hierarchy host.Hierarchy
	out       []plan.Share
}

// contender is a group among its siblings; above is the cap of those above it.
func (s *sharer) contender(n *layout.Node, above float64) contender {
	c := contender{weight: weightDefault, most: above}
	for _, v := range s.d.Values[s.d.Layout.Own(n.Path)[s.hierarchy.ID]] {
		c.weight = s.weightOf(v, c.weight)
	}
	if idle, ok := n.Settings.Get(policy.KeyCPUIdle, ""); ok && idle.Value == policy.Flag(true) && s.holdsIdle() {
		c.weight = weightIdle
	}
	if limit, ok := s.limit(n); ok {
		c.most = min(c.most, limit)
	}
	return c
}

func (s *sharer) holdsIdle() bool {
	return slices.ContainsFunc(s.d.Rows[s.hierarchy.ID], func(r *knob.Row) bool { return r.File == "cpu.idle" })
}

// limit is the cap of a group itself in cores: its bandwidth and the number of its CPUs.
func (s *sharer) limit(n *layout.Node) (cores float64, ok bool) {
	cores = inf
	if setting, asked := n.Settings.Get(policy.KeyCPULimit, ""); asked && s.holds(policy.KeyCPULimit) {
		if limit, isCores := setting.Value.(policy.Cores); isCores {
			cores = limit.Float()
		}
	}
	if h, mounted := s.d.facts.HierarchyOf("cpuset"); mounted {
		for _, v := range s.d.Values[s.d.Layout.Own(n.Path)[h.ID]] {
			if set := IDSet(v.Text); v.File == "cpuset.cpus" && len(set) > 0 && len(set) < len(s.d.facts.CPUs) {
				cores = min(cores, float64(len(set)))
			}
		}
	}
	return cores, cores < inf
}

func (s *sharer) holds(key policy.Key) bool {
	return slices.ContainsFunc(s.d.Rows[s.hierarchy.ID], func(r *knob.Row) bool { return slices.Contains(r.Keys, key) })
}

// walk gives a group its cores and splits them below it. most is its cap, whole the host's cores.
func (s *sharer) walk(n *layout.Node, cores, whole float64) {
	most := s.cap(n, whole)
	share := plan.Share{Group: n.Path, Guaranteed: cores}
	if most < whole {
		share.Limit = most
	}
	s.out = append(s.out, share)
	if n.Path == layout.RootGroup { // our root group holds no process
		s.split(n, cores, most, whole, nil)
		return
	}
	itself := s.asked(s.d.Layout.Member(n.Path)[s.hierarchy.ID], weightDefault)
	if !n.Inner {
		itself = weightDefault
	}
	s.split(n, cores, most, whole, []contender{{weight: itself, most: most}})
}

// split gives the children of a group their parts of its cores. others are who competes with them there.
func (s *sharer) split(n *layout.Node, cores, most, whole float64, others []contender) {
	own, ok := s.d.Layout.Own(n.Path)[s.hierarchy.ID]
	if !ok {
		own = cgroup.Dir{Hierarchy: s.hierarchy.ID, Path: "/"}
	}
	var children []*layout.Node
	var all []contender
	for _, c := range n.Children {
		if dir, ok := s.d.Layout.Own(c.Path)[s.hierarchy.ID]; ok && dir.Parent() != own { // an administrator's slice
			s.walk(c, min(s.from(dir, whole), s.cap(c, whole)), whole)
			s.out[len(s.out)-1].Against = beside(dir, []string{path.Base(dir.Path)})
			continue
		}
		with := s.contender(c, most)
		if s.away(c) {
			with.weight = 0
		}
		children, all = append(children, c), append(all, with)
	}
	for i, part := range divide(cores, append(all, others...))[:len(children)] {
		s.walk(children[i], part, whole)
	}
}

// away says whether all of a group's processes are in units that are not in its slice: nobody competes there for it.
func (s *sharer) away(n *layout.Node) bool {
	if n.Inner || len(s.d.Layout.Outside(n.Path, s.hierarchy.ID)) == 0 || s.d.loose[n.Path] > 0 {
		return false
	}
	for _, g := range s.d.Layout.Governed {
		if g.Group == n.Path && g.Inside {
			return false
		}
	}
	return true
}

// cap is the tightest limit of a group and of those above it, in cores.
func (s *sharer) cap(n *layout.Node, whole float64) float64 {
	most := whole
	for ; n != nil; n = n.Parent {
		if limit, ok := s.limit(n); ok {
			most = min(most, limit)
		}
	}
	return most
}

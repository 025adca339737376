package bench

import (
	"fmt"
	"slices"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// wanted is every program that the scenario starts beside bulkhead itself.
func (r *run) wanted() []process.Program {
	s := r.scenario
	var all []process.Program
	add := func(ps []process.Program) {
		for _, p := range ps {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	for _, d := range s.Databases {
		if d.DSN == "" {
			add(database.Engines[d.Engine].Programs)
		}
	}
	for _, l := range s.Loads {
		add(load.Loaders[l.Program].Programs)
	}
	for _, n := range s.Neighbours {
		d, _ := s.DatabaseNamed(n.On)
		add(neighbour.Programs(n.Kind, d.Engine))
	}
	if peersWithGroups(s) {
		add(libcgroup)
	}
	if !s.Swap.Empty() {
		add(swapPrograms)
	}
	if s.Wire {
		add(iproute2)
	}
	for i, name := range s.Needs.Programs {
		p := process.Program{Name: name, Package: name}
		if i < len(s.Needs.Packages) {
			p.Package = s.Needs.Packages[i]
		}
		add([]process.Program{p})
	}
	return all
}

// peersWithGroups says whether any peer makes groups.
func peersWithGroups(s *scenario.Scenario) bool {
	for _, p := range s.Peers {
		if len(p.Groups) > 0 {
			return true
		}
	}
	return false
}

// PackagesOf are the Debian packages that a scenario needs.
func PackagesOf(s *scenario.Scenario) []string {
	return process.Packages((&run{scenario: s}).wanted())
}

// fit computes the quantities that are fitted to the machine.
func (r *run) fit() {
	r.scale = map[string]float64{}
	for _, q := range r.scenario.Scale {
		x := q.Formula.Eval(r.value)
		r.scale[q.Name] = x
		r.scaled = append(r.scaled, proof.Scale{Name: q.Name, Formula: q.Formula.String(), Value: x, Unit: q.Unit,
			Document: q.Why})
	}
}

// leaveOut leaves out the arms of peers whose files this host does not have: the documents write those of cgroup v1.
func (r *run) leaveOut() {
	for _, arm := range r.scenario.Arms {
		for _, g := range r.scenario.Peers[arm.Peer].Groups {
			for _, name := range controllersOf(g.Set) {
				if !r.machine.v1(name) {
					r.omitted[arm.Name] = fmt.Sprintf("the peer's files of controller %s are those of cgroup v1, "+
						"which this host does not have", name)
				}
			}
		}
	}
}

// large says what the machine is too small for.
func (r *run) large() error {
	n := r.scenario.Needs
	short := func(what string, have, want int, unit, hint string) error {
		if have >= want {
			return nil
		}
		return &process.RequirementError{Reason: fmt.Sprintf("it needs %d %s, and there are %d", want, what+unit, have),
			Hint: hint, Reach: process.ThisScenario}
	}
	for _, err := range []error{
		short("CPUs", r.machine.cpus, n.CPUs, "", "run it on a larger machine, or in the lab (docs/lab.md)"),
		short("NUMA nodes", max(len(r.machine.facts.Nodes), 1), n.NUMA, "",
			"run it in the lab, which has machines with two nodes (docs/lab.md)"),
		short("MiB of memory", int(r.machine.available>>20), max(r.number(n.Memory, 64), 64), "",
			"end something, or run it on a larger machine"),
		short("MiB free", int(r.machine.free>>20), max(r.number(n.Disk, 512), 512),
			fmt.Sprintf(" in %q", r.machine.dir), "make room, or choose another place with --dir"),
	} {
		if err != nil {
			return err
		}
	}
	if swap, err := r.host.MemInfo(); n.Swap && err == nil && swap["SwapTotal"] == 0 {
		return &process.RequirementError{Reason: "it needs swap, and this machine has none",
			Hint: "run it in the lab, or make a swap file with mkswap(8) and swapon(8)", Reach: process.ThisScenario}
	}
	return nil
}

// nodes are the NUMA nodes of the machine, where the scenario is about them.
func (r *run) nodes() (numbers []int) {
	if r.scenario.Needs.NUMA < 2 {
		return nil
	}
	for _, n := range r.machine.facts.Nodes {
		numbers = append(numbers, n.ID)
	}
	return numbers
}

package bench

import (
	"fmt"
	"math"
	"os"
	"slices"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/matrix"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/peer"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/host"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// wanted is every program that the scenario starts beside bulkhead itself.
func wanted(s *scenario.Scenario) []process.Program {
	var all []process.Program
	add := func(ps []process.Program) {
		for _, p := range ps {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	for _, d := range s.Databases {
		add(database.Required(d))
	}
	for _, l := range s.Loads {
		add(load.Loaders[l.Program].Programs)
	}
	for _, n := range s.Neighbours {
		d, _ := s.DatabaseNamed(n.On)
		add(neighbour.Programs(n, d))
	}
	if peersWithGroups(s) {
		add(peer.Libcgroup)
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

// swapPrograms make a swap file, and put it on and off.
var swapPrograms = []process.Program{{Name: "mkswap", Package: "util-linux"}, {Name: "swapon", Package: "mount"},
	{Name: "swapoff", Package: "mount"}}

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
	return process.Packages(wanted(s))
}

// fitted is a scenario fitted to the machine: what its quantities come to, and what of it cannot run here.
type fitted struct {
	scenario *scenario.Scenario
	host     *host.Host
	machine  machine
	scale    map[string]float64
	scaled   []proof.Scale
	omitted  map[string]string // why an arm is left out, by its name
}

// value is a quantity of the machine or of the scale; NaN when there is none of the name.
func (f *fitted) value(name string) float64 {
	if x, found := f.scale[name]; found {
		return x
	}
	if x, found := f.machine.quantity(name); found {
		return x
	}
	return math.NaN()
}

// number is what an expression comes to as a whole number, or else when there is no expression.
func (f *fitted) number(e scenario.Expression, otherwise int) int {
	if e.Empty() {
		return otherwise
	}
	x := e.Eval(f.value)
	if x != x || x > 1<<40 || x < 0 {
		return otherwise
	}
	return int(x)
}

// fit computes the quantities that are fitted to the machine.
func (f *fitted) fit() {
	f.scale = map[string]float64{}
	for _, q := range f.scenario.Scale {
		x := q.Formula.Eval(f.value)
		f.scale[q.Name] = x
		f.scaled = append(f.scaled, proof.Scale{Name: q.Name, Formula: q.Formula.String(), Value: x, Unit: q.Unit,
			Document: q.Why})
	}
}

// leaveOut leaves out the arms of peers whose files this host does not have, as the documents write those of cgroup v1,
// and the arms that set something in a database which exists.
func (f *fitted) leaveOut() {
	for _, arm := range f.scenario.Arms {
		for _, s := range arm.Settings {
			if d, _ := f.scenario.DatabaseNamed(s.On); d.DSN != "" {
				f.omitted[arm.Name] = fmt.Sprintf("nothing is set in database %q, which exists", s.On)
			}
		}
		for _, g := range f.scenario.Peers[arm.Peer].Groups {
			for _, name := range peer.ControllersOf(g.Set) {
				if !f.machine.v1(name) {
					f.omitted[arm.Name] = fmt.Sprintf("the peer's files of controller %s are those of cgroup v1, "+
						"which this host does not have", name)
				}
			}
		}
	}
}

// large says what the machine is too small for, or not apart enough.
func (f *fitted) large() error {
	n := f.scenario.Needs
	if n.Apart && os.Getpid() != 1 {
		return &process.RequirementError{Reason: "its policy governs every process it sees, those of others too",
			Hint: "run it where it sees its own alone: " +
				"`unshare --pid --fork --mount-proc --kill-child bulkhead bench …`",
			Reach: process.ThisScenario}
	}
	short := func(what string, have, want int, unit, hint string) error {
		if have >= want {
			return nil
		}
		return &process.RequirementError{Reason: fmt.Sprintf("it needs %d %s, and there are %d", want, what+unit, have),
			Hint: hint, Reach: process.ThisScenario}
	}
	for _, err := range []error{
		short("CPUs", f.machine.cpus, n.CPUs, "", "run it on a larger machine, or in the lab (docs/lab.md)"),
		short("NUMA nodes", max(len(f.machine.facts.Nodes), 1), n.NUMA, "",
			"run it in the lab, which has machines with two nodes (docs/lab.md)"),
		short("MiB of memory", int(f.machine.available>>20), max(f.number(n.Memory, 64), 64), "",
			"end something, or run it on a larger machine"),
		short("MiB free", int(f.machine.free>>20), max(f.number(n.Disk, 512), 512),
			fmt.Sprintf(" in %q", f.machine.dir), "make room, or choose another place with --dir"),
	} {
		if err != nil {
			return err
		}
	}
	if swap, err := f.host.MemInfo(); n.Swap && err == nil && swap["SwapTotal"] == 0 {
		return &process.RequirementError{Reason: "it needs swap, and this machine has none",
			Hint: "run it in the lab, or make a swap file with mkswap(8) and swapon(8)", Reach: process.ThisScenario}
	}
	return nil
}

// cells is what a matrix needs.
func (f *fitted) cells() matrix.Fitted {
	return matrix.Fitted{Scenario: f.scenario, Host: f.host, Number: f.number, Omitted: f.omitted}
}

// nodes are the NUMA nodes of the machine, where the scenario is about them.
func (f *fitted) nodes() (numbers []int) {
	if f.scenario.Needs.NUMA < 2 {
		return nil
	}
	for _, n := range f.machine.facts.Nodes {
		numbers = append(numbers, n.ID)
	}
	return numbers
}

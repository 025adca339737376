// Package rule holds the rules of advice: when one applies, what it wants of which facts, why, and when it is wrong.
//
// Rules are YAML files, one for each area, which come with the program (Library) and which a site adds to (With). What
// they ask is written in CEL over the facts of package fact. Parse compiles each expression, so that a rule which names
// a fact that there is not, or compares a text with a number, is an error with its line. A Rule does not change and is
// safe for concurrent use.
package rule

import (
	"slices"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/policy"
)

// Severities from worst to least.
var Severities = []string{"critical", "high", "medium", "low", "info"}

// Worse says whether a severity is at least as bad as another.
func Worse(severity, least string) bool {
	return slices.Index(Severities, severity) <= slices.Index(Severities, least)
}

// Classes of changes, which say how a change is made, kept over a reboot and undone.
const (
	ClassSysctl  = "sysctl"  // a file below /proc/sys, by its dotted name
	ClassQueue   = "queue"   // an attribute of a disk's queue
	ClassSysfs   = "sysfs"   // another file of sysfs
	ClassCmdline = "cmdline" // an argument of the kernel
	ClassMount   = "mount"   // an option of a mount
	ClassUnit    = "unit"    // a property of the unit that runs the instance
	ClassEngine  = "engine"  // a setting of the engine
	ClassAdvice  = "advice"  // nothing that a program should do
)

var classes = []string{ClassSysctl, ClassQueue, ClassSysfs, ClassCmdline, ClassMount, ClassUnit, ClassEngine,
	ClassAdvice}

// Rule is one rule.
type Rule struct {
	ID       string     // "MEM-01"
	Area     string     // the file that it stands in: "memory"
	Title    string     // what is wrong when it is not kept
	Scope    fact.Scope // what it is asked of
	Severity string
	Engines  []string // engines and flavours that it is for; none is all
	When     *Expression
	OK       *Expression // nil where Wanted says it by engine
	Wanted   []Wanted
	// Resolve are the values to choose where instances want what cannot be had together, the first that fits.
	Resolve string
	Knob    string      // the fact of the host that Wanted speaks of
	Want    string      // the value wanted, where it is one
	Value   *Expression // gives the value wanted where it depends on facts
	Change  Change
	Apart   *Apart   // nil of most
	Means   string   // what it means here; {FACT} stands for its value
	Why     string   // why the value is wanted
	Wrong   []string // cases in which the advice is wrong
	Cost    string   // what the change costs or risks
	Source  string
	Checked string // when the source was read: "2026-08"; "-" where none was
	Pos     policy.Pos
}

// Apart is what gives an instance its wish of a Knob for itself, by its unit, whatever the host has.
type Apart struct {
	Key   string      // the setting of the unit
	When  *Expression // whether it can be had here, of this instance
	OK    *Expression // whether the unit has it already
	Value *Expression // what to set
}

// Wanted is what one engine, in some of its versions, wants of a knob.
type Wanted struct {
	Engine      string // an engine or a flavour
	From, Below string // versions: at least, less than; "" is any
	OK          *Expression
	Value       string // that it gets where it has to change
}

// Change is what puts right what a rule found.
type Change struct {
	Class string
	Key   string // "vm.swappiness", "noatime"
	Disk  string // the fact that names the disk, of a rule that is not asked of disks
}

// Reads are the facts that decide about the rule, sorted.
func (r *Rule) Reads() []string { return readsOf(r.Expressions()) }

// Reads are the facts that decide, sorted.
func (a *Apart) Reads() []string {
	if a == nil {
		return nil
	}
	return readsOf([]*Expression{a.When, a.OK, a.Value})
}

func readsOf(all []*Expression) []string {
	var names []string
	for _, e := range all {
		names = append(names, e.Reads...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Expressions are those of the rule.
func (r *Rule) Expressions() []*Expression {
	var all []*Expression
	if r.When != nil {
		all = append(all, r.When)
	}
	if r.OK != nil {
		all = append(all, r.OK)
	}
	if r.Value != nil {
		all = append(all, r.Value)
	}
	for _, w := range r.Wanted {
		all = append(all, w.OK)
	}
	return all
}

// WantedBy is what an engine or a flavour of it wants of the knob, by its version. versioned says that it depends on a
// version, and none is known ("").
func (r *Rule) WantedBy(engine, version string) (w Wanted, wants, versioned bool) {
	for _, w := range r.Wanted {
		if w.Engine != engine {
			continue
		}
		if w.From != "" || w.Below != "" {
			if version == "" {
				return Wanted{}, false, true
			}
			if w.From != "" && !fact.Since(version, w.From) || w.Below != "" && fact.Since(version, w.Below) {
				continue
			}
		}
		return w, true, false
	}
	return Wanted{}, false, false
}

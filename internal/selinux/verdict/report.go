package verdict

import (
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/policydb"
)

// Policy is the policy that the host has loaded; *policydb.Policy is one.
type Policy interface {
	Access(source, target, class string, permissions []string) policydb.Access
	PortType(protocol string, port int) (policydb.Port, bool)
	PortTypes(source, protocol, class string, permissions []string) map[string][]policydb.Port
	// Types are those of a prefix with which a source may do something.
	Types(prefix, source, class string, permissions []string) []string
}

// Starts says in which domain a process starts that runs a file; "" is its parent's. *policydb.Policy is one.
type Starts interface {
	Domain(source, file string) string
}

// Files are the files of the host.
type Files interface {
	// Expected is the type that the file contexts give a path of a class; known is false where no line matches.
	Expected(path, class string) (kind string, known bool)
	// Actual is the type that a file has now.
	Actual(path string) (kind string, known bool)
	// Read gives a file, or the beginning of it.
	Read(path string) ([]byte, error)
}

// Host is what can be asked; nil is what cannot.
type Host struct {
	Policy Policy
	Starts Starts
	Files  Files
}

// Kind is what a group of denials comes from.
type Kind string

// Kinds.
const (
	Script     Kind = "script"
	Label      Kind = "wrong label"
	Port       Kind = "wrong port"
	Domain     Kind = "wrong domain"
	Boolean    Kind = "boolean"
	Constraint Kind = "constraint"
	Stale      Kind = "stale"
	Rule       Kind = "rule"
)

// Kinds in the order in which they are put right.
var Kinds = []Kind{Script, Label, Port, Domain, Boolean, Constraint, Rule, Stale}

// Line is a line of the log.
type Line struct {
	Number int    `json:"line"`
	Text   string `json:"text"`
}

// Verdict is what is said of one group.
type Verdict struct {
	Kind        Kind     `json:"verdict"`
	Source      string   `json:"source"`
	Target      string   `json:"target"` // type; the same as the source is "self" in rules
	Class       string   `json:"class"`
	Permissions []string `json:"permissions"`
	// Rule would allow all of the group. Needed is the rule for what no other means puts right; "" is none.
	Rule   string `json:"rule"`
	Needed string `json:"needed_rule,omitempty"`
	// Because are the reasons, Fix what to do, Undecided what could not be asked.
	Because   []string `json:"because"`
	Fix       []string `json:"fix"`
	Undecided []string `json:"undecided"`
	// Broad says why the rule would allow too much.
	Broad []Flag `json:"over_broad"`
	// Count are the denials, of which Allowed were in permissive mode: they were allowed all the same, and logged once
	// for as long as the kernel remembered the answer.
	Count    int       `json:"denials"`
	Allowed  int       `json:"allowed_in_permissive_mode"`
	Commands []string  `json:"commands"` // names of processes
	First    time.Time `json:"first,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	Evidence []Line    `json:"evidence"`
	// Remedies are what can be set on this host to put it right, as far as its policy was asked.
	Remedies []Remedy `json:"-"`
}

// Remedy is a setting that puts denials right. One of Path, Program, Port, Boolean and Permissions is set.
type Remedy struct {
	// Path is a file or directory of a Class; Types are those that it may have. Listed says that the file contexts have
	// its type already, so that only its label is wrong.
	Path, Class string
	Types       []string
	Listed      bool
	// Port is "tcp/4444", to have the first of Types. Owner is the type whose own port it is by now, "" is nobody's.
	Port, Owner string
	// Boolean is to be On.
	Boolean string
	On      bool
	// Permissions are those of the rule that is needed.
	Permissions []string
}

// Report is what is said of a log.
type Report struct {
	Verdicts []Verdict `json:"groups"`
	// Rules are those that are needed, over all.
	Rules []string `json:"needed_rules"`
}

// Of gives the verdicts of a kind.
func (r *Report) Of(k Kind) (all []Verdict) {
	for _, v := range r.Verdicts {
		if v.Kind == k {
			all = append(all, v)
		}
	}
	return all
}

// shown is how many lines and paths stand for all of a group.
const shown = 3

// judge decides on one group. Left are the denials that no reason was found for yet.
type judge struct {
	Host
	Verdict
	log   *avc.Log
	walks walks
	group avc.Group
	left  []avc.Denial
}

func (j *judge) because(format string, args ...any) {
	j.Because = append(j.Because, fmt.Sprintf(format, args...))
}

func (j *judge) undecided(format string, args ...any) {
	j.Undecided = append(j.Undecided, fmt.Sprintf(format, args...))
}

func (j *judge) remedy(r Remedy) { j.Remedies = append(j.Remedies, r) }

func (j *judge) fix(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(j.Fix, text) {
		j.Fix = append(j.Fix, text)
	}
}

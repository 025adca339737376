// Package classify decides which process belongs to which group, and says why. It is pure: process
// table, instances and policy in, membership with its explanation out. docs/classification.md is the
// user's account of it.
package classify

import (
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// Group is a concrete group: templates are expanded, names are final.
type Group struct {
	Path     string // "mysql3306/backup"
	Parent   string // "mysql3306"; "" at the top
	Role     policy.Role
	Class    string
	Pos      policy.Pos
	Settings policy.Settings
	Rules    []Rule
	FromUnit bool           // its processes may be taken out of the systemd unit that they are a part of
	Adopt    string         // policy.AdoptNextStart: units that it claims whole start in its slice from then on
	Owner    []policy.Owner // with the numbers of this host once who reads it has set them
	Model    *policy.MemoryModel
	SLO      *policy.SLO // with the instance's values in its DSN
	Written  string      // its path as the policy writes it: "mysql{port}/backup"
	Slice    string      // a systemd slice of an administrator's that the group is
	Inner    bool        // has children: on v2 its own processes sit in its "db" leaf
	Instance string      // "mysql 3306 (/var/lib/mysql)" when it came from a template
	// Rivals are further instances for which the template would make a group of this name. They get
	// none.
	Rivals []Rival
}

// Rival is an instance with the placeholder that would tell it from the one that has the group, as "{datadir}"; "" for
// none.
type Rival struct {
	engine.Instance
	Apart string
}

// paths are those of the groups.
func paths(groups []Group) map[string]bool {
	all := make(map[string]bool, len(groups))
	for i := range groups {
		all[groups[i].Path] = true
	}
	return all
}

// Databases are the paths of groups that are databases or have one below them: groups of the role, those that were made
// for an instance (not those below them), and those that are promised something.
func Databases(groups []Group) map[string]bool {
	all, instances := map[string]bool{}, map[string]string{}
	for i := range groups {
		instances[groups[i].Path] = groups[i].Instance
	}
	for i := range groups {
		g := &groups[i]
		if g.Role != policy.RoleDatabase && (g.Instance == "" || instances[g.Parent] != "") && g.SLO == nil {
			continue
		}
		for path := g.Path; path != ""; path = path[:max(0, strings.LastIndexByte(path, '/'))] {
			all[path] = true
		}
	}
	return all
}

// Rule is one match entry of a group, ready to be tried. Expand makes rules.
type Rule struct {
	Group string
	Index int // position among the group's rules, from 0; a template's own rule comes first
	Match policy.Match
	// Text is the rule as a person wrote it: "cmdline: 'ora_p…', user: oracle".
	Text     string
	compiled *compiled
}

// Input is one look at the host.
type Input struct {
	Processes []procfs.Process
	Instances []engine.Instance
	// Self is the process that classifies, the agent: no rule may match it.
	Self procfs.ID
	// SelfExe is the path of bulkhead's own executable, "" when unknown. No rule may match its agent,
	// whether one runs or not.
	SelfExe string
	// UserID and GroupID look a name up; nil knows no name, and numbers still work.
	UserID  func(name string) (uid int, ok bool)
	GroupID func(name string) (gid int, ok bool)
	// UserName and GroupName are for explanations; nil prints numbers.
	UserName  func(uid int) string
	GroupName func(gid int) string
	// Pins are the processes that run and move placed. They and their descendants stay in that group,
	// apart from a descendant with a pin of its own. A pin to a group that is not there counts for nothing.
	Pins map[procfs.ID]string
	// Alone are the pins that descendants do not take over: a process moved by hand without its tree.
	Alone map[procfs.ID]bool
	// Settled, when set, has processes that nothing claims gathered by session, below the group Others: those of
	// which it says no.
	Settled Settled
	// Room is about how many placements there will be, so that memory is taken once; 0 is not known.
	Room int
}

// Placement says that a process belongs to a group, and why.
type Placement struct {
	Process procfs.Process
	Group   string
	By      string // ByRule or ByPin
	Rule    string // Rule.Text of the winner; for a pin, where it comes from
	Pos     policy.Pos
	Score   int
}

// What placed a process.
const (
	ByRule = "rule"
	ByPin  = "pin" // run or move
)

// Skip says that rules matched a process which they do not move: because it is never moved (design,
// safety 4), or because two equally specific ones claim it. Either way it stays in the group it is in.
type Skip struct {
	Process procfs.Process
	Group   string // of several, the first in the policy
	Reason  string
	// Ambiguous marks a process that might be moved, if it were clear where to: two rules claim it, or
	// it is of a rival instance. It is like one that nothing claims.
	Ambiguous bool
}

// Attempt is one rule tried on one process, for explain.
type Attempt struct {
	Rule    Rule
	Matched bool
	Why     string // the clause that decided: `user is "mysql", not "report"`
	Score   int
}

// Result is the whole of one classification.
type Result struct {
	Groups     []Group     // parents before children, in policy order
	Placements []Placement // by pid
	Skips      []Skip      // by pid
	// Problems are conflicts: two equally specific rules, a rule that matches the agent or PID 1.
	Problems policy.Problems
	// Notes are what a person should know and what keeps nothing from holding: instances that get no
	// group because another one has the name.
	Notes []policy.Note
}

// NeedsEnv says whether any rule looks at the environment, which costs a read per process.
func NeedsEnv(groups []Group) bool {
	return asked(groups, func(m *policy.Match) bool { return m.Env != "" })
}

// NeedsGroups says whether any rule looks at the supplementary groups, which cost one, too.
func NeedsGroups(groups []Group) bool {
	return asked(groups, func(m *policy.Match) bool { return m.UnixGroup != "" })
}

// asked says whether a match of any rule, or what it excepts, has a clause.
func asked(groups []Group, has func(*policy.Match) bool) bool {
	return slices.ContainsFunc(groups, func(g Group) bool {
		return slices.ContainsFunc(g.Rules, func(r Rule) bool { return anywhere(&r.Match, has) })
	})
}

func anywhere(m *policy.Match, has func(*policy.Match) bool) bool {
	return has(m) || slices.ContainsFunc(m.Except, func(e policy.Match) bool { return anywhere(&e, has) })
}

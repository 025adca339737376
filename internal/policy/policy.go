// Package policy holds what a policy says: its groups and settings, the table of limits with their keys, units and
// values, and the problems of a file with their positions. It reads no file and looks at no host.
//
// A file becomes a Policy in three steps, each a package below this one and each reporting everything that it finds
// wrong, not only the first thing:
//
//	sources, err := yamlform.Read("/etc/bulkhead/policy.yaml") // the file and what it includes
//	p, err := parse.Policy(sources)                            // typed values, without knowing a host
//	fitted, problems := resolve.Policy(p, facts)               // bytes, devices and CPUs of one host
//
// Values are immutable once they are made, so that several goroutines may read one Policy. Settings, groups and
// policies are changed by copying them.
package policy

import "time"

// Source is one policy file as read.
type Source struct {
	Path string `json:"path"`
	Text string `json:"text"`
	// Hidden keeps the text out of messages: not everybody who sees them may read the file.
	Hidden bool `json:"hidden,omitempty"`
}

// Role is what a group is for; it sets defaults and forbids nothing. "" is none.
type Role string

// The roles and their defaults (design, table of roles).
const (
	RoleDatabase Role = "database"
	RoleHelper   Role = "helper"
	RoleBatch    Role = "batch"
)

// Policy is the file with classes merged into groups. Templates (Each) are not expanded yet.
type Policy struct {
	Version int
	Host    HostPart
	Agent   AgentPart
	Groups  []*Group // in file order
	// Schedules are laid over the groups while their windows are open, in file order.
	Schedules []Schedule
	Guard     *Guard // nil: nothing is watched after a change
	SLO       SLOPart
	Sources   []Source
	Notes     []Note // what Resolve has to say that is not an error; empty before
}

// HostPart is the `host:` block.
type HostPart struct {
	Root    string   // name of bulkhead's root group; default "bulkhead"
	Weight  Weight   // 0: not named
	Others  Settings // of the CPU, for processes that match no rule; nil leaves these alone
	Reserve Reserve
	IO      []Ceiling
	ASM     []DiskGroup
	Network []NetworkLink
	History History
	Tune    []Tuning
	// Reclaim is how long the memory of a group may take to fall below a lower limit; 0: not named.
	Reclaim Duration
	Pos     Pos
	RootPos Pos // of Root, zero when it is the default

	OthersPos Pos
}

// History is how much of the history is kept; a zero value sets no bound.
type History struct {
	Entries int
	Age     time.Duration
}

// AgentPart is the `agent:` block.
type AgentPart struct {
	// OnConflict says what becomes of a limit that somebody else changed; "" is ConflictEnforce.
	OnConflict OnConflict
	// Read says who beside root may ask the agent for status and history; "" is ReadOwners.
	Read Readers
	// FastMoves asks for the kernel's faster way of moving processes (the mount option favordynmods of cgroup2, kernel
	// 6.0).
	FastMoves    bool
	FastMovesPos Pos // where it is asked for
	Record       Record
}

// Record is how much is kept of what the agent samples; zero values are its defaults.
type Record struct {
	Off  bool // size: 0
	Size Bytes
	Age  time.Duration
}

// Readers is who beside root may ask the agent what is in force.
type Readers string

// Who can.
const (
	ReadRoot     Readers = "root"     // nobody
	ReadOwners   Readers = "owners"   // who owns a group
	ReadEveryone Readers = "everyone" // every user of this host
)

// OnConflict is what becomes of a limit that somebody else changed.
type OnConflict string

// What can become of it.
const (
	ConflictEnforce OnConflict = "enforce" // it is put right
	ConflictYield   OnConflict = "yield"   // it stays
	ConflictAlert   OnConflict = "alert"   // it stays, and that is an error
)

// Leaves says whether the value stays.
func (o OnConflict) Leaves() bool { return o == ConflictYield || o == ConflictAlert }

// Reserve is what root, sshd and the agent keep. Zero means nothing is set aside.
type Reserve struct {
	CPU    Cores
	Memory Value // Bytes or MemoryPercent before Resolve; nil when not asked
	// Network is what traffic of no group keeps of each interface that has limits.
	Network BitRate
	Pos     Pos

	CPUPos, MemoryPos, NetworkPos Pos
}

// Group is one compartment as written.
type Group struct {
	Name     string // own segment, maybe with placeholders: "mysql{port}"
	Path     string // with the parents: "BX1/sessions"
	Pos      Pos
	Class    string
	Role     Role   // its own, else its class's
	Each     *Match // a template: one group per engine instance that matches
	Match    []Match
	Settings Settings
	Groups   []*Group
	Model    *MemoryModel // of each instance
	SLO      *SLO         // nil: it is promised nothing
	Owner    []Owner      // who may do what with it, else its class's
	// On a host with systemd: whether processes may be taken out of a unit that the group claims only in part, when
	// a unit that it claims whole comes into its slice ("" is never), and the slice of an administrator's that it is.
	FromUnit     bool
	Adopt, Slice string

	ClassPos, SlicePos Pos
}

// Match is one entry of `match:` (or `each:`): its keys AND, its Except take processes out again. Strings may hold the
// placeholders of an enclosing template ({port}, {socket}, {datadir}, {sid}, {engine}, {instance}, {user}).
type Match struct {
	Engine, Port, Socket, DataDir, SID, Instance, Part string // engine and its instance
	Helper                                             string // kind of a helper program of the instance
	Exe                                                string // base name, or a path glob when it holds a "/"
	// What was started, executable or script: a base name, a path, or the beginning of one and a "*".
	Program string
	// RE2, unanchored, over the arguments joined by single spaces
	Cmdline   string
	User      string // name or number, effective
	UnixGroup string // name or number, effective or supplementary
	Unit      string // systemd unit, from the cgroup path
	Cgroup    string // glob over the path in any hierarchy, or a prefix ending at a "/"
	Ancestor  string // exe base name, or path glob, of any ancestor
	Env       string // NAME=VALUE or NAME
	Except    []Match
	Pos       Pos
}

// Note is something a person should know about a policy on this host that is not an error.
type Note struct {
	Pos   Pos    `json:"pos"`
	Group string `json:"group,omitempty"`
	Text  string `json:"text"`
	// Void marks what was asked for and has no effect, and Key says of what: another setting takes its place, or
	// nothing on this host can match.
	Void bool `json:"void,omitempty"`
	Key  Key  `json:"key,omitempty"`
	// Dev is the device when it is about the limit on that one alone: "8:16".
	Dev string `json:"device,omitempty"`
}

// Guard is `guard:`: after every change the groups that it names are watched for a time, and a change that does one of
// them harm is undone.
type Guard struct {
	For    time.Duration // after each change
	Window time.Duration // over which rates are taken
	Before time.Duration // the time before a change that work is held against
	Groups []Guarded
	Pos    Pos
}

// Guarded is what must not happen to one group.
type Guarded struct {
	Group string `json:"group"` // path
	// OOMKills is how many processes the kernel may kill for want of memory; nil: not watched.
	OOMKills *int64 `json:"oom_kills,omitempty"`
	// MemoryPressure and Throttled are shares of a window, 0 to 1: of the time, in which all its tasks waited for
	// memory, and of the CPU periods, in which its limit held it back. nil: not watched.
	MemoryPressure *float64 `json:"memory_pressure,omitempty"`
	Throttled      *float64 `json:"throttled,omitempty"`
	// Throughput is by how much the group's work may fall, 0 to 1; nil: not watched.
	Throughput *float64 `json:"throughput_falls,omitempty"`
	// DSN is the database that is asked for its work (internal/dbstat); "" goes by what the kernel counts.
	DSN string `json:"dsn,omitempty"`
	Pos Pos    `json:"-"`

	PressurePos Pos `json:"-"`
}

// Of gives what is watched of a group; the zero value when nothing is.
func (g *Guard) Of(group string) (Guarded, bool) {
	if g != nil {
		for _, one := range g.Groups {
			if one.Group == group {
				return one, true
			}
		}
	}
	return Guarded{}, false
}

// AdoptNextStart has a unit that a group claims whole start in the group's slice from its next start on.
const AdoptNextStart = "next-start"

// EachGroup calls do for every group, parents first.
func EachGroup(groups []*Group, do func(*Group)) {
	for _, g := range groups {
		do(g)
		EachGroup(g.Groups, do)
	}
}

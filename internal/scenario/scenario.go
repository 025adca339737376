// Package scenario owns the files that describe a proof: which databases to start, what loads them, who their
// neighbours are, in which arrangements (arms) to measure them, and the shape the figures must have. A
// scenario is data; internal/bench carries it out.
package scenario

import (
	"slices"
	"time"

	"bulkhead/internal/policy"
)

// Scenario is one proof.
type Scenario struct {
	Name  string
	Title string
	// Digest is the begin of the SHA-256 of the file's text: figures are of the text that they were measured by.
	Digest   string
	Document string // the experiment of a document that it repeats: "E1"
	Reports  string // what that document reports, in words
	// Mechanism is what that document limits by, and what this scenario does.
	Mechanism Mechanism
	Rounds    int
	Seconds   int // length of one arm
	Settle    time.Duration
	Scale     []Quantity
	Needs     Needs
	// Wire: the run makes two network namespaces with a veth pair between them and nothing else, and starts all but the
	// far ends of its loads in the near one. Interfaces of the machine are out of its reach then.
	Wire bool
	// Swap is the size of the swap file that the run makes, MiB.
	Swap Expression
	// Long: it takes so long that it runs only where it is named.
	Long bool
	// Matrix has the arms, where there is one.
	Matrix *Matrix

	Databases  []Database
	Loads      []Load
	Neighbours []Neighbour
	Policies   map[string]Template
	Peers      map[string]Peer
	Arms       []Arm
	// Control is the arm that stands at both ends of a round: against itself it shows the noise, and their mean is
	// what the others are held against.
	Control string
	Shape   []Shape
}

// Mechanism is by what the kernel holds a limit: in the document, and here.
type Mechanism struct {
	Document string
	Ours     string // "" is the same
	Why      string // why it is not the same
}

// String names both: "CPU quota, the same here".
func (m Mechanism) String() string {
	switch {
	case m.Document == "":
		return ""
	case m.Ours == "":
		return m.Document + ", the same here"
	}
	return m.Document + "; here " + m.Ours + ": " + m.Why
}

// Quantity is a figure that is fitted to the machine, and how.
type Quantity struct {
	Name    string
	Formula Expression
	Why     string // what the document had
	Unit    string
}

// Needs is what a machine must have.
type Needs struct {
	CPUs     int
	NUMA     int
	Memory   Expression // MiB available
	Disk     Expression // MiB free where the work directory is
	Packages []string   // Debian packages beyond those of the programs that are named
	Programs []string   // programs that those packages bring
	Swap     bool       // that the machine has swap of its own
	Apart    bool       // that the run is in a PID namespace of its own: its policy governs whatever it sees
}

// Database is a throw-away server, or one that exists.
type Database struct {
	Name    string
	Engine  string // mariadb, postgresql, redis: what its clients speak
	Release string // "mysql@9.7": made when it is first asked for; "" is the host's own
	DSN     string // of one that exists; nothing is started then
	Buffer  Expression
	Group   string   // the group that holds it in a peer's arm
	Options []string // templates, as the values of a policy are
}

// Load is a program that asks something of a database or of a disk, and tells how fast it was answered.
type Load struct {
	Name    string
	Program string // sysbench, pgbench, redis-benchmark, fio, iperf3, heartbeat
	On      string // the database
	Script  string
	Threads Expression
	Tables  Expression
	Rows    Expression
	Rate    Expression // transactions (iperf3: Mbit) asked for in a second; none is as fast as it goes
	Group   string     // where it runs when a policy or a peer governs; of iperf3 the near end
	Options []string
	// Remote: it asks over TCP from the far end of the wire, as a client on another host does.
	Remote bool

	// For fio.
	Block    string
	Size     Expression // MiB
	Jobs     Expression
	Depth    Expression
	Buffered bool

	// Flow is which way iperf3 sends: "out" of the near namespace, from a client in it, or "in", to a server in it.
	Flow string
}

// Neighbour is something that runs beside the database.
type Neighbour struct {
	Name     string
	Kind     string // cpu, memory, disk, backup, query, exporter
	On       string // the database, for backup, query and an exporter of it
	Count    Expression
	Shared   bool // all in one session; else each has its own
	Bytes    Expression
	Rate     Expression // MiB/s
	Block    Expression // KiB
	Random   bool
	Buffered bool
	Mortal   bool // its group's limit may kill it; it is started again
	SQL      string
	Program  string     // what is scraped, one of Exporters
	Every    Expression // seconds between two scrapes
	Group    string
}

// Arm is one arrangement that is measured.
type Arm struct {
	Name  string
	Text  string
	With  []string // neighbours
	Loads []string // nil is all
	// Outside names the loads that run outside of their group, as a client on another host or of another user does.
	Outside []string
	// Agent: an agent runs beside the policy, for what starts later and is not started inside its group.
	Agent  bool
	Policy string
	Peer   string
	Phases []Phase
	// Restart names the databases that start anew inside their group for this arm, so that all their memory is charged
	// to it.
	Restart []string
	// Dies names the database that the arm expects to be killed.
	Dies string
	// Settings are made in servers before the arm, and taken back behind it.
	Settings []Setting
	// Cell is the combination of a matrix that the arm is of; nil without one.
	Cell *Cell
}

// Setting is a statement that sets something in a server, and the one that takes it back. The server is one that the
// run has started: in one that exists nothing is set.
type Setting struct {
	On        string // the database
	Set, Back string // SQL
}

// Phase is a part of an arm's time.
type Phase struct {
	Name   string
	Share  Expression
	Policy string // "" changes nothing; "none" releases
}

// Peer is another tool's way: groups and the files it writes, through libcgroup's programs, and commands of iproute2.
type Peer struct {
	Text   string
	Groups []PeerGroup
	// Commands are tc(8) and ip(8) on the run's own wire, each one line of words, and Undo what takes them back.
	Commands []Template
	Undo     []Template
}

// PeerGroup is one group of a peer: the same name as ours, so that the same members go into it.
type PeerGroup struct {
	Name string
	Set  []Assignment
}

// Assignment is one file of a group and what is written to it.
type Assignment struct {
	File  string // "cpu.shares"
	Value Template
}

// Shape is one thing that the figures must show.
type Shape struct {
	What     string
	Reports  string     // what the document measured
	By       string     // what limits here, where that is not the scenario's; "same" is the document's mechanism
	Measure  Expression // over the figures of one round
	Least    Expression
	Most     Expression
	Unit     string
	Noise    bool       // the bound gives way to the spread of the control against itself
	Smoke    Expression // the least in a smoke run, where the bound says little; without one it is not judged then
	SmokeMax Expression
	Claim    Claim
	// Beyond: where it is more than 1, this machine is too small to judge the shape. It is measured and shown.
	Beyond Expression
	At     policy.Pos
}

// Claim is what the document measured, in the terms of a shape's Measure. It is empty where the document has neither a
// figure nor a direction.
type Claim struct {
	Figure Expression
	Within Expression // the factor up to which a measurement reproduces the figure; 2 without one
	// Direction is "more" or "less" than None, where the document gives no figure.
	Direction string
	// None is what would be measured if the thing had no effect; without one it is 1, of percents 100.
	None Expression
	// Because says why this machine shows the opposite, and by which experiment that is known.
	Because string
}

// Empty says whether the document claims nothing.
func (c Claim) Empty() bool { return c.Figure.Empty() && c.Direction == "" }

// DatabaseNamed finds a database.
func (s *Scenario) DatabaseNamed(name string) (Database, bool) {
	for _, d := range s.Databases {
		if d.Name == name {
			return d, true
		}
	}
	return Database{}, false
}

// ArmNamed finds an arm.
func (s *Scenario) ArmNamed(name string) (Arm, bool) {
	for _, a := range s.Arms {
		if a.Name == name {
			return a, true
		}
	}
	return Arm{}, false
}

// Alone is the scenario with its control arm alone, and with what that needs: to be measured again and again while
// something else is changed.
func (s *Scenario) Alone() *Scenario {
	alone := *s
	control, _ := s.ArmNamed(s.Control)
	alone.Matrix, control.Cell = nil, nil
	alone.Arms, alone.Shape, alone.Loads, alone.Peers = []Arm{control}, nil, s.LoadsOf(control), nil
	alone.Neighbours = slices.DeleteFunc(slices.Clone(s.Neighbours), func(n Neighbour) bool {
		return !slices.Contains(control.With, n.Name)
	})
	if control.Peer != "" {
		alone.Peers = s.Peers
	}
	return &alone
}

// Groups names every group that a member of the scenario goes into, in the order of the file.
func (s *Scenario) Groups() []string {
	var everybody Arm
	for _, n := range s.Neighbours {
		everybody.With = append(everybody.With, n.Name)
	}
	return s.GroupsOf(everybody)
}

// GroupsOf are those with a member in an arm: databases are there in each.
func (s *Scenario) GroupsOf(a Arm) []string {
	var names []string
	seen := map[string]bool{"": true}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, d := range s.Databases {
		add(d.Group)
	}
	for _, l := range s.LoadsOf(a) {
		add(l.Group)
	}
	for _, n := range s.Neighbours {
		if slices.Contains(a.With, n.Name) {
			add(n.Group)
		}
	}
	return names
}

// LoadsOf are the loads of an arm, those outside of their group without it.
func (s *Scenario) LoadsOf(a Arm) (loads []Load) {
	for _, l := range s.Loads {
		if a.Loads != nil && !slices.Contains(a.Loads, l.Name) {
			continue
		}
		if slices.Contains(a.Outside, l.Name) {
			l.Group = ""
		}
		loads = append(loads, l)
	}
	return loads
}

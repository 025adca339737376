package advise

// Report is what the rules say of a host.
type Report struct {
	Findings  []Finding   `json:"findings"` // worst first
	Undecided []Undecided `json:"undecided"`
	Passed    []Passed    `json:"passed"`
	Silenced  []Silenced  `json:"silenced"`
	// Notes say what was not looked at, or not asked, and why.
	Notes []string `json:"notes"`
	// Apart counts the rules that have nothing to say here: what they are for is not on this host.
	Apart int `json:"not_applicable"`
}

// Finding is a rule that is not kept.
type Finding struct {
	Rule     string     `json:"rule"`
	Severity string     `json:"severity"`
	Title    string     `json:"title"`
	On       []string   `json:"on"` // disks, mounts, instances; none for the host
	Means    string     `json:"means"`
	Evidence []Evidence `json:"evidence"`
	Change   Change     `json:"change"`
	// Losers are the instances that the change does not give what they want, with it.
	Losers []Loser `json:"losers"`
}

// Evidence is a fact with where it was read.
type Evidence struct {
	Fact  string `json:"fact"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Change is what would put a finding right.
type Change struct {
	Class string `json:"class"`
	Key   string `json:"key"`
	Value string `json:"value"`
	Cost  string `json:"cost"`
	Disk  string `json:"disk,omitempty"` // the kernel's name of the disk whose queue it is
	Unit  string `json:"unit,omitempty"` // the service of systemd whose setting it is
}

// Loser is an instance and what it would want instead.
type Loser struct {
	Instance string `json:"instance"`
	Wants    string `json:"wants"`
}

// Undecided is a rule that lacks facts.
type Undecided struct {
	Rule    string    `json:"rule"`
	On      []string  `json:"on"`
	Missing []Missing `json:"missing"`
}

// Missing is an unknown fact.
type Missing struct {
	Fact   string `json:"fact"`
	Reason string `json:"reason"`
}

// Passed is a rule that is kept.
type Passed struct {
	Rule     string     `json:"rule"`
	Title    string     `json:"title"`
	On       []string   `json:"on"`
	Evidence []Evidence `json:"evidence"`
}

// Silenced is a finding that the site does not want to hear of.
type Silenced struct {
	Rule   string   `json:"rule"`
	On     []string `json:"on"`
	Reason string   `json:"reason"`
	Until  string   `json:"until"`
}

package cli

import (
	"bulkhead/internal/control"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// The JSON of `discover` and `explain`: what scripts may rely on, whatever the types inside are called.

type discoveryJSON struct {
	Host         hostJSON          `json:"host"`
	Capabilities []knob.Capability `json:"capabilities"`
	Hierarchies  []hierarchyJSON   `json:"hierarchies"`
	NotMounted   []controllerJSON  `json:"controllers_not_mounted"`
	Disks        []diskJSON        `json:"disks"`
	Instances    []instanceJSON    `json:"instances"`
}

type hostJSON struct {
	Hostname    string     `json:"hostname"`
	Kernel      string     `json:"kernel"`
	Systemd     bool       `json:"systemd"`
	CPUs        host.IDSet `json:"cpus"` // "0-3,8"
	MemoryBytes int64      `json:"memory_bytes"`
	SwapBytes   int64      `json:"swap_bytes"`
	Nodes       []nodeJSON `json:"numa_nodes"`
}

type nodeJSON struct {
	ID          int        `json:"id"`
	CPUs        host.IDSet `json:"cpus"`
	MemoryBytes int64      `json:"memory_bytes"`
}

type hierarchyJSON struct {
	ID          string   `json:"id"`
	Version     int      `json:"version"`
	Controllers []string `json:"controllers"`
	Mount       string   `json:"mount"`
	ReadOnly    bool     `json:"read_only"`
}

type controllerJSON struct {
	Name    string `json:"name"`
	Command string `json:"mount_command"`
}

type diskJSON struct {
	Name       string          `json:"name"`
	Number     string          `json:"number"` // "8:16"
	Kind       host.DeviceKind `json:"kind"`
	SizeBytes  int64           `json:"size_bytes"`
	Rotational bool            `json:"rotational"`
	Scheduler  string          `json:"scheduler"`
	Backing    string          `json:"backing,omitempty"` // file of a loop device
	Below      []string        `json:"below,omitempty"`   // numbers of the devices under it
	Model      string          `json:"model,omitempty"`   // of a disk
	Mapper     string          `json:"mapper,omitempty"`  // its name below /dev/mapper
	Whole      string          `json:"whole_disk"`        // of a partition; else its own number
}

type instanceJSON struct {
	Name      string       `json:"name"`
	Engine    string       `json:"engine"`
	Flavor    string       `json:"flavor,omitempty"`
	Version   string       `json:"version,omitempty"`
	PID       int          `json:"pid"`
	User      string       `json:"user"`
	Port      int          `json:"port,omitempty"`
	Ports     []int        `json:"ports"`
	Socket    string       `json:"socket,omitempty"`
	DataDir   string       `json:"data_dir,omitempty"`
	Config    string       `json:"config,omitempty"`
	Cluster   string       `json:"cluster,omitempty"`
	SID       string       `json:"sid,omitempty"`
	Container bool         `json:"container"`
	Evidence  []string     `json:"evidence"`
	Parts     []partJSON   `json:"processes"`
	Helpers   []helperJSON `json:"helpers"`
}

type helperJSON struct {
	PID   int    `json:"pid"`
	Kind  string `json:"kind"`
	Tool  string `json:"tool"`
	Sure  bool   `json:"sure"` // it serves this instance; else it may, as well as others
	How   string `json:"how"`
	Rate  string `json:"rate_option,omitempty"`
	Given string `json:"rate_given,omitempty"`
}

type partJSON struct {
	PID  int    `json:"pid"`
	Part string `json:"part"`
}

// list is a slice that is [] in JSON, never null.
func list[From, To any](from []From, view func(From) To) []To {
	to := make([]To, 0, len(from))
	for _, f := range from {
		to = append(to, view(f))
	}
	return to
}

func same[T any](v T) T { return v }

func discoveryView(d *control.Discovery) discoveryJSON {
	f := d.Facts
	v := discoveryJSON{
		Host: hostJSON{
			Hostname: f.Hostname, Kernel: f.Kernel.Text, Systemd: f.Systemd, CPUs: f.CPUs, MemoryBytes: f.MemTotal, SwapBytes: f.SwapTotal,
			Nodes: list(f.Nodes, func(n host.Node) nodeJSON { return nodeJSON{ID: n.ID, CPUs: n.CPUs, MemoryBytes: n.MemTotal} }),
		},
		Capabilities: list(d.Capabilities, same),
		Hierarchies: list(f.Hierarchies, func(h host.Hierarchy) hierarchyJSON {
			return hierarchyJSON{ID: h.ID, Version: h.Version, Controllers: list(h.Controllers, same), Mount: h.Mount, ReadOnly: h.ReadOnly}
		}),
		NotMounted: []controllerJSON{},
		Disks: list(f.Devices, func(d host.Device) diskJSON {
			return diskJSON{
				Name: d.Name, Number: d.Number, Kind: d.Kind, SizeBytes: d.Size, Rotational: d.Rotational, Scheduler: d.Scheduler,
				Backing: d.Backing, Below: d.Slaves, Model: d.Model, Mapper: d.Mapper, Whole: d.Disk,
			}
		}),
		Instances: list(d.Instances, instanceView),
	}
	for _, c := range f.Controllers {
		if c.Hierarchy == "" && c.Hint != "" {
			v.NotMounted = append(v.NotMounted, controllerJSON{Name: c.Name, Command: c.Hint})
		}
	}
	return v
}

func instanceView(i engine.Instance) instanceJSON {
	return instanceJSON{
		Name: i.Name(), Engine: i.Engine, Flavor: i.Flavor, Version: i.Version, PID: i.Main.PID, User: i.User,
		Port: i.Port, Ports: list(i.Ports, same), Socket: i.Socket, DataDir: i.DataDir, Config: i.Config, Cluster: i.Cluster, SID: i.SID,
		Container: i.Container, Evidence: list(i.Evidence, same),
		Parts: list(i.Members, func(m engine.Member) partJSON { return partJSON{PID: m.ID.PID, Part: m.Part} }),
		Helpers: list(i.Helpers, func(h engine.Helper) helperJSON {
			return helperJSON{PID: h.ID.PID, Kind: h.Kind, Tool: h.Tool, Sure: h.Sure, How: h.How, Rate: h.Rate.Option, Given: h.Rate.Given}
		}),
	}
}

type explanationJSON struct {
	PID      int                   `json:"pid"`
	Comm     string                `json:"comm"`
	Exe      string                `json:"exe"`
	Args     []string              `json:"args"`
	UID      int                   `json:"uid"`
	Group    string                `json:"group,omitempty"`
	By       string                `json:"by,omitempty"`   // "rule" or "pin"
	Rule     string                `json:"rule,omitempty"` // the one that decided
	Placed   bool                  `json:"placed"`
	Reason   string                `json:"reason,omitempty"` // why it is in no group
	Helper   string                `json:"helper,omitempty"` // whom it serves, for a helper program
	Cgroups  map[string]string     `json:"cgroups"`          // where it is, by hierarchy
	Attempts []attemptJSON         `json:"attempts"`
	Levels   []control.LevelLimits `json:"levels"`
	When     *control.PlacedAt     `json:"when,omitempty"`    // how it came to be placed; not there when no agent saw it come
	Biting   []control.Bite        `json:"biting"`            // what held one of the levels back while that was watched
	Watched  int64                 `json:"watched_ns"`        // 0: nothing was watched
	Charges  []control.Charge      `json:"charges,omitempty"` // with --exact
}

// problemsJSON is what --json prints instead of an answer when the policy cannot stand.
type problemsJSON struct {
	Problems []problemJSON `json:"problems"`
}

// problemJSON is one problem; line and column are 0 where the place in the file is not known.
type problemJSON struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"`
	Hint   string `json:"hint,omitempty"`
}

func problemsView(ps policy.Problems) problemsJSON {
	return problemsJSON{Problems: list(ps, func(p policy.Problem) problemJSON {
		return problemJSON{File: p.Pos.File, Line: p.Pos.Line, Column: p.Pos.Column, Text: p.Msg, Hint: p.Hint}
	})}
}

type attemptJSON struct {
	Group   string `json:"group,omitempty"`
	Rule    string `json:"rule"`
	Matched bool   `json:"matched"`
	Score   int    `json:"score"`
	Why     string `json:"why"`
}

func explanationView(e *control.Explanation) explanationJSON {
	v := explanationJSON{
		PID: e.Process.PID, Comm: e.Process.Comm, Exe: e.Process.Exe, Args: list(e.Process.Args, same), UID: e.Process.UID,
		Group: e.Group, By: e.By, Rule: winner(e), Placed: e.Placed, Reason: e.Reason, Helper: e.Helper, Cgroups: e.Process.Cgroups,
		Attempts: []attemptJSON{}, Levels: list(e.Levels, same),
		When: e.When, Biting: list(e.Biting, same), Watched: e.Watched.Nanoseconds(), Charges: e.Charges,
	}
	for _, t := range e.Attempts {
		v.Attempts = append(v.Attempts, attemptJSON{Group: t.Rule.Group, Rule: t.Rule.Text, Matched: t.Matched, Score: t.Score, Why: t.Why})
	}
	return v
}

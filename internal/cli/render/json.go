package render

import (
	"io"
	"strings"
	"time"

	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/inspect"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
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
	CPUs        idset.Set  `json:"cpus"` // "0-3,8"
	MemoryBytes int64      `json:"memory_bytes"`
	SwapBytes   int64      `json:"swap_bytes"`
	Nodes       []nodeJSON `json:"numa_nodes"`
}

type nodeJSON struct {
	ID          int       `json:"id"`
	CPUs        idset.Set `json:"cpus"`
	MemoryBytes int64     `json:"memory_bytes"`
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
	Name       string              `json:"name"`
	Number     string              `json:"number"` // "8:16"
	Kind       blockdev.DeviceKind `json:"kind"`
	SizeBytes  int64               `json:"size_bytes"`
	Rotational bool                `json:"rotational"`
	Scheduler  string              `json:"scheduler"`
	Backing    string              `json:"backing,omitempty"` // file of a loop device
	Below      []string            `json:"below,omitempty"`   // numbers of the devices under it
	Model      string              `json:"model,omitempty"`   // of a disk
	Mapper     string              `json:"mapper,omitempty"`  // its name below /dev/mapper
	Whole      string              `json:"whole_disk"`        // of a partition; else its own number
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

// DiscoveryView is the JSON of discover.
func DiscoveryView(d *inspect.Discovery) discoveryJSON {
	f := d.Facts
	v := discoveryJSON{
		Host: hostJSON{
			Hostname: f.Hostname, Kernel: f.Kernel.Text, Systemd: f.Systemd, CPUs: f.CPUs, MemoryBytes: f.MemTotal,
			SwapBytes: f.SwapTotal,
			Nodes: list(f.Nodes,
				func(n host.Node) nodeJSON { return nodeJSON{ID: n.ID, CPUs: n.CPUs, MemoryBytes: n.MemTotal} }),
		},
		Capabilities: OrEmpty(d.Capabilities),
		Hierarchies: list(f.Hierarchies, func(h host.Hierarchy) hierarchyJSON {
			return hierarchyJSON{ID: h.ID, Version: h.Version, Controllers: OrEmpty(h.Controllers), Mount: h.Mount,
				ReadOnly: h.ReadOnly}
		}),
		NotMounted: []controllerJSON{},
		Disks: list(f.Devices, func(d blockdev.Device) diskJSON {
			return diskJSON{
				Name: d.Name, Number: d.Number, Kind: d.Kind, SizeBytes: d.Size, Rotational: d.Rotational,
				Scheduler: d.Scheduler,
				Backing:   d.Backing, Below: d.Slaves, Model: d.Model, Mapper: d.Mapper, Whole: d.Disk,
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
		Port: i.Port, Ports: OrEmpty(i.Ports), Socket: i.Socket, DataDir: i.DataDir, Config: i.Config,
		Cluster: i.Cluster, SID: i.SID,
		Container: i.Container, Evidence: OrEmpty(i.Evidence),
		Parts: list(i.Members, func(m engine.Member) partJSON { return partJSON{PID: m.ID.PID, Part: m.Part} }),
		Helpers: list(i.Helpers, func(h engine.Helper) helperJSON {
			return helperJSON{PID: h.ID.PID, Kind: h.Kind, Tool: h.Tool, Sure: h.Sure, How: h.How, Rate: h.Rate.Option,
				Given: h.Rate.Given}
		}),
	}
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

// ProblemsView is what --json prints of a policy that cannot stand.
func ProblemsView(ps policy.Problems) problemsJSON {
	return problemsJSON{Problems: list(ps, func(p policy.Problem) problemJSON {
		return problemJSON{File: p.Pos.File, Line: p.Pos.Line, Column: p.Pos.Column, Text: p.Msg, Hint: p.Hint}
	})}
}

// ScenarioView is a scenario as `bench list --json` shows it.
type ScenarioView struct {
	Name     string        `json:"name"`
	Title    string        `json:"title"`
	Document string        `json:"document,omitempty"`
	Takes    time.Duration `json:"takes_ns"` // about
	Needs    []string      `json:"needs"`    // Debian packages
}

// Scenarios prints one line for each scenario.
func Scenarios(out io.Writer, all []ScenarioView) {
	for _, s := range all {
		Printf(out, "%-16s %s; about %.0f minutes; needs %s\n",
			s.Name, s.Title, max(1, s.Takes.Minutes()), strings.Join(s.Needs, ", "))
	}
}

type disksJSON struct {
	Databases   []landingsJSON `json:"databases"`
	Filesystems []string       `json:"filesystems"` // layers, in the order of their mounts
	Unused      []string       `json:"unused"`      // layers on which nothing lies
	Layers      []layerJSON    `json:"layers"`
}

type landingsJSON struct {
	Name    string              `json:"name"`
	Engine  string              `json:"engine"`
	PID     int                 `json:"pid"`
	Files   []landingJSON       `json:"files"`
	Written []disks.WrittenKind `json:"written,omitempty"`
	Trouble string              `json:"trouble,omitempty"`
}

type landingJSON struct {
	Kind      string   `json:"kind"`
	Path      string   `json:"path"`
	RealPath  string   `json:"real_path,omitempty"`
	How       string   `json:"how"`
	Open      int      `json:"open_files,omitempty"`
	Layer     string   `json:"layer,omitempty"`
	Drives    []string `json:"drives"` // layers
	Elsewhere bool     `json:"own_mounts"`
	Trouble   string   `json:"trouble,omitempty"`
}

type layerJSON struct {
	ID         string      `json:"id"`
	Kind       string      `json:"kind"`
	Name       string      `json:"name"`
	Number     string      `json:"number,omitempty"`
	SizeBytes  int64       `json:"size_bytes,omitempty"`
	Rotational *bool       `json:"rotational,omitempty"`
	Scheduler  string      `json:"scheduler,omitempty"`
	Type       string      `json:"filesystem,omitempty"`
	On         string      `json:"filesystem_on,omitempty"` // device, network, memory, …
	Mount      string      `json:"mounted_at,omitempty"`
	Source     string      `json:"source,omitempty"`
	Detail     string      `json:"detail,omitempty"`
	Model      string      `json:"model,omitempty"`
	Serial     string      `json:"serial,omitempty"`
	WWID       string      `json:"wwid,omitempty"`
	Below      []belowJSON `json:"below"`
	Trouble    string      `json:"trouble,omitempty"`
}

type belowJSON struct {
	Layer string `json:"layer"`
	Role  string `json:"role,omitempty"`
}

// DisksView is the JSON of discover disks.
func DisksView(d *disks.Disks) disksJSON {
	id := func(l *blockdev.Layer) string { return l.ID }
	v := disksJSON{Filesystems: list(d.Roots(), id), Unused: list(d.Storage.Unused(), id), Layers: []layerJSON{}}
	v.Databases = list(d.Databases, func(db disks.DatabaseFiles) landingsJSON {
		return landingsJSON{Name: db.Instance.Name(), Engine: db.Instance.Engine, PID: db.Instance.Main.PID,
			Trouble: db.Trouble, Written: db.Written, Files: list(db.Files, landingView)}
	})
	seen := map[*blockdev.Layer]bool{}
	var add func(l *blockdev.Layer)
	add = func(l *blockdev.Layer) {
		if seen[l] {
			return
		}
		seen[l] = true
		v.Layers = append(v.Layers, layerView(l))
		for _, b := range l.Below {
			add(b.Layer)
		}
	}
	for _, l := range append(d.Roots(), d.Storage.Unused()...) {
		add(l)
	}
	return v
}

func landingView(f disks.PlacedFiles) landingJSON {
	l := landingJSON{Kind: string(f.Kind), Path: f.Path, RealPath: f.Place.Real, How: f.How, Open: f.Open,
		Drives: []string{}, Elsewhere: f.Place.Elsewhere, Trouble: f.Trouble}
	if f.Place.Layer != nil {
		l.Layer = f.Place.Layer.ID
		l.Drives = list(f.Place.Layer.Drives(auxiliary...), func(d *blockdev.Layer) string { return d.ID })
	}
	return l
}

func layerView(l *blockdev.Layer) layerJSON {
	v := layerJSON{
		ID: l.ID, Kind: string(l.Kind), Name: l.Name, Type: l.Type, On: string(l.Filesystem), Mount: l.Point,
		Source: l.Source, Detail: l.Detail,
		Model: l.Model, Serial: l.Serial, WWID: l.WWID, Trouble: l.Trouble,
		Below: list(l.Below, func(b blockdev.Link) belowJSON { return belowJSON{Layer: b.ID, Role: b.Role} }),
	}
	if d := l.Device; d != nil {
		v.Number, v.SizeBytes, v.Rotational, v.Scheduler = d.Number, d.Size, &d.Rotational, d.Scheduler
	}
	return v
}

package check

import (
	"slices"

	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/places"
	"bulkhead/internal/selinux/policydb"
)

// Policy is the policy that is loaded; *policydb.Policy is one.
type Policy interface {
	Access(source, target, class string, permissions []string) policydb.Access
	PortType(protocol string, port int) (policydb.Port, bool)
	PortTypes(source, protocol, class string, permissions []string) map[string][]policydb.Port
}

// Transitions say which type something new has; *policydb.Policy is one.
type Transitions interface {
	// Domain is that of a program of a type which source starts; "" is the same.
	Domain(source, file string) string
	// Created is that of what source makes in a directory of a type.
	Created(source, dir, class string) string
}

// Contexts are the file contexts: known is false where they give a path no label.
type Contexts interface {
	Expected(path, class string) (kind string, known bool)
}

// Files are the files of the host as a process sees them; selinux.Host is one.
type Files interface {
	Way(pid int, path string) (selinux.Way, error)
	Labelling(pid int, path string) (selinux.Labelling, error)
}

// Host is what is asked. All of it is there.
type Host struct {
	Policy      Policy
	Transitions Transitions
	Contexts    Contexts
	Files       Files
}

// Server is what is held against it.
type Server struct {
	Name, Engine string
	PID          int    // whose view of the files counts
	Program      string // its executable, "" is not known
	Processes    []Process
	Places       []places.Place
	Ports        []places.Port
	// Entries gives the names in a directory of data, some of them where there are many; nil is none.
	Entries func(dir string) []string
}

// Process is one of a server.
type Process struct {
	PID     int
	Part    string
	Context string // of SELinux; "" could not be read
}

// What a finding is about.
const (
	Label      = "label"      // the policy denies the label that a path has
	Relabel    = "relabel"    // it works, and would not after the next restorecon
	Drift      = "drift"      // it works, with another label than the file contexts give
	Mount      = "mount"      // the labels of a file system are not those of its files
	PortType   = "port"       // the policy denies the type that a port has
	Domain     = "domain"     // a program runs in no domain of its own
	Permissive = "permissive" // denials of a domain are only logged
)

// Finding is one thing that does not fit.
type Finding struct {
	Instance string `json:"instance"`
	About    string `json:"about"`
	// Settings name the path or the port, with where each was read.
	Settings []string `json:"settings"`
	// Path is without links; Class is that of what is there, or would be. Entries are how many in the directory Path
	// are meant; 0 is Path itself.
	Path    string `json:"path,omitempty"`
	Class   string `json:"class,omitempty"`
	Entries int    `json:"entries,omitempty"`
	// Protocol and Port are those of a port. Own says that it is another service's, by itself or in a range.
	Protocol string `json:"protocol,omitempty"`
	Port     int    `json:"port,omitempty"`
	Own      bool   `json:"own_port,omitempty"`
	Domain   string `json:"domain"`
	// Has is its type, Contexts the one that the file contexts give it, Want the one that it should have; "" is not
	// known.
	Has      string `json:"has"`
	Contexts string `json:"file_contexts,omitempty"`
	Want     string `json:"want"`
	// Pattern is the expression of a file context to add; "" where those of the host suffice.
	Pattern string   `json:"pattern,omitempty"`
	Boolean string   `json:"boolean,omitempty"` // that would allow it
	Missing []string `json:"missing"`           // permissions that the policy does not give
	Denied  bool     `json:"denied"`            // the loaded policy denies it
	Why     string   `json:"why"`
	Fix     []string `json:"fix"`
	// Tree says that all below Path is meant.
	Tree bool `json:"-"`
	// way says that Path is a directory or a link on the way to what is meant: another finding of it says more.
	way bool
}

// Checked is one path or port that was looked at.
type Checked struct {
	places.Place
	Real     string `json:"real"` // without links
	Class    string `json:"class"`
	Type     string `json:"type"`
	Contexts string `json:"file_contexts"`
	Fits     bool   `json:"fits"`
	// Undecided says that the policy cannot be asked of its type: it is neither fit nor unfit.
	Undecided bool `json:"undecided"`
}

// CheckedPort is a port that was looked at.
type CheckedPort struct {
	places.Port
	Type string `json:"type"`
	Fits bool   `json:"fits"`
}

// InDomain are the processes of a server in one domain.
type InDomain struct {
	Domain    string `json:"domain"` // "" is not told
	Processes []int  `json:"processes"`
}

// Result is what was found of one server.
type Result struct {
	// Domain is the one that paths and ports were held against; "" is none.
	Domain    string        `json:"domain"`
	Domains   []InDomain    `json:"domains"`
	Paths     []Checked     `json:"paths"`
	Ports     []CheckedPort `json:"ports"`
	Findings  []Finding     `json:"findings"`
	Undecided []string      `json:"undecided"`
}

type checking struct {
	Host
	Server
	*Result
}

// add notes a finding, or that another setting has it, too.
func (c *checking) add(f Finding, setting string) {
	if setting != "" {
		f.Settings = []string{setting}
	}
	for i := range c.Findings {
		k := &c.Findings[i]
		if k.About != f.About || k.Path != f.Path || k.Port != f.Port || k.Protocol != f.Protocol ||
			k.Entries != f.Entries || k.Want != f.Want && !k.way && !f.way {
			continue
		}
		settings := k.Settings
		if setting != "" && !slices.Contains(settings, setting) {
			settings = append(settings, setting)
		}
		if k.way && !f.way {
			*k = f
		}
		k.Settings = settings
		return
	}
	c.Findings = append(c.Findings, f)
}

// undecided notes what cannot be told, once.
func (c *checking) undecided(text string) {
	if !slices.Contains(c.Undecided, text) {
		c.Undecided = append(c.Undecided, text)
	}
}

// typeOf is the type of a context.
func typeOf(context string) string {
	k, _ := avc.ParseContext(context)
	return k.Type
}

package confinement

import (
	"fmt"

	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/apparmor"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/selinux/check"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/policydb"
)

// Options say what is looked at.
type Options struct {
	// Instance is the only one; "" is all.
	Instance string
	Logins   map[string]*dblogin.Login // by the name of the instance
	// AuditLogs are the files of auditd, the oldest first.
	AuditLogs []string
	// Labels reads labels of files; nil is the host's.
	Labels func(file string) (string, error)
	// Audit asks for the state of auditing, KernelLog for the log of the kernel, and Missing for rights on a path
	// that a profile does not give; nil is this kernel.
	Audit     func() (audit.Status, error)
	KernelLog func() ([]byte, error)
	Missing   func(profile, path string, wanted ...apparmor.Right) ([]apparmor.Right, error)
}

// Modes of SELinux.
const (
	Enforcing = "enforcing"
	Allowing  = "permissive" // denials are only logged
	Off       = "off"        // it is set up on this host, and the kernel has no policy loaded
	NotThere  = "not there"
	NotTold   = "not told"
)

// SELinux is its state on a host.
type SELinux struct {
	Mode string `json:"mode"`
	// Wanted is the mode that the configuration has for the next boot; "" is not said.
	Wanted string `json:"configured"`
	// Type is the name of the policy ("targeted"), Version that of its format.
	Type    string `json:"type"`
	Version int    `json:"version"`
	// Unknown says what the kernel does with permissions that its policy does not know.
	Unknown string `json:"unknown_permissions"`
	// Permissive are domains of which denials are only logged.
	Permissive []string `json:"permissive_domains"`
	// Modules are those that were installed beside the distribution's.
	Modules []selinux.Module `json:"modules"`
}

// Audit is the state of auditing; Trouble says why it is not known.
type Audit struct {
	*audit.Status
	Trouble string `json:"trouble,omitempty"`
}

// Instance is what was found of one database.
type Instance struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// SELinux is nil where it is off or could not be asked.
	SELinux  *check.Result      `json:"selinux,omitempty"`
	Booleans []policydb.Boolean `json:"booleans"`
	// Profiles are those of AppArmor, by process; nil where it is off.
	Profiles []Profile `json:"apparmor,omitempty"`
	// NotAsked says what is not known of it, and why.
	NotAsked []string `json:"not_asked"`
}

// Report is what was found.
type Report struct {
	SELinux   SELinux    `json:"selinux"`
	AppArmor  bool       `json:"apparmor"`
	Audit     Audit      `json:"audit"`
	Instances []Instance `json:"instances"`
	// Findings are those of all instances, what is denied first.
	Findings []check.Finding `json:"findings"`
	// Rules are what profiles of AppArmor lack.
	Rules    []Rule   `json:"apparmor_rules"`
	NotAsked []string `json:"not_asked"`
}

// Confines says whether SELinux or AppArmor is on.
func (r *Report) Confines() bool {
	return r.AppArmor || r.SELinux.Mode != Off && r.SELinux.Mode != NotThere
}

// Profile is what confines processes of an instance.
type Profile struct {
	apparmor.Confinement
	Processes []int `json:"processes"`
}

// Rule is one that a profile of AppArmor lacks: for a path of a setting, or as a log has the denial.
type Rule struct {
	Instance string   `json:"instance"`
	Profile  string   `json:"profile"`
	Mode     string   `json:"mode,omitempty"`
	Settings []string `json:"settings"`
	Path     string   `json:"path,omitempty"` // without links
	Missing  string   `json:"missing"`        // rights, as rules have them
	Rules    []string `json:"rules"`
	// File is where they go; "" is not known.
	File string `json:"file,omitempty"`
	// Denials are how many a log has, In which; 0 is of a path that was asked for.
	Denials int    `json:"denials,omitempty"`
	In      string `json:"in,omitempty"`
	Allowed bool   `json:"allowed,omitempty"` // the profile only complains
}

func (r *Report) not(format string, args ...any) {
	r.NotAsked = append(r.NotAsked, fmt.Sprintf(format, args...))
}

// look is at one instance.
type look struct {
	*Report
	host    *host.Host
	from    selinux.Host
	asked   loaded.Host
	procs   []procfs.Process
	inst    engine.Instance
	options Options
	process *procfs.Process
	found   Instance
}

func (l *look) not(format string, args ...any) {
	l.found.NotAsked = append(l.found.NotAsked, fmt.Sprintf(format, args...))
}

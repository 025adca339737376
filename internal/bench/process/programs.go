package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Program is one that a scenario starts, and the Debian package that brings it.
type Program struct {
	Name, Package string
	Older         string // what older releases call it
}

// Programs maps the name of a program to its path.
type Programs map[string]string

// Find looks every program up in PATH and where Debian puts servers, and names all that are missing at once.
func Find(wanted []Program) (Programs, error) {
	found := Programs{}
	var missing []Program
	for _, p := range wanted {
		path := LookPath(p.Name)
		if path == "" && p.Older != "" {
			path = LookPath(p.Older)
		}
		if path == "" {
			missing = append(missing, p)
			continue
		}
		found[p.Name] = path
	}
	if len(missing) == 0 {
		return found, nil
	}
	names := make([]string, len(missing))
	for i, p := range missing {
		names[i] = p.Name
	}
	return nil, &RequirementError{
		Reason: "not installed: " + strings.Join(names, ", "),
		Hint:   "apt-get install --no-install-recommends " + strings.Join(Packages(missing), " "),
		Reach:  ThisScenario,
	}
}

// AddIfThere looks for a program that is not needed, and says whether there is one.
func (p Programs) AddIfThere(name string) bool {
	if p[name] == "" {
		p[name] = LookPath(name)
	}
	return p[name] != ""
}

// LookPath is exec.LookPath with the directories of servers, which root's PATH need not hold; "" is not found.
func LookPath(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	dirs := []string{"/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"}
	// Debian keeps PostgreSQL's by version; the newest goes first.
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is sound
	slices.Reverse(versions)
	for _, dir := range append(dirs, versions...) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// Packages are the Debian packages of programs, each once.
func Packages(ps []Program) []string {
	var names []string
	for _, p := range ps {
		if !slices.Contains(names, p.Package) {
			names = append(names, p.Package)
		}
	}
	return names
}

// RequirementError says that this host lacks what a run needs, or that something is in its way, and what to do.
type RequirementError struct {
	Reason string
	Hint   string
	Reach  Reach
}

// Reach is how far a RequirementError goes.
type Reach int

// What a RequirementError stops.
const (
	ThisRun Reach = iota // what was met on the way: another run may go well
	// the machine is too small for it, or a program is missing that it needs; nothing was started
	ThisScenario
	EveryScenario // none can run as things are; nothing was started
)

func (e *RequirementError) Error() string {
	return "run the proof: " + e.Reason
}

package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// program is one that a scenario starts, and the Debian package that brings it.
type program struct {
	name, pkg string
	older     string // what older releases call it
}

// programs maps the name of a program to its path.
type programs map[string]string

// find looks every program up in PATH and where Debian puts servers, and names all that are missing at once.
func find(wanted []program) (programs, error) {
	found := programs{}
	var missing []program
	for _, p := range wanted {
		path := lookPath(p.name)
		if path == "" && p.older != "" {
			path = lookPath(p.older)
		}
		if path == "" {
			missing = append(missing, p)
			continue
		}
		found[p.name] = path
	}
	if len(missing) == 0 {
		return found, nil
	}
	names := make([]string, len(missing))
	for i, p := range missing {
		names[i] = p.name
	}
	return nil, &RequirementError{
		Reason: "not installed: " + strings.Join(names, ", "),
		Hint:   "apt-get install --no-install-recommends " + strings.Join(packagesOf(missing), " "),
		Reach:  ThisScenario,
	}
}

// addIfThere looks for a program that is not needed, and says whether there is one.
func (p programs) addIfThere(name string) bool {
	if p[name] == "" {
		p[name] = lookPath(name)
	}
	return p[name] != ""
}

// lookPath is exec.LookPath with the directories of servers, which root's PATH need not hold; "" is not found.
func lookPath(name string) string {
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

func packagesOf(ps []program) []string {
	var names []string
	for _, p := range ps {
		if !slices.Contains(names, p.pkg) {
			names = append(names, p.pkg)
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
	ThisRun       Reach = iota // what was met on the way: another run may go well
	ThisScenario               // the machine is too small for it, or a program is missing that it needs; nothing was started
	EveryScenario              // none can run as things are; nothing was started
)

func (e *RequirementError) Error() string {
	return "run the proof: " + e.Reason
}

// Package check holds the paths, ports and processes of a database server against the policy of SELinux that is loaded
// and against the file contexts of the host, and says what does not fit: what the path, the port or the program has,
// what it should have, and why. Which type something should have comes from the file contexts, for the path itself or
// else for the path that packages of the engine customarily have, and never from a list of types.
//
// Nothing is changed. A Host is for one goroutine.
package check

import (
	"slices"
	"strings"
)

// Server holds one against the host.
func (h Host) Server(s Server) *Result {
	r := &Result{Domains: []InDomain{}, Paths: []Checked{}, Ports: []CheckedPort{}, Findings: []Finding{},
		Undecided: []string{}}
	c := &checking{Host: h, Server: s, Result: r}
	c.domains()
	if r.Domain == "" {
		return r
	}
	for _, p := range s.Places {
		c.place(p)
	}
	for _, p := range s.Ports {
		c.port(p)
	}
	c.fold()
	for i := range r.Findings {
		f := &r.Findings[i]
		f.Instance = s.Name
		if f.Settings == nil {
			f.Settings = []string{}
		}
		if f.Missing == nil {
			f.Missing = []string{}
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return weight(a) - weight(b) })
	return r
}

func weight(f Finding) int {
	switch {
	case f.Denied:
		return 0
	case f.About == Drift:
		return 2
	}
	return 1
}

// fold leaves out what is put right by the finding of a directory above it.
func (c *checking) fold() {
	covered := map[int]bool{}
	for i, f := range c.Findings {
		above := -1 // the highest
		for j, g := range c.Findings {
			if g.Tree && g.About == f.About && g.Denied == f.Denied && g.Want == f.Want && g.Want != "" &&
				strings.HasPrefix(f.Path, g.Path+"/") && (above < 0 || len(g.Path) < len(c.Findings[above].Path)) {
				above = j
			}
		}
		if above < 0 {
			continue
		}
		covered[i] = true
		for _, s := range f.Settings {
			if g := &c.Findings[above]; !slices.Contains(g.Settings, s) {
				g.Settings = append(g.Settings, s)
			}
		}
	}
	kept := []Finding{}
	for i, f := range c.Findings {
		if !covered[i] {
			kept = append(kept, f)
		}
	}
	c.Findings = kept
}

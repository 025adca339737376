package check

import (
	"fmt"
	"slices"

	"bulkhead/internal/selinux/filecon"
	"bulkhead/internal/selinux/places"
	"bulkhead/internal/selinux/verdict"
)

// starter is the domain that services are started from.
const starter = "init_t"

// domains looks at those of the processes, and finds the one that paths and ports are held against.
func (c *checking) domains() {
	for _, p := range c.Processes {
		kind := typeOf(p.Context)
		at := slices.IndexFunc(c.Domains, func(d InDomain) bool { return d.Domain == kind })
		if at < 0 {
			at = len(c.Domains)
			c.Domains = append(c.Domains, InDomain{Domain: kind})
		}
		c.Domains[at].Processes = append(c.Domains[at].Processes, p.PID)
		if p.PID == c.PID {
			c.Domain = kind
		}
	}
	if c.Domain == "" {
		c.undecided("the domain of its main process is not told")
		return
	}
	if verdict.Unconfined(c.Domain) {
		c.unconfined()
		return
	}
	if c.Policy.Access(c.Domain, c.Domain, "process", []string{"fork"}).Permissive {
		c.add(Finding{About: Permissive, Domain: c.Domain, Has: c.Domain, Why: fmt.Sprintf(
			"denials of %s are only logged: the policy has the domain permissive", c.Domain),
			Fix: []string{fmt.Sprintf("semanage permissive -d %s, when nothing is denied any more "+
				"(bulkhead selinux explain)", c.Domain)}}, "")
	}
}

// unconfined finds out in which domain the program belongs. What follows is held against that one.
func (c *checking) unconfined() {
	runs := c.Domain
	f := Finding{About: Domain, Path: c.Program, Class: "file", Domain: runs, Has: runs}
	c.Domain = ""
	if c.Program != "" {
		f.Contexts, _ = c.Contexts.Expected(c.Program, "file")
		has := ""
		if w, err := c.Files.Way(c.PID, c.Program); err == nil && w.Missing == "" {
			has = typeOf(w.Last().Label)
		}
		if to := c.startedAs(f.Contexts); to != "" {
			c.Domain, f.Want = to, to
			if has != f.Contexts {
				f.Fix = []string{"restorecon -v " + verdict.Quoted(c.Program)}
			}
		}
	}
	for _, usual := range places.Customary(c.Engine, places.Program) {
		if c.Domain != "" {
			break
		}
		kind, _ := c.Contexts.Expected(usual, "file")
		to := c.startedAs(kind)
		if to == "" {
			continue
		}
		c.Domain, f.Want = to, to
		if c.Program != "" {
			f.Pattern = filecon.Pattern(c.Program)
			f.Fix = []string{fmt.Sprintf("semanage fcontext -a -t %s %s", kind, verdict.Quoted(f.Pattern)),
				"restorecon -v " + verdict.Quoted(c.Program)}
		}
	}
	if c.Domain == "" {
		f.Why = fmt.Sprintf("it runs as %s, which nothing confines, and the policy has no domain for it that its "+
			"program, or that of its packages, would start in", runs)
		f.Fix = []string{"nothing that a label could do: the policy of this host has no module for this server"}
		c.add(f, "")
		return
	}
	f.Why = fmt.Sprintf("it runs as %s, which nothing confines; its program belongs in %s, and paths and ports "+
		"are held "+
		"against that", runs, c.Domain)
	f.Fix = append(f.Fix, "start it again through its systemd unit, not from a shell: paths and ports first")
	c.add(f, "")
}

// startedAs is the domain that a program of a type is started in by systemd; "" is none of its own.
func (c *checking) startedAs(kind string) string {
	if kind == "" {
		return ""
	}
	to := c.Transitions.Domain(starter, kind)
	if verdict.Unconfined(to) {
		return ""
	}
	return to
}

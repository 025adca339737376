package selinux

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/confinement"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/selinux/check"
	"bulkhead/internal/selinux/policydb"
)

func printCheck(out io.Writer, r *confinement.Report) {
	if !r.Confines() {
		render.Println(out, "Neither SELinux nor AppArmor is on here: they deny the databases nothing.")
		return
	}
	printHost(out, r)
	for _, n := range r.NotAsked {
		render.Printf(out, "not asked: %s\n", n)
	}
	if len(r.Instances) == 0 {
		render.Println(out)
		render.Println(out, "No database runs here.")
	}
	for _, i := range r.Instances {
		printInstance(out, i)
	}
	render.Println(out)
	for _, f := range r.Findings {
		printFinding(out, f, wordFor(r, f))
	}
	for _, rule := range r.Rules {
		printRule(out, rule)
	}
	if len(r.Instances) > 0 && len(r.Findings) == 0 && len(r.Rules) == 0 {
		render.Println(out, "Of what could be asked, nothing was found that does not fit.")
	}
}

func printHost(out io.Writer, r *confinement.Report) {
	s := r.SELinux
	text := s.Mode
	if s.Version > 0 {
		text += fmt.Sprintf(", policy %s, version %d", orDash(s.Type), s.Version)
	}
	if s.Wanted != "" && s.Wanted != s.Mode {
		text += fmt.Sprintf("; after the next boot: %s", s.Wanted)
	}
	render.Printf(out, "SELinux   %s\n", text)
	if s.Unknown == "deny" {
		render.Println(out, "          permissions that the policy does not know are denied, which file contexts "+
			"do not show")
	}
	if len(s.Permissive) > 0 {
		render.Printf(out, "          permissive domains, of which denials are only logged: %s\n",
			strings.Join(s.Permissive, ", "))
	}
	if len(s.Modules) > 0 {
		render.Printf(out, "          modules beside the distribution's: %s\n", modules(s.Modules))
	}
	render.Printf(out, "AppArmor  %s\n", map[bool]string{true: "on", false: confinement.NotThere}[r.AppArmor])
	render.Printf(out, "audit     %s\n", auditText(r.Audit))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func modules(all []selinux.Module) string {
	var said []string
	for _, m := range all {
		off := ""
		if m.Disabled {
			off = ", disabled"
		}
		said = append(said, fmt.Sprintf("%s (priority %d%s)", m.Name, m.Priority, off))
	}
	return strings.Join(said, ", ")
}

func auditText(a confinement.Audit) string {
	if a.Status == nil {
		return "not known: " + a.Trouble
	}
	to := "no auditd takes records, and so they go to the log of the kernel"
	switch {
	case a.PID > 0:
		to = fmt.Sprintf("process %d takes records", a.PID)
	case a.Enabled == 0:
		to = "off: denials go to the log of the kernel, without whole paths"
	}
	lost := fmt.Sprintf("; %s since boot", render.Count(int(a.Lost), "record was lost", "records were lost"))
	if a.Lost > 0 {
		lost += ", so logs may lack denials"
	}
	return fmt.Sprintf("%s%s; %d of %d wait", to, lost, a.Backlog, a.BacklogLimit)
}

func printInstance(out io.Writer, i confinement.Instance) {
	render.Printf(out, "\n%s, process %d\n", i.Name, i.PID)
	if s := i.SELinux; s != nil {
		for _, d := range s.Domains {
			name := d.Domain
			if name == "" {
				name = "not told"
			}
			render.Printf(out, "  domain    %s: %s\n", name, render.Count(len(d.Processes), "process", "processes"))
		}
		if s.Domain != "" {
			bad, open := 0, 0
			for _, p := range s.Paths {
				switch {
				case p.Undecided:
					open++
				case !p.Fits:
					bad++
				}
			}
			render.Printf(out, "  paths     %d looked at, %s\n", len(s.Paths), unfit(bad, open))
			bad = 0
			for _, p := range s.Ports {
				if !p.Fits {
					bad++
				}
			}
			render.Printf(out, "  ports     %s, %s\n", ports(s.Ports), unfit(bad, 0))
			render.Printf(out, "  booleans  %s\n", booleans(i.Booleans))
		}
		for _, u := range s.Undecided {
			render.Printf(out, "  undecided: %s\n", u)
		}
	}
	for _, p := range i.Profiles {
		name := p.Mode
		if p.Profile != "" {
			name = fmt.Sprintf("%s (%s)", p.Profile, p.Mode)
		}
		render.Printf(out, "  profile   %s: %s\n", name, render.Count(len(p.Processes), "process", "processes"))
	}
	for _, n := range i.NotAsked {
		render.Printf(out, "  not asked: %s\n", n)
	}
}

func unfit(bad, open int) string {
	text := "all fit"
	if bad > 0 {
		text = render.Count(bad, "does not fit", "do not fit")
	} else if open > 0 {
		text = "the others fit"
	}
	if open > 0 {
		text = render.Count(open, "is undecided", "are undecided") + ", " + text
	}
	return text
}

func ports(all []check.CheckedPort) string {
	var said []string
	for _, p := range all {
		said = append(said, fmt.Sprintf("%d/%s %s", p.Number, p.Protocol, p.Type))
	}
	if len(said) == 0 {
		return "none"
	}
	return strings.Join(said, ", ")
}

func booleans(all []policydb.Boolean) string {
	var said []string
	for _, b := range all {
		said = append(said, b.Name+" "+map[bool]string{true: "on", false: "off"}[b.On])
	}
	if len(said) == 0 {
		return "none of its own"
	}
	return strings.Join(said, ", ")
}

// wordFor says how sure a finding is: what is denied in permissive mode, or to a server that nothing confines yet, is
// allowed today.
func wordFor(r *confinement.Report, f check.Finding) string {
	free := slices.ContainsFunc(r.Findings, func(g check.Finding) bool {
		return g.Instance == f.Instance && (g.About == check.Domain || g.About == check.Permissive)
	})
	switch {
	case f.Denied && (free || r.SELinux.Mode == confinement.Allowing):
		return "would be denied"
	case f.Denied:
		return "denied"
	}
	return map[string]string{check.Relabel: "until the next relabel", check.Drift: "other label",
		check.Domain: "not confined", check.Permissive: "permissive"}[f.About]
}

func printFinding(out io.Writer, f check.Finding, word string) {
	what := f.Path
	switch {
	case f.Port > 0:
		what = "port " + strconv.Itoa(f.Port) + "/" + f.Protocol
	case f.Entries > 0:
		what = fmt.Sprintf("%s in %s", render.Count(f.Entries, "entry", "entries"), f.Path)
	case what == "":
		what = f.Domain
	}
	has := " has " + orDash(f.Has)
	switch {
	case f.About == check.Permissive:
		has = ""
	case f.About == check.Domain:
		what, has = "it", " runs as "+f.Has
	case f.Entries > 1:
		has = " have " + orDash(f.Has)
	}
	should := ", should have "
	if f.About == check.Domain {
		should = ", should run as "
	}
	if f.Want != "" && f.Want != f.Has {
		has += should + f.Want
	}
	render.Printf(out, "%s: %s: %s%s\n", word, f.Instance, what, has)
	lines(out, "set", f.Settings)
	lines(out, "why", []string{f.Why})
	lines(out, "do", f.Fix)
	render.Println(out)
}

func lines(out io.Writer, what string, all []string) {
	for i, text := range all {
		if i == most && len(all) > most+1 {
			render.Printf(out, "        and %d more; --json has all\n", len(all)-most)
			return
		}
		render.Printf(out, "  %-5s %s\n", what, text)
	}
}

func printRule(out io.Writer, r confinement.Rule) {
	switch {
	case r.Denials > 0:
		word := "denied"
		if r.Allowed {
			word = "would be denied"
		}
		render.Printf(out, "%s: %s: profile %s: %s on %s, %s in %s\n", word, r.Instance, r.Profile, orDash(r.Missing),
			orDash(r.Path), render.Count(r.Denials, "time", "times"), r.In)
	default:
		word := "denied"
		if r.Mode == "complain" {
			word = "would be denied"
		}
		render.Printf(out, "%s: %s: profile %s does not give %s on %s\n", word, r.Instance, r.Profile, r.Missing,
			r.Path)
	}
	lines(out, "set", r.Settings)
	where := "the profile"
	if r.File != "" {
		where = r.File
	}
	for _, rule := range r.Rules {
		render.Printf(out, "  %-5s add to %s: %s\n", "do", where, rule)
	}
	render.Println(out)
}

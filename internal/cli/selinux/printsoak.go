package selinux

import (
	"io"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/policydb"
	"bulkhead/internal/selinux/soak"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// soakView is what status and end say.
type soakView struct {
	// Open says that a soak has begun, Ended that it was ended just now.
	Open  bool       `json:"open"`
	Ended bool       `json:"ended"`
	Soak  state.Soak `json:"soak"`
	State string     `json:"selinux"` // of the kernel
	// Permissive are the domains that the loaded policy has so.
	Permissive  []permissiveDomain `json:"permissive"`
	Enforced    []string           `json:"enforced"` // domains of the soak that are not permissive
	Checkpoints []soak.Checkpoint  `json:"checkpoints"`
	// Others are denials of other domains in that time.
	Others int         `json:"denials_of_other_domains"`
	Left   []soak.Case `json:"cases_left"`
	Notes  []string    `json:"notes"`
}

type permissiveDomain struct {
	Domain string `json:"domain"`
	Ours   bool   `json:"by_bulkhead"`
}

// viewSoak looks at what is permissive, and at what was denied.
func (s Session) viewSoak(c *transaction.Controller, docs *state.Documents) *soakView {
	v := &soakView{Open: !docs.Soak.At.IsZero(), Soak: docs.Soak, Checkpoints: []soak.Checkpoint{},
		Left: soak.Left(docs.Soak), Notes: []string{}}
	v.Soak.Checkpoints, v.Soak.Domains = render.OrEmpty(v.Soak.Checkpoints), render.OrEmpty(v.Soak.Domains)
	found := loaded.Of(c.Host.Root)
	v.permissive(found, permissive(docs.Tuned))
	if !v.Open {
		return v
	}
	log := &avc.Log{}
	if _, err := readAudit(c.Host.Root, log, c.Now()); err != nil { // no reason to leave a domain permissive
		v.Notes = append(v.Notes, "what was denied is not known: "+err.Error())
		return v
	}
	log.Since(docs.Soak.At.Add(-time.Second))
	v.Notes = append(v.Notes, log.Lost...)
	loaded.Resolve(c.Host.Root, log.Denials)
	lost, notes := s.audited(c)
	v.Notes = append(v.Notes, notes...)
	v.Checkpoints, v.Others = soak.Of(log, docs.Soak, found.Ask, c.Now(), lost)
	return v
}

// permissive looks which domains are.
func (v *soakView) permissive(found loaded.Host, ours []string) {
	v.State, v.Permissive, v.Enforced = found.State, []permissiveDomain{}, []string{}
	p, is := found.Ask.Policy.(*policydb.Policy)
	if !is {
		v.Notes = append(v.Notes, found.Missing...)
		return
	}
	for _, d := range p.Permissive() {
		v.Permissive = append(v.Permissive, permissiveDomain{Domain: d, Ours: slices.Contains(ours, d)})
	}
	for _, d := range v.Soak.Domains {
		if !slices.Contains(p.Permissive(), d) {
			v.Enforced = append(v.Enforced, d)
		}
	}
}

func printSoak(out io.Writer, v *soakView) {
	switch {
	case v.Ended && !v.Open:
		render.Printf(out, "no soak had begun; enforced again: %s\n", strings.Join(v.Soak.Domains, ", "))
	case v.Ended:
		render.Printf(out, "ended: the soak of %s from %s\n", strings.Join(v.Soak.Domains, ", "),
			v.Soak.At.Local().Format(time.DateTime))
	case v.Open:
		render.Printf(out, "a soak of %s, since %s by %s\n", strings.Join(v.Soak.Domains, ", "),
			v.Soak.At.Local().Format(time.DateTime), v.Soak.By)
	default:
		render.Println(out, "no soak has begun")
	}
	if v.State == loaded.NoPolicy {
		render.Println(out, noSELinux)
	}
	printPermissive(out, v)
	for _, c := range v.Checkpoints {
		printCheckpoint(out, c)
	}
	if v.Others > 0 {
		render.Println(out)
		render.Printf(out, "and %s of other domains; `bulkhead selinux explain` has them\n",
			render.Count(v.Others, "denial", "denials"))
	}
	if v.Open && len(v.Left) > 0 {
		printLeft(out, v)
	}
	for _, n := range v.Notes {
		render.Printf(out, "note: %s\n", n)
	}
}

// printPermissive names the domains that are permissive, by whom, and what to do about it.
func printPermissive(out io.Writer, v *soakView) {
	var ours, theirs []string
	for _, p := range v.Permissive {
		if p.Ours {
			ours = append(ours, p.Domain)
		} else {
			theirs = append(theirs, p.Domain)
		}
	}
	render.Printf(out, "permissive by bulkhead: %s; by others: %s\n", orNone(ours), orNone(theirs))
	switch {
	case v.Ended:
	case v.Open && len(v.Enforced) > 0:
		render.Printf(out, "NOT PERMISSIVE: %s; `bulkhead selinux soak end` ends it, `soak begin` then begins "+
			"another\n", strings.Join(v.Enforced, ", "))
	case !v.Open && len(ours) > 0:
		render.Println(out, "`bulkhead selinux soak end` enforces what bulkhead has made permissive")
	case !v.Open && len(theirs) > 0:
		render.Println(out, "`semanage permissive -d DOMAIN` enforces what others have made permissive, and what a "+
			"soak has whose record was lost")
	}
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func printCheckpoint(out io.Writer, c soak.Checkpoint) {
	name := c.Name
	if name == "" {
		name = "before the first checkpoint"
	}
	render.Println(out)
	render.Printf(out, "%s, from %s: %s\n", name, c.At.Local().Format(time.DateTime),
		render.Count(c.Denials, "denial", "denials"))
	if c.Lost == nil {
		render.Println(out, "  whether records of audit got lost in that time is not known")
	} else if *c.Lost > 0 {
		render.Printf(out, "  LOST: %s of audit in that time, so that not all that was denied need be here: go "+
			"through it again, with a larger backlog (auditctl -b 8192)\n",
			render.Count(int(*c.Lost), "record", "records"))
	}
	if c.Rebooted {
		render.Println(out, "  the host was started anew in that time; what was lost before is not known")
	}
	for _, g := range c.Groups {
		render.Printf(out, "  %s by %s, %s: %s\n", g.Rule, orNone(g.Commands),
			render.Count(g.Count, "time", "times"), g.Kind)
		if g.Kind == verdict.Stale {
			continue
		}
		for _, why := range g.Because[:min(most, len(g.Because))] {
			render.Printf(out, "    why %s\n", why)
		}
		for _, do := range g.Fix[:min(most, len(g.Fix))] {
			render.Printf(out, "    do  %s\n", do)
		}
	}
}

// printLeft names the cases that are left, with how to force each as long as that can be done.
func printLeft(out io.Writer, v *soakView) {
	render.Println(out)
	render.Println(out, "CASES LEFT")
	for _, c := range v.Left {
		of := ""
		if c.Galera {
			of = " (of a Galera cluster)"
		}
		render.Printf(out, "%s%s\n", c.Name, of)
		if v.Ended {
			continue
		}
		for _, how := range c.How {
			render.Printf(out, "  %s\n", how)
		}
	}
}

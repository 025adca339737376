package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/selinux/places"
	"bulkhead/internal/selinux/verdict"
)

// defaultPort is the type of a port that the policy does not name (the initial context "port").
const defaultPort = "port_t"

// port asks whether the domain may listen on one, and connect to it where peers do.
func (c *checking) port(p places.Port) {
	permissions := []string{"name_bind"}
	if p.Peers && p.Protocol == "tcp" {
		permissions = append(permissions, "name_connect")
	}
	class := p.Protocol + "_socket"
	now, named := c.Policy.PortType(p.Protocol, p.Number)
	if !named {
		now.Type = defaultPort
	}
	a := c.Policy.Access(c.Domain, now.Type, class, permissions)
	c.Result.Ports = append(c.Result.Ports, CheckedPort{Port: p, Type: now.Type, Fits: a.Known && len(a.Missing) == 0})
	if !a.Known {
		c.undecided(fmt.Sprintf("%s port %d: the policy has no type %s, or no class %s", p.Protocol, p.Number, now.Type,
			class))
		return
	}
	if len(a.Missing) == 0 {
		return
	}
	f := Finding{About: PortType, Class: class, Protocol: p.Protocol, Port: p.Number, Domain: c.Domain, Has: now.Type,
		Missing: a.Missing, Denied: true}
	may := c.Policy.PortTypes(c.Domain, p.Protocol, class, permissions)
	f.Want = verdict.BestPort(c.Domain, may)
	f.Why = fmt.Sprintf("%s may not %s port %d/%s, whose type is %s", c.Domain, doing(a.Missing), p.Number, p.Protocol,
		now.Type)
	if len(may) > 0 {
		f.Why += "; it may use " + some(slices.Sorted(maps.Keys(may)))
	}
	for _, b := range a.Booleans {
		if why := verdict.Trap(b.Name); why != "" {
			f.Why += fmt.Sprintf("; boolean %s would allow it, but %s", b.Name, why)
		}
	}
	fix, owner := verdict.PortFix(p.Protocol, p.Number, now, f.Want)
	if owner != "" {
		f.Own = true
		f.Why += fmt.Sprintf("; it is %s's own port, which a server of that kind on this host would lose", owner)
	}
	f.Fix = []string{fix}
	if f.Want == "" {
		f.Fix = []string{"another port that it may use, or a rule: bulkhead selinux explain says which, once it " +
			"is denied"}
	}
	c.add(f, said(p.Setting, p.From))
}

func said(setting, from string) string { return setting + " (" + from + ")" }

func doing(missing []string) string {
	words := map[string]string{"name_bind": "listen on", "name_connect": "connect to"}
	var said []string
	for _, m := range missing {
		said = append(said, words[m])
	}
	return strings.Join(said, " or ")
}

// some names a few.
func some(all []string) string {
	const most = 5
	if len(all) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}

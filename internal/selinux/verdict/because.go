package verdict

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/policydb"
)

// stale finds what the policy of today allows, and what it cannot allow by a rule.
func (j *judge) stale() bool {
	if j.Policy == nil {
		if last := j.log.LastLoad(); !j.Last.IsZero() && last.After(j.Last) {
			j.undecided("a policy was loaded %s, after the last of these denials: it may allow this by now",
				last.Format("2006-01-02 15:04:05"))
		}
		return false
	}
	a := j.Policy.Access(j.Source, j.Target, j.Class, j.Permissions)
	switch {
	case !a.Known:
		j.undecided("the loaded policy has no such type, class or permission: the log is of another policy")
		return false
	case len(a.Missing) > 0:
		return false
	case a.Constrained && slices.ContainsFunc(j.group.Denials, apart):
		j.Kind = Constraint
		j.because("the loaded policy has the rule already, and a constraint on it; user, role or range of source and " +
			"target are not the same")
		j.fix("compare the two contexts of the line: no rule helps, the range or the user of one of them has to change")
		return true
	}
	j.Kind = Stale
	j.because("the loaded policy allows it by now, all of it")
	j.fix("nothing: leave these lines out")
	return true
}

// apart says whether a constraint may tell source and target apart.
func apart(d avc.Denial) bool {
	return d.Source.User != d.Target.User || d.Source.Range != d.Target.Range ||
		d.Target.Domain() && d.Source.Role != d.Target.Role
}

// script finds what a program does that looks at all processes, or at all that is right in "/".
func (j *judge) script(sweeps sweeps) bool {
	var blamed []avc.Denial
	var left []avc.Denial
	for _, d := range j.group.Denials {
		if sweeps.blames(d) || j.walks.blames(d) {
			blamed = append(blamed, d)
		} else {
			left = append(left, d)
		}
	}
	if len(blamed) == 0 {
		return false
	}
	if j.walks.blames(blamed[0]) {
		j.walked(blamed)
	} else {
		j.swept(sweeps[sweeper{j.Source, blamed[0].Comm}], blamed)
	}
	if len(left) > 0 {
		j.because("%d of the %d denials are not of %q: what follows is of these", len(left), j.Count, blamed[0].Comm)
		j.left = left
		j.Evidence = linesOf(left)
		return false
	}
	j.Kind = Script
	return true
}

// swept says of denials of a sweep what they come from.
func (j *judge) swept(s *sweep, blamed []avc.Denial) {
	j.because("%q looks at all processes: it was denied %s of %d other domains (%s)", s.comm, join(s.permissions()),
		len(s.domains), some(s.names()))
	j.because("a rule would name each domain that happens to run on this host, and the next one would be denied again")
	found := j.started(blamed)
	for _, at := range found {
		j.because("started at %s", at)
	}
	if len(found) == 0 {
		j.undecided("the script that started %q: the log has no command line of its parent", s.comm)
	}
	j.fix("change the script that starts %q, so that it looks only at its own user's processes", s.comm)
}

// walked says of denials of a walk what they come from.
func (j *judge) walked(blamed []avc.Denial) {
	w, comm := j.walks[walkerOf(blamed[0])], blamed[0].Comm
	j.because("%q looks at all that is right in /, and does no more there: it was denied %s", comm,
		some(slices.Sorted(maps.Keys(w.entries))))
	j.because("a shell does so with a pattern such as /*/ that is not quoted; a rule would be for nothing")
	var scripts []string
	for _, word := range j.log.Processes[blamed[0].PID].Command {
		if !path.IsAbs(word) || j.Files == nil {
			continue
		}
		if text, err := j.Files.Read(word); err == nil && isScript(text) {
			scripts = append(scripts, word)
		}
	}
	if len(scripts) == 0 {
		j.undecided("the script that %q runs: the log has no command line of it", comm)
	} else {
		j.because("it runs %s", join(scripts))
	}
	j.fix("nothing, where the case passes without a rule; else quote the pattern in the script")
}

// started says where a script has started the programs of denials: "FILE:LINE: text".
func (j *judge) started(denials []avc.Denial) (found []string) {
	if j.Files == nil {
		return nil
	}
	tried := map[string]bool{}
	for _, d := range denials {
		pid := d.PID
		for range 4 { // a script starts a shell that starts a pipe
			pid = j.log.Processes[pid].Parent
			for _, word := range j.log.Processes[pid].Command {
				if !strings.HasPrefix(word, "/") || tried[word] {
					continue
				}
				tried[word] = true
				found = append(found, mentions(j.Files, word, d.Comm)...)
			}
		}
	}
	return found[:min(shown, len(found))]
}

// mentions finds the lines of a script that name a program.
func mentions(files Files, script, program string) (found []string) {
	text, err := files.Read(script)
	if err != nil || !isScript(text) {
		return nil
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t|;&()`$\"'", r) })
		if !strings.HasPrefix(line, "#") && slices.ContainsFunc(words, func(w string) bool {
			return w == program || strings.HasSuffix(w, "/"+program)
		}) {
			found = append(found, fmt.Sprintf("%s:%d: %s", script, n, line))
		}
	}
	return found
}

func isScript(text []byte) bool { return bytes.HasPrefix(text, []byte("#!")) }

// domain finds programs that run in a domain that is only there to start others.
func (j *judge) domain() bool {
	if !Unconfined(j.Source) {
		return false
	}
	seen := map[string]bool{}
	for _, d := range j.left {
		if d.Exe == "" || seen[d.Exe] {
			continue
		}
		seen[d.Exe] = true
		if j.Files == nil || j.Starts == nil {
			continue
		}
		kind, known := j.Files.Expected(d.Exe, "file")
		if !known {
			continue
		}
		if to := j.Starts.Domain("init_t", kind); to != "" && to != j.Source && !Unconfined(to) {
			j.Kind = Domain
			j.because("%s runs as %s; with its label %s systemd starts it as %s", d.Exe, j.Source, kind, to)
			if now, known := j.Files.Actual(d.Exe); known && now != kind {
				j.because("its label is %s now", now)
			}
			j.fix("restorecon -v %s, and start the service again", Quoted(d.Exe))
			j.remedy(Remedy{Path: d.Exe, Class: "file", Types: []string{kind}, Listed: true})
		}
	}
	switch {
	case j.Kind == Domain:
		return true
	case len(seen) == 0:
		j.undecided("%s is a domain that starts others; the log does not have the program (no SYSCALL record), so "+
			"which domain it belongs to is not known", j.Source)
	case j.Files == nil || j.Starts == nil:
		j.undecided("%s is a domain that starts others; which one the program belongs to, only the loaded policy tells",
			j.Source)
	}
	return false
}

// port finds sockets on ports that have another type.
func (j *judge) port(permissions []string) bool {
	binds := slices.Contains(permissions, "name_bind")
	if !binds && !slices.Contains(permissions, "name_connect") {
		return false
	}
	general := slices.Contains(policydb.GeneralPorts, j.Target)
	if !binds && !general {
		// A server of another kind: its port has the type that it should have.
		return false
	}
	ports := portsOf(j.left)
	if j.Policy == nil {
		j.Kind = Port
		j.because("%s had the type %s", some(ports), j.Target)
		j.undecided("which type of port %s may use instead, only the loaded policy tells", j.Source)
		j.fix("run this again on the host that wrote the log; `semanage port -l` lists its types of ports")
		return true
	}
	seen, well := map[string]bool{}, 0
	for _, d := range j.left {
		name := portName(d)
		if d.Port == 0 || d.Protocol == "" || seen[name] {
			continue
		}
		seen[name] = true
		now, _ := j.Policy.PortType(d.Protocol, d.Port)
		may := j.Policy.PortTypes(j.Source, d.Protocol, j.Class, permissions)
		if _, is := may[now.Type]; is {
			well++
			j.because("%s has the type %s by now, which %s may use", name, now.Type, j.Source)
			continue
		}
		best := BestPort(j.Source, may)
		if best == "" {
			continue
		}
		j.Kind = Port
		j.because("%s has the type %s; %s may use %s", name, now.Type, j.Source, some(sortedNames(may)))
		fix, owner := PortFix(d.Protocol, d.Port, now, best)
		if owner != "" {
			j.because("%s is %s's own port: a server of that kind on this host would lose it", name, owner)
		}
		j.fix("%s", fix)
		j.remedy(Remedy{Port: fmt.Sprintf("%s/%d", d.Protocol, d.Port), Owner: owner, Types: []string{best}})
	}
	switch {
	case len(seen) == 0:
		j.undecided("the log does not have the number of the port")
	case well == len(seen):
		j.Kind = Stale
		j.fix("nothing: leave these lines out")
	}
	return j.Kind != ""
}

// PortFix is how a port gets a type, by what the policy has for it now, and the type whose port it is, by itself or in
// a range of it; "" is nobody's.
func PortFix(protocol string, port int, now policydb.Port, kind string) (fix, owner string) {
	how := "-a"
	if now.Low == port && now.High == port {
		how = "-m"
	}
	if !now.General() {
		owner = now.Type
	}
	return fmt.Sprintf("semanage port %s -t %s -p %s %d", how, kind, protocol, port), owner
}

// BestPort is, of the types of ports that a domain may use, the one that is named as the domain is, or else the one
// with the fewest ports; "" is none.
func BestPort(source string, may map[string][]policydb.Port) (best string) {
	size := func(kind string) (n int) {
		for _, r := range may[kind] {
			n += r.High - r.Low + 1
		}
		return n
	}
	for _, kind := range sortedNames(may) {
		if strings.HasPrefix(kind, stem(source)) {
			return kind
		}
		if !slices.Contains(policydb.GeneralPorts, kind) && (best == "" || size(kind) < size(best)) {
			best = kind
		}
	}
	return best
}

// stem is what the types of a policy's module begin with: "mysqld_" for mysqld_t.
func stem(domain string) string { return strings.TrimSuffix(domain, "t") }

// boolean finds one that allows all that is missing and is not known to open far more.
func (j *judge) boolean(permissions []string) bool {
	if j.Policy == nil {
		j.undecided("whether a boolean would allow it, only the loaded policy tells")
		return false
	}
	for _, b := range j.Policy.Access(j.Source, j.Target, j.Class, permissions).Booleans {
		to := map[bool]string{true: "on", false: "off"}[b.On]
		if why := Trap(b.Name); why != "" {
			j.because("boolean %s=%s would allow it, but %s", b.Name, to, why)
			continue
		}
		j.Kind = Boolean
		j.because("the loaded policy allows it with boolean %s=%s", b.Name, to)
		j.fix("setsebool -P %s %s", b.Name, to)
		j.remedy(Remedy{Boolean: b.Name, On: b.On})
	}
	return j.Kind == Boolean
}

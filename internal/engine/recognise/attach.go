package recognise

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/tool"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/terminal"
)

func compareHelperPID(h candidateHelper, pid int) int { return cmp.Compare(h.p.PID, pid) }

// attachment is what is known of a helper: whom it serves.
type attachment struct {
	helper    engine.Helper
	instances []procfs.ID // by main process
	args      []string
	asked     int // how often the source was asked
	left      int // looks it still serves
	// lasting: what showed it may go, a connection or a parent, and it stays true. That there is only one
	// instance does not.
	lasting bool
}

// freshLooks is for how many looks a helper that nothing attaches is asked about each time: its connection may
// be made a moment after its start.
const freshLooks = 4

// attach gives each helper to the instance that it serves. Each step is tried only when those before it say nothing:
// what the program was told, who started it, what it is connected to, whether there is only one instance, its
// user. Where two instances are left it is in the lists of both, and Sure in none.
func (t *Tracker) attach(s *scene, found []engine.Instance) {
	a := attacher{scene: s, found: found}
	old, known := t.helpers, make(map[procfs.ID]attachment, len(s.helpers))
	now := make([]procfs.ID, len(found))
	for i := range found {
		now[i] = found[i].Main
	}
	same := slices.Equal(now, t.instances) // else one that was the only one may be so no more
	t.instances = now
	for _, h := range s.helpers {
		kept, is := old[h.p.ID]
		switch {
		case !is || !slices.Equal(kept.args, h.p.Args):
			kept = a.ask(h)
		case !same || kept.left <= 0 || !kept.helper.Sure && kept.asked < freshLooks:
			before := kept
			if kept = a.ask(h); !kept.helper.Sure && before.lasting && a.indexOf(before.instances[0]) >= 0 {
				kept = before
			}
			kept.asked = before.asked + 1
		default:
			kept.left--
			known[h.p.ID] = kept
			continue
		}
		kept.left = cmp.Or(t.Keep, keepLooks)
		known[h.p.ID] = kept
	}
	a.fromParents(s.helpers, known)
	t.helpers = known
	for _, h := range s.helpers {
		kept := known[h.p.ID]
		for _, main := range kept.instances {
			if i := a.indexOf(main); i >= 0 {
				found[i].Helpers = append(found[i].Helpers, kept.helper)
			}
		}
	}
	s.attachRMAN(found)
	for i := range found {
		for _, m := range found[i].Members {
			if m.Part == engine.PartSave {
				found[i].Helpers = append(found[i].Helpers,
					engine.Helper{ID: m.ID, Kind: engine.HelperSave, Tool: "snapshot", Sure: true,
						How: "the server forked it"})
			}
		}
		slices.SortStableFunc(found[i].Helpers, func(a, b engine.Helper) int { return cmp.Compare(a.ID.PID, b.ID.PID) })
	}
}

// attacher is one look's work of attaching helpers.
type attacher struct {
	*scene
	found   []engine.Instance
	members map[int]int // pid → index of its instance; nil until asked for
}

func (a *attacher) indexOf(main procfs.ID) int {
	return slices.IndexFunc(a.found, func(i engine.Instance) bool { return i.Main == main })
}

// member returns the index of the instance that a process belongs to, -1 for none.
func (a *attacher) member(pid int) int {
	if a.members == nil {
		a.members = make(map[int]int)
		for i := range a.found {
			for _, m := range a.found[i].Members {
				a.members[m.ID.PID] = i
			}
		}
	}
	if i, is := a.members[pid]; is {
		return i
	}
	return -1
}

// verdict is what one step found.
type verdict struct {
	of      []int // indices of instances
	sure    bool
	how     string
	passing bool // true only as long as the instances are these
}

func (a *attacher) ask(h candidateHelper) attachment {
	var env map[string]string
	environment := func() map[string]string {
		if env == nil {
			env = a.Env(h.p.PID)
		}
		return env
	}
	v := a.decide(h, environment)
	kept := attachment{args: h.p.Args, asked: 1, helper: engine.Helper{
		ID: h.p.ID, Kind: h.tool.Kind, Tool: h.tool.Name, Sure: v.sure, How: terminal.Printable(v.how),
		Rate: h.tool.RateOf(h.p, environment),
	}}
	for _, i := range v.of {
		kept.instances = append(kept.instances, a.found[i].Main)
	}
	if v.sure {
		kept.helper.Serves, kept.lasting = len(v.of), !v.passing && len(v.of) == 1
	}
	return kept
}

// decide finds the instances that a helper serves, or may serve.
func (a *attacher) decide(h candidateHelper, env func() map[string]string) verdict {
	var all []int
	for i := range a.found {
		inst := &a.found[i]
		if slices.Contains(h.tool.Engines, inst.Engine) && !inst.Container && !inst.Sentinel() &&
			inst.Flavor != engine.ASM {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		return verdict{}
	}
	if h.tool.Kind == engine.HelperListener {
		return a.listens(h.p, all)
	}
	if v := a.startedSession(h.p, all); v.sure {
		return v
	}
	t := h.tool.Target(a.Reader, h.p, env)
	left, v := a.told(h.p, &t, all)
	if v.sure || left == nil {
		return v
	}
	for _, step := range []func(*procfs.Process, []int) verdict{a.startedBy, a.connected} {
		if v := step(h.p, left); v.sure {
			return v
		}
	}
	if len(t.Points) > 0 && !slices.ContainsFunc(t.Points, a.here) {
		return verdict{} // it serves another host, as far as can be told
	}
	here := func(i int) bool { return path.Clean(a.found[i].DataDir) == t.DataDir }
	if t.DataDir == "" || slices.ContainsFunc(all, here) { // else it may be of a server that is stopped, or restored
		if v := a.fewest(h.p, left); v.sure {
			return v
		}
	}
	return verdict{of: left, how: "nothing tells which of " + a.names(left) + " it serves"}
}

// fewest decides by there being one instance, or one that runs as the helper's user.
func (a *attacher) fewest(p *procfs.Process, left []int) verdict {
	if len(left) == 1 {
		return verdict{left, true, "it is the only " + a.found[left[0]].Engine + " instance here", true}
	}
	return a.sameUser(p, left)
}

// told narrows the instances down by what the helper was told. None left: it serves none of this host.
func (a *attacher) told(p *procfs.Process, t *tool.Target, all []int) (left []int, v verdict) {
	which := func(fits func(*engine.Instance) bool) (some []int) {
		for _, i := range all {
			if fits(&a.found[i]) {
				some = append(some, i)
			}
		}
		return some
	}
	narrowed := func(some []int, said string) ([]int, verdict) {
		if len(some) == 1 {
			return some, verdict{of: some, sure: true, how: said}
		}
		return some, verdict{}
	}
	// A directory that none has may be another name of that of one, by a symbolic link.
	if at := which(func(i *engine.Instance) bool { return path.Clean(i.DataDir) == t.DataDir }); len(at) > 0 {
		return narrowed(at, t.SaidDir)
	}
	if t.SID != "" {
		return narrowed(which(func(i *engine.Instance) bool { return i.SID == t.SID }), t.SaidSID)
	}
	if t.Config != "" && len(t.Points) == 0 {
		if some := which(func(i *engine.Instance) bool { return i.Config == t.Config }); len(some) == 1 {
			return narrowed(some, t.SaidConfig)
		}
		t.FromOptionFile(string(a.File(p.PID, t.Config)), t.SaidConfig)
	}
	var said string
	var some []int
	asked := false
	for _, pt := range t.Points {
		if !t.Tells(pt) || !a.here(pt) {
			continue // only a connection can show that it is a name of this host
		}
		asked = true
		for _, i := range which(func(i *engine.Instance) bool { return fits(pt, i) }) {
			if !slices.Contains(some, i) {
				some, said = append(some, i), pt.Said
			}
		}
	}
	if !asked {
		return all, verdict{}
	}
	slices.Sort(some)
	return narrowed(some, said)
}

// fits says whether an address is one of an instance. A host that is a path is PostgreSQL's directory of sockets.
func fits(pt tool.Point, i *engine.Instance) bool {
	switch {
	case pt.Socket != "":
		return i.Socket != "" && path.Clean(i.Socket) == path.Clean(pt.Socket)
	case path.IsAbs(pt.Host) && i.Socket != "" && path.Dir(i.Socket) != path.Clean(pt.Host) &&
		i.Engine == engine.PostgreSQL:
		return false
	}
	ip, _ := netip.ParseAddr(strings.Trim(pt.Host, "[]"))
	return i.Reached(pt.Port, ip)
}

// here says whether an address is one of this host: by its text, or as an instance listens there and not everywhere.
func (a *attacher) here(pt tool.Point) bool {
	ip, err := netip.ParseAddr(strings.Trim(pt.Host, "[]"))
	return tool.LocalHost(pt.Host) || err == nil && slices.ContainsFunc(a.found, func(i engine.Instance) bool {
		return !i.Container &&
			slices.ContainsFunc(i.Addresses, func(l netip.AddrPort) bool { return l.Addr() == ip.Unmap() })
	})
}

// startedBy looks for a process of an instance among the ancestors: an archive_command, a hook.
func (a *attacher) startedBy(p *procfs.Process, all []int) verdict {
	for parent := range a.ancestors(p) {
		if i := a.member(parent.PID); i >= 0 && slices.Contains(all, i) {
			return verdict{of: []int{i}, sure: true, how: fmt.Sprintf("process %d, of the instance, started it",
				parent.PID)}
		}
	}
	return verdict{}
}

// startedSession looks for a session of an Oracle instance that a helper started for itself.
func (a *attacher) startedSession(p *procfs.Process, all []int) verdict {
	for _, i := range all {
		if a.found[i].Engine != engine.Oracle {
			continue
		}
		for _, m := range a.found[i].Members {
			if o := a.process(m.ID.PID); o != nil && o.PPID == p.PID {
				return verdict{of: []int{i}, sure: true, how: fmt.Sprintf("it started process %d, a session", m.ID.PID)}
			}
		}
	}
	return verdict{}
}

// connected asks the kernel which instance a helper talks to.
func (a *attacher) connected(p *procfs.Process, all []int) verdict {
	list, _ := a.src.Connections([]int{p.PID}) // nothing known is nothing found
	var some []int
	how := ""
	for _, c := range list[p.PID] {
		for _, i := range all {
			if a.found[i].ListensOn(c.Port, c.Address) {
				how = "it is connected to " + c.Address
				if !slices.Contains(some, i) {
					some = append(some, i)
				}
			}
		}
	}
	return verdict{of: some, sure: len(some) == 1, how: how}
}

// sameUser takes the one instance that runs as the helper's user.
func (a *attacher) sameUser(p *procfs.Process, all []int) verdict {
	user := a.userName(p.UID)
	var some []int
	for _, i := range all {
		if a.found[i].User == user {
			some = append(some, i)
		}
	}
	return verdict{some, len(some) == 1, "of " + a.names(all) + " only this one runs as its user " + user, true}
}

// listens finds the instances that an Oracle listener serves: those that are connected to it, to register, and those
// that are connected to none here. A listener that was told of an instance by its configuration alone cannot be
// told from one that serves it not.
func (a *attacher) listens(p *procfs.Process, all []int) verdict {
	listening, _ := a.src.Listeners([]int{p.PID})
	var own, free []int
	for _, i := range all {
		switch at := a.registers(i); {
		case slices.ContainsFunc(at, func(c sockets.Listener) bool {
			return slices.ContainsFunc(listening[p.PID],
				sameEnd(c))
		}):
			own = append(own, i)
		case !slices.ContainsFunc(at, func(c sockets.Listener) bool { return c.Port != 0 && a.otherListener(p, c) }):
			free = append(free, i)
		}
	}
	served := slices.Sorted(slices.Values(append(own, free...)))
	how := "a listener may serve every instance here"
	if len(own) > 0 {
		how = a.names(own) + " registered there"
	}
	return verdict{of: served, sure: true, how: how, passing: true}
}

func sameEnd(c sockets.Listener) func(sockets.Listener) bool {
	return func(l sockets.Listener) bool {
		return c.Port != 0 && c.Port == l.Port || c.Port == 0 && c.Address != "" && c.Address == l.Address
	}
}

// registers returns what the processes of an instance that register it (LREG, before 12.1 PMON) are connected to.
func (a *attacher) registers(i int) (all []sockets.Listener) {
	pids := []int{a.found[i].Main.PID}
	for _, m := range a.found[i].Members {
		if p := a.process(m.ID.PID); p != nil && m.Part == "background" && oracleProcess(p).name == "lreg" {
			pids = append(pids, p.PID)
		}
	}
	list, _ := a.src.Connections(pids)
	for _, pid := range pids {
		all = append(all, list[pid]...)
	}
	return all
}

// otherListener says whether another listener of this host is at the end of a connection.
func (a *attacher) otherListener(than *procfs.Process, c sockets.Listener) bool {
	for _, h := range a.helpers {
		if h.tool.Kind != engine.HelperListener || h.p.PID == than.PID {
			continue
		}
		if sockets, _ := a.src.Listeners([]int{h.p.PID}); slices.ContainsFunc(sockets[h.p.PID], sameEnd(c)) {
			return true
		}
	}
	return false
}

// fromParents gives helpers that nothing attached to the instance of the helper that started them: a worker process, a
// compressing copy.
func (a *attacher) fromParents(helpers []candidateHelper, known map[procfs.ID]attachment) {
	for _, h := range helpers {
		kept := known[h.p.ID]
		if kept.helper.Sure || len(kept.instances) == 0 {
			continue
		}
		for parent := range a.ancestors(h.p) {
			if of, is := known[parent.ID]; is && of.helper.Sure && len(of.instances) == 1 &&
				slices.Contains(kept.instances, of.instances[0]) {
				kept.instances, kept.helper.Sure, kept.helper.Serves = of.instances, true, 1
				kept.helper.How = fmt.Sprintf("process %d, its helper, started it", parent.PID)
				known[h.p.ID] = kept
				break
			}
		}
	}
}

func (a *attacher) names(of []int) string {
	var names []string
	for _, i := range of {
		names = append(names, a.found[i].Name())
	}
	const most = 6
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// attachRMAN makes helpers of the sessions that an RMAN on this host started for itself: they read and write the
// backup, the client only directs them. They stay members of the instance.
func (s *scene) attachRMAN(found []engine.Instance) {
	for i := range found {
		inst := &found[i]
		if inst.Engine != engine.Oracle {
			continue
		}
		for _, m := range inst.Members {
			if m.Part != "local" {
				continue
			}
			p := s.process(m.ID.PID)
			if p == nil {
				continue
			}
			at, is := slices.BinarySearchFunc(s.helpers, p.PPID, compareHelperPID)
			if !is || s.helpers[at].tool.Name != "rman" {
				continue
			}
			inst.Helpers = append(inst.Helpers, engine.Helper{
				ID: m.ID, Kind: engine.HelperBackup, Tool: "rman", Sure: true,
				Rate: s.helpers[at].tool.RateOf(s.helpers[at].p, nil),
				How:  fmt.Sprintf("process %d, an RMAN, started it", p.PPID),
			})
		}
	}
}

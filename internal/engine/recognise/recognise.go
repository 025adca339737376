// Package recognise finds database servers among processes, with their ports, sockets, data directories, parts, and the
// helper programs that serve them. One file per engine holds what is known of it.
//
// A process is a server when it is one by identity (its executable and its name) and also behaves
// like one: it was given a server's options, its data directory holds that engine's files, it listens,
// it has the engine's child processes or its supervisor. One sign alone is nothing: an editor with
// "mysqld" among its arguments, a script named postgres, a client, or `mysqld --version` is no instance.
package recognise

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/tool"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/users"
	"bulkhead/internal/terminal"
)

// HostSource is the Source of a host.
type HostSource struct {
	procfs.FS
	sockets.Tables
	*users.Names
}

// SourceOf returns the readers of a host.
func SourceOf(h *host.Host) HostSource { return HostSource{h.Proc, h.Sockets, h.Users} }

// inspect asks the source about a candidate; false when it is no server.
func (s *scene) inspect(r *recogniser, p *procfs.Process) (tracked, bool) {
	inst := engine.Instance{
		Engine:    r.engine,
		Main:      p.ID,
		User:      s.userName(p.UID),
		Container: p.ForeignNamespace && s.inContainer(p),
		Members:   []engine.Member{{ID: p.ID, Part: engine.PartMain}},
	}
	signals := r.inspect(s, p, &inst)
	if len(signals) == 0 {
		return tracked{}, false
	}
	inst.Evidence = append([]string{identityEvidence(p)}, signals...)
	for i, line := range inst.Evidence {
		inst.Evidence[i] = terminal.Printable(line)
	}
	return tracked{inst: inst, args: p.Args}, true
}

func identityEvidence(p *procfs.Process) string {
	if p.Exe == "" {
		return fmt.Sprintf("runs as %q", options.ProgramName(p))
	}
	return fmt.Sprintf("runs %s as %q", p.Exe, options.ProgramName(p))
}

// newScene sorts the processes out, and asks the source for the listeners of the candidates that are not
// known.
func newScene(procs []procfs.Process, src Source, known func(*procfs.Process) (tracked, bool)) *scene {
	s := &scene{
		Reader:   options.Reader{Source: src},
		src:      src,
		sorted:   make([]*procfs.Process, len(procs)),
		children: make(map[int][]*procfs.Process),
		mains:    make(map[*recogniser][]*procfs.Process),
		loose:    make(map[string][]*procfs.Process),
		claimed:  make(map[int]bool),
	}
	inOrder := true
	for i := range procs {
		s.sorted[i] = &procs[i]
		inOrder = inOrder && (i == 0 || procs[i-1].PID <= procs[i].PID)
	}
	if !inOrder {
		slices.SortFunc(s.sorted, func(a, b *procfs.Process) int { return cmp.Compare(a.PID, b.PID) })
	}
	for _, p := range s.sorted {
		s.sort(p, programOf(p))
	}
	for _, p := range s.sorted {
		if list, ok := s.children[p.PPID]; ok {
			s.children[p.PPID] = append(list, p)
		}
	}
	var pids []int
	for r, mains := range s.mains {
		if r.forked {
			s.mains[r] = s.withoutWatchers(r, mains)
		}
	}
	for _, r := range recognisers {
		for _, p := range s.mains[r] {
			if k, ok := known(p); ok {
				for _, port := range k.inst.Ports {
					s.claimed[port] = true
				}
				continue
			}
			pids = append(pids, p.PID)
		}
	}
	if len(pids) > 0 {
		slices.Sort(pids)
		// An error may come with the listeners of the processes that could be read: use those.
		s.listeners, _ = src.Listeners(pids)
	}
	return s
}

// sort notes what a process is for the look: a server, a member by its own name, a helper. A process forked by a
// server that has not retitled itself yet still looks like its parent and is none.
func (s *scene) sort(p *procfs.Process, what program) {
	if r := what.server; r != nil {
		switch {
		case r.identity(p):
			if parent := s.process(p.PPID); parent == nil || r.forked || !r.identity(parent) ||
				parent.Exe != p.Exe || !slices.Equal(parent.Args, p.Args) {
				s.mains[r] = append(s.mains[r], p)
				s.children[p.PID] = nil
				return
			}
		case r.belongs != nil && r.belongs(p):
			s.loose[r.engine] = append(s.loose[r.engine], p)
			return
		}
	}
	if what.script || len(what.tools) > 0 {
		if t := tool.Of(p, what.tools, what.script); t != nil {
			s.helpers = append(s.helpers, candidateHelper{p, t})
		}
	}
}

// withoutWatchers leaves out the processes that have forked one which looks like themselves.
func (s *scene) withoutWatchers(r *recogniser, mains []*procfs.Process) []*procfs.Process {
	return slices.DeleteFunc(slices.Clone(mains), func(p *procfs.Process) bool {
		return slices.ContainsFunc(s.children[p.PID], func(c *procfs.Process) bool {
			return r.identity(c) &&
				c.Exe == p.Exe
		})
	})
}

// Instances finds the database servers among the processes, sorted by engine, port and data directory.
// A source that fails gives less evidence; a server that shows too little of it is not reported.
func Instances(procs []procfs.Process, src Source) []engine.Instance {
	return new(Tracker).Recognise(procs, src)
}

// OfHost finds the database servers that run on a host now, as Instances does; Redis Sentinels, which keep no data, are
// left out.
func OfHost(h *host.Host) ([]engine.Instance, error) {
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil && !errors.Is(err, procfs.ErrHidden) {
		return nil, err
	}
	return slices.DeleteFunc(Instances(procs, SourceOf(h)), engine.Instance.Sentinel), nil
}

// Tracker recognises instances look after look. What the source said about a server that listens is kept
// for some looks, as long as the process lives with the same command line: its files need not be read
// and its sockets not be found again each time. The same goes for a helper whose instance is known. Members
// are always those of the look. The zero value is ready; a Tracker is for one goroutine.
type Tracker struct {
	// Keep is for how many further looks an answer serves; 0 is 30.
	Keep int

	known     map[procfs.ID]tracked
	helpers   map[procfs.ID]attachment
	instances []procfs.ID // of the look before, that helpers were attached to
}

// tracked is an instance as inspected, with its main member only.
type tracked struct {
	inst engine.Instance
	args []string
	left int // looks it still serves
}

// Recognise does what the function Recognise does.
func (t *Tracker) Recognise(procs []procfs.Process, src Source) []engine.Instance {
	s := newScene(procs, src, t.reusable)
	known := make(map[procfs.ID]tracked)
	var found []engine.Instance
	for _, r := range recognisers {
		for _, p := range s.mains[r] {
			kept, ok := t.reusable(p)
			if ok {
				kept.left--
			} else {
				kept, ok = s.inspect(r, p)
				kept.left = cmp.Or(t.Keep, keepLooks)
			}
			if !ok {
				continue
			}
			known[p.ID] = kept
			inst := kept.inst
			inst.Members = append(slices.Clone(inst.Members), r.members(s, p, &inst)...)
			found = append(found, inst)
		}
	}
	t.known = known
	slices.SortFunc(found, func(a, b engine.Instance) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Port, b.Port), cmp.Compare(a.SID, b.SID),
			cmp.Compare(a.DataDir, b.DataDir), cmp.Compare(a.Main.PID, b.Main.PID))
	})
	t.attach(s, found)
	return found
}

// keepLooks is for how many looks an answer serves unless the Tracker says otherwise.
const keepLooks = 30

// reusable returns what is known of a server. One that was not seen listening is asked about again: it
// is just starting.
func (t *Tracker) reusable(p *procfs.Process) (tracked, bool) {
	k, ok := t.known[p.ID]
	return k, ok && k.left > 0 && k.inst.Seen && slices.Equal(k.args, p.Args)
}

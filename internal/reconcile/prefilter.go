package reconcile

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/procfs"
)

// Prefilter holds a process that an event told of against the rules and engines that the last look knew, and reads no
// more of it than that takes: most of what starts on a host concerns no group. It is for one goroutine, which may be
// another than the controller's.
type Prefilter struct {
	rules     *classify.Prefilter
	instances []engine.Instance
	peek      *procfs.Peeker
	stray     func(p *procfs.Process) bool // is to be gathered by host.others; nil gathers nobody
}

// Prefilter makes one of what the last look knew, nil when there was none. The processes of an instance, and what these
// start, are not its business: whoever asks knows them by their ancestors.
func (c *Reconciler) Prefilter() *Prefilter {
	v := c.memory.view
	if v == nil {
		return nil
	}
	var stray func(p *procfs.Process) bool
	if settled := v.Rules.Settled; settled != nil {
		stray = func(p *procfs.Process) bool {
			_, inside := v.Layout.Resident(p)
			return !inside && !settled(p)
		}
	}
	return &Prefilter{stray: stray,
		rules: classify.NewPrefilter(v.Classified.Groups, v.Rules), instances: v.Instances,
		peek: c.Host.Proc.NewPeeker()}
}

// Concerns says whether a process may have to be moved, or may be a server. A no is certain as far as the process
// itself is asked; one that has exited concerns nobody.
func (s *Prefilter) Concerns(pid int) bool {
	exe, err := s.peek.Executable(pid)
	if err != nil {
		return false
	}
	verdict := s.rules.Executable(exe)
	if verdict == classify.Yes || verdict == classify.No && recognise.Ordinary(exe) && s.stray == nil {
		return verdict == classify.Yes
	}
	p, err := s.peek.Peek(pid, func(p *procfs.Process) bool {
		if verdict = s.rules.Program(p); p.Exe == "" || recognise.MayServe(p) || recognise.Joins(p, s.instances) {
			verdict = classify.Yes
		}
		return verdict == classify.Maybe || verdict == classify.No && s.stray != nil
	})
	if err == nil && verdict == classify.Maybe {
		verdict = s.rules.Owner(&p)
	}
	return err == nil && (verdict == classify.Yes || s.stray != nil && s.stray(&p))
}

// Arguments says whether more than what a process runs has to be known of its program: a no is certain.
func (s *Prefilter) Arguments(exe string) bool {
	return s.stray != nil || !recognise.Ordinary(exe) || s.rules.Arguments(exe)
}

// Strays are the processes that somebody else moved since the last look: members that are no longer listed in a
// directory of their group, and processes that are listed there and were elsewhere. A move by others changes
// nothing that a scanner sees without reading a process from end to end, and the kernel tells of none. Of the
// listing a member may be missing although it is there (cgroup v1, while others fork), so these are only to be read
// anew.
func (c *Reconciler) Strays() []int {
	v := c.memory.view
	if v == nil {
		return nil
	}
	listed := map[cgroup.Dir]map[int]bool{} // false: a member that is to be there
	for _, g := range v.Classified.Groups {
		for _, d := range v.Layout.Member(g.Path) {
			listed[d] = map[int]bool{}
		}
	}
	for i := range v.Observed.Processes {
		p := &v.Observed.Processes[i]
		for hierarchy, path := range p.Cgroups {
			if pids, ours := listed[cgroup.Dir{Hierarchy: hierarchy, Path: path}]; ours {
				pids[p.PID] = false
			}
		}
	}
	var strays []int
	for d, pids := range listed {
		now, err := v.Tree.Procs(d)
		if err != nil {
			continue // a directory that is gone is the look's to find
		}
		for _, pid := range now {
			if _, known := pids[pid]; !known {
				strays = append(strays, pid)
			}
			pids[pid] = true
		}
		for pid, there := range pids {
			if !there {
				strays = append(strays, pid)
			}
		}
	}
	return strays
}

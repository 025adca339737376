package control

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
)

// Sieve holds a process that an event told of against the rules and engines that the last look knew, and reads no more of
// it than that takes: most of what starts on a host concerns no group. It is for one goroutine, which may be another than
// the controller's.
type Sieve struct {
	rules     *classify.Sieve
	instances []engine.Instance
	peek      *host.Peeker
}

// Sieve makes one of what the last look knew, nil when there was none. The processes of an instance, and what these start,
// are not its business: whoever asks knows them by their ancestors.
func (c *Controller) Sieve() *Sieve {
	v := c.memory.view
	if v == nil {
		return nil
	}
	return &Sieve{rules: classify.NewSieve(v.Classified.Groups, v.rules), instances: v.Instances, peek: c.Host.Proc.NewPeeker()}
}

// Concerns says whether a process may have to be moved, or may be a server. A no is certain as far as the process itself
// is asked; one that has exited concerns nobody.
func (s *Sieve) Concerns(pid int) bool {
	exe, err := s.peek.Executable(pid)
	if err != nil {
		return false
	}
	verdict := s.rules.Executable(exe)
	if verdict == classify.Yes || verdict == classify.No && engine.Ordinary(exe) {
		return verdict == classify.Yes
	}
	p, err := s.peek.Peek(pid, func(p *host.Process) bool {
		if verdict = s.rules.Program(p); p.Exe == "" || engine.MayServe(p) || engine.Joins(p, s.instances) {
			verdict = classify.Yes
		}
		return verdict == classify.Maybe
	})
	if err == nil && verdict == classify.Maybe {
		verdict = s.rules.Owner(&p)
	}
	return err == nil && verdict == classify.Yes
}

// Mistaken counts the moves of a process that had just got another one's number.
func (c *Controller) Mistaken() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opened == nil {
		return 0
	}
	return c.opened.Mistaken()
}

package switches

import (
	"errors"
	"slices"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/linux/procfs"
)

// look is the state of the host's threads at a moment.
type look struct {
	at      time.Time // its middle
	procs   map[int]procfs.Process
	threads map[int]map[int]ctxswitch.Count // by process and thread
	owner   map[int]int                     // by thread
	inst    map[int]string                  // by process
	servers []engine.Instance
}

func lookAt(h *host.Host) (*look, error) {
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil && !errors.Is(err, procfs.ErrHidden) {
		return nil, err
	}
	began := time.Now()
	l := &look{procs: map[int]procfs.Process{}, threads: map[int]map[int]ctxswitch.Count{}, owner: map[int]int{},
		inst: map[int]string{}}
	for _, p := range procs {
		threads, err := ctxswitch.Threads(h.Root, p.ID.PID)
		if err != nil {
			return nil, err
		}
		l.procs[p.ID.PID], l.threads[p.ID.PID] = p, threads
		for tid := range threads {
			l.owner[tid] = p.ID.PID
		}
	}
	l.at = began.Add(time.Since(began) / 2)
	l.servers = slices.DeleteFunc(recognise.Instances(procs, recognise.SourceOf(h)), engine.Instance.Sentinel)
	for _, i := range l.servers {
		for _, m := range i.Members {
			l.inst[m.ID.PID] = i.Name()
		}
	}
	return l, nil
}

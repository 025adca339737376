package snapshot

import (
	"bulkhead/internal/netshape"
	"slices"
	"sync"
	"time"
)

// pieces is what the kernel has of what shares need. It is tried once; while a piece is missing that there is a hint
// for, again after a while: who follows the hint, `modprobe`, need not start the agent anew.
type pieces struct {
	mu  sync.Mutex
	has netshape.Capabilities
	at  time.Time
}

const probeEvery = 10 * time.Second

func (p *pieces) known(now time.Time, needed []string, probe func() netshape.Capabilities) netshape.Capabilities {
	p.mu.Lock()
	defer p.mu.Unlock()
	missing := slices.ContainsFunc(needed, func(name string) bool { return !p.has.Has(name) })
	if p.has == nil || missing && now.Sub(p.at) >= probeEvery {
		p.has, p.at = probe(), now
	}
	return p.has
}

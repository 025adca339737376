package bpfcount

import (
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

//go:embed reclaim.bpf.o
var reclaimObject []byte

// Reclaim is for how long threads of one group that wanted memory had to take it from others first: because of a limit
// on memory, of the group or of one above it (Limit), or because the host had too little that was free (Host).
type Reclaim struct {
	// Limit and Host are the time in which at least one thread was in reclaim. Where threads are for both reasons at
	// once, each reason has the part that its threads are of all: together they are the time in which any was.
	Limit, Host time.Duration
	// LimitThreads and HostThreads are the same, summed over threads.
	LimitThreads, HostThreads time.Duration
	// LimitStalls and HostStalls are how often a thread was in reclaim, and had left it again. Lost is how often that
	// was not counted, as only the begin or the end was seen, or another thread had its entry.
	LimitStalls, HostStalls, Lost uint64
}

// reclaimPrograms are attached in this order: whose begin is seen is seen to end.
var reclaimPrograms = []string{"count_limit_end", "count_host_end", "count_limit", "count_host"}

// openReclaim loads the programs. Errors: a *MissingError.
func openReclaim(slots int) (*set, error) {
	spec, err := reclaimSpec(slots)
	if err != nil {
		return nil, missing(err)
	}
	s, err := load(spec, reclaimPrograms)
	return s, missing(err)
}

func reclaimSpec(slots int) (*ebpf.CollectionSpec, error) {
	return sized(reclaimObject, slots, map[string]int{"groups": directoriesMost, "stalls": slots})
}

// attachReclaim has the programs count. That they cannot is no error of the others.
func (c *Counter) attachReclaim() {
	if c.reclaim == nil {
		return
	}
	if err := c.reclaim.attach(); err != nil {
		c.noReclaim = missing(errors.Join(err, c.reclaim.Close()))
		c.reclaim = nil
	}
}

// addReclaim adds what was counted of each group.
func (c *Counter) addReclaim(all map[string]*Waits) error {
	for slot := idle + 1; slot < len(c.names); slot++ {
		w := all[c.names[slot]]
		if w.NoReclaim = c.noReclaim; c.reclaim == nil {
			continue
		}
		var s stalls
		err := c.reclaim.loaded.Maps["stalls"].LookupWithFlags(uint32(slot), &s, ebpf.LookupLock)
		if err != nil {
			return fmt.Errorf("read counts of reclaim: %w", err)
		}
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return fmt.Errorf("read the kernel's clock: %w", err)
		}
		s.advance(uint64(now.Nano()))
		if w.Reclaim == nil {
			w.Reclaim = &Reclaim{}
		}
		w.Reclaim.add(&s)
	}
	return nil
}

// stalls is struct stalls of reclaim.bpf.c.
type stalls struct {
	Lock, Epoch          uint32
	At                   uint64
	In                   [2][2]uint32
	Some, Threads, Ended [2]uint64
	Lost                 uint64
}

const (
	stallsSize        = 11 * word
	epochShift        = 35 // as in reclaim.bpf.c
	whyLimit, whyHost = 0, 1
)

// advance adds the time up to now for threads that are in reclaim, as the programs do when the next one begins or ends.
func (s *stalls) advance(now uint64) {
	epoch := uint32(now >> epochShift)
	for i := 0; i < 2 && int32(epoch-s.Epoch) > 0; i++ {
		s.Epoch++
		s.pass(uint64(s.Epoch) << epochShift)
		s.In[s.Epoch&1] = [2]uint32{}
	}
	s.pass(now)
}

// pass adds the time until another one.
func (s *stalls) pass(to uint64) {
	limit, host := uint64(s.In[0][whyLimit]+s.In[1][whyLimit]), uint64(s.In[0][whyHost]+s.In[1][whyHost])
	ns := to - s.At
	if int64(ns) <= 0 {
		return
	}
	s.At = to
	if limit+host > 0 {
		part := ns * limit / (limit + host)
		s.Some[whyLimit] += part
		s.Some[whyHost] += ns - part
		s.Threads[whyLimit] += ns * limit
		s.Threads[whyHost] += ns * host
	}
}

func (r *Reclaim) add(s *stalls) {
	r.Limit += time.Duration(s.Some[whyLimit])
	r.Host += time.Duration(s.Some[whyHost])
	r.LimitThreads += time.Duration(s.Threads[whyLimit])
	r.HostThreads += time.Duration(s.Threads[whyHost])
	r.LimitStalls += s.Ended[whyLimit]
	r.HostStalls += s.Ended[whyHost]
	r.Lost += s.Lost
}

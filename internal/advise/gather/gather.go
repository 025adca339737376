// Package gather reads the facts that advice is given from: files of the kernel, mounts, disks, and the database
// instances with their settings. Its areas are read side by side, within one time for all; what cannot be read is a
// fact that is unknown, with the reason.
package gather

import (
	"context"
	"fmt"
	"maps"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/disks"
	"bulkhead/internal/host"
)

// limit is how long all areas together may take.
const limit = 5 * time.Second

// Facts reads all facts of a host. What an area has not given in time is unknown; without the area of disks, mounts
// and instances the set has none of these, and the sums over instances are unknown.
func Facts(ctx context.Context, h *host.Host) *fact.Set {
	set := &fact.Set{Host: fact.Values{}}
	kernel := start(func() fact.Values { return kernelFacts(h) })
	machine := start(func() fact.Values { return machineFacts(h) })
	stored := start(func() *fact.Set { return storedFacts(h) })
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, area := range []chan fact.Values{kernel, machine} {
		if values, ok := await(ctx, area); ok {
			maps.Copy(set.Host, values)
		}
	}
	if s, ok := await(ctx, stored); ok {
		set.Disks, set.Mounts, set.Instances = s.Disks, s.Mounts, s.Instances
		maps.Copy(set.Host, s.Host)
	}
	for _, row := range fact.Table {
		if _, read := set.Host[row.Name]; row.Scope() == fact.Host && !read {
			set.Host[row.Name] = fact.Unknown("no answer within %s", limit)
		}
	}
	together(set)
	return set
}

func start[T any](read func() T) chan T {
	done := make(chan T, 1)
	go func() { done <- read() }()
	return done
}

func await[T any](ctx context.Context, done chan T) (T, bool) {
	select {
	case v := <-done:
		return v, true
	case <-ctx.Done():
		var none T
		return none, false
	}
}

// storedFacts are those of disks, mounts and instances.
func storedFacts(h *host.Host) *fact.Set {
	set := &fact.Set{Host: fact.Values{}}
	found, err := disks.Find(h)
	if err != nil {
		for _, name := range []string{"host.buffers_together", "host.buffers_percent", "host.buffers_known"} {
			set.Host[name] = fact.Unknown("%v", err)
		}
		return set
	}
	used := usersOf(found)
	set.Disks = diskFacts(h, found, used)
	set.Mounts = mountFacts(h, found)
	set.Instances = instanceFacts(h, found)
	return set
}

// together sums up what the instances of the host want.
func together(set *fact.Set) {
	var sum int64
	var inputs, unread string
	for _, inst := range set.Instances {
		v := inst.Values.Get("instance.buffer")
		if n, known := v.Is.(int64); known {
			sum += n
			inputs += fmt.Sprintf("%s %s (%s), ", inst.Name, fact.Size(n), v.From)
		} else {
			unread += fmt.Sprintf("%s: %s; ", inst.Name, v.Unknown)
		}
	}
	if _, failed := set.Host["host.buffers_together"]; failed && set.Host["host.buffers_together"].Is == nil &&
		len(set.Instances) == 0 && set.Host["host.buffers_together"].Unknown != "no answer within "+limit.String() {
		return
	}
	memory, known := set.Host.Get("host.memory").Is.(int64)
	if inputs == "" {
		inputs = "no instance, "
	}
	inputs = inputs[:len(inputs)-2]
	set.Host["host.buffers_together"] = fact.Known(sum, inputs)
	set.Host["host.buffers_percent"] = fact.Unknown("the memory of the host is not known")
	if known && memory > 0 {
		set.Host["host.buffers_percent"] = fact.Known(sum*100/memory, inputs)
	}
	set.Host["host.buffers_known"] = fact.Known(true, inputs)
	if unread != "" {
		set.Host["host.buffers_known"] = fact.Unknown("%s", unread[:len(unread)-2])
	}
}

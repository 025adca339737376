// Package gather reads the facts that advice is given from: files of the kernel, mounts, disks, and the database
// instances with their settings. Its areas are read side by side, each within a time of its own; what cannot be read is
// a fact that is unknown, with the reason.
package gather

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/advise/gather/zfsdata"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/zfs"
)

// AreaTime is how long one area may take where the caller says nothing else. Places waits for each file system that
// holds files of databases.
const AreaTime = 5 * time.Second

// Options say which servers are asked for their settings. Nobody else is asked.
type Options struct {
	Logins map[string]*dblogin.Login // by the name of the instance
	Known  []*dblogin.Login          // for instances of this host that listen where these lead
	Units  Units                     // nil: systemd is not asked
	ZFS    zfs.Tools                 // without paths: those of the host
	// Wait is how long one area may take; 0 is AreaTime. Instances, servers and systemd have more or less in
	// proportion.
	Wait time.Duration
}

// in is a time as it is where one area has AreaTime.
func (o Options) in(usual time.Duration) time.Duration {
	if o.Wait == 0 {
		return usual
	}
	return time.Duration(float64(usual) * o.Wait.Seconds() / AreaTime.Seconds()).Round(time.Millisecond)
}

// Units reads properties of a unit of systemd, with the types that D-Bus has for them.
type Units func(ctx context.Context, unit string, names ...string) (map[string]any, error)

// login is how to ask an instance; nil is not at all.
func (o Options) login(inst engine.Instance) *dblogin.Login {
	if l := o.Logins[inst.Name()]; l != nil {
		return l
	}
	for _, l := range o.Known {
		local := l.Host == "localhost" || l.Host == "127.0.0.1" || l.Host == "::1"
		if l.Engine == inst.Engine && !inst.Container &&
			(l.Socket != "" && l.Socket == inst.Socket || local && inst.Port != 0 && l.Port == inst.Port) {
			return l
		}
	}
	return nil
}

// addServers adds what is known of the instances, and notes what is not.
func addServers(set *fact.Set, list result[[]server], ok bool, logins map[string]*dblogin.Login) {
	if !ok || list.err != nil {
		set.Notes = append(set.Notes, "database instances were not looked at: "+list.why(ok))
	}
	for _, s := range list.is {
		set.Instances = append(set.Instances, fact.Object{Name: s.name, Values: s.values})
		if s.trouble != nil {
			set.Notes = append(set.Notes, s.trouble.Error())
		}
	}
	for name := range logins {
		if !slices.ContainsFunc(list.is, func(s server) bool { return s.name == name }) {
			set.Notes = append(set.Notes, fmt.Sprintf("no instance %q runs here, and so none was asked", name))
		}
	}
}

// Facts reads all facts of a host. What an area has not given in time is unknown, and the notes say so where it is not
// seen from the facts.
func Facts(ctx context.Context, h *host.Host, o Options) *fact.Set {
	set, areaTime := &fact.Set{Host: fact.Values{}}, o.in(AreaTime)
	kernel := start(areaTime, func() fact.Values { return kernelFacts(h) })
	machine := start(areaTime, func() fact.Values { return machineFacts(h) })
	storing := sync.OnceValues(h.Block.Storage) // for disks and mounts
	stored := start(areaTime, func() result[*fact.Set] {
		storage, err := storing()
		if err != nil {
			return result[*fact.Set]{err: err}
		}
		return result[*fact.Set]{is: &fact.Set{Disks: diskFacts(h, storage)}}
	})
	mounted := start(areaTime, func() result[*fact.Set] {
		storage, err := storing()
		if err != nil {
			return result[*fact.Set]{err: err}
		}
		return result[*fact.Set]{is: &fact.Set{Mounts: mountFacts(h, storage)}}
	})
	placing := start(areaTime, func() result[*placed] { p, err := places(h); return result[*placed]{p, err} })
	zfsing := start(areaTime, func() result[*zfsdata.Layout] {
		l, err := zfsdata.Read(ctx, h, o.ZFS, areaTime*4/5)
		return result[*zfsdata.Layout]{l, err}
	})
	serving := start(areaTime+o.serverTime(), func() result[[]server] {
		s, err := servers(ctx, h, o)
		return result[[]server]{s, err}
	})

	for what, a := range map[string]area[fact.Values]{"settings of the kernel": kernel,
		"processors and memory": machine} {
		if values, ok := a.wait(ctx); ok {
			maps.Copy(set.Host, values)
		} else {
			set.Notes = append(set.Notes, what+" were not looked at: no answer in time")
		}
	}
	late := fact.Unknown("no answer within %s", areaTime)
	fillUnknown(set.Host, fact.Host, late)
	if s, ok := stored.wait(ctx); ok && s.err == nil {
		set.Disks = s.is.Disks
	} else {
		set.Notes = append(set.Notes, "disks were not looked at: "+s.why(ok))
	}
	if s, ok := mounted.wait(ctx); ok && s.err == nil {
		set.Mounts = s.is.Mounts
	} else {
		set.Notes = append(set.Notes, "mounts were not looked at: "+s.why(ok))
	}
	list, ok := serving.wait(ctx)
	addServers(set, list, ok, o.Logins)
	p, ok := placing.wait(ctx)
	if !ok || p.err != nil {
		set.Notes = append(set.Notes, "where the databases keep their files was not looked at: "+p.why(ok))
	}
	p.is.place(set, fact.Unknown("where the databases keep their files: %s", p.why(ok)))
	together(h, set, list.is, ok && list.err == nil)
	z, ok := zfsing.wait(ctx)
	if !ok || z.err != nil {
		set.Notes = append(set.Notes, "ZFS was not looked at: "+z.why(ok))
		return set
	}
	maps.Copy(set.Host, z.is.Host())
	for _, o := range set.Mounts {
		maps.Copy(o.Values, z.is.Mount(o.Name))
	}
	for _, o := range set.Instances {
		maps.Copy(o.Values, z.is.Instance(o.Name))
	}
	return set
}

// result is what an area gives, or why it gives nothing.
type result[T any] struct {
	is  T
	err error
}

func (r result[T]) why(inTime bool) string {
	switch {
	case !inTime:
		return "no answer in time"
	case r.err != nil:
		return files.Because(r.err).Unknown
	}
	return "not found"
}

// area is what is read in a time of its own.
type area[T any] struct {
	done chan T
	late <-chan time.Time
}

func start[T any](limit time.Duration, read func() T) area[T] {
	a := area[T]{make(chan T, 1), time.After(limit)}
	go func() { a.done <- read() }()
	return a
}

// wait gives what was read; false when the area's time is over without it.
func (a area[T]) wait(ctx context.Context) (T, bool) {
	var none T
	select {
	case v := <-a.done: // also where its time was over while another one was waited for
		return v, true
	default:
	}
	select {
	case v := <-a.done:
		return v, true
	case <-a.late:
	case <-ctx.Done():
	}
	return none, false
}

package verify

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// trafficProbes measure limits on interfaces.
type trafficProbes struct{ *run }

// rate measures how fast a load in the group sends or receives through an interface.
func (p trafficProbes) rate(g classify.Group, s policy.Setting) *Measurement {
	asked, ok := s.Value.(policy.BitRate)
	if !ok || s.Dev == "" {
		return nil
	}
	const loopback = "lo"
	switch {
	case !p.o.Inside:
		p.leave(g.Path, s, "what is sent and received is counted for the group itself: "+
			"--inside measures it there, from the group's own budget")
		return nil
	case p.o.Peer == "" && s.Dev != loopback:
		p.leave(g.Path, s, "it takes a peer beyond %s: `bulkhead verify --listen :PORT` there, "+
			"and --peer ADDRESS:PORT here", s.Dev)
		return nil
	case p.byPorts(g.Path, s):
		p.leave(g.Path, s, "the group's traffic is told by the ports that it listens on, which a load has not")
		return nil
	}
	send := s.Key == policy.KeyNetworkEgressMax
	l := &Measurement{Key: s.Key, On: p.snap.Limit(g.Path, s).On, Device: s.Dev, Where: "inside"}
	l.Takes = warmUpNet + p.o.Span
	l.Bytes = min(mostBytes, int64(2*float64(asked)/8*l.Takes.Seconds())+8<<20)
	l.What = fmt.Sprintf("4 connections with %s %s", p.o.Peer, map[bool]string{true: "send", false: "receive"}[send])
	l.run = func(ctx context.Context) []Result {
		r := p.result(g.Path, s, map[bool]string{true: "sent", false: "received"}[send])
		r.Device = s.Dev
		load := &probe.Traffic{Peer: p.o.Peer, Send: send, Most: l.Bytes, Warm: warmUpNet, Span: p.o.Span}
		a, err := p.transfer(ctx, g.Path, load, l.Takes)
		if err == nil && !p.goesThrough(a.Local, s.Dev) {
			err = fmt.Errorf("the way to %s does not lead through %s, but from %s", p.o.Peer, s.Dev, a.Local)
		}
		if err != nil {
			return []Result{r.failed(err)}
		}
		got := 8 * float64(a.Bytes) / a.Took.Seconds()
		held, _ := p.snap.held(g.Path, s)
		rate := probe.Rate{Asked: float64(asked), InForce: float64(held.Max), Measured: got, Tolerance: probe.Tolerance}
		if held.Policed {
			rate.Tolerance = probe.ToleranceBuffered
		}
		return []Result{r.judged(rate, fmt.Sprintf("%.1f Mbit/s", got/1e6), a.Took, p.why(g.Path, s))}
	}
	return l
}

// transfer has a load in the group's own directories send or receive. Without a peer it is one of ours, on this host.
func (p trafficProbes) transfer(ctx context.Context, group string, t *probe.Traffic, takes time.Duration) (
	a probe.Answer, err error,
) {
	if t.Peer == "" {
		var stop func()
		if t.Peer, stop, err = localSink(ctx); err != nil {
			return a, err
		}
		defer stop()
	}
	pl, err := p.places.insideUnified(group)
	err = p.loads.with(ctx, pl, err, func(l Load) (err error) {
		a, err = l.Do(ctx, probe.Order{Traffic: t}, takes)
		return err
	})
	return a, err
}

// byPorts says whether the traffic of a group is told by the ports that it listens on alone.
func (p trafficProbes) byPorts(group string, s policy.Setting) bool {
	for _, w := range p.snap.Plan.Network {
		for _, g := range w.Groups {
			if w.Device == s.Dev && g.Name == group {
				return g.Cgroup == "" || s.Key == policy.KeyNetworkIngressMax && len(g.Ports) > 0
			}
		}
	}
	return false
}

// goesThrough says whether a connection from an address of ours leads through an interface.
func (p trafficProbes) goesThrough(local, device string) bool {
	from, ok := addressOf(local)
	if !ok {
		return true // cannot be told
	}
	names, err := p.Ways(from)
	return err != nil || len(names) == 0 || slices.Contains(names, device)
}

// localSink is a peer of ours on this host.
func localSink(ctx context.Context) (address string, stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("serve a load: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = probe.Sink(ctx, listener)
	}()
	return listener.Addr().String(), func() { cancel(); <-ended }, nil
}

// addressOf reads the address of ADDRESS:PORT.
func addressOf(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddrPort(text)
	return a.Addr().Unmap(), err == nil
}

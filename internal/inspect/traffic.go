package inspect

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/metrics"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/bpf"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/transaction"
)

// ratePeriod is over how long the current rate is measured.
const ratePeriod = 250 * time.Millisecond

// traffic is what all groups have sent and received so far.
type traffic struct {
	at     time.Time
	groups map[string]metrics.Traffic
}

// trafficSource says where the traffic of groups is counted. It does not change after it was made.
type trafficSource struct {
	policers map[string][]bpf.Program // by governed interface
	devices  []string                 // the governed interfaces, in the order of the plan
	groups   []string
	dirs     map[string][]string // of a group, that programs count in
	slots    map[string]netshape.Slot
}

// trafficSourceOf finds it; nil when no interface is governed.
func trafficSourceOf(v *transaction.View) *trafficSource {
	if v.Network == nil || len(v.Plan.Network) == 0 {
		return nil
	}
	s := &trafficSource{
		policers: map[string][]bpf.Program{}, dirs: map[string][]string{}, slots: maps.Clone(v.Network.Slots),
	}
	for _, w := range v.Plan.Network {
		s.devices = append(s.devices, w.Device)
		s.policers[w.Device] = policersOf(v, w.Device)
	}
	for _, g := range v.Classified.Groups {
		s.groups = append(s.groups, g.Path)
		s.dirs[g.Path] = layout.ProgramDirs(v.Facts, v.Layout, g.Path)
	}
	return s
}

// ReadsTraffic gives what reads the traffic of the groups of a view so far; nil when no interface is governed. It
// shares nothing with the view.
func ReadsTraffic(v *transaction.View) func() (map[string]metrics.Traffic, error) {
	s := trafficSourceOf(v)
	if s == nil {
		return nil
	}
	return func() (map[string]metrics.Traffic, error) {
		t, err := s.read()
		if err != nil {
			return nil, err
		}
		return t.groups, nil
	}
}

// read reads the counters of all groups.
func (s *trafficSource) read() (*traffic, error) {
	t := &traffic{at: time.Now(), groups: map[string]metrics.Traffic{}}
	states := map[string]netshape.State{}
	err := snapshot.WithNetwork(func(k *netshape.Kernel) error {
		for _, device := range s.devices {
			state, err := k.Look(device, nil)
			if err == nil {
				state.Policers = s.policers[device]
				states[device] = state
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, group := range s.groups {
		t.groups[group] = s.of(group, states)
	}
	return t, nil
}

func policersOf(v *transaction.View, device string) []bpf.Program {
	for _, d := range v.Network.Devices {
		if d.State.Device.Name == device {
			return d.State.Policers
		}
	}
	return nil
}

func (s *trafficSource) of(group string, states map[string]netshape.State) (t metrics.Traffic) {
	for _, dir := range s.dirs[group] {
		out, in, ok, err := bpf.Counted(dir)
		if err != nil || !ok {
			continue
		}
		t.Counted = true
		t.Out.Bytes, t.Out.Packets = t.Out.Bytes+out.Bytes, t.Out.Packets+out.Packets
		t.In.Bytes, t.In.Packets = t.In.Bytes+in.Bytes, t.In.Packets+in.Packets
	}
	slot, numbered := s.slots[group]
	for _, device := range s.devices {
		state, looked := states[device]
		for _, d := range []netshape.Direction{netshape.Egress, netshape.Ingress} {
			held, ok := state.Held(slot, d)
			if !numbered || !looked || !ok {
				continue
			}
			t.On = append(t.On, metrics.InterfaceTraffic{
				Device: device, Direction: d.String(), Policed: held.Policed, Drops: held.Drops,
				Backlog: held.Backlog,
				Volume:  metrics.Volume{Bytes: held.Bytes, Packets: held.Packets},
			})
		}
	}
	return t
}

// addTraffic fills in what groups send and receive.
func addTraffic(ctx context.Context, c *transaction.Controller, v *transaction.View, st *api.Status) {
	source := trafficSourceOf(v)
	if source == nil {
		return
	}
	before, err := source.read()
	if err != nil {
		c.Log.Warn("count the traffic of groups", "err", err)
		return
	}
	if transaction.Sleep(ctx, time.Until(before.at.Add(ratePeriod))) != nil {
		return
	}
	now, err := source.read()
	if err != nil {
		return
	}
	outside := outsiders(c, v)
	for i := range st.Groups {
		last, was := now.groups[st.Groups[i].Group], before.groups[st.Groups[i].Group]
		if !last.Counted && len(last.On) == 0 {
			continue
		}
		g := &api.GroupTraffic{Traffic: last.WithRates(last.Since(was, now.at.Sub(before.at)))}
		for _, s := range outside[st.Groups[i].Group] {
			g.Outside++
			if port := int(s.Local.Port()); isPortOf(v, st.Groups[i].Group, port) &&
				!slices.Contains(g.OutsidePorts, port) {
				g.OutsidePorts = append(g.OutsidePorts, port)
			}
		}
		st.Groups[i].Traffic = g
	}
}

func isPortOf(v *transaction.View, group string, port int) bool {
	return slices.Contains(v.Network.Ports[group], uint16(port))
}

// outsiders finds, for each group with a share that its sockets are told by, the sockets of its members that were made
// outside of it.
func outsiders(c *transaction.Controller, v *transaction.View) map[string][]sockets.TCPSocket {
	found := map[string][]sockets.TCPSocket{}
	if v.Network == nil {
		return found
	}
	made, err := sockets.TCP()
	if err != nil {
		c.Log.Debug("sockets that were opened before their processes came into a group", "err", err)
		return found
	}
	for _, w := range v.Plan.Network {
		for _, g := range w.Groups {
			if g.Cgroup != "" && found[g.Name] == nil {
				found[g.Name] = outsideOf(c.Host, v, g.Name, made)
			}
		}
	}
	return found
}

// outsideOf picks the sockets of a group's members, and of those below it, that were made outside of the group.
func outsideOf(h *host.Host, v *transaction.View, group string, made []sockets.TCPSocket) []sockets.TCPSocket {
	held := map[uint32]bool{}
	for _, m := range v.Members {
		if !policy.Covers([]string{group}, m.Group) {
			continue
		}
		inodes, _ := h.Proc.SocketInodes(m.Process.PID)
		for _, inode := range inodes {
			held[inode] = true
		}
	}
	var inside []uint64
	for _, dir := range v.Network.Directories {
		for _, own := range layout.ProgramDirs(v.Facts, v.Layout, group) {
			if dir == own || strings.HasPrefix(dir, own+"/") {
				if id, err := bpf.CgroupID(dir); err == nil {
					inside = append(inside, id)
				}
			}
		}
	}
	return sockets.MadeOutside(made, func(inode uint32) bool { return held[inode] }, inside...)
}

// OutsideSocket is a socket that was opened before its process came into the group.
type OutsideSocket struct {
	Local     string `json:"local"`
	Remote    string `json:"remote,omitempty"` // "" of one that listens
	Listening bool   `json:"listening,omitempty"`
	// ByPort says that `by: ports` would hold what it sends.
	ByPort bool `json:"by_port,omitempty"`
}

// socketsOf lists the sockets of one process that were made outside of the groups whose limits on interfaces are to
// hold it.
func socketsOf(c *transaction.Controller, v *transaction.View, pid int, group string) []OutsideSocket {
	var all []OutsideSocket
	inodes, err := c.Host.Proc.SocketInodes(pid)
	if err != nil {
		return nil
	}
	for name, made := range outsiders(c, v) {
		for _, s := range made {
			if !policy.Covers([]string{name}, group) || !slices.Contains(inodes, s.Inode) {
				continue
			}
			o := OutsideSocket{Local: s.Local.String(), Listening: s.Listening,
				ByPort: isPortOf(v, name, int(s.Local.Port()))}
			if !s.Listening {
				o.Remote = s.Remote.String()
			}
			if !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
	}
	slices.SortFunc(all, func(a, b OutsideSocket) int { return strings.Compare(a.Local+a.Remote, b.Local+b.Remote) })
	return all
}

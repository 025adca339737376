package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// GroupTraffic is what a group sends and receives.
type GroupTraffic struct {
	// Out and In are counted over all interfaces by programs on the group's cgroup2 directory, limits or not, since they were put there.
	// Counted is false where that cannot be.
	Counted bool    `json:"counted"`
	Out     Counted `json:"out,omitzero"`
	In      Counted `json:"in,omitzero"`
	// On is what each interface counts for the group's limits.
	On []DeviceTraffic `json:"on,omitempty"`
	// Outside are sockets of its processes that were opened before they came into the group: its limits do not see what those send.
	Outside int `json:"outside,omitempty"`
	// OutsidePorts are the ports of its own that they are on.
	OutsidePorts []int `json:"outside_ports,omitempty"`
}

// Counted is an amount of traffic with its rate now.
type Counted struct {
	Bytes   uint64         `json:"bytes"`
	Packets uint64         `json:"packets"`
	Rate    policy.BitRate `json:"bits_per_second"`
}

// DeviceTraffic is what an interface counts for a group in one direction.
type DeviceTraffic struct {
	Device    string `json:"device"`
	Direction string `json:"direction"`
	Policed   bool   `json:"policed,omitempty"` // then nothing is counted on the interface
	Counted
	Drops   uint64 `json:"drops"`
	Backlog uint64 `json:"backlog_bytes"`
}

// ratePeriod is over how long the current rate is measured.
const ratePeriod = 250 * time.Millisecond

// traffic is what all groups have sent and received so far.
type traffic struct {
	at     time.Time
	groups map[string]*GroupTraffic
}

// sampleTraffic reads the counters of all groups; nil when no interface is governed.
func (c *Controller) sampleTraffic(v *View) (*traffic, error) {
	if v.Network == nil || len(v.Plan.Network) == 0 {
		return nil, nil
	}
	t := &traffic{at: time.Now(), groups: map[string]*GroupTraffic{}}
	states := map[string]netshape.State{}
	err := c.withNetwork(func(k *netshape.Kernel) error {
		for _, w := range v.Plan.Network {
			s, err := k.Look(w.Device, nil)
			if err == nil {
				s.Policers = policersOf(v, w.Device)
				states[w.Device] = s
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, g := range v.Classified.Groups {
		t.groups[g.Path] = trafficOf(v, g.Path, states)
	}
	return t, nil
}

func policersOf(v *View, device string) []netshape.Program {
	for _, d := range v.Network.Devices {
		if d.State.Device.Name == device {
			return d.State.Policers
		}
	}
	return nil
}

func trafficOf(v *View, group string, states map[string]netshape.State) *GroupTraffic {
	t := &GroupTraffic{}
	for _, dir := range plan.ProgramDirs(v.Facts, v.Layout, group) {
		out, in, ok, err := netshape.Counted(dir)
		if err != nil || !ok {
			continue
		}
		t.Counted = true
		t.Out.Bytes, t.Out.Packets = t.Out.Bytes+out.Bytes, t.Out.Packets+out.Packets
		t.In.Bytes, t.In.Packets = t.In.Bytes+in.Bytes, t.In.Packets+in.Packets
	}
	slot, numbered := v.Network.Slots[group]
	for _, w := range v.Plan.Network {
		s, looked := states[w.Device]
		for _, d := range []netshape.Direction{netshape.Egress, netshape.Ingress} {
			held, ok := s.Held(slot, d)
			if !numbered || !looked || !ok {
				continue
			}
			t.On = append(t.On, DeviceTraffic{
				Device: w.Device, Direction: d.String(), Policed: held.Policed, Drops: held.Drops, Backlog: held.Backlog,
				Counted: Counted{Bytes: held.Bytes, Packets: held.Packets},
			})
		}
	}
	return t
}

// rates fills in the rates of the second of two samples.
func (t *traffic) rates(before *traffic) {
	seconds := t.at.Sub(before.at).Seconds()
	per := func(now *Counted, was Counted) {
		if now.Bytes >= was.Bytes && seconds > 0 {
			now.Rate = policy.BitRate(float64(now.Bytes-was.Bytes) * 8 / seconds)
		}
	}
	for name, g := range t.groups {
		was, ok := before.groups[name]
		if !ok {
			continue
		}
		per(&g.Out, was.Out)
		per(&g.In, was.In)
		for i := range g.On {
			if j := slices.IndexFunc(was.On, func(o DeviceTraffic) bool { return o.Device == g.On[i].Device && o.Direction == g.On[i].Direction }); j >= 0 {
				per(&g.On[i].Counted, was.On[j].Counted)
			}
		}
	}
}

// addTraffic fills in what groups send and receive.
func (c *Controller) addTraffic(ctx context.Context, v *View, st *Status) {
	before, err := c.sampleTraffic(v)
	if err != nil {
		c.Log.Warn("count the traffic of groups", "err", err)
	}
	if before == nil {
		return
	}
	if sleep(ctx, time.Until(before.at.Add(ratePeriod))) != nil {
		return
	}
	now, err := c.sampleTraffic(v)
	if err != nil || now == nil {
		return
	}
	now.rates(before)
	outside := c.outsiders(v)
	for i := range st.Groups {
		g := now.groups[st.Groups[i].Group]
		if g == nil || !g.Counted && len(g.On) == 0 {
			continue
		}
		for _, s := range outside[st.Groups[i].Group] {
			g.Outside++
			if port := int(s.Local.Port()); isPortOf(v, st.Groups[i].Group, port) && !slices.Contains(g.OutsidePorts, port) {
				g.OutsidePorts = append(g.OutsidePorts, port)
			}
		}
		st.Groups[i].Traffic = g
	}
}

func isPortOf(v *View, group string, port int) bool {
	return slices.Contains(v.Network.Ports[group], uint16(port))
}

// outsiders finds, for each group with a share that its sockets are told by, the sockets of its members that were made outside of it.
func (c *Controller) outsiders(v *View) map[string][]netshape.Socket {
	found := map[string][]netshape.Socket{}
	if v.Network == nil {
		return found
	}
	var sockets []netshape.Socket
	err := c.withNetwork(func(k *netshape.Kernel) (err error) { sockets, err = k.Sockets(); return err })
	if err != nil {
		c.Log.Debug("sockets that were opened before their processes came into a group", "err", err)
		return found
	}
	for _, w := range v.Plan.Network {
		for _, g := range w.Groups {
			if g.Cgroup != "" && found[g.Name] == nil {
				found[g.Name] = c.outsideOf(v, g.Name, sockets)
			}
		}
	}
	return found
}

// outsideOf picks the sockets of a group's members, and of those below it, that were made outside of the group.
func (c *Controller) outsideOf(v *View, group string, sockets []netshape.Socket) []netshape.Socket {
	held := map[uint32]bool{}
	for _, m := range v.Members {
		if !covers([]string{group}, m.Group) {
			continue
		}
		inodes, _ := c.Host.Proc.SocketInodes(m.Process.PID)
		for _, inode := range inodes {
			held[inode] = true
		}
	}
	var inside []uint64
	for _, dir := range v.Network.Directories {
		for _, own := range plan.ProgramDirs(v.Facts, v.Layout, group) {
			if dir == own || strings.HasPrefix(dir, own+"/") {
				if id, err := netshape.CgroupID(dir); err == nil {
					inside = append(inside, id)
				}
			}
		}
	}
	return netshape.Outside(sockets, func(inode uint32) bool { return held[inode] }, inside...)
}

// OutsideHint says what helps sockets that were opened before their process came into the group.
func (t *GroupTraffic) OutsideHint() string {
	if t == nil || t.Outside == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of its sockets were opened before their process came into the group, and their traffic is not held until they are opened anew", t.Outside)
	if len(t.OutsidePorts) > 0 {
		ports := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(t.OutsidePorts)), ", "), "[]")
		return text + fmt.Sprintf("; `by: ports` in its network entry holds those on port %s, too", ports)
	}
	return text
}

// OutsideSocket is a socket that was opened before its process came into the group.
type OutsideSocket struct {
	Local     string `json:"local"`
	Remote    string `json:"remote,omitempty"` // "" of one that listens
	Listening bool   `json:"listening,omitempty"`
	// ByPort says that `by: ports` would hold what it sends.
	ByPort bool `json:"by_port,omitempty"`
}

// socketsOf lists the sockets of one process that were made outside of the groups whose limits on interfaces are to hold it.
func (c *Controller) socketsOf(v *View, pid int, group string) []OutsideSocket {
	var all []OutsideSocket
	inodes, err := c.Host.Proc.SocketInodes(pid)
	if err != nil {
		return nil
	}
	for name, sockets := range c.outsiders(v) {
		for _, s := range sockets {
			if !covers([]string{name}, group) || !slices.Contains(inodes, s.Inode) {
				continue
			}
			o := OutsideSocket{Local: s.Local.String(), Listening: s.Listening, ByPort: isPortOf(v, name, int(s.Local.Port()))}
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

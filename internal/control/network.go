package control

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/apply"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// networkRecord reads the document; that of another boot is empty.
func (c *Controller) networkRecord(boot string) (state.Network, error) {
	d := &state.Documents{}
	if c.Store != nil {
		var err error
		if d, err = state.Load(c.Store, state.DocNetwork); err != nil {
			return state.Network{}, err
		}
	}
	r := d.Prune(state.Moment{Boot: boot}).Network
	if r.Slots == nil {
		r.Slots = map[string]netshape.Slot{}
	}
	if r.Devices == nil {
		r.Devices = map[string]state.Interface{}
	}
	return r, nil
}

// isHere says whether the host is this one, and not a captured one: then its interfaces can be asked for.
func (c *Controller) isHere() bool { return c.root == "/" }

// withNetwork opens the door to the kernel's traffic control for a moment.
func (c *Controller) withNetwork(f func(k *netshape.Kernel) error) error {
	k, err := netshape.Open(netshape.Options{})
	if err != nil {
		return err
	}
	defer k.Close()
	return f(k)
}

// nics answers what a policy asks about interfaces; each is looked at once.
type nics struct {
	c     *Controller
	mu    sync.Mutex
	known map[string]policy.Interface
	wrong map[string]error
	ways  map[string]string // interfaces by which somebody is logged in
}

func (n *nics) find(on string) (policy.Interface, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known, n.wrong = map[string]policy.Interface{}, map[string]error{}
	}
	if i, ok := n.known[on]; ok {
		return i, n.wrong[on]
	}
	err := n.c.withNetwork(func(k *netshape.Kernel) error {
		link, err := k.Resolve(on)
		if err != nil {
			if errors.Is(err, tc.ErrNoDevice) {
				others, _ := k.Interfaces()
				err = &policy.ErrNoInterface{Err: plain(err), Others: others}
			}
			return err
		}
		if n.ways == nil {
			n.ways = n.c.waysIn(k)
		}
		n.known[on] = policy.Interface{Name: link.Name, Rate: policy.BitRate(k.Speed(link)), Up: link.Up, Control: n.ways[link.Name]}
		return nil
	})
	if err != nil {
		n.known[on], n.wrong[on] = policy.Interface{}, err
	}
	return n.known[on], err
}

// plain is an error that there is no such interface in words of the policy.
func plain(err error) error {
	if errors.Is(err, tc.ErrNoRoute) {
		return errors.New("no route leads there")
	}
	return errors.New("there is no such interface")
}

// waysIn finds the interfaces that carry a control connection: of sshd's to somebody elsewhere, or that of who calls us.
func (c *Controller) waysIn(k *netshape.Kernel) map[string]string {
	ways := map[string]string{}
	add := func(local, remote sockets.Address) {
		if local.Addr().IsLoopback() {
			return
		}
		names, _ := k.LinksFrom(local.Addr())
		for _, name := range names {
			ways[name] = "a connection of sshd with " + remote.Addr().String()
		}
	}
	if local, remote, ok := sockets.ParseSSHConnection(os.Getenv("SSH_CONNECTION")); ok {
		add(local, remote)
	}
	open, err := sockets.TCP()
	procs, err2 := c.Host.Proc.Processes(procfs.Options{})
	if err != nil || err2 != nil && !errors.Is(err2, procfs.ErrHidden) {
		return ways
	}
	held := map[uint32]bool{}
	for _, p := range procs {
		if !strings.HasPrefix(p.Comm, "sshd") && !strings.HasPrefix(filepath.Base(p.Exe), "sshd") {
			continue
		}
		inodes, _ := c.Host.Proc.SocketInodes(p.PID)
		for _, inode := range inodes {
			held[inode] = true
		}
	}
	for _, s := range open {
		if held[s.Inode] && !s.Listening {
			add(s.Local, s.Remote)
		}
	}
	return ways
}

// probeNetwork says what the kernel has of what shares need.
func (c *Controller) probeNetwork(f *host.Facts) netshape.Capabilities {
	needed := []string{netshape.HasHTB, netshape.HasIFB, netshape.HasMirred, netshape.HasProgram}
	if knob.SortsByNetCls(f) {
		needed[3] = netshape.HasNetCls
	}
	return c.net.pieces.known(time.Now(), needed, netshape.Probe)
}

// pieces is what the kernel has of what shares need. It is tried once; while a piece is missing that there is a hint for, again after a while: who
// follows the hint, `modprobe`, need not start the agent anew.
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

// observeNetwork looks at the interfaces that groups have limits on, and at those that are governed. A release that covers everything
// looks at all there are: the record may be lost.
func (c *Controller) observeNetwork(v *View, everything bool) error {
	if !c.isHere() {
		return nil
	}
	record, err := c.networkRecord(v.Facts.BootID)
	if err != nil {
		if !v.releasing {
			return err
		}
		record = state.Network{Boot: v.Facts.BootID, Slots: map[string]netshape.Slot{}, Devices: map[string]state.Interface{}}
	}
	uses := plan.UsesNetwork(v.Classified.Groups)
	if !uses && len(record.Devices) == 0 && !everything {
		return nil
	}
	n := &plan.Network{Slots: record.Slots, Was: map[string]netshape.Wanted{}, Ports: c.portsOf(v)}
	if uses {
		n.Has = c.probeNetwork(v.Facts)
	}
	n.Directories = directories(v, record)
	err = c.withNetwork(func(k *netshape.Kernel) error {
		names, err := c.devices(k, v, record, everything)
		for _, name := range names {
			if err == nil {
				err = c.observeDevice(k, v, n, record, name, everything)
			}
		}
		if err == nil {
			n.Strays, err = k.Strays()
		}
		return err
	})
	if err == nil {
		n.Sorters, n.Counters, err = netshape.Programs(n.Directories)
	}
	if err != nil {
		return fail(CodeFailed, "", "look at the network: %w", err)
	}
	v.Network = n
	return nil
}

// devices names the interfaces to look at: those of limits, those that are governed under the name that they have now, and with
// everything all there are.
func (c *Controller) devices(k *netshape.Kernel, v *View, record state.Network, everything bool) ([]string, error) {
	names := map[string]bool{}
	for _, g := range v.Classified.Groups {
		for _, s := range g.Settings {
			if s.Key.OfNetwork() && s.Dev != "" {
				names[s.Dev] = true
			}
		}
	}
	for name, d := range record.Devices {
		link, err := k.LinkByIndex(d.Index)
		switch {
		case err == nil:
			names[link.Name] = true
		case errors.Is(err, tc.ErrNoDevice):
			c.Log.Debug("a governed interface is gone", "interface", name)
		default:
			return nil, err
		}
	}
	if everything {
		all, err := k.Interfaces()
		if err != nil {
			return nil, err
		}
		for _, name := range all {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// observeDevice looks at one interface.
func (c *Controller) observeDevice(k *netshape.Kernel, v *View, n *plan.Network, record state.Network, name string, everything bool) error {
	s, err := k.Look(name, n.Directories)
	if errors.Is(err, tc.ErrNoDevice) {
		return nil // it went in this moment; the next look sees it
	}
	if err != nil {
		return err
	}
	d := plan.NetDevice{State: s, Governed: s.Governed()}
	for was, g := range record.Devices {
		if g.Index == s.Device.Index {
			d.Governed, d.Original = true, g.Original
			w := g.Wanted
			w.Device = name
			n.Was[name] = w
			if was != name {
				c.Log.Info("a governed interface has another name", "was", was, "is", name)
			}
		}
	}
	if everything && !d.Governed {
		return nil
	}
	d.Link = tc.Rate(v.Policy.Host.LinkRate(name))
	if d.Link == 0 {
		d.Link = k.Speed(s.Device.Link)
	}
	n.Devices = append(n.Devices, d)
	return nil
}

// directories are those of cgroup2 in which programs of ours may be: of our tree, and the units that had some.
func directories(v *View, record state.Network) []string {
	all := map[string]bool{}
	for _, h := range v.Facts.Hierarchies {
		if h.Version != 2 {
			continue
		}
		for d := range v.Observed.Dirs {
			if d.Hierarchy == h.ID && d.Path != "/" {
				all[path.Join(h.Mount, d.Path)] = true
			}
		}
		for _, g := range v.Classified.Groups {
			for _, d := range v.Layout.Outside(g.Path, h.ID) {
				all[path.Join(h.Mount, d.Path)] = true
			}
		}
	}
	for _, d := range record.Devices {
		for _, g := range d.Wanted.Groups {
			for _, dir := range append(slices.Clone(g.More), g.Cgroup) {
				if dir != "" {
					all[dir] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// portsOf finds the TCP ports that the groups with limits on interfaces listen on: those of their instances, else those of their members.
func (c *Controller) portsOf(v *View) map[string][]uint16 {
	ports := map[string][]uint16{}
	groups := map[int]string{} // by pid
	members := map[string][]int{}
	for _, m := range v.Members {
		groups[m.Process.PID] = m.Group
		members[m.Group] = append(members[m.Group], m.Process.PID)
	}
	add := func(group string, port int) {
		if p := uint16(port); port > 0 && port <= 65535 && !slices.Contains(ports[group], p) {
			ports[group] = append(ports[group], p)
		}
	}
	for _, inst := range v.Instances {
		if group, ok := groups[inst.Main.PID]; ok && !inst.Container {
			for _, port := range append([]int{inst.Port}, inst.Ports...) {
				add(group, port)
			}
		}
	}
	for _, g := range v.Classified.Groups {
		if !plan.UsesNetwork([]classify.Group{g}) || len(ports[g.Path]) > 0 {
			continue
		}
		found, err := c.Host.Sockets.Listeners(members[g.Path])
		if err != nil {
			c.Log.Debug("find the ports of a group", "group", g.Path, "err", err)
		}
		for _, list := range found {
			for _, l := range list {
				add(g.Path, l.Port)
			}
		}
	}
	for group := range ports {
		slices.Sort(ports[group])
	}
	return ports
}

// keepNetwork writes down what a plan is about to change of interfaces, with what was there before.
func (c *Controller) keepNetwork(v *View) error {
	if v.Network == nil || c.scratch != nil || !changesNetwork(v.Plan) {
		return nil
	}
	record, err := c.networkRecord(v.Facts.BootID)
	if err != nil {
		return err
	}
	for name, slot := range v.Plan.Slots {
		record.Slots[name] = slot
	}
	for i, w := range v.Plan.Network {
		d := v.Network.Devices[i]
		entry := record.Devices[w.Device]
		if entry.Index != d.State.Device.Index {
			entry = state.Interface{Index: d.State.Device.Index, Original: d.Original, Wanted: netshape.Wanted{Device: w.Device}}
		}
		foreign, err := d.State.Foreign(w)
		if err != nil {
			return err
		}
		entry.Original = merged(entry.Original, foreign)
		record.Devices[w.Device] = entry
	}
	return state.Save(c.Store, state.DocNetwork, record)
}

// merged is what was on an interface before us: what gives way now, beside what did before.
func merged(was, now *netshape.Foreign) *netshape.Foreign {
	switch {
	case was == nil:
		return now
	case now == nil:
		return was
	}
	both := *was
	if len(now.Egress) > 0 {
		both.Egress = now.Egress
	}
	if len(now.Ingress) > 0 {
		both.Ingress = now.Ingress
	}
	return &both
}

func changesNetwork(p plan.Plan) bool {
	return slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Op == plan.OpNetwork })
}

// settleNetwork writes down what is in force once a plan is done, and forgets interfaces that were given back.
func (c *Controller) settleNetwork(v *View, leftOut []plan.Step) error {
	if v.Network == nil || c.scratch != nil {
		return nil
	}
	if len(v.Plan.Network) < len(v.Network.Devices) {
		return nil // the plan leaves interfaces as they are: this was forced past what the kernel lacks for them
	}
	record, err := c.networkRecord(v.Facts.BootID)
	if err != nil {
		return err
	}
	before := fmt.Sprintf("%+v", record)
	held := slices.ContainsFunc(leftOut, func(s plan.Step) bool { return s.Op == plan.OpNetwork })
	next := state.Network{Boot: record.Boot, Slots: v.Plan.Slots, Devices: map[string]state.Interface{}}
	for i, w := range v.Plan.Network {
		d := v.Network.Devices[i]
		entry, known := record.Devices[w.Device]
		if !known || entry.Index != d.State.Device.Index {
			entry = state.Interface{Index: d.State.Device.Index, Original: d.Original}
		}
		if len(w.Groups) == 0 && !w.Keep && !held {
			continue
		}
		entry.Wanted = w
		entry.Wanted.Original = nil
		next.Devices[w.Device] = entry
	}
	if fmt.Sprintf("%+v", next) == before {
		return nil
	}
	return state.Save(c.Store, state.DocNetwork, next)
}

// door is how plans reach the network; it is opened when it is first needed.
type door struct {
	mu sync.Mutex
	k  *netshape.Kernel
}

func (d *door) open() (*netshape.Kernel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.k != nil {
		return d.k, nil
	}
	k, err := netshape.Open(netshape.Options{})
	d.k = k
	return k, err
}

// Do makes a change.
func (d *door) Do(c netshape.Change) error {
	k, err := d.open()
	if err != nil {
		return err
	}
	return k.Do(c)
}

// Undo takes one back.
func (d *door) Undo(c netshape.Change, undo []netshape.Change) (bool, error) {
	k, err := d.open()
	if err != nil {
		return false, err
	}
	return k.Undo(c, undo)
}

// Look looks at an interface.
func (d *door) Look(device string, cgroups []string) (netshape.State, error) {
	k, err := d.open()
	if err != nil {
		return netshape.State{}, err
	}
	return k.Look(device, cgroups)
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.k != nil {
		d.k.Close()
		d.k = nil
	}
}

// linksEvery is how often an agent looks whether interfaces came, went or have another name.
const linksEvery = time.Second

// linksChanged says whether they did, where the policy has limits on interfaces.
func (c *Controller) linksChanged(now time.Time) bool {
	v := c.memory.view
	if v == nil || !c.isHere() || !c.net.shape.due(now, linksEvery) {
		return false
	}
	if !writesNetwork(c.memory.parsed, v.Overrides) {
		c.net.shape.text = ""
		return false
	}
	var text string
	if err := c.withNetwork(func(k *netshape.Kernel) (err error) { text, err = k.Shape(); return err }); err != nil {
		c.Log.Debug("which interfaces there are could not be told", "err", err)
		return false
	}
	return c.net.shape.differs(text)
}

// writesNetwork says whether a policy has limits on interfaces, be they there now or not.
func writesNetwork(p *policy.Policy, overrides []state.Override) bool {
	is := func(key policy.Key) bool { return strings.HasPrefix(string(key), "network.") }
	limits := func(all policy.Settings) bool {
		return slices.ContainsFunc(all, func(s policy.Setting) bool { return is(s.Key) })
	}
	return len(p.Host.Network) > 0 ||
		slices.ContainsFunc(overrides, func(o state.Override) bool { return is(o.Key) }) ||
		slices.ContainsFunc(p.Groups, func(g *policy.Group) bool { return limits(g.Settings) }) ||
		slices.ContainsFunc(p.Schedules, func(s policy.Schedule) bool {
			return slices.ContainsFunc(s.Set, func(set policy.Scheduled) bool { return limits(set.Settings) })
		})
}

// closeDoor closes what a runner opened.
func closeDoor(r *apply.Runner) {
	if d, ok := r.Network.(*door); ok {
		d.close()
	}
}

package snapshot

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

	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/bpf"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// nics answers what a policy asks about interfaces; each is looked at once.
type nics struct {
	r     *Reader
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
	err := WithNetwork(func(k *netshape.Kernel) error {
		link, err := k.Resolve(on)
		if err != nil {
			if errors.Is(err, tc.ErrNoDevice) {
				others, _ := k.Interfaces()
				err = &policy.ErrNoInterface{Err: plain(err), Others: others}
			}
			return err
		}
		if n.ways == nil {
			n.ways = waysIn(n.r.Host.Proc, k)
		}
		n.known[on] = policy.Interface{
			Name: link.Name, Rate: policy.BitRate(k.Speed(link)), Up: link.Up, Control: n.ways[link.Name],
		}
		return nil
	})
	if err != nil {
		n.known[on], n.wrong[on] = policy.Interface{}, err
	}
	return n.known[on], err
}

// WithNetwork connects to the kernel's traffic control for as long as f takes.
func WithNetwork(f func(k *netshape.Kernel) error) error {
	k, err := netshape.Open(netshape.Options{})
	if err != nil {
		return err
	}
	defer k.Close()
	return f(k)
}

// plain is an error that there is no such interface in words of the policy.
func plain(err error) error {
	if errors.Is(err, tc.ErrNoRoute) {
		return errors.New("no route leads there")
	}
	return errors.New("there is no such interface")
}

// waysIn finds the interfaces that carry a control connection: of sshd's to somebody elsewhere, or that of who calls
// us.
func waysIn(proc procfs.FS, k *netshape.Kernel) map[string]string {
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
	procs, err2 := proc.Processes(procfs.Options{})
	if err != nil || err2 != nil && !errors.Is(err2, procfs.ErrHidden) {
		return ways
	}
	held := map[uint32]bool{}
	for _, p := range procs {
		if !strings.HasPrefix(p.Comm, "sshd") && !strings.HasPrefix(filepath.Base(p.Exe), "sshd") {
			continue
		}
		inodes, _ := proc.SocketInodes(p.PID)
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
func (r *Reader) probeNetwork(f *host.Facts) netshape.Capabilities {
	needed := []string{netshape.HasHTB, netshape.HasIFB, netshape.HasMirred, netshape.HasProgram}
	if knob.SortsByNetCls(f) {
		needed[3] = netshape.HasNetCls
	}
	return r.pieces.known(time.Now(), needed, netshape.Probe)
}

// observeNetwork looks at the interfaces that groups have limits on, and at those that are governed. A release that
// covers everything looks at all there are: the record may be lost.
func (r *Reader) observeNetwork(v *Snapshot, releasing, everything bool) error {
	if !r.Local {
		return nil
	}
	record, err := state.NetworkRecord(r.Store, v.Facts.BootID)
	if err != nil && !releasing {
		return err
	}
	uses := plan.UsesNetwork(v.Classified.Groups)
	if !uses && len(record.Devices) == 0 && !everything {
		return nil
	}
	n := &plan.Network{Slots: record.Slots, Was: map[string]netshape.Wanted{}, Ports: r.portsOf(v)}
	if uses {
		n.Has = r.probeNetwork(v.Facts)
	}
	n.Directories = directories(v, record)
	err = WithNetwork(func(k *netshape.Kernel) error {
		names, err := r.devices(k, v, record, everything)
		for _, name := range names {
			if err == nil {
				err = r.observeDevice(k, v, n, record, name, everything)
			}
		}
		if err == nil {
			n.Strays, err = k.Strays()
		}
		return err
	})
	if err == nil {
		n.Sorters, n.Counters, err = bpf.Programs(n.Directories)
	}
	if err != nil {
		return fmt.Errorf("look at the network: %w", err)
	}
	v.Network = n
	return nil
}

// devices names the interfaces to look at: those of limits, those that are governed under the name that they have now,
// and with everything all there are.
func (r *Reader) devices(k *netshape.Kernel, v *Snapshot, record state.Network, everything bool) ([]string, error) {
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
			r.Log.Debug("a governed interface is gone", "interface", name)
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
func (r *Reader) observeDevice(
	k *netshape.Kernel, v *Snapshot, n *plan.Network, record state.Network, name string, everything bool,
) error {
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
				r.Log.Info("a governed interface has another name", "was", was, "is", name)
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
func directories(v *Snapshot, record state.Network) []string {
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

// portsOf finds the TCP ports that the groups with limits on interfaces listen on: those of their instances, else those
// of their members.
func (r *Reader) portsOf(v *Snapshot) map[string][]uint16 {
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
		found, err := r.Host.Sockets.Listeners(members[g.Path])
		if err != nil {
			r.Log.Debug("find the ports of a group", "group", g.Path, "err", err)
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

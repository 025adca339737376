package sampling

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/hoststat"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// Kernel reads one host.
type Kernel struct {
	host    *host.Host
	watched atomic.Pointer[Watched]
	eachCPU *metrics.Reader // for cpus alone
	blame   *blame
	onNodes *metrics.Reader // for nodes alone
	zfsRuns atomic.Int32    // programs that zfs has begun
}

// New reads a host; at first no group is watched.
func New(h *host.Host) *Kernel {
	k := &Kernel{host: h, blame: newBlame(h != nil && h.Root.Live()),
		eachCPU: metrics.NewFileReader(append([]string{usageByCPU}, cpusetFiles...)...),
		onNodes: metrics.NewFileReader(memoryOnNodes, poolOnNodes[0]+"*"+poolOnNodes[1])}
	k.Watch(nil)
	return k
}

// Watch says which groups are to be sampled from now on; nil is none. It tells whether these are other groups than
// before, or have other limits.
func (k *Kernel) Watch(w *Watched) (changed bool) {
	if w == nil {
		w = &Watched{}
	}
	before := k.watched.Swap(w)
	return before != nil && before != w && !w.sameLimits(before)
}

// Begin puts into a sample what is watched.
func (k *Kernel) Begin(s *observe.Sample) {
	w := k.watched.Load()
	s.Devices, s.Host.CPUs, s.Revision = w.devices, w.cpus, w.revision
	s.Windows = w.windows
	for _, g := range w.groups {
		s.Groups = append(s.Groups, g.Group)
	}
}

// Sources gives the collectors that read the kernel.
func (k *Kernel) Sources() map[observe.Part]collect.Source {
	stat := hoststat.New(k.host.Root)
	all := map[observe.Part]collect.Source{
		observe.Pressure: both(k.groups(observe.Pressure), k.pressure), observe.Network: k.network,
		observe.EachCPU: k.cpus, observe.Databases: newDatabases().source(k),
		observe.Limits: nothing, observe.Stat: k.stat, observe.LoadAverage: k.load, observe.MemInfo: k.memory,
		observe.ZFS: k.zfs, observe.MemoryNodes: k.nodes,
		observe.Blamed:  k.blame.source(k.watched.Load),
		observe.Threads: newThreads(k.host.Root).source(k),
		observe.VMStat:  figures(stat.VirtualMemory), observe.DiskStats: figures(stat.Disks),
		observe.NetDev: figures(stat.Interfaces), observe.NetStat: figures(stat.TCP),
		observe.Files: figures(stat.Files), observe.FileSystems: figures(stat.FileSystems),
		observe.MemInfoNodes: figures(stat.Nodes),
		observe.Clock:        figures(stat.Clock), observe.Kernel: figures(stat.Kernel),
	}
	for _, p := range []observe.Part{observe.CPU, observe.IO, observe.Memory, observe.MemoryStat, observe.Tasks} {
		all[p] = k.groups(p)
	}
	return all
}

// nothing is a collector of what is in every sample.
func nothing(context.Context, *collect.Meter) (collect.Put, error) {
	return func(*observe.Sample) {}, nil
}

// both reads what two sources do.
func both(a, b collect.Source) collect.Source {
	return func(ctx context.Context, m *collect.Meter) (collect.Put, error) {
		first, err := a(ctx, m)
		if err != nil {
			return nil, err
		}
		second, err := b(ctx, m)
		return func(s *observe.Sample) { first(s); second(s) }, err
	}
}

// groups reads the files of groups that tell the fields of a collector.
func (k *Kernel) groups(p observe.Part) collect.Source {
	reader := metrics.NewReader(observe.FieldsOf(p)...)
	return func(ctx context.Context, m *collect.Meter) (collect.Put, error) {
		w := k.watched.Load()
		all := make([]metrics.Usage, len(w.groups))
		used := make(map[string]*metrics.Usage, len(w.groups))
		reader.Begin(time.Now())
		for i, g := range w.groups {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			all[i], _ = reader.Read(w.tree, g.from)
			used[g.Group.Group] = &all[i]
			m.Rest()
		}
		return func(s *observe.Sample) {
			for i := range s.Groups {
				if u := used[s.Groups[i].Group]; u != nil {
					s.Groups[i].Usage.Merge(u)
				}
			}
		}, nil
	}
}

// network reads what groups sent and received.
func (k *Kernel) network(context.Context, *collect.Meter) (collect.Put, error) {
	w := k.watched.Load()
	if w.traffic == nil {
		return func(*observe.Sample) {}, nil
	}
	counted, err := w.traffic()
	return func(s *observe.Sample) {
		for i := range s.Groups {
			if t := counted[s.Groups[i].Group]; t.Counted || len(t.On) > 0 {
				s.Groups[i].Traffic = &t
			}
		}
	}, err
}

// stat reads what the CPUs of the host did.
func (k *Kernel) stat(context.Context, *collect.Meter) (collect.Put, error) {
	a, err := k.host.Stat()
	return func(s *observe.Sample) {
		s.Host.Busy, s.Host.Idle, s.Host.Blocked = a.Busy, a.Idle, a.Blocked
		s.Host.Figures = append(s.Host.Figures,
			observe.Figure{Name: "context_switches", Value: float64(a.Switches)},
			observe.Figure{Name: "forks", Value: float64(a.Forks)},
			observe.Figure{Name: "interrupts", Value: float64(a.Interrupts)})
	}, err
}

// load reads the load average of the host.
func (k *Kernel) load(context.Context, *collect.Meter) (collect.Put, error) {
	load, err := k.host.Load()
	return func(s *observe.Sample) { s.Host.Load = load }, err
}

// memory reads what memory the host has.
func (k *Kernel) memory(context.Context, *collect.Meter) (collect.Put, error) {
	info, err := k.host.MemInfo()
	shown := observe.MemoryOf(info)
	return func(s *observe.Sample) { s.Host.Memory = shown }, err
}

// pressure reads how long the host waited.
func (k *Kernel) pressure(context.Context, *collect.Meter) (collect.Put, error) {
	all := map[string]metrics.Pressure{}
	for _, resource := range metrics.Resources {
		if p := metrics.ParsePressure(k.host.Pressure(resource)); p != (metrics.Pressure{}) {
			all[resource] = p
		}
	}
	return func(s *observe.Sample) {
		if len(all) > 0 {
			s.Host.Pressure = maps.Clone(all)
		}
	}, nil
}

// figures reads what is shown as it is read.
func figures(read func(hoststat.Tell) error) collect.Source {
	return func(context.Context, *collect.Meter) (collect.Put, error) {
		var all []observe.Figure
		err := read(func(name string, value float64, labels ...string) {
			all = append(all, observe.Figure{Name: name, Value: value, Labels: labels})
		})
		return func(s *observe.Sample) { s.Host.Figures = append(s.Host.Figures, all...) }, err
	}
}

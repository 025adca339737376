package verify

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/change"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/planner"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/resolve"
	"bulkhead/internal/probe"
)

// machine is a host whose kernel is a model, with the groups of a policy in force. Its loads get what the files of
// their groups let through.
type machine struct {
	*Snapshot
	t      *testing.T
	host   *host.Host
	kernel *cgroupfake.Kernel

	mu    sync.Mutex
	loads map[int]bool
	idle  float64 // the part of a CPU that others leave, 0 is all of it
	skew  float64 // the part of a contended CPU that the older of two loads gets whatever the weights are
	blind bool    // no weight counts
	fail  error   // of every load
}

func v1(controllers ...string) host.Hierarchy {
	id := strings.Join(controllers, ",")
	return host.Hierarchy{ID: id, Version: 1, Controllers: controllers, Mount: "/sys/fs/cgroup/" + id, Root: "/"}
}

var (
	legacy  = []host.Hierarchy{v1("blkio"), v1("cpu", "cpuacct"), v1("cpuset"), v1("memory"), v1("pids")}
	unified = []host.Hierarchy{{
		ID: procfs.UnifiedID, Version: 2, Mount: "/sys/fs/cgroup", Root: "/",
		Controllers: []string{"blkio", "cpu", "cpuset", "memory", "pids"},
	}}
)

// both runs a test on a host with cgroup v1 and on one with v2.
func both(t *testing.T, test func(t *testing.T, hierarchies []host.Hierarchy)) {
	t.Run("v1", func(t *testing.T) { test(t, legacy) })
	t.Run("v2", func(t *testing.T) { test(t, unified) })
}

// newMachine puts the groups of a policy in force, with a member in the group g.
func newMachine(t *testing.T, hierarchies []host.Hierarchy, groups string) *machine {
	t.Helper()
	f := &host.Facts{
		Kernel:   host.Version{Major: 6, Minor: 18, Text: "6.18.0"},
		MemTotal: 16 << 30, PageSize: 4096, CPUs: idset.New(0, 1), PIDMax: 32768, ThreadsMax: 120000, SysResource: true,
		HugePageSizes: []int64{2 << 20, 1 << 30},
		Nodes:         []host.Node{{CPUs: idset.New(0, 1), MemTotal: 16 << 30}},
		Hierarchies:   hierarchies,
		Devices: []blockdev.Device{
			{Number: "8:0", Name: "sda", Kind: blockdev.Disk, Disk: "8:0"},
			{Number: "8:16", Name: "sdb", Kind: blockdev.Disk, Disk: "8:16"},
		},
		Mounts: mountinfo.Mounts{{ID: 1, Dev: "8:0", Root: "/", Point: "/", Type: "ext4", Source: "/dev/sda"}},
	}
	for _, h := range hierarchies {
		for _, name := range h.Controllers {
			f.Controllers = append(f.Controllers, host.Controller{Name: name, Hierarchy: h.ID, Enabled: true})
		}
	}
	root := linuxtest.Unpack(t, linuxtest.Text(t, "debian12"))
	m := &machine{
		t: t, host: host.New(root), loads: map[int]bool{},
		kernel: cgroupfake.New(hierarchies, cgroupfake.Options{}),
	}
	m.must(os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte("MemAvailable:    8388608 kB\n"), 0o644))
	parsed, err := parse.Policy([]policy.Source{{Path: "p.yaml", Text: "version: 1\ngroups:\n" + groups}})
	m.must(err)
	resolved, problems := resolve.Policy(parsed, f)
	expanded, more := classify.Expand(resolved, nil)
	if problems = append(problems, more...); len(problems) > 0 {
		t.Fatal(problems)
	}
	layout := layout.New(f, layout.Names{}, layout.NewForest(f, resolved.Host, expanded), nil)
	m.Snapshot = &Snapshot{Facts: f, Tree: m.kernel.Tree, Layout: layout, Groups: expanded,
		Actuators: change.Actuators{cgroup.KindFile: knob.Files{}}}
	for _, d := range layout.Dirs() {
		if available, _, err := m.Tree.Subtree(d.Parent()); err == nil && len(available) > 0 {
			m.must(m.Tree.Enable(d.Parent(), available))
		}
		m.must(m.Tree.Make(d))
	}
	in := plan.Input{Facts: f, Host: resolved.Host, Classified: classify.Result{Groups: expanded}}
	m.Plan = planner.Make(in)
	for _, w := range m.Plan.Want {
		m.must(m.Tree.Write(w.File(), w.Value))
	}
	member := m.kernel.Spawn()
	m.must(m.Tree.MoveAll(member, nil, nil, slices.Collect(maps.Values(layout.Member("g")))...))
	p := procfs.Process{ID: member, Comm: "db", Cgroups: m.kernel.Membership(member.PID)}
	m.Members = []classify.Placement{{Process: p, Group: "g", By: classify.ByRule}}
	m.look()
	return m
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// look reads the files of the groups.
func (m *machine) look() {
	m.Observed.Dirs = map[cgroup.Dir]map[string]string{}
	for _, d := range m.Layout.Dirs() {
		var files []string
		for _, row := range knob.RowsFor(m.Facts) {
			switch {
			case row.HierarchyID(m.Facts) != d.Hierarchy:
			case row.PerSize:
				for _, size := range m.Facts.HugePageSizes {
					files = append(files, row.Name(policy.HugePageName(size)))
				}
			default:
				files = append(files, row.File)
			}
		}
		values, err := m.Tree.ReadMany(d, files)
		m.must(err)
		m.Observed.Dirs[d] = values
	}
}

// write changes a file of the group g: the one that this host has.
func (m *machine) write(values map[string]string, key string) {
	m.t.Helper()
	for _, d := range m.Layout.Own("g") {
		for file, value := range values {
			if text, err := m.Tree.ReadMany(d, []string{file}); err == nil && len(text) > 0 {
				m.must(m.Tree.Write(cgroup.File{Dir: d, Name: file, Key: key}, value))
			}
		}
	}
	m.look()
}

// dirs are the directories that probes made.
func (m *machine) dirs() (found []string) {
	for _, line := range strings.Split(m.kernel.Dump(), "\n") {
		if strings.Contains(line, probePrefix) {
			found = append(found, line)
		}
	}
	return found
}

// probe measures, and sees that nothing is left.
func (m *machine) probe(o Options) []Result {
	m.t.Helper()
	p := Prober{
		Host: m.host, Self: procfs.ID{PID: 4711, Start: 5}, Log: slog.New(slog.DiscardHandler), Start: m.start,
		Ways: func(netip.Addr) ([]string, error) { return []string{"lo"}, nil },
	}
	p.Sweep = func() error { return Sweeper{Tree: m.Tree, Proc: m.host.Proc, Self: p.Self}.Sweep(m.tops(), false) }
	o.Span = cmp.Or(o.Span, LeastSpan)
	all, err := p.Probe(m.t.Context(), m.Snapshot, m.Groups, m.ReadBack(m.Groups, true), o)
	m.must(err)
	for _, r := range all {
		m.t.Logf("%s, %s: asked %s, measured %s: %s %s", r.Key, r.How, r.Asked, r.Measured, r.Verdict, r.Reason)
	}
	if left := m.dirs(); len(left) > 0 || len(m.loads) > 0 {
		m.t.Errorf("a probe left directories %q and loads %v", left, m.loads)
	}
	return all
}

func (m *machine) tops() (tops []cgroup.Dir) {
	for _, h := range m.Facts.Hierarchies {
		tops = append(tops, cgroup.Dir{Hierarchy: h.ID, Path: "/"})
	}
	return tops
}

// load is a process of the model.
type load struct {
	m  *machine
	id procfs.ID
}

func (m *machine) start(context.Context, string) (Load, procfs.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.kernel.Spawn()
	m.loads[id.PID] = true
	return load{m, id}, id, m.fail
}

func (l load) Close() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.m.kernel.Exit(l.id.PID)
	delete(l.m.loads, l.id.PID)
}

func (l load) WriteBack(int) error { return nil }

// file reads the first of the files that the load's groups have.
func (l load) file(pid int, names ...string) string {
	at := l.m.kernel.Membership(pid)
	for _, name := range names {
		for _, h := range l.m.Facts.Hierarchies {
			d := cgroup.Dir{Hierarchy: h.ID, Path: at[h.ID]}
			if text, err := l.m.Tree.Read(d.File(name)); err == nil {
				return strings.TrimSpace(text)
			}
		}
	}
	return ""
}

// rate is a limit on a device in the load's group, +Inf without one.
func (l load) rate(device string, ops bool, write bool) float64 {
	number := map[string]string{"/dev/sda": "8:0", "/dev/sdb": "8:16"}[cmp.Or(device, "/dev/sda")]
	way, unit := "read", "bps"
	if write {
		way = "write"
	}
	if ops {
		unit = "iops"
	}
	for line := range strings.Lines(l.file(l.id.PID, "blkio.throttle."+way+"_"+unit+"_device")) {
		if fields := strings.Fields(line); fields[0] == number {
			return amountOf(fields[1])
		}
	}
	for line := range strings.Lines(l.file(l.id.PID, "io.max")) {
		for _, field := range strings.Fields(strings.TrimPrefix(line, number)) {
			if value, is := strings.CutPrefix(field, way[:1]+unit+"="); is && strings.HasPrefix(line, number) {
				return amountOf(value)
			}
		}
	}
	return math.Inf(1)
}

func amountOf(text string) float64 {
	if text == "max" {
		return math.Inf(1)
	}
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

// Do answers with what the kernel would let through at once.
func (l load) Do(_ context.Context, o probe.Order, _ time.Duration) (a probe.Answer, err error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	a.Took = LeastSpan
	switch {
	case o.Spin != nil && len(o.Spin.On) > 0: // beside a rival
		own, sum, older := 0.0, 0.0, true
		for pid := range l.m.loads {
			weight := amountOf(l.file(pid, "cpu.shares", "cpu.weight"))
			if l.file(pid, "cpu.idle") == "1" {
				weight = 3 * 100 / 1024.
			}
			if l.m.blind {
				weight = 1
			}
			if sum += weight; pid == l.id.PID {
				own = weight
			}
			older = older && l.id.PID <= pid
		}
		part := (1 - l.m.skew) * own / sum
		if older {
			part += l.m.skew
		}
		a.CPU = time.Duration(cmp.Or(l.m.idle, 1) * part * float64(a.Took))
	case o.Spin != nil:
		quota, period, _ := strings.Cut(l.file(l.id.PID, "cpu.max"), " ")
		quota = cmp.Or(quota, l.file(l.id.PID, "cpu.cfs_quota_us"))
		period = cmp.Or(period, l.file(l.id.PID, "cpu.cfs_period_us"))
		cores := float64(o.Spin.Threads)
		if q := amountOf(quota); q > 0 {
			cores = min(cores, q/amountOf(period))
		}
		a.CPU = time.Duration(cores * float64(a.Took))
		set, _ := idset.Parse(l.file(l.id.PID, "cpuset.cpus.effective", "cpuset.cpus"))
		a.May, a.Ran = set, set[:1]
	case o.Touch != nil:
		kind := cgroupfake.File
		if o.Touch.Hard {
			kind = cgroupfake.Anonymous
		}
		if err := l.m.kernel.Charge(l.id.PID, kind, o.Touch.Bytes); errors.Is(err, cgroupfake.ErrKilled) {
			return a, probe.ErrEnded
		}
	case o.Fork != nil:
		a.Count = int(min(float64(o.Fork.Tasks), amountOf(l.file(l.id.PID, "pids.max"))))
		a.Ops, a.Refused = int64(a.Count), a.Count < o.Fork.Tasks
	case o.Disk != nil:
		const most = 1e9
		bps, iops := l.rate(o.Disk.Device, false, o.Disk.Write), l.rate(o.Disk.Device, true, o.Disk.Write)
		bps = min(most, bps, float64(o.Disk.Size)*iops)
		a.Bytes = int64(bps * a.Took.Seconds())
		a.Ops = a.Bytes / int64(o.Disk.Size)
	case o.Dirty != nil:
		a.Bytes = o.Dirty.Bytes
	case o.Traffic != nil:
		a.Bytes, a.Local = int64(1e6*a.Took.Seconds()), "127.0.0.1:4000"
	}
	return a, l.m.fail
}

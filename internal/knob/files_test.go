package knob

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

// subject is a host whose files a test may write below one directory of each hierarchy.
type subject struct {
	tree   *cgroup.Tree
	facts  *host.Facts
	root   string // name of the directory, in each hierarchy
	device string // number of a disk
}

// steps of a group's life: each is the whole of its settings. Between each and the next every file
// changes that can, and some bounds are crossed: bursts above the next quota, limits below the last memsw.
func (s *subject) lives() []policy.Settings {
	const gib = policy.Bytes(1 << 30)
	disk := func(settings policy.Settings, read policy.Rate, write policy.IOPS) policy.Settings {
		limits := ask(policy.KeyIOReadBandwidth, read, policy.KeyIOWriteBandwidth, 2*read, policy.KeyIOReadIOPS,
			3*write, policy.KeyIOWriteIOPS, write)
		return append(settings, onDevice(limits, s.device)...)
	}
	huge := func(settings policy.Settings, pages int64) policy.Settings {
		for _, size := range s.facts.HugePageSizes {
			settings = append(settings, policy.Setting{Key: policy.KeyMemoryHuge, On: policy.HugePageName(size),
				Value: policy.Bytes(size*pages + min(pages, 1))})
		}
		return settings
	}
	all := policy.IDs{Set: s.facts.CPUs}
	one := policy.IDs{Set: s.facts.CPUs[:1]}
	last := policy.IDs{Set: s.facts.CPUs[len(s.facts.CPUs)-1:]}
	idle := policy.Flag(true)
	return []policy.Settings{
		nil,
		disk(ask(policy.KeyCPUWeight, policy.Weight(1000), policy.KeyCPULimit, policy.Cores(500_000),
			policy.KeyCPUBurst, ms(50), policy.KeyCPUCPUs, one,
			policy.KeyMemoryMax, gib, policy.KeyMemorySwap, gib, policy.KeyTasks, policy.Count(100),
			policy.KeyMemorySwappiness, policy.Count(10)), 10<<20, 500),
		huge(ask(policy.KeyCPUWeight, policy.Weight(10), policy.KeyCPUIdle, idle, policy.KeyCPULimit,
			policy.Cores(500_000), policy.KeyCPUPeriod, ms(10), policy.KeyCPUBurst, ms(1),
			policy.KeyCPUCPUs, last, policy.KeyMemoryMax, gib/4+1, policy.KeyMemorySwap, policy.Bytes(0),
			policy.KeyMemoryHigh, gib/8, policy.KeyMemoryOOM, policy.OOM("pause")), 3),
		huge(disk(ask(policy.KeyCPULimit, policy.Cores(3_000), policy.KeyCPUCPUs, all, policy.KeyMemoryMax, 8*gib,
			policy.KeyMemorySwap, 8*gib, policy.KeyMemoryNUMA, ids("0"),
			policy.KeyMemoryLow, gib, policy.KeyMemoryMin, gib/2, policy.KeyMemoryOOM, policy.OOM("kill-group"),
			policy.KeyTasks, policy.Count(8192)), 100<<20, 1<<31-1), 0),
		ask(policy.KeyCPULimit, lift, policy.KeyMemoryMax, lift, policy.KeyTasks, lift, policy.KeyCPURT,
			policy.Duration(10*time.Millisecond), policy.KeyCPUWeight, policy.Weight(1)),
		ask(policy.KeyCPULimit, policy.Cores(1_500_000), policy.KeyCPUPeriod, ms(50), policy.KeyCPUBurst, ms(75),
			policy.KeyMemoryMax, gib, policy.KeyCPUWeight, policy.Weight(10000)),
		nil,
	}
}

// file is where an instance of a row lives.
func (s *subject) file(r *Row, on string) cgroup.File {
	f := cgroup.Dir{Hierarchy: r.HierarchyID(s.facts), Path: "/" + s.root}.File(r.Name(on))
	if r.PerDevice {
		f.Key = on
	}
	return f
}

// instances are all that a row may be needed for on this host.
func (s *subject) instances(r *Row) []string {
	switch {
	case r.PerDevice:
		return []string{s.device}
	case r.PerSize:
		var sizes []string
		for _, size := range s.facts.HugePageSizes {
			sizes = append(sizes, policy.HugePageName(size))
		}
		return sizes
	default:
		return []string{""}
	}
}

// want is what a file should hold for settings; outer is the set that a v1 cpuset gets when the group
// asks for none.
func (s *subject) want(r *Row, on string, settings policy.Settings, outer map[*Row]string) (string, error) {
	value, ok, err := r.Encode(Input{Settings: settings, Facts: s.facts, On: on})
	switch {
	case err != nil:
		return "", err
	case ok:
		return value, nil
	case r.Seed || r.Inherits:
		return outer[r], nil
	default:
		return r.Default, nil
	}
}

// run leads a directory through its lives, then back to where it came from, with nothing but the rows,
// Sequence and the files.
func (s *subject) run(t *testing.T) {
	rows := map[string][]*Row{}
	outer := map[*Row]string{}
	for _, r := range RowsFor(s.facts) {
		id := r.HierarchyID(s.facts)
		if rows[id] == nil {
			s.make(t, id)
		}
		_, err := s.tree.Read(s.file(r, s.instances(r)[0]))
		if r.via == policy.ViaBFQ && errors.Is(err, cgroup.ErrNoKnob) {
			continue // it comes with the scheduler's module, which only a disk that is given it loads
		}
		if err != nil {
			t.Fatalf("RowsFor offers %s, but %v", r.File, err)
		}
		rows[id] = append(rows[id], r)
		if r.Seed || r.Inherits {
			text, err := s.tree.Read(cgroup.Dir{Hierarchy: id, Path: "/"}.File(r.File))
			if err != nil {
				t.Fatal(err)
			}
			outer[r] = r.Parse(text)
		}
	}
	for _, in := range rows {
		before := s.observe(t, in)
		for i, settings := range s.lives() {
			changes := s.changes(t, in, settings, outer)
			steps := Sequence(changes)
			start := s.observe(t, in)
			s.write(t, steps, fmt.Sprintf("life %d", i))
			for _, c := range changes {
				if got := s.read(t, c.Row, c.On); !c.Row.Same(c.To, got) {
					t.Errorf("life %d: %s holds %q, want %q", i, c.Row.Name(c.On), got, c.To)
				}
			}
			if left := Sequence(s.changes(t, in, settings, outer)); len(left) > 0 {
				t.Errorf("life %d: a second look finds %q to do", i, texts(left))
			}
			s.write(t, undo(steps), fmt.Sprintf("life %d undone", i))
			if got := s.observe(t, in); got != start {
				t.Errorf("life %d: taken back, the files hold\n%swant\n%s", i, got, start)
			}
			s.write(t, steps, fmt.Sprintf("life %d again", i))
		}
		for _, r := range in {
			if r.Default != "" && !r.Inherits {
				continue
			}
			for _, on := range s.instances(r) { // what a directory starts with, which no settings bring back
				if err := s.tree.Write(s.file(r, on), r.Parse(original(before, s.file(r, on)))); err != nil {
					t.Errorf("give back: %v", err)
				}
			}
		}
		if after := s.observe(t, in); after != before {
			t.Errorf("at the end the files hold\n%swant\n%s", after, before)
		}
	}
}

// make makes the directory, with its v2 controllers.
func (s *subject) make(t *testing.T, hierarchy string) {
	top := cgroup.Dir{Hierarchy: hierarchy, Path: "/"}
	h, _ := s.facts.Hierarchy(hierarchy)
	if h.Version == 2 {
		if err := s.tree.Enable(top, h.Controllers); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.tree.Make(top.Child(s.root)); err != nil {
		t.Fatal(err)
	}
}

func (s *subject) read(t *testing.T, r *Row, on string) string {
	text, err := s.tree.Read(s.file(r, on))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (s *subject) changes(t *testing.T, rows []*Row, settings policy.Settings, outer map[*Row]string) []Change {
	var changes []Change
	for _, r := range rows {
		for _, on := range s.instances(r) {
			to, err := s.want(r, on, settings, outer)
			if err != nil {
				t.Fatal(err)
			}
			changes = append(changes, Change{Row: r, On: on, From: r.Parse(s.read(t, r, on)), To: to})
		}
	}
	return changes
}

func (s *subject) write(t *testing.T, steps []Change, when string) {
	for _, c := range steps {
		if err := s.tree.Write(s.file(c.Row, c.On), c.To); err != nil {
			t.Fatalf("%s: %v; steps %q", when, err, texts(steps))
		}
	}
}

// observe is what the files of one hierarchy's directory hold, as the rows parse it.
func (s *subject) observe(t *testing.T, rows []*Row) string {
	text := ""
	for _, r := range rows {
		for _, on := range s.instances(r) {
			text += s.file(r, on).String() + " " + r.Parse(s.read(t, r, on)) + "\n"
		}
	}
	return text
}

// original finds a file's reading in what observe gave.
func original(observed string, f cgroup.File) string {
	return cgroup.Line(observed, f.String())
}

func TestFilesOfTheModel(t *testing.T) {
	for name, facts := range map[string]*host.Facts{
		"v1": mounted(kernel("6.12"), "cpu,cpuacct", "cpuset", "memory", "blkio", "pids", "hugetlb"),
		"v2": mounted(kernel("6.12"), "2:cpuset,cpu,blkio,memory,hugetlb,pids"), "hybrid": hybrid(),
		"centos7": centos7(),
	} {
		t.Run(name, func(t *testing.T) {
			facts.CPUs, facts.HugePageSizes = idset.Set{0, 1}, []int64{2 << 20, 1 << 30}
			k := cgroupfake.New(facts.Hierarchies, cgroupfake.Options{Kernel: facts.Kernel})
			s := subject{tree: k.Tree, facts: facts, root: "knob", device: "8:16"}
			s.run(t)
		})
	}
}

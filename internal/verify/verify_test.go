package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
)

// limits are one of each kind that is measured without a file.
const limits = `  g:
    match: [{exe: /usr/sbin/db}]
    cpu: {limit: 0.5, weight: 500, cpus: "0"}
    memory: {max: 64MiB}
    tasks: 60
    io: [{on: /dev/sdb, read: {bandwidth: 20MiB/s, iops: 600}}]
`

func TestProbeOfLimitsThatHold(t *testing.T) {
	both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
		m := newMachine(t, hierarchies, limits)
		held := map[policy.Key]bool{}
		for _, r := range m.probe(Options{}) {
			if r.Verdict.Fault() {
				t.Errorf("%s, %s: %s: %s", r.Key, r.How, r.Verdict, r.Reason)
			}
			if r.Verdict == probe.Held {
				held[r.Key] = true
			}
		}
		for _, key := range []policy.Key{
			policy.KeyCPULimit, policy.KeyCPUWeight, policy.KeyCPUCPUs, policy.KeyMemoryMax, policy.KeyTasks,
			policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS,
		} {
			if !held[key] {
				t.Errorf("%s is not held", key)
			}
		}
		for _, r := range m.probe(Options{Destructive: true}) {
			if r.How == "over the limit" && !strings.Contains(r.Reason, "killed the load") {
				t.Errorf("memory that is kept: %s: %s", r.Verdict, r.Reason)
			}
		}
	})
}

// TestProbeFindsWhatSomebodyChanged: each changed file is found by the measurement that it spoils, and by no other.
func TestProbeFindsWhatSomebodyChanged(t *testing.T) {
	for _, tt := range []struct {
		v1, v1Value, v2, v2Value string
		key                      policy.Key
		how, want                string
	}{
		{"cpu.cfs_quota_us", "-1", "cpu.max", "max", policy.KeyCPULimit, "alone", "the kernel holds unlimited"},
		{"cpu.shares", "1024", "cpu.weight", "100", policy.KeyCPUWeight, "contended", "the kernel holds"},
		{"cpuset.cpus", "0-1", "cpuset.cpus", "0-1", policy.KeyCPUCPUs, "alone", "CPU 1 is open to it, too"},
		{
			"memory.limit_in_bytes", "-1", "memory.max", "max", policy.KeyMemoryMax, "to the limit",
			"the kernel holds unlimited",
		},
		{"pids.max", "max", "pids.max", "max", policy.KeyTasks, "to the limit", "the kernel holds unlimited"},
		{"pids.max", "20", "pids.max", "20", policy.KeyTasks, "to the limit", "the kernel holds 20"},
	} {
		t.Run(string(tt.key)+" "+tt.want, func(t *testing.T) {
			both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
				m := newMachine(t, hierarchies, limits)
				m.write(map[string]string{tt.v1: tt.v1Value, tt.v2: tt.v2Value}, "")
				found := false
				for _, r := range m.probe(Options{}) {
					if r.Verdict.Fault() && r.Key != tt.key {
						t.Errorf("%s, %s, is called %s: %s", r.Key, r.How, r.Verdict, r.Reason)
					}
					found = found || r.Verdict.Fault() && r.How == tt.how && strings.Contains(r.Reason, tt.want)
				}
				if !found {
					t.Errorf("no fault in %s, %s, that says %q", tt.key, tt.how, tt.want)
				}
			})
		})
	}
}

// oneDisk has a limit on a disk alone.
const oneDisk = "  g: {match: [{exe: /usr/sbin/db}], io: [{on: /dev/sdb, read: {bandwidth: 20MiB/s}}]}\n"

// TestProbeFindsTheWrongDevice: the limit was written for another disk.
func TestProbeFindsTheWrongDevice(t *testing.T) {
	both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
		m := newMachine(t, hierarchies, oneDisk)
		m.write(map[string]string{"io.max": "rbps=max", "blkio.throttle.read_bps_device": "0"}, "8:16")
		m.write(map[string]string{"io.max": "rbps=20971520", "blkio.throttle.read_bps_device": "20971520"}, "8:0")
		if !slices.ContainsFunc(m.probe(Options{}), func(r Result) bool {
			return r.How == "direct" && r.Verdict == probe.NotEnforced &&
				strings.Contains(r.Reason, "a limit on 8:0 (sda)") && strings.Contains(r.Reason, "the wrong device")
		}) {
			t.Error("nothing says that the limit is on the wrong device")
		}
	})
}

// TestProbeOfMembersBelow: on v1 a limit on a disk holds only what is in the very directory.
func TestProbeOfMembersBelow(t *testing.T) {
	m := newMachine(t, legacy, oneDisk)
	below := m.Layout.Own("g")["blkio"].Child("below")
	m.must(m.Tree.Make(below))
	m.Members[0].Process.Cgroups["blkio"] = below.Path
	all := m.probe(Options{})
	if !slices.ContainsFunc(all, func(r Result) bool {
		return r.Verdict == probe.NotEnforced && strings.Contains(r.Reason, "its processes sit in")
	}) {
		t.Error("nothing says that the processes sit below the limit")
	}
	if !slices.ContainsFunc(all, func(r Result) bool {
		return r.Key == KeyMembers && r.Reason == fmt.Sprintf("outside: process %d (db)", m.Members[0].Process.PID)
	}) {
		t.Error("the member that is outside is not named")
	}
}

// TestProbeOfWrites: into the page cache as well as past it.
func TestProbeOfWrites(t *testing.T) {
	both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
		limits := "io: [{on: " + t.TempDir() + ", write: {bandwidth: 10MiB/s, iops: 400}}]"
		m := newMachine(t, hierarchies, "  g: {match: [{exe: /usr/sbin/db}], "+limits+"}\n")
		held := 0
		for _, r := range m.probe(Options{Inside: true}) {
			switch {
			case r.How == "direct" && r.Verdict == probe.Held:
				held++
			case r.How == "buffered" && r.Verdict != probe.NotEnforced: // the model writes back at once
				t.Errorf("writes that nothing slowed are called %s", r.Verdict)
			case r.How == "buffered" && hierarchies[0].Version == 1 && !strings.Contains(r.Reason, "buffered writes"):
				t.Errorf("v1: %s", r.Reason)
			}
		}
		if held != 2 {
			t.Errorf("%d limits on direct writes are held, want 2", held)
		}
	})
}

// TestProbeOfAWeightOfADisk: what holds weights is named when it is off.
func TestProbeOfAWeightOfADisk(t *testing.T) {
	m := newMachine(t, legacy, "  g: {match: [{exe: /usr/sbin/db}], memory: {max: 1GiB}}\n")
	p := &run{Prober: &Prober{Host: m.host}, snap: m.Snapshot}
	for via, want := range map[string]string{
		policy.ViaIOCost: "iocost is off on sda", policy.ViaBFQ: "the scheduler of sda is",
	} {
		s := policy.Setting{Key: policy.KeyIOWeight, Dev: "8:0", On: "/dev/sda", Via: via}
		if why := p.noWeight(s); !strings.Contains(why, want) {
			t.Errorf("%s: %q, want %q", via, why, want)
		}
	}
}

// TestProbeOfTraffic: inside, through the loopback interface, with a peer of its own.
func TestProbeOfTraffic(t *testing.T) {
	m := newMachine(t, unified, "  g: {match: [{exe: /usr/sbin/db}], tasks: 60}\n")
	s := policy.Setting{Key: policy.KeyNetworkEgressMax, On: "lo", Dev: "lo", Value: policy.BitRate(8e6)}
	m.Groups[0].Settings = policy.Settings{s}
	all := m.probe(Options{})
	if len(all) != 1 || !strings.Contains(all[0].Reason, "nothing on the interface holds it") {
		t.Errorf("beside the group: %+v", all)
	}
	all = m.probe(Options{Inside: true})
	if len(all) != 2 || all[0].Verdict != probe.Held || all[0].Measured != "8.0 Mbit/s" || all[0].How != "sent" {
		t.Errorf("inside: %+v", all)
	}
	m.Groups[0].Settings[0].Dev, m.Groups[0].Settings[0].On = "eth0", "eth0"
	all = m.probe(Options{Inside: true, Peer: "192.0.2.1:9"})
	if !strings.Contains(all[0].Reason, "does not lead through eth0") {
		t.Errorf("through another interface: %+v", all)
	}
	m.Groups[0].Settings[0].Dev = "eth0"
	var said Plan
	p := Prober{Host: m.host, Start: m.start, Sweep: func() error { return nil }}
	stop := errors.New("dry run")
	back := []Reading{{Group: "g", Limit: Limit{Key: s.Key, On: "eth0", OK: true}}}
	o := Options{Inside: true, Begin: func(pl Plan) error { said = pl; return stop }}
	_, err := p.Probe(t.Context(), m.Snapshot, m.Groups, back, o)
	if !errors.Is(err, stop) || len(said.Left) != 1 || !strings.Contains(said.Left[0].Why, "takes a peer beyond eth0") {
		t.Errorf("without a peer: %v, %+v", err, said)
	}
}

// TestProbeThatCannotMeasure: loads that fail, or get too little to tell, are no verdict on a limit.
func TestProbeThatCannotMeasure(t *testing.T) {
	both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
		m := newMachine(t, hierarchies, limits)
		m.idle = 0.1
		if !slices.ContainsFunc(m.probe(Options{}), func(r Result) bool {
			return r.Key == policy.KeyCPUWeight && r.Verdict == probe.NotMeasured &&
				strings.Contains(r.Reason, "too little of that CPU")
		}) {
			t.Error("a weight is judged by too little of a CPU")
		}
	})
}

// TestProbeOfAWeightThatTheHostShifts: where two loads of the same weight do not share alike, a share that is off
// proves nothing; where they do, it proves that the weight does not count.
func TestProbeOfAWeightThatTheHostShifts(t *testing.T) {
	weight := func(m *machine) (found Result) {
		for _, r := range m.probe(Options{}) {
			if r.Key == policy.KeyCPUWeight {
				found = r
			}
		}
		return found
	}
	both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
		m := newMachine(t, hierarchies, limits)
		m.skew = 0.6
		if r := weight(m); r.Verdict != probe.NotDecided || r.Measured != "90.0 %" || r.Verdict.Fault() ||
			!strings.Contains(r.Reason, "80.0 % of what the two got even beside one of the same weight") {
			t.Errorf("a host that shifts shares: %+v", r)
		}
		m.skew, m.blind = 0, true
		if r := weight(m); r.Verdict != probe.NotEnforced || r.Measured != "50.0 %" || r.Reason != whyUnknown {
			t.Errorf("a weight that does not count: %+v", r)
		}
		m.blind = false
		m.write(map[string]string{"cpu.idle": "1"}, "")
		if r := weight(m); r.Verdict != probe.NotEnforced || !strings.Contains(r.Reason, "/cpu.idle is 1") {
			t.Errorf("a group that somebody made idle: %+v", r)
		}
	})
}

// TestProbeBelowAnIdleDirectory: where two loads get too little, the directory above that makes them give way is named.
func TestProbeBelowAnIdleDirectory(t *testing.T) {
	m := newMachine(t, unified, "  g: {groups: {h: {match: [{exe: /usr/sbin/db}], cpu: {weight: 500}}}}\n")
	m.must(m.Tree.Write(m.Layout.Own("g")[procfs.UnifiedID].File("cpu.idle"), "1"))
	m.idle = 0.1
	if !slices.ContainsFunc(m.probe(Options{}), func(r Result) bool {
		return r.Key == policy.KeyCPUWeight && r.Group == "g/h" && r.Verdict == probe.NotMeasured &&
			strings.Contains(r.Reason, "g/cpu.idle is 1")
	}) {
		t.Error("the idle directory above is not named")
	}
}

func TestProbeOfBadOptions(t *testing.T) {
	m := newMachine(t, unified, limits)
	for _, span := range []time.Duration{LeastSpan - 1, MostSpan + 1} {
		if _, err := (&Prober{}).Probe(t.Context(), m.Snapshot, nil, nil, Options{Span: span}); err == nil {
			t.Errorf("a span of %s is taken", span)
		}
	}
	broken := errors.New("broken")
	p := Prober{Sweep: func() error { return broken }}
	if _, err := p.Probe(t.Context(), m.Snapshot, nil, nil, Options{}); !errors.Is(err, broken) {
		t.Errorf("what cannot be removed: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	p = Prober{Host: m.host, Start: m.start, Sweep: func() error { return nil }, Log: slog.New(slog.DiscardHandler)}
	if _, err := p.Probe(ctx, m.Snapshot, m.Groups, nil, Options{}); !errors.Is(err, broken) {
		t.Errorf("a probe that is ended: %v", err)
	}
}

// TestSweep: what is left is removed, what a living process measures in is not, unless everything has to go.
func TestSweep(t *testing.T) {
	m := newMachine(t, unified, limits)
	self := procfs.ID{PID: 4711, Start: 5}
	alive, err := m.host.Proc.Processes(procfs.Options{PIDs: []int{1}})
	m.must(err)
	dir := func(name string) cgroup.Dir { return at("/" + probePrefix + name) }
	living := dir(fmt.Sprintf("1-%d-1", alive[0].Start))
	own, gone, foreign := dir("4711-5-1"), dir("4712-6-1"), dir("x")
	for _, d := range []cgroup.Dir{living, own, gone, foreign} {
		m.must(m.Tree.Make(d))
	}
	s := Sweeper{Tree: m.Tree, Proc: m.host.Proc, Self: self}
	there := func() (left []string) {
		for _, d := range []cgroup.Dir{living, own, gone, foreign} {
			if is, err := m.Tree.Exists(d); err != nil || is {
				left = append(left, d.Path)
			}
		}
		return left
	}
	m.must(s.Sweep(m.tops(), false))
	if left := there(); !slices.Equal(left, []string{living.Path, foreign.Path}) {
		t.Errorf("left are %q", left)
	}
	m.must(s.Sweep(m.tops(), true))
	if left := there(); !slices.Equal(left, []string{foreign.Path}) {
		t.Errorf("after all were to go left are %q", left)
	}
}

func at(path string) cgroup.Dir { return cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: path} }

// TestReadBack: who wrote to a file is said, what the plan notes too, and a default that is not held is no fault.
func TestReadBack(t *testing.T) {
	m := newMachine(t, unified, limits)
	m.Conflict = func(t change.Target) string {
		return map[string]string{"pids.max": "somebody wrote it"}[path.Base(t.Addr)]
	}
	m.write(map[string]string{"pids.max": "20"}, "")
	m.Plan.Notes = []plan.Note{{Group: "g", Key: policy.KeyMemoryMax, NotEnforced: true, Text: "no controller"}}
	got := map[policy.Key]Reading{}
	for _, r := range m.ReadBack(m.Groups, true) {
		got[r.Key] = r
	}
	if r := got[policy.KeyTasks]; r.OK || r.Reason != "somebody wrote it" || r.InForce != "20 tasks" {
		t.Errorf("a file that somebody wrote: %+v", r)
	}
	if r := got[policy.KeyMemoryMax]; r.OK || r.Reason != "no controller" || r.InForce != "" {
		t.Errorf("what the plan cannot enforce: %+v", r)
	}
	if r := got[policy.KeyCPULimit]; !r.OK || r.InForce == "" || r.File != "cpu.max" {
		t.Errorf("a limit that holds: %+v", r)
	}
	if r := got[KeyMembers]; !r.OK || r.Asked != "1 inside" {
		t.Errorf("members: %+v", r)
	}
	m.Plan.Notes = []plan.Note{{Group: "g", Key: policy.KeyIOReadIOPS, Dev: "8:0", Void: true, Text: "too much"}}
	iops := policy.Setting{Key: policy.KeyIOReadIOPS, Value: policy.IOPS(6)}
	for dev, want := range map[string]bool{"8:0": true, "8:16": false} {
		if iops.Dev = dev; m.Limit("g", iops).Void != want {
			t.Errorf("a limit that is void on 8:0: on %s it is %+v", dev, m.Limit("g", iops))
		}
	}
	m.Facts.Devices = []blockdev.Device{{Number: "8:16", Name: "sdb"}}
	for dev, want := range map[string]string{"8:16": "/dev/sdb", "8:32": "8:32"} { // set without `on`
		if iops.Dev = dev; m.Limit("g", iops).On != want {
			t.Errorf("a limit on every disk: on %s it is %+v", dev, m.Limit("g", iops))
		}
	}
	delete(m.Observed.Dirs, m.Layout.Own("g")[procfs.UnifiedID])
	if l := m.Limit("g", m.Groups[0].Settings[0]); l.OK || !strings.Contains(l.Reason, "no directory") {
		t.Errorf("without its directory: %+v", l)
	}
	weight := policy.Setting{Key: policy.KeyIOWeight, Value: policy.Weight(50), From: "role helper"}
	if l := m.Limit("g", weight); l.OK || !l.Default || l.InForce != "" {
		t.Errorf("a role's weight that no disk holds: %+v", l)
	}
	score := policy.Setting{Key: policy.KeyOOMScoreAdj, Value: policy.Count(300)}
	if l := m.Limit("g", score); !l.OK || l.InForce != "no process has it yet" {
		t.Errorf("a score of nobody: %+v", l)
	}
	for n, want := range map[int]bool{300: true, 200: false} {
		m.Observed.OOMScoreAdj = map[procfs.ID]int{m.Members[0].Process.ID: n}
		if l := m.Limit("g", score); l.OK != want || l.InForce != strconv.Itoa(n) {
			t.Errorf("a score of %d: %+v", n, l)
		}
	}
}

// TestReadBackOfWhatThePlanCallsNotEnforced: a note about all limits of a group is one about each that counts over all
// of its processes; one about the host is a reading of its own.
func TestReadBackOfWhatThePlanCallsNotEnforced(t *testing.T) {
	m := newMachine(t, unified, limits)
	faults := func(root bool) (keys []string) {
		for _, r := range m.ReadBack(m.Groups, root) {
			if r.Fault() {
				keys = append(keys, strings.TrimSpace(r.Group+" "+string(r.Key)+" "+r.Reason))
			}
		}
		return keys
	}
	m.Plan.Notes = []plan.Note{
		{Group: "g", NotEnforced: true, Text: "not together"}, {Group: "g", Text: "said by the way"},
		{Group: "h", NotEnforced: true, Text: "of another group"},
		{Key: policy.KeyMemoryMax, NotEnforced: true, Text: "nothing keeps the reserve"},
		{Key: policy.KeyTasks, Text: "said by the way"},
		{Key: "host.tune.vm.swappiness", NotEnforced: true, Text: "not writable"},
	}
	ofGroup := []string{"g cpu.weight not together", "g cpu.limit not together", "g memory.max not together",
		"g tasks not together", "g io.read.bandwidth not together", "g io.read.iops not together"}
	if got := faults(false); !slices.Equal(got, ofGroup) {
		t.Errorf("without the root group: %q", got)
	}
	if got := faults(true); !slices.Equal(got, append([]string{"host.tune.vm.swappiness not writable"}, ofGroup...)) {
		t.Errorf("with the root group: %q", got)
	}
	all := m.ReadBack(m.Groups, true)
	if !slices.ContainsFunc(all, func(r Reading) bool { return r.Void && r.Reason == "nothing keeps the reserve" }) {
		t.Errorf("of the reserve nothing is said: %+v", all)
	}
	i := slices.IndexFunc(all, func(r Reading) bool { return r.Key == policy.KeyMemoryMax && r.Group == "g" })
	if all[i].InForce == "" {
		t.Errorf("what the file holds is not told: %+v", all[i])
	}
}

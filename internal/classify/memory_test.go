package classify

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"

	"pgregory.net/rapid"
)

// changing is a host whose process table changes as one does: forks, execs, exits that leave orphans, pids that are
// given again.
type changing struct {
	procs     []procfs.Process // by pid
	instances []engine.Instance
	pins      map[procfs.ID]string
	alone     map[procfs.ID]bool
	users     map[string]int
	groups    []*policy.Group
	selfPID   int
	started   uint64
	others    bool
}

var (
	testExes = []string{"/bin/a", "/bin/b", "/opt/c", "/usr/sbin/sshd", "/bin/bash", "/usr/bin/bulkhead",
		"/usr/bin/pg_dump", ""}
	testCgroups = []map[string]string{
		{"cpu": "/", "name=systemd": "/"}, {"cpu": "/s/u.service", "name=systemd": "/s/u.service"},
		{"cpu": "/docker/0123456789012345678901234567890123456789012345678901234567890123"},
		{"cpu": "/bulkhead.g0"},
	}
	testArgs = [][]string{{"a"}, {"-bash"}, {"x y", "a"}, {"bulkhead", "agent"}, {"bulkhead", "probe-load"}, nil}
)

// pick draws a process; nil when there is none.
func (w *changing) pick(t *rapid.T) *procfs.Process {
	if len(w.procs) == 0 {
		return nil
	}
	return &w.procs[rapid.IntRange(0, len(w.procs)-1).Draw(t, "which")]
}

// programs gives a process another program and user, as execve(2) of a file with the set-user-ID bit does.
func (w *changing) programs(t *rapid.T, p *procfs.Process) {
	p.Exe = rapid.SampledFrom(testExes).Draw(t, "exe")
	p.Comm = p.Exe[max(len(p.Exe)-15, 0):]
	p.Args = slices.Clone(rapid.SampledFrom(testArgs).Draw(t, "args"))
	p.UID = rapid.SampledFrom([]int{0, 1005, 102}).Draw(t, "uid")
	p.GID = rapid.SampledFrom([]int{0, 1005}).Draw(t, "gid")
}

// step changes something, and leaves the table of before as it was.
func (w *changing) step(t *rapid.T) {
	w.procs = slices.Clone(w.procs)
	p := w.pick(t)
	what := rapid.SampledFrom([]string{"fork", "fork", "fork", "exec", "exit", "zombie", "title", "user", "move",
		"parent", "container", "groups", "session", "kernel", "script", "real time", "state", "nothing", "instances",
		"members", "pins", "names", "policy", "self", "others"}).Draw(t, "what")
	if p == nil {
		what = "fork"
	}
	switch what {
	case "fork": // a pid that is free, maybe one that another process had
		child := procfs.Process{State: 'S', Threads: 1, Cgroups: testCgroups[0], Session: 1}
		if p != nil {
			child = *p
			child.PPID, child.State, child.Threads = p.PID, 'S', 1
		}
		child.PID = rapid.IntRange(1, 14).Draw(t, "pid")
		w.started++
		child.Start = w.started
		at, taken := slices.BinarySearchFunc(w.procs, child.PID,
			func(p procfs.Process, pid int) int { return p.PID - pid })
		if taken { // it was given again between two looks
			w.procs[at] = child
		} else {
			w.procs = slices.Insert(w.procs, at, child)
		}
		if p == nil || rapid.Bool().Draw(t, "and exec") {
			w.programs(t, &w.procs[at])
		}
	case "exec":
		w.programs(t, p)
	case "exit":
		gone, heir := p.PID, rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "heir")
		w.procs = slices.DeleteFunc(w.procs, func(p procfs.Process) bool { return p.PID == gone })
		if rapid.Bool().Draw(t, "seen") { // else the children were read before
			for i := range w.procs {
				if w.procs[i].PPID == gone {
					w.procs[i].PPID = heir
				}
			}
		}
	case "zombie":
		p.State, p.Args = 'Z', nil
	case "state":
		p.State, p.Threads = rapid.SampledFrom([]byte("RSD")).Draw(t, "state"), p.Threads+1
	case "title":
		p.Args = slices.Clone(rapid.SampledFrom(testArgs).Draw(t, "args"))
	case "user":
		p.UID = rapid.SampledFrom([]int{0, 1005, 102}).Draw(t, "uid")
	case "move":
		p.Cgroups = maps.Clone(rapid.SampledFrom(testCgroups).Draw(t, "cgroups"))
	case "parent":
		p.PPID = rapid.IntRange(0, 14).Draw(t, "ppid") // rings too
	case "container":
		p.ForeignNamespace = !p.ForeignNamespace
	case "groups":
		p.Groups = []int{rapid.SampledFrom([]int{7, 1005}).Draw(t, "group")}
	case "session":
		p.Session = rapid.IntRange(1, 14).Draw(t, "session")
	case "kernel":
		p.Kernel = !p.Kernel
	case "script":
		p.Script = rapid.SampledFrom([]string{"", "/opt/a", "/opt/b"}).Draw(t, "script")
	case "real time":
		p.RT = !p.RT
	case "instances":
		w.instances = nil
		for port := range rapid.IntRange(0, 3).Draw(t, "instances") {
			main := w.pick(t)
			kind := rapid.SampledFrom([]string{engine.MySQL, engine.Oracle}).Draw(t, "engine")
			w.instances = append(w.instances, engine.Instance{Engine: kind, Port: 3306 + port%2, Main: main.ID,
				Seen: rapid.Bool().Draw(t, "seen"), User: "u",
				Members: []engine.Member{{ID: main.ID, Part: engine.PartMain}}})
		}
	case "members":
		w.instances = slices.Clone(w.instances)
		for i := range w.instances {
			inst := &w.instances[i]
			inst.Members, inst.Helpers = slices.Clone(inst.Members[:1]), nil
			for range rapid.IntRange(0, 3).Draw(t, "members") {
				part := rapid.SampledFrom([]string{"supervisor", "main"}).Draw(t, "part")
				inst.Members = append(inst.Members, engine.Member{ID: w.pick(t).ID, Part: part})
			}
			for range rapid.IntRange(0, 2).Draw(t, "helpers") {
				inst.Helpers = append(inst.Helpers, engine.Helper{ID: w.pick(t).ID, Tool: "tool",
					Kind: rapid.SampledFrom([]string{engine.HelperBackup, engine.HelperListener}).Draw(t, "kind"),
					Sure: rapid.Bool().Draw(t, "sure"),
					Rate: engine.Rate{Given: rapid.SampledFrom([]string{"", "--max-rate=1M"}).Draw(t, "rate")}})
			}
		}
	case "pins":
		w.pins, w.alone = map[procfs.ID]string{}, map[procfs.ID]bool{}
		for range rapid.IntRange(0, 2).Draw(t, "pins") {
			id := w.pick(t).ID
			w.pins[id] = rapid.SampledFrom([]string{"g0", "g1", "gone"}).Draw(t, "pin")
			w.alone[id] = rapid.Bool().Draw(t, "alone")
		}
	case "names":
		w.users = map[string]int{"report": rapid.SampledFrom([]int{102, 1005}).Draw(t, "number")}
	case "policy":
		w.groups = drawGroups(t)
	case "self":
		w.selfPID = rapid.IntRange(1, 14).Draw(t, "self")
	case "others":
		w.others = !w.others
	}
}

// drawGroups makes a policy with rules of all kinds.
func drawGroups(t *rapid.T) []*policy.Group {
	groups, _ := drawWorld(t)
	more := []policy.Match{{Engine: "mysql"}, {Engine: "mysql", Part: "supervisor"}, {Helper: "backup"},
		{Engine: "oracle", Helper: "listener"}, {Unit: "u.service"}, {Cgroup: "/bulkhead.g0"}, {Env: "X=1"},
		{User: "report", Except: []policy.Match{{Ancestor: "sshd"}}}, {Cmdline: "^bulkhead"}}
	for n := range rapid.IntRange(0, 4).Draw(t, "more") {
		groups = append(groups, group(fmt.Sprint("m", n), 200+n*20, rapid.SampledFrom(more).Draw(t, "match")))
	}
	if rapid.Bool().Draw(t, "template") {
		inner := group("backup", 310, policy.Match{Helper: "backup"})
		limit := policy.Setting{Key: policy.KeyIOReadBandwidth}
		inner.Settings = policy.Settings{limit}
		groups = append(groups, &policy.Group{Name: "mysql{port}", Each: &policy.Match{Engine: "mysql"},
			Pos: policy.Pos{File: "p.yaml", Line: 300}, Groups: []*policy.Group{inner}})
	}
	return groups
}

// input is what a look at the host gives; made anew each time, as an agent's is.
func (w *changing) input() Input {
	in := input(w.procs...)
	in.Instances, in.Pins, in.Alone, in.SelfExe = w.instances, w.pins, w.alone, "/usr/bin/bulkhead"
	for _, p := range w.procs {
		if p.PID == w.selfPID {
			in.Self = p.ID
		}
	}
	users := w.users
	in.UserID = func(name string) (int, bool) { n, known := users[name]; return n, known }
	if w.others {
		in.Settled = func(p *procfs.Process) bool { return p.Cgroups["cpu"] != "/" }
	}
	return in
}

// Whatever happens on a host between two looks, what is remembered gives what a look at everything gives.
func TestMemoryGivesWhatAllAnewGives(t *testing.T) {
	kept := 0
	rapid.Check(t, func(t *rapid.T) {
		w := &changing{users: map[string]int{"report": 1005}, groups: drawGroups(t), selfPID: 3}
		for range rapid.IntRange(0, 10).Draw(t, "first") {
			w.step(t)
		}
		var m Memory
		for look := range rapid.IntRange(2, 12).Draw(t, "looks") {
			for range rapid.IntRange(0, 2).Draw(t, "changes") {
				w.step(t)
			}
			p := &policy.Policy{Groups: w.groups}
			groups, problems := Expand(p, w.instances)
			again, same := m.Expand(p, w.instances)
			if !reflect.DeepEqual(problems, same) || !reflect.DeepEqual(bare(groups), bare(again)) {
				t.Fatalf("look %d: groups differ: %v %v\n%+v\nwant\n%+v", look, same, problems, again, groups)
			}
			more := OthersGroups(policy.HostPart{}, false)
			if w.others {
				more = OthersGroups(policy.HostPart{Others: policy.Settings{{Key: policy.KeyCPUWeight}}}, false)
			}
			want, got := Classify(append(groups, more...), w.input()), m.Classify(append(again, more...), w.input())
			kept += len(w.procs) - m.anew
			want.Groups, got.Groups = bare(want.Groups), bare(got.Groups)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("look %d, %d of %d anew: got\n%s%v\nwant\n%s%v", look, m.anew, len(w.procs), outcome(got),
					got.Notes, outcome(want), want.Notes)
			}
		}
	})
	if kept == 0 {
		t.Error("nothing was ever remembered")
	}
}

// bare leaves out what the programs of a look are told apart by: who belongs to rivals, and compiled patterns.
func bare(groups []Group) []Group {
	groups = slices.Clone(groups)
	for i := range groups {
		g := &groups[i]
		g.Rules, g.Rivals = slices.Clone(g.Rules), slices.Clone(g.Rivals)
		for j := range g.Rules {
			g.Rules[j].compiled = nil
		}
		for j := range g.Rivals {
			g.Rivals[j].Members, g.Rivals[j].Helpers = nil, nil
		}
	}
	return groups
}

// Of a host that stands still but for a fork, the fork alone is held against the rules; of one whose process runs
// another program, that and what descends from it.
func TestMemoryTriesWhatIsNew(t *testing.T) {
	p, in := busyHost()
	in.Processes[0].PPID = 1 // its own parent there
	var m Memory
	look := func(what string, want int) {
		t.Helper()
		groups, problems := m.Expand(p, in.Instances)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		in.Processes = slices.Clone(in.Processes)
		m.Classify(groups, in)
		if m.anew != want {
			t.Errorf("%s: %d processes are held against the rules, want %d", what, m.anew, want)
		}
	}
	look("the first look", len(in.Processes))
	look("nothing changes", 0)
	child := in.Processes[1999]
	child.ID, child.PPID = procfs.ID{PID: 9000, Start: 1}, child.PID
	in.Processes = append(in.Processes, child)
	look("a fork", 1)
	in.Processes = slices.Clone(in.Processes)
	in.Processes[1000].Exe = "/usr/bin/other"
	look("an exec of a process with a child or two", 1+descendants(in.Processes, in.Processes[1000].PID))
	in.Pins = map[procfs.ID]string{in.Processes[7].ID: "g1"}
	look("a pin", len(in.Processes))
	look("nothing changes", 0)
	for range allAnew {
		m.Classify(m.groups, in)
	}
	if in.Processes = in.Processes[:2000]; m.calls < allAnew {
		t.Fatal("not enough looks")
	}
	look("an exit without children", 0)
}

// descendants counts those that descend from a process.
func descendants(procs []procfs.Process, pid int) (count int) {
	for _, p := range procs {
		if p.PPID == pid && p.PID != pid {
			count += 1 + descendants(procs, p.PID)
		}
	}
	return count
}

// BenchmarkLook is Expand and Classify of a host on which one process is another one each time: anew, and with what the
// look before left.
func BenchmarkLook(b *testing.B) {
	p, in := busyHost()
	in.Processes[0].PPID = 1 // its own parent there
	var m Memory
	for _, way := range []struct {
		name     string
		expand   func(*policy.Policy, []engine.Instance) ([]Group, policy.Problems)
		classify func([]Group, Input) Result
	}{{"anew", Expand, Classify}, {"remembered", m.Expand, m.Classify}} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			in.Room = 2000
			tables := [2][]procfs.Process{slices.Clone(in.Processes), slices.Clone(in.Processes)}
			for n := uint64(0); b.Loop(); n++ {
				in.Processes = tables[n%2]
				in.Processes[1999].Start = n
				groups, _ := way.expand(p, in.Instances)
				way.classify(groups, in)
			}
		})
	}
}

// Each thing that a verdict depends on counts when it alone changes.
func TestMemorySeesEachChange(t *testing.T) {
	const container = "/docker/0123456789012345678901234567890123456789012345678901234567890123"
	host := func() (in Input) {
		in = input(proc(10, "/bin/a"), proc(11, "/bin/b"), proc(12, "/usr/bin/pg_dump", "pg_dump"),
			proc(13, "/bin/self"), proc(14, "/bin/c"), proc(15, "/bin/d"), proc(16, "/bin/e"))
		in.Processes[1].PPID, in.Processes[5].UID = 10, uids["mysql"]
		in.Processes[3].Cgroups = map[string]string{"cpu": container}
		in.Processes[4].Cgroups = in.Processes[3].Cgroups
		in.Self, in.UserID = in.Processes[3].ID, lookupIn(maps.Clone(uids))
		in.Pins = map[procfs.ID]string{in.Processes[0].ID: "pins"}
		in.Instances = []engine.Instance{{Engine: engine.MySQL, Port: 3306, Main: in.Processes[5].ID,
			Members: []engine.Member{{ID: in.Processes[5].ID, Part: engine.PartMain}}}}
		return in
	}
	groups := []*policy.Group{group("pins", 10),
		group("part", 20, policy.Match{Engine: "mysql", Port: "3306", Part: "supervisor"}),
		group("port", 30, policy.Match{Engine: "mysql", Port: "3306"}),
		group("helper", 40, policy.Match{Helper: "backup"}),
		group("ids", 50, policy.Match{UnixGroup: "4711"}), group("exe", 60, policy.Match{Exe: "c"}),
		group("user", 70, policy.Match{User: "report", Exe: "/usr/bin/pg_dump", Cmdline: "x"}),
		group("name", 80, policy.Match{User: "late"})}
	p := &policy.Policy{Groups: groups}
	for what, change := range map[string]func(*Input){
		"the part of a member":         func(in *Input) { in.Instances[0].Members[0].Part = "supervisor" },
		"the port of an instance":      func(in *Input) { in.Instances[0].Port = 3307 },
		"a pin that is of one alone":   func(in *Input) { in.Alone = map[procfs.ID]bool{in.Processes[0].ID: true} },
		"a pin that goes":              func(in *Input) { in.Pins = nil },
		"a main thread that ends":      func(in *Input) { in.Processes[2].State, in.Processes[2].Threads = 'Z', 2 },
		"the last thread that ends":    func(in *Input) { in.Processes[2].State, in.Processes[2].Threads = 'Z', 1 },
		"supplementary groups":         func(in *Input) { in.Processes[6].Groups = []int{4711} },
		"the agent leaves a container": func(in *Input) { in.Processes[3].Cgroups = map[string]string{"cpu": "/"} },
		"a user that comes": func(in *Input) {
			in.UserID = lookupIn(map[string]int{"late": uids["report"]})
		},
		"another agent":      func(in *Input) { in.Self = in.Processes[4].ID },
		"a parent that goes": func(in *Input) { in.Processes = in.Processes[1:] },
	} {
		var m Memory
		before, after := host(), host()
		change(&after)
		expand := func(in Input) []Group { made, _ := m.Expand(p, in.Instances); return made }
		first := outcome(m.Classify(expand(before), before))
		want := outcome(Classify(expand(after), after))
		if got := outcome(m.Classify(expand(after), after)); got != want || want == first {
			t.Errorf("%s: before\n%sgot\n%swant\n%s", what, first, got, want)
		}
	}
}

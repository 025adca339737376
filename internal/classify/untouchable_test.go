package classify

import (
	"strings"
	"testing"

	"bulkhead/internal/classify/matchkey"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// hostProcesses are processes that are never moved, by the reason that is given.
func hostProcesses() map[string]procfs.Process {
	base := func(pid int, exe string, args ...string) procfs.Process {
		p := proc(pid, exe, args...)
		p.UID, p.GID = 0, 0
		return p
	}
	with := func(p procfs.Process, change func(*procfs.Process)) procfs.Process { change(&p); return p }
	return map[string]procfs.Process{
		"it is a kernel thread": with(base(400, "/x"), func(p *procfs.Process) { p.Kernel = true }),
		"it is PID 1":           base(1, "/sbin/init", "init"),
		"it is bulkhead itself": with(base(999, "/usr/bin/bulkhead", "bulkhead", "agent"),
			func(p *procfs.Process) { p.Start = 1 }),
		"it has exited and waits for its parent": with(base(401, "/x"), func(p *procfs.Process) { p.State = 'Z' }),
		"it is sshd":                             base(500, "/usr/sbin/sshd", "sshd: /usr/sbin/sshd -D"),
		"it is a login shell of root":            base(403, "/usr/bin/bash", "-bash"),
		"cgroup /docker/4f5e)": with(base(404, "/x", "x"),
			func(p *procfs.Process) { p.Cgroups = map[string]string{"cpu": "/", "memory": "/docker/4f5e"} }),
	}
}

func TestNeverMoved(t *testing.T) {
	// Not user: root alone, which would match PID 1 and the agent: exceptions for those two.
	m := policy.Match{User: "root", Except: []policy.Match{{Exe: "init"}, {Exe: "bulkhead"}}}
	groups := mustExpand(t, nil, group("g", 1, m))
	for reason, p := range hostProcesses() {
		result := Classify(groups, input(p))
		if p.PID == 1 || p.PID == 999 {
			if len(result.Skips) != 0 || len(result.Problems) != 0 {
				t.Errorf("%s: excepted, yet skips %v, problems %v", reason, result.Skips, result.Problems)
			}
			result = Classify(mustExpand(t, nil, group("g", 1, policy.Match{User: "root"})), input(p))
			if len(result.Problems) != 1 {
				t.Errorf("%s: problems %v", reason, result.Problems)
			}
		}
		if len(result.Placements) != 0 || len(result.Skips) != 1 || !strings.Contains(result.Skips[0].Reason, reason) ||
			result.Skips[0].Group != "g" {
			t.Errorf("%s: placements %v, skips %+v", reason, result.Placements, result.Skips)
		}
		// A pin does not move them either.
		in := input(p)
		if got := Protected(p.PID, in); !strings.Contains(got, reason) {
			t.Errorf("%s: protected since %q", reason, got)
		}
		in.Pins = map[procfs.ID]string{p.ID: "g"}
		if result := Classify(groups, in); len(result.Placements) != 0 || len(result.Skips) != 1 {
			t.Errorf("%s: pinned, placements %v, skips %+v", reason, result.Placements, result.Skips)
		}
	}
}

// What anybody can do to look like one of them does not help.
func TestNoDodge(t *testing.T) {
	with := func(p procfs.Process, change func(*procfs.Process)) procfs.Process { change(&p); return p }
	groups := mustExpand(t, nil, group("g", 1, policy.Match{User: "report"}))
	for name, p := range map[string]procfs.Process{
		"a copy called sshd":   proc(10, "/tmp/sshd", "sshd"),
		"sshd started by hand": proc(10, "/usr/sbin/sshd", "sshd", "-p", "2222"),
		"a pid namespace of its own": with(proc(10, "/usr/bin/unshare", "unshare", "-Urpf"),
			func(p *procfs.Process) { p.ForeignNamespace = true }),
		"the first thread has ended": with(proc(10, "", ""),
			func(p *procfs.Process) { p.State, p.Threads = 'Z', 2 }),
		"a login shell of somebody":     proc(10, "/usr/bin/bash", "-bash"),
		"a child of a copy called sshd": with(proc(10, "/tmp/sshd", "sshd"), func(p *procfs.Process) { p.PPID = 11 }),
	} {
		other := proc(11, "/tmp/sshd", "sshd")
		if got := placed(Classify(groups, input(p, other))); got[10] != "g" {
			t.Errorf("%s: placed %v", name, got)
		}
	}
}

// The helpers of a session run as the user who logs in; processes in a namespace of a container as anybody.
func TestProtectedByParent(t *testing.T) {
	sshd := proc(20, "/usr/sbin/sshd", "sshd: anna [priv]")
	sshd.UID = 0
	shim := proc(30, "/usr/bin/conmon", "conmon")
	shim.Cgroups = map[string]string{"memory": "/machine.slice/libpod-conmon-1.scope"}
	session, shell, boxed, child := proc(21, "/usr/sbin/sshd", "sshd: anna@pts/0"), proc(22, "/usr/bin/bash", "-bash"),
		proc(31, "/x", "x"), proc(32, "/x", "x")
	session.PPID, shell.PPID, boxed.PPID, child.PPID = 20, 21, 30, 31
	boxed.ForeignNamespace, child.ForeignNamespace = true, true
	in := input(sshd, session, shell, shim, boxed, child)
	for pid, want := range map[int]string{20: "it is sshd", 21: "it is sshd", 22: "",
		30: "cgroup /machine.slice/libpod-conmon-1.scope", 31: "another pid namespace", 32: "another pid namespace"} {
		if got := Protected(pid, in); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("process %d: %q, want %q", pid, got, want)
		}
	}
}

func TestProtected(t *testing.T) {
	in := input(proc(700, "/usr/bin/psql", "psql"))
	if got := Protected(700, in); got != "" {
		t.Errorf("psql may not be moved since %q", got)
	}
	if got := Protected(701, in); got == "" {
		t.Error("a process that is not there may be moved")
	}
}

func TestRootLoginShells(t *testing.T) {
	shell := func(uid int, parent string, args ...string) bool {
		p := proc(600, "/usr/bin/bash", args...)
		p.UID, p.PPID = uid, 601
		l := newLook(input(p, proc(601, parent, "parent")))
		return l.protected(l.byPID[600]) != ""
	}
	for _, test := range []struct {
		uid    int
		parent string
		args   []string
		want   bool
	}{
		{0, "/usr/bin/bash", []string{"-bash"}, true},
		{0, "/usr/sbin/sshd", []string{"bash", "-c", "uptime"}, true},
		{0, "/usr/lib/openssh/sshd-session", []string{"bash"}, true},
		{0, "/usr/bin/su", []string{"bash"}, true},
		{0, "/usr/bin/sudo", []string{"bash"}, true},
		{0, "/usr/bin/sudo", nil, true}, // whose arguments are not known
		{0, "/usr/bin/sudo", []string{"-bash"}, true},
		{0, "/usr/bin/su", []string{"/bin/bash", "-l", "--norc", "-i"}, true},
		{0, "/usr/bin/sudo", []string{"bash", "/opt/reports.sh"}, false},
		{0, "/usr/bin/sudo", []string{"/bin/bash", "-e", "/opt/reports.sh"}, false},
		{0, "/usr/bin/sudo", []string{"-bash", "-c", "/opt/reports.sh"}, false},
		{0, "/usr/bin/su", []string{"-bash", "-c", "/opt/reports.sh"}, false},
		{0, "/usr/sbin/runuser", []string{"bash", "-lc", "/opt/reports.sh"}, false},
		{0, "/usr/bin/sudo", []string{"bash", "--rcfile", "/root/.x"}, true},
		{0, "/usr/bin/sudo", []string{"bash", "-o", "vi", "+O", "extglob"}, true},
		{0, "/usr/bin/sudo", []string{"bash", "+x", "reports.sh"}, false},
		{0, "/usr/bin/doas", []string{"sh", "reports.sh"}, false},
		{0, "/usr/bin/login", []string{"bash", "reports.sh"}, true},
		{0, "/usr/sbin/cron", []string{"bash", "-c", "backup.sh"}, false},
		{0, "/usr/bin/bash", []string{"bash", "backup.sh"}, false},
		{1005, "/usr/bin/bash", []string{"-bash"}, false},
		{1005, "/usr/sbin/sshd", []string{"bash"}, false},
		{0, "/usr/sbin/cron", nil, false},
	} {
		if got := shell(test.uid, test.parent, test.args...); got != test.want {
			t.Errorf("uid %d %v under %s: protected %t", test.uid, test.args, test.parent, got)
		}
	}
}

// Where bulkhead itself runs in a container, its neighbours there are no strangers.
func TestOwnContainer(t *testing.T) {
	inside := func(pid int, where string) procfs.Process {
		p := proc(pid, "/usr/bin/psql", "psql")
		p.Cgroups = map[string]string{"memory": where}
		return p
	}
	self := inside(999, "/docker/own")
	self.Exe, self.UID = "/usr/bin/bulkhead", 0
	in := input(self, inside(10, "/docker/own"), inside(11, "/docker/other"))
	in.Self = self.ID
	result := Classify(mustExpand(t, nil, group("g", 1, policy.Match{Exe: "psql"})), in)
	if got := placed(result); got[10] != "g" || got[11] != "" || len(result.Skips) != 1 {
		t.Errorf("placed %v, skipped %v", got, result.Skips)
	}
}

func TestUntouchable(t *testing.T) {
	procs := []procfs.Process{proc(1, "/usr/lib/systemd/systemd", "/sbin/init"),
		proc(999, "/usr/bin/bulkhead", "bulkhead", "agent")}
	procs[1].Start = 1
	for i := range procs {
		procs[i].UID = 0
	}
	m := policy.Match{User: "root"}
	result := Classify(mustExpand(t, nil, group("all", 7, m)), input(procs...))
	if len(result.Problems) != 2 {
		t.Fatalf("problems %v", result.Problems)
	}
	for n, part := range []string{"PID 1 (systemd)", "bulkhead itself (process 999)"} {
		p := result.Problems[n]
		if !strings.Contains(p.Msg, part) || p.Pos.Line != 8 || !strings.Contains(p.Hint, "except: [{exe: ") {
			t.Errorf("problem %+v, want %q", p, part)
		}
	}
	// A reused pid of the agent is somebody else.
	procs[1].Start = 2
	if result := Classify(mustExpand(t, nil, group("all", 7, m)), input(procs...)); len(result.Problems) != 1 {
		t.Errorf("problems %v", result.Problems)
	}
}

// A rule that would match the agent is wrong before one is started, too; what only looks like bulkhead
// for a moment is no reason.
func TestUntouchableWithoutAgent(t *testing.T) {
	const exe = "/usr/local/bin/bulkhead"
	call := func(pid int, args ...string) procfs.Process {
		return proc(pid, exe, append([]string{"bulkhead"}, args...)...)
	}
	for _, test := range []struct {
		match   policy.Match
		procs   []procfs.Process
		selfExe string
		want    string
	}{
		{policy.Match{Exe: "bulkhead"}, nil, exe, "its agent, when it runs"},
		{policy.Match{User: "root"}, nil, exe, "its agent, when it runs"},
		{policy.Match{Exe: "/usr/local/bin/*"}, nil, exe, "its agent, when it runs"},
		{policy.Match{Cmdline: "agent$"}, nil, exe, "its agent, when it runs"},
		{policy.Match{User: "root", Except: []policy.Match{{Exe: "bulkhead"}}}, nil, exe, ""},
		{policy.Match{Exe: "bulkhead"}, nil, "", ""},
		{policy.Match{User: "report"}, []procfs.Process{call(10, "--policy=x", "agent")}, exe,
			"bulkhead itself (process 10)"},
		{policy.Match{User: "report"}, []procfs.Process{call(10, "--policy", "x", "--socket", "y", "agent")}, exe,
			"bulkhead itself (process 10)"},
		{policy.Match{User: "report"}, []procfs.Process{call(10, "check", "agent")}, exe, ""},
		{policy.Match{Cmdline: "mariabackup"}, []procfs.Process{call(10, "run", "-g", "bk", "--", "mariabackup")}, exe,
			""},
		{policy.Match{Cmdline: "agent"}, []procfs.Process{proc(10, "/bin/other", "other", "agent")}, "", ""},
	} {
		in := input(test.procs...)
		in.SelfExe = test.selfExe
		problems := Classify(mustExpand(t, nil, group("g", 1, test.match)), in).Problems
		if (test.want == "") != (len(problems) == 0) || test.want != "" && !strings.Contains(problems[0].Msg,
			test.want) {
			t.Errorf("{%s}: problems %v, want %q", matchkey.Text(&test.match), problems, test.want)
		}
	}
}

// A load of a probe is where the probe has put it, whatever rules say.
func TestLoadsOfProbesStay(t *testing.T) {
	const exe = "/usr/local/bin/bulkhead"
	in := input(proc(10, exe, "bulkhead", "--state", "/s", "probe-load"), proc(11, "/bin/other", "other", "probe-load"))
	in.SelfExe = exe
	result := Classify(mustExpand(t, nil, group("g", 1, policy.Match{Cmdline: "probe-load"})), in)
	if len(result.Placements) != 1 || result.Placements[0].Process.PID != 11 || !strings.Contains(Protected(10, in),
		"verify --probe") {
		t.Errorf("placed: %+v; %q", result.Placements, Protected(10, in))
	}
}

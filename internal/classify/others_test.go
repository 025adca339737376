package classify

import (
	"fmt"
	"slices"
	"testing"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// What matches no rule is placed by session, each in a group of its own; whom the design protects, who hands out logins
// and who is in a group already stay.
func TestOthers(t *testing.T) {
	process := func(pid, ppid, session, uid int, exe string, change ...func(*procfs.Process)) procfs.Process {
		p := procfs.Process{ID: procfs.ID{PID: pid, Start: uint64(pid)}, PPID: ppid, Session: session,
			UID: uid, State: 'S', Exe: exe,
			Comm: exe, Args: []string{exe}, Threads: 1, Cgroups: map[string]string{"cpu": "/"}}
		for _, do := range change {
			do(&p)
		}
		return p
	}
	in := Input{
		Processes: []procfs.Process{
			process(1, 0, 1, 0, "/sbin/init"),
			process(2, 0, 0, 0, "", func(p *procfs.Process) { p.Kernel = true }),
			process(10, 1, 10, 0, "/usr/sbin/sshd"),
			process(11, 10, 11, 0, "/usr/sbin/sshd"),
			process(12, 11, 12, 0, "/bin/bash"),    // root's login shell
			process(13, 12, 12, 0, "/usr/bin/tar"), // what it runs
			process(14, 11, 14, 1000, "/bin/bash"), // a user's
			process(15, 14, 14, 1000, "/usr/bin/hog"),
			process(16, 1, 16, 1000, "/usr/bin/hog"),
			process(20, 1, 20, 0, "/sbin/agetty"),
			process(21, 1, 21, 1000, "/home/u/agetty"), // by name alone
			process(22, 1, 22, 0, "/usr/sbin/cron"),
			process(30, 1, 30, 999, "/usr/sbin/mysqld"),
			process(31, 30, 30, 999, "/bin/sh",
				func(p *procfs.Process) { p.Cgroups = map[string]string{"cpu": "/bulkhead.app"} }),
			process(40, 1, 40, 0, "/usr/bin/rt", func(p *procfs.Process) { p.RT = true }),
			process(41, 1, 41, 0, "/usr/bin/bulkhead"),
		},
		SelfExe: "/usr/bin/bulkhead",
		Settled: func(p *procfs.Process) bool { return p.Cgroups["cpu"] != "/" },
	}
	groups, problems := Expand(&policy.Policy{Groups: []*policy.Group{{Name: "app", Path: "app",
		Match: []policy.Match{{Exe: "mysqld"}}}}}, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	others := policy.HostPart{Others: policy.Settings{{Key: policy.KeyCPUWeight}}}
	groups = append(groups, OthersGroups(others, false)...)
	r := Classify(groups, in)
	var got []string
	for _, p := range r.Placements {
		got = append(got, fmt.Sprintf("%d %s", p.Process.PID, p.Group))
	}
	want := []string{"13 others/12", "14 others/14",
		"15 others/14", "16 others/16", "21 others/21", "22 others/22", "30 app"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	var made []string
	for _, g := range r.Groups {
		made = append(made, fmt.Sprintf("%s<%s %t", g.Path, g.Parent, g.Inner))
	}
	if want := "[app< false others< true others/12<others false others/14<others false others/16<others false " +
		"others/21<others false others/22<others false]"; fmt.Sprint(made) != want {
		t.Errorf("groups %s\nwant   %s", made, want)
	}
	in.Settled = nil
	if r := Classify(groups, in); len(r.Placements) != 1 {
		t.Errorf("not asked for: %+v", r.Placements)
	}
	// A storm of sessions makes no storm of groups.
	in.Processes, in.Settled = nil, func(*procfs.Process) bool { return false }
	for i := range 2 * maxSessions {
		in.Processes = append(in.Processes, process(100+i, 1, 100+i, 1000, "/usr/bin/hog"))
	}
	if r := Classify(groups, in); len(r.Placements) != 2*maxSessions || len(r.Groups) != 3+maxSessions {
		t.Errorf("a storm: %d placements in %d groups", len(r.Placements), len(r.Groups))
	}
}

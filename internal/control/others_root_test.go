//go:build root

package control

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/testhost"
)

const othersVariable = "BULKHEAD_TEST_OTHERS"

// On a kernel: what matches no rule is gathered by session, a new session comes in with the next look, one that ended
// leaves no group behind, and everybody goes back with a release. It runs in a pid namespace of its own, so that nobody
// else's processes are there to be gathered.
func TestOthersAreGathered(t *testing.T) {
	testhost.RequireRoot(t)
	if os.Getenv(othersVariable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOthersAreGathered$", "-test.v")
		cmd.Env = append(os.Environ(), othersVariable+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS,
			Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if os.Getpid() != 1 {
		t.Fatal("this is no pid namespace of its own")
	}
	for _, err := range []error{
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s := newSite(t)
	cpu := s.of("cpu")
	cgroups := func(id procfs.ID) map[string]string {
		procs, err := s.Host.Proc.Processes(procfs.Options{PIDs: []int{id.PID}})
		if err != nil || len(procs) != 1 {
			t.Fatalf("process %d: %v", id.PID, err)
		}
		return procs[0].Cgroups
	}
	where := func(id procfs.ID) string { return cgroups(id)[cpu.ID] }
	own := func(id procfs.ID) string { return path.Join("/", s.root, classify.Others, fmt.Sprint(id.PID)) }
	db := testhost.Spawn(t, "sleep", "907")
	one, two := testhost.Spawn(t, "sleep", "600"), testhost.Spawn(t, "sleep", "600")
	before := where(one)
	sources := func(host string) []policy.Source {
		return []policy.Source{{Path: "test.yaml", Text: "version: 1\nhost: {root: " + s.root + host + "}\n" +
			"groups:\n  app: {role: database, match: [{cmdline: '^sleep 907$'}]}\n"}}
	}
	reply := s.must(api.Request{Verb: "apply", Sources: sources(", others: {weight: 10}")})
	if !strings.Contains(fmt.Sprint(reply.Plan.Notes), "host.others gathers 2 processes of 2 sessions") {
		t.Errorf("plan does not say whom it gathers: %+v", reply.Plan.Notes)
	}
	if where(db) != "/"+s.root+"/app" || where(one) != own(one) || where(two) != own(two) || own(one) == own(two) {
		t.Fatalf("the database is in %s, the others in %s and %s", where(db), where(one), where(two))
	}
	s.Agent = s.Self
	look := func() {
		t.Helper()
		procs, err := s.Host.Proc.Processes(procfs.Options{})
		if err == nil {
			_, err = s.Look(t.Context(), reconcile.LookOptions{Processes: procs, Changed: true, Full: true})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	look()
	// The short way, as events lead to it: back into a group that is there, and a whole look for a session that is new.
	swift := func(id procfs.ID) reconcile.FastPathResult {
		t.Helper()
		if sieve := s.Prefilter(); !sieve.Concerns(id.PID) {
			t.Errorf("process %d, which is to be gathered, concerns nobody", id.PID)
		}
		procs, err := s.Host.Proc.Processes(procfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		find := func(pid int) (procfs.Process, bool) {
			i := slices.IndexFunc(procs, func(p procfs.Process) bool { return p.PID == pid })
			return procs[max(i, 0)], i >= 0
		}
		fresh, _ := find(id.PID)
		dir, err := s.Host.Proc.OpenProc(id.PID)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		return s.FastPath([]procfs.Process{fresh}, procfs.Held{dir}, nil, find)
	}
	if s.Prefilter().Concerns(two.PID) {
		t.Error("a process in the group of its session is read again and again")
	}
	for h, dir := range cgroups(one) { // out of all, also of a cgroup2 that counts how long it waits
		if dir == own(one) {
			if err := testhost.Tree(t).Move(cgroup.Dir{Hierarchy: h, Path: before}, one); err != nil {
				t.Fatal(err)
			}
		}
	}
	if done := swift(one); len(done.Moved) != 1 || where(one) != own(one) {
		t.Errorf("the short way: %+v, and it is in %s", done, where(one))
	}
	three := testhost.Spawn(t, "sleep", "600")
	if done := swift(three); !done.Look || len(done.Moved) > 0 {
		t.Errorf("the short way for a new session: %+v", done)
	}
	testhost.Kill(t, two)
	look()
	if where(three) != own(three) {
		t.Errorf("a new session is in %s", where(three))
	}
	testhost.WaitFor(t, "an end of the group of a session that ended", func() bool {
		look()
		_, err := os.Stat(path.Join(cpu.Mount, own(two)))
		return os.IsNotExist(err)
	})
	s.must(api.Request{Verb: "apply", Sources: sources("")})
	if where(one) != before || where(three) != before || where(db) != "/"+s.root+"/app" {
		t.Errorf("no longer asked for, they are in %s and %s, the database in %s", where(one), where(three), where(db))
	}
	s.must(api.Request{Verb: "apply", Sources: sources(", others: {idle: true}")})
	if where(one) != own(one) {
		t.Errorf("asked for again, it is in %s", where(one))
	}
	s.must(api.Request{Verb: "release", All: true})
	if where(one) != before || where(three) != before || where(db) != before {
		t.Errorf("released, they are in %s, %s and %s, and were in %s", where(one), where(three), where(db), before)
	}
}

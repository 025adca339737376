//go:build root

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/testhost"
)

// logins starts login shells one after the other, in no group, and gives how long each took, sorted.
func logins(t *testing.T, n int) []time.Duration {
	t.Helper()
	took, home := make([]time.Duration, n), t.TempDir()
	for i := range took {
		cmd := exec.Command("bash", "-l", "-c", "exit 7")
		cmd.Env = []string{"HOME=" + home,
			// What is in somebody's own profile counts for nothing.
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		begun := time.Now()
		if out, err := cmd.CombinedOutput(); err == nil || err.Error() != "exit status 7" {
			t.Fatalf("a login shell: %v\n%s", err, out)
		}
		took[i] = time.Since(begun)
		time.Sleep(50 * time.Millisecond)
	}
	slices.Sort(took)
	return took
}

// members are the processes below the site's root group, in any hierarchy.
func (s *site) members(facts *host.Facts) map[int]bool {
	s.t.Helper()
	found := map[int]bool{}
	for _, h := range facts.Hierarchies {
		top := filepath.Join(h.Mount, s.root)
		_ = filepath.WalkDir(top, func(dir string, _ os.DirEntry, _ error) error {
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // only of a directory, which may go meanwhile
			for _, pid := range strings.Fields(string(text)) {
				if n, err := strconv.Atoi(pid); err == nil {
					found[n] = true
				}
			}
			return nil
		})
	}
	return found
}

// A fork bomb, a hog of memory, busy loops and a disk that is kept busy, each in a group without limits of its own:
// what host.reserve sets aside is enough for a new login shell, which starts within a second, and for memory and tasks
// of everybody else.
func TestReserveUnderSiege(t *testing.T) {
	s := newSite(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	const leaves = 400 << 20 // to the groups: the rest of this machine is not the test's
	bash, dd := testhost.Program(t, "bash", "/bin/bash", "/usr/bin/bash"),
		testhost.Program(t, "coreutils", "/bin/dd", "/usr/bin/dd")
	policy := fmt.Sprintf("version: 1\nhost: {root: %s, reserve: {cpu: 0.5, memory: %dMiB}}\n", s.root,
		(facts.MemTotal-leaves)>>20) +
		"groups:\n  bomb: {role: batch, tasks: 600}\n  hog: {role: batch}\n  busy: {role: batch}\n  disk: {role: " +
		"batch}\n"
	if err := os.WriteFile(s.policy, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must("apply")
	calm := logins(t, 15)

	// What is started in a group is a process group, which ends by itself should this test be killed.
	timeout := testhost.Program(t, "coreutils", "/usr/bin/timeout")
	begin := func(group, script string) {
		cmd := s.command("run", group, "--", timeout, "-s", "KILL", "90", bash, "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Wait() })
	}
	// Registered last and so done first: nobody is left in the groups.
	defer func() {
		testhost.WaitLong(t, time.Minute, "everybody in the groups to be gone", func() bool {
			all := s.members(facts)
			for pid := range all {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			return len(all) == 0
		})
		s.must("release", "--all")
	}()
	many := func(n int, loop string) string {
		return fmt.Sprintf("for i in $(seq %d); do while :; do %s; done 2>/dev/null & done; wait", n, loop)
	}
	file := filepath.Join(s.dir, "busy.disk")
	begin("disk", many(2, dd+" if=/dev/zero of="+file+".$i bs=1M count=64 oflag=direct conv=notrunc"))
	begin("hog", many(1, "head -c 8G /dev/zero | tail -c 8G >/dev/null"))
	begin("bomb", many(8,
		"sleep 60 & /bin/true")) // bash tries a refused fork again, some seconds later; the others fork on
	bomb := func() int { return s.group("bomb").Tasks.Total }
	testhost.WaitLong(t, time.Minute, "the bomb to fill its group", func() bool { return bomb() > 550 })
	testhost.WaitLong(t, time.Minute, "the hog to meet its limit", func() bool { return s.rootEvents(facts) > 0 })
	begin("busy", many(4*runtime.NumCPU(), ":"))
	testhost.WaitLong(t, time.Minute, "the busy loops to begin",
		func() bool { return s.group("busy").Tasks.Total > runtime.NumCPU() })

	under := logins(t, 15)
	t.Logf("login shells: calm median %s, slowest %s; under siege median %s, slowest %s", calm[7], calm[14], under[7],
		under[14])
	limit := time.Second
	// An emulated CPU, on which a shell takes forty times as long: then its share is what can be told.
	if calm[7] > 100*time.Millisecond {
		limit = 10 * calm[7]
	}
	if under[14] >= limit {
		t.Errorf("a login shell took %s under siege, and may take %s", under[14], limit)
	}
	if got := s.group("bomb").Tasks.Total; got > 600 {
		t.Errorf("the bomb has %d tasks", got)
	}
	if used := s.rootMemory(facts); used > leaves+leaves/20 {
		t.Errorf("the groups hold %d MiB, and host.reserve leaves them %d", used>>20, leaves>>20)
	}
}

// rootFile reads a file of the site's root group where the memory controller is; v1's name, or v2's.
func (s *site) rootFile(facts *host.Facts, v1, v2 string) string {
	s.t.Helper()
	for _, h := range facts.Hierarchies {
		if !h.Has("memory") {
			continue
		}
		name := v1
		if h.Version == 2 {
			name = v2
		}
		text, err := s.tree.Read(cgroup.File{Dir: cgroup.Dir{Hierarchy: h.ID, Path: "/" + s.root}, Name: name})
		if err != nil {
			s.t.Fatal(err)
		}
		return text
	}
	s.t.Fatal("no hierarchy has the memory controller")
	return ""
}

// rootMemory is what the groups hold together, bytes.
func (s *site) rootMemory(facts *host.Facts) int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(s.rootFile(facts, "memory.usage_in_bytes", "memory.current")), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// rootEvents is how often the groups together met their limit of memory.
func (s *site) rootEvents(facts *host.Facts) int64 {
	s.t.Helper()
	text := s.rootFile(facts, "memory.failcnt", "memory.events")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if n, err := strconv.ParseInt(strings.TrimPrefix(line, "max "), 10, 64); err == nil {
			return n
		}
	}
	return 0
}

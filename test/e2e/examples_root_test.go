//go:build root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/examples"
	"bulkhead/internal/host"
	"bulkhead/internal/testhost"
)

// shipped writes the groups of an example, with what a test has in the place of its names.
func (s *site) shipped(name string, replace ...string) {
	s.t.Helper()
	text, err := examples.Policies.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	_, groups, _ := strings.Cut(string(text), "groups:\n")
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(groups, replace[i]) {
			s.t.Fatalf("%s has no %q", name, replace[i])
		}
	}
	// The stand-ins are a part of the unit that the test runs in, where it runs in one.
	const take = "from_unit: true"
	groups = strings.NewReplacer("role: database,", take+", role: database,", "role: database\n",
		take+"\n    role: database\n", "sessions:\n", "sessions:\n        "+take+"\n").Replace(groups)
	s.write("groups:\n" + strings.NewReplacer(replace...).Replace(groups))
}

// named copies a shell, to run under the name of a server, and gives the path of the copy.
func named(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile("/usr/bin/bash")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

const stays = "while :; do sleep 1000; done"

// The example of Oracle, on programs of those names and on two loop devices with ASM's headers: sessions and parallel
// queries read within the limit, and the log writer is not in their group.
func TestExampleOfOracle(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sid := "EX" + strconv.Itoa(os.Getpid())
	var disks []string
	for range 2 {
		disk, _ := asmDisk(t, sid)
		disks = append(disks, filepath.Base(disk))
	}
	oracle := named(t, filepath.Join(t.TempDir(), "product/19.3.0/dbhome_1/bin"), "oracle")
	limited := map[string]bool{"ora_pmon_" + sid: false, "ora_lgwr_" + sid: false, "ora_p000_" + sid: true,
		"oracle" + sid + " (LOCAL=NO)": true}
	pids := map[string]int{}
	for process := range limited {
		pids[process] = testhost.SpawnAs(t, process, oracle, "-c", stays).PID
	}
	before := s.snapshot()
	s.shipped("oracle.yaml", "each: {engine: oracle}", "each: {engine: oracle, sid: "+sid+"}", "asm:DATA", "asm:"+sid)
	s.exits(0, nil, "check")
	s.exits(0, []string{"oracle-" + sid, "io.read.bandwidth"}, "plan")
	s.must("apply")
	s.verified()
	group := "oracle-" + sid
	s.exits(9, []string{"1/2 of 400MB/s, on " + disks[0], "1/2 of 400MB/s, on " + disks[1], "no agent is running"},
		"verify", group+"/sessions")
	members := map[string][]int{}
	for _, name := range []string{group, group + "/sessions"} {
		for _, m := range s.group(name).Members {
			members[name] = append(members[name], m.PID)
		}
	}
	for process, pid := range pids {
		want := group
		if limited[process] {
			want += "/sessions"
		}
		if !slices.Contains(members[want], pid) {
			t.Errorf("%s is not in %s: %v", process, want, members)
		}
	}
	s.must("release", "--all")
	s.same("after a release", before)
}

// The example of NUMA nodes, on a machine that has two: servers are on the CPUs and in the memory of their node.
func TestExampleOfNodes(t *testing.T) {
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	if len(facts.Nodes) < 2 {
		if os.Getenv("BULKHEAD_LAB") != "" {
			t.Fatal("a machine of the lab has two nodes")
		}
		t.Skip("this machine has one NUMA node")
	}
	s := newSite(t)
	mysqld := named(t, t.TempDir(), "mysqld")
	pids := map[int]int{}
	var replace []string
	for port := 3306; port <= 3309; port++ {
		free := testhost.FreePort(t)
		replace = append(replace, strconv.Itoa(port), strconv.Itoa(free))
		pids[free] = testhost.SpawnAs(t, mysqld, mysqld, "-c", stays, "mysqld", "--port="+strconv.Itoa(free),
			"--datadir="+t.TempDir()).PID
	}
	before := s.snapshot()
	s.shipped("numa.yaml", replace...)
	s.exits(0, nil, "check")
	s.exits(0, []string{"memory.high"}, "plan")
	s.must("apply")
	if r := s.run("verify"); r.code != 0 && r.code != 4 && r.code != 9 { // cgroup v1 has no file for memory.high
		t.Fatalf("verify: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	for i := 0; i < len(replace); i += 2 {
		port, _ := strconv.Atoi(replace[i+1])
		node, _ := facts.Node(i / 4)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pids[port]))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Cpus_allowed_list:\t" + node.CPUs.String() + "\n",
			"Mems_allowed_list:\t" + strconv.Itoa(node.ID) + "\n"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("the server on port %s lacks %q", replace[i], want)
			}
		}
	}
	s.must("release", "--all")
	s.same("after a release", before)
}

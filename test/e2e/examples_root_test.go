//go:build root

package e2e

import (
	"fmt"
	"maps"
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
	for range 2 {
		asmDisk(t, sid)
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
	sessions := "oracle-" + sid + "/sessions"
	if limits := s.readLimits(sessions); len(limits) != 2 || sum(limits) != 400_000_000 {
		t.Errorf("limits: %v", limits)
	}
	for process, pid := range pids {
		in := slices.Collect(maps.Values(s.inside(pid)))
		inside := slices.ContainsFunc(in, func(dir string) bool { return strings.HasSuffix(dir, "/sessions") })
		if len(in) == 0 || inside != limited[process] {
			t.Errorf("%s is in %q", process, in)
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
	s.verified()
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

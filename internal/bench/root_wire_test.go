//go:build root

package bench

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/peer"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/scenario"
)

// peersLeft are groups of a peer that are still there.
func peersLeft(t *testing.T) (groups []string) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/" + peer.Prefix + "*", "/sys/fs/cgroup/*/" + peer.Prefix + "*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, found...)
	}
	return groups
}

// A run in a peer's arm takes that one's groups away when it is interrupted; when it is killed, the next one does.
func TestPeerInterruptedRoot(t *testing.T) {
	needRoot(t)
	onlyLong(t)
	program := buildProgram(t)
	dir := workArea(t)
	const arm = "by libcgroup" // of io-iops
	first := startBench(t, program, "io-iops", dir)
	first.await(t, arm)
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = first.end(t)
	nothingLeft(t, dir)
	if groups := peersLeft(t); len(groups) > 0 {
		t.Errorf("left behind: %q", groups)
	}
	second := startBench(t, program, "io-iops", dir)
	second.await(t, arm)
	for len(peersLeft(t)) == 0 {
		select {
		case _, running := <-second.seen:
			if !running {
				t.Fatal("it ended without a group of its peer")
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := second.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = second.end(t)
	third := startBench(t, program, "io-iops", dir)
	third.await(t, "filling")
	if groups := peersLeft(t); len(groups) > 0 {
		t.Errorf("after a kill and the next start there are %q", groups)
	}
	if err := third.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = third.end(t)
	nothingLeft(t, dir)
}

// Both ends of a wire are in namespaces of the run alone, which are gone with it.
func TestWireRoot(t *testing.T) {
	needRoot(t)
	paths, err := process.Find(iproute2)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{fitted: fitted{scenario: &scenario.Scenario{Wire: true}}, paths: paths}
	if err := r.makeSupervisors(); err != nil {
		t.Fatal(err)
	}
	defer r.closeSupervisors()
	if err := r.layWire(t.Context()); err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{own: true}
	for name, n := range map[string]*process.Supervisor{load.NearNIC: r.supervisor, load.FarNIC: r.far} {
		var out bytes.Buffer
		if err := n.Run(t.Context(), process.Spec{Args: []string{"sh", "-c",
			"readlink /proc/self/ns/net; ip -oneline link"}, Stdout: &out}); err != nil {
			t.Fatal(err)
		}
		namespace, links, _ := strings.Cut(out.String(), "\n")
		if seen[namespace] {
			t.Errorf("%s is in namespace %s, which somebody else has", name, namespace)
		}
		seen[namespace] = true
		if !strings.Contains(links, name) || strings.Count(links, "\n") != 2 {
			t.Errorf("links of %s:\n%s", name, links)
		}
	}
	d := &load.Driver{Supervisor: r.supervisor, Far: r.far, Port: load.FirstPort}
	o, err := load.Heartbeat.Native(t.Context(), d, 200*time.Millisecond, func(float64) {})
	if err != nil || o.Transactions != 4 {
		t.Errorf("%d beats over the wire, %v", o.Transactions, err)
	}
	if _, err := net.InterfaceByName(load.NearNIC); err == nil {
		t.Error("the wire is among the machine's interfaces")
	}
}

// A run on a wire that is killed takes its namespaces with it; its groups go with the next one.
func TestWireKilledRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	dir := workArea(t)
	first := startBench(t, program, "network-egress", dir)
	first.await(t, "under the policy")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if groups, _, _ := left(t, dir); len(groups) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no group is there while the policy is applied")
		}
	}
	inside := namespaces(t, fmt.Sprintf("/proc/%d/task/*/ns/net", first.cmd.Process.Pid))
	if own := namespaces(t, "/proc/self/ns/net"); len(inside) != 3 || !inside[slices.Collect(maps.Keys(own))[0]] {
		t.Errorf("the run is in namespaces %v, want two beside ours %v", inside, own)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.end(t)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		still := 0
		for name := range namespaces(t, "/proc/[0-9]*/ns/net") {
			if inside[name] {
				still++
			}
		}
		if still == 1 { // ours
			break
		}
		if time.Now().After(end) {
			t.Fatalf("somebody is still in a namespace of the killed run")
		}
	}
	second := startBench(t, program, "network-egress", dir)
	second.await(t, "filling")
	if groups, entries, _ := left(t, dir); len(groups) > 0 || len(entries) != 1 {
		t.Errorf("the second run left the first one's groups in %q, files %q", groups, entries)
	}
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = second.end(t)
	nothingLeft(t, dir)
}

// A database answers over the wire, and a policy takes the place of what a peer's commands made there and gives it
// back: what undoes these fails where one of them is not there.
func TestPolicyInPlaceOfAPeersRoot(t *testing.T) {
	needRoot(t)
	onlyLong(t)
	program := buildProgram(t)
	dir := workArea(t)
	r := startProgram(t, dir, exec.Command(program, "bench", "network-database", "--smoke", "--dir", dir))
	if err := r.end(t); err != nil || !strings.Contains(r.all.String(), "in place of the document's commands") {
		t.Errorf("%v\n%s", err, r.all)
	}
	nothingLeft(t, dir)
}

// namespaces are those that links in /proc name.
func namespaces(t *testing.T, pattern string) map[string]bool {
	t.Helper()
	links, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, l := range links {
		if name, err := os.Readlink(l); err == nil { // else it has ended
			found[name] = true
		}
	}
	return found
}

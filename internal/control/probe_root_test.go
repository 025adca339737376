//go:build root

package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
	"bulkhead/internal/verify"
)

// init makes this binary a load, or a program that probes and is killed over it.
func init() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case "be-a-load":
		if len(os.Args) == 5 { // STATE --enter GROUP
			c, err := transaction.Open(transaction.Options{State: os.Args[2]})
			if err == nil {
				into := Entry{Group: os.Args[4], By: "test", Command: "probe"}
				err = errors.Join(Enter(context.Background(), c, into), c.Close())
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		if err := probe.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "be-a-prober":
		c, err := transaction.Open(transaction.Options{State: os.Args[2], Probe: []string{"be-a-load", os.Args[2]}})
		if err == nil {
			_, err = inspect.Probe(context.Background(), c,
				verify.Options{Span: verify.MostSpan,
					Begin: func(verify.Plan) error { fmt.Println("begun"); return nil }})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// probeSite is a site that can probe.
func probeSite(t *testing.T) *site {
	s := newSite(t)
	s.Controller.Probe = []string{"be-a-load", s.state}
	return s
}

// probed measures, with short spans, and sees that nothing is left behind.
func (s *site) probed(o verify.Options) []verify.Result {
	s.t.Helper()
	if o.Span == 0 {
		o.Span = 700 * time.Millisecond
	}
	all, err := inspect.Probe(s.t.Context(), s.Reconciler.Controller, o)
	if err != nil {
		s.t.Fatalf("probe: %v", err)
	}
	for _, r := range all {
		s.t.Logf("%s %s %s, %s: asked %s, measured %s: %s %s", r.Group, r.Key, r.On, r.How, r.Asked, r.Measured,
			r.Verdict, r.Reason)
	}
	if left := s.probeDirs(); len(left) > 0 {
		s.t.Errorf("a probe left %v", left)
	}
	return all
}

// probeDirs are the directories of probes below the site's root.
func (s *site) probeDirs() (found []cgroup.Dir) {
	s.t.Helper()
	tree := testhost.Tree(s.t)
	for _, h := range tree.Hierarchies() {
		dirs, err := tree.Walk(cgroup.Dir{Hierarchy: h.ID, Path: "/" + s.root})
		if err != nil && !errors.Is(err, cgroup.ErrGone) {
			s.t.Fatal(err)
		}
		for _, d := range dirs {
			if _, ours := verify.Maker(d.Path); ours {
				found = append(found, d)
			}
		}
	}
	return found
}

// faulty fails the test unless a probe finds a fault in a limit, measured in that way, for a reason with these words;
// and none elsewhere.
func (s *site) faulty(all []verify.Result, key policy.Key, how, reason string) {
	s.t.Helper()
	found := false
	for _, r := range all {
		if !r.Verdict.Fault() {
			continue
		}
		if r.Key != key && r.Key != verify.KeyMembers { // one who is outside makes a difference of its own
			s.t.Errorf("%s, %s, is called %s beside what was planted: %s", r.Key, r.How, r.Verdict, r.Reason)
		}
		found = found || r.Key == key && r.How == how && strings.Contains(r.Reason, reason)
	}
	if !found {
		s.t.Errorf("no fault in %s, %s, that says %q", key, how, reason)
	}
}

// healthy is a policy of limits that hold, on this machine with cgroup v1 too: direct and buffered reads, not buffered
// writes.
func healthy(mark, dev string) string {
	return fmt.Sprintf(`groups:
  g:
    match: [{cmdline: '%s'}]
    cpu: {limit: 0.4, weight: 500, cpus: "0"}
    memory: {max: 64MiB}
    tasks: 60
    io: [{on: %s, read: {bandwidth: 20MiB/s, iops: 600}}]
`, mark, dev)
}

// TestProbeFindsNothingOnAHealthyHost: PROBES times in a row.
func TestProbeFindsNothingOnAHealthyHost(t *testing.T) {
	s := probeSite(t)
	dev, _ := testhost.LoopDevice(t, 64<<20)
	_, mark := marked(t, 70201)
	s.apply(healthy(mark, dev))
	rounds, err := strconv.Atoi(os.Getenv("PROBES"))
	if err != nil {
		rounds = 2
	}
	for i := range rounds {
		measured := 0
		for _, r := range s.probed(verify.Options{}) {
			if r.Verdict.Fault() {
				t.Errorf("round %d: %s, %s: asked %s, measured %s: %s: %s", i+1, r.Key, r.How, r.Asked, r.Measured,
					r.Verdict, r.Reason)
			}
			if r.Verdict == probe.Held || r.Verdict == probe.NotReached {
				measured++
			}
		}
		least := 5 // of 9: others may leave too little of a CPU, or a disk, for some
		if os.Getenv("BULKHEAD_LAB") == "1" {
			least = 1
		}
		if measured < least {
			t.Errorf("round %d: only %d measurements", i+1, measured)
		}
	}
}

// TestProbeSaysFirst: what will be done is said before it is, and a dry run does nothing.
func TestProbeSaysFirst(t *testing.T) {
	s := probeSite(t)
	dev, _ := testhost.LoopDevice(t, 64<<20)
	_, mark := marked(t, 70202)
	s.apply(healthy(mark, dev))
	dry := errors.New("dry")
	var said verify.Plan
	_, err := inspect.Probe(t.Context(), s.Reconciler.Controller,
		verify.Options{Begin: func(pl verify.Plan) error { said = pl; return dry }})
	if !errors.Is(err, dry) {
		t.Fatalf("a dry run ended with %v", err)
	}
	keys := map[policy.Key]bool{}
	for _, l := range said.Loads {
		keys[l.Key] = true
		if strings.HasPrefix(string(l.Key), "io.") && (l.Device != dev || l.Bytes == 0) {
			t.Errorf("%s: on %q, with %d bytes", l.Key, l.Device, l.Bytes)
		}
	}
	for _, key := range []policy.Key{policy.KeyCPULimit, policy.KeyCPUWeight, policy.KeyMemoryMax, policy.KeyTasks,
		policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS} {
		if !keys[key] {
			t.Errorf("nothing is said of %s", key)
		}
	}
	if said.Takes < 5*time.Second || said.Takes > time.Minute || said.Bytes < 20<<20 || said.Bytes > 1<<30 {
		t.Errorf("it says %v and %d bytes", said.Takes, said.Bytes)
	}
	if left := s.probeDirs(); len(left) > 0 {
		t.Errorf("a dry run left %v", left)
	}
}

// TestProbeBesideOutermostGroupsIsSwept: without a root group a probe of a process that is gone left its directories at
// the top of each hierarchy.
func TestProbeBesideOutermostGroupsIsSwept(t *testing.T) {
	s := newSite(t)
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	tree := testhost.Tree(t)
	var left []cgroup.Dir
	for _, h := range tree.Hierarchies() {
		d := cgroup.Dir{Hierarchy: h.ID, Path: fmt.Sprintf("/.probe-%d-1-1", gone.Process.Pid)}
		if err := tree.Make(d); err != nil {
			t.Fatal(err)
		}
		left = append(left, d)
		t.Cleanup(func() { _ = tree.Remove(d) })
	}
	inspect.SweepBeforeChange(s.Reconciler.Controller, "apply")
	for _, d := range left {
		if there, err := tree.Exists(d); err != nil || there {
			t.Errorf("%s is left: %v", d, err)
		}
	}
}

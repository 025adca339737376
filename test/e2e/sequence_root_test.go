//go:build root

package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/testhost"
)

// Whatever comes after whatever on the real kernel: applies, sets that end, changes that wait to be confirmed, agents
// that are killed, verbs that are killed at any step; a release gives the host back as it was. SEQUENCES says how many
// there are, SEED which (the log names it).
func TestAnySequenceOnTheRealKernel(t *testing.T) {
	t.Parallel()
	testhost.RequireRoot(t)
	count, err := strconv.Atoi(cmp.Or(os.Getenv("SEQUENCES"), "3"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), fmt.Sprint(time.Now().UnixNano())), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		seed := first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			anySequence(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func anySequence(t *testing.T, r *rand.Rand) {
	s := newSite(t)
	a, ruleA := marked(t, 600)
	b, ruleB := marked(t, 601)
	policies := []string{
		"groups:\n  a: {match: [{cmdline: '" + ruleA + "'}], cpu: {limit: 1}}\n",
		"groups:\n  a: {match: [{cmdline: '" + ruleA + "'}], cpu: {limit: 0.5}, tasks: 50}\n  b: {match: [{cmdline: '" +
			ruleB + "'}], memory: {max: 512MiB}}\n",
	}
	before := testhost.Snapshot(t, s.tree, s.root, a, b)
	var agent *background
	kill := func() {
		if agent != nil {
			_ = agent.Process.Kill()
			<-agent.done
			agent = nil
		}
	}
	defer kill()
	allowed := []int{0, 1, 2, 3, 5,
		6} // refused, nothing to do, killed over it: whatever it is, it is checked at the end
	run := func(args ...string) {
		t.Log(strings.Join(args, " "))
		cmd := s.command(args...)
		if step := r.IntN(12); step < 6 {
			cmd.Env = append(os.Environ(), fmt.Sprintf("BULKHEAD_TEST_CRASH=kill %d", step))
			t.Logf("killed after step %d", step+1)
		}
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "goroutine ") {
			t.Fatalf("bulkhead %q panicked:\n%s", args, out)
		}
		if code := cmd.ProcessState.ExitCode(); err != nil && code >= 0 && !slices.Contains(allowed, code) {
			t.Fatalf("bulkhead %q: exit code %d\n%s", args, code, out)
		}
	}
	wait := func() []string {
		return [][]string{nil, nil, {"--confirm-within", "1s"}, {"--confirm-within", "1h"}}[r.IntN(4)]
	}
	for range 8 + r.IntN(8) {
		switch r.IntN(10) {
		case 0, 1, 2:
			s.write(policies[r.IntN(len(policies))])
			run(append([]string{"apply"}, wait()...)...)
		case 3:
			run(append([]string{"set", fmt.Sprintf("a:cpu.limit=0.%d", 1+r.IntN(9)), "--for", "1s"}, wait()...)...)
		case 4:
			run(append([]string{"set", fmt.Sprintf("a:tasks=%d", 20+r.IntN(9))}, wait()...)...)
		case 5:
			run("confirm")
		case 6:
			run("rollback")
		case 7:
			kill()
			agent = s.agent()
		case 8:
			kill()
		case 9:
			time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
		}
	}
	kill()
	s.must("release", "--all")
	if after := testhost.Snapshot(t, s.tree, s.root, a, b); after != before {
		t.Errorf("after release:\n%s\nbefore:\n%s\n%s", after, before, s.must("history"))
	}
	// A watchdog of what is no more on trial changes nothing.
	time.Sleep(1500 * time.Millisecond)
	if after := testhost.Snapshot(t, s.tree, s.root, a, b); after != before {
		t.Errorf("a while after release:\n%s\nbefore:\n%s\n%s", after, before, s.must("history"))
	}
}

//go:build root

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/testhost"
)

// queueOf is what the queue of a device shows.
func queueOf(t *testing.T, number string) string {
	t.Helper()
	var all []string
	for _, name := range []string{blockdev.QueueScheduler, blockdev.QueueWriteBack} {
		text, err := blockdev.Queues{Block: host.New("/").Block}.Read(t.Context(), number+"/"+name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, name+" "+text)
	}
	return strings.Join(all, ", ")
}

// contend lets two groups read a device at the same time and gives how much of what both get through the first one
// gets.
func (s *site) contend(device, first, second string) float64 {
	s.t.Helper()
	rates := make([]float64, 2)
	done := make(chan bool)
	for i, group := range []string{first, second} {
		g := testhost.DirectReader(s.t, device)
		s.must("move", group, strconv.Itoa(g.ID.PID))
		go func() {
			rates[i] = g.Sequential(3 * time.Second).Bytes
			done <- true
		}()
	}
	<-done
	<-done
	s.t.Logf("%s reads %.0f bytes a second, %s %.0f", first, rates[0], second, rates[1])
	return rates[0] / (rates[0] + rates[1])
}

// onSystemd says whether systemd owns the tree.
func onSystemd(t *testing.T) bool {
	t.Helper()
	f, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	return f.Systemd
}

// weigh applies weights on a device, holds them to what two groups get of it at the same time, and a release to the
// disk as it was.
func (s *site) weigh(t *testing.T, device, number, hostPart, says string, atLeast float64) {
	t.Helper()
	before, queue := s.snapshot(), queueOf(t, number)
	s.write(fmt.Sprintf(`groups:
  heavy:
    match: [{cmdline: 'matches nothing at all here'}]
    io: [{on: %[1]s, weight: 1000}]
  light:
    match: [{cmdline: 'matches nothing here either'}]
    io: [{on: %[1]s, weight: 50}]
`, device))
	if hostPart != "" {
		text, err := os.ReadFile(s.policy)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.policy, []byte(strings.Replace(string(text), "host: {", "host: {"+hostPart+", ", 1)),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.run("release", "--all") })
	if plan := s.exits(0, nil, "plan", "--long"); !strings.Contains(strings.Join(strings.Fields(plan.out+plan.err),
		" "), says) {
		t.Errorf("the plan does not say %q:\n%s%s", says, plan.out, plan.err)
	}
	s.must("apply")
	s.exits(0, nil, "plan", "--exit-code")
	if onSystemd(t) {
		do(t, "systemctl", "daemon-reload")
	}
	s.verified()
	// A weight tells only while both wait for the disk, which a machine that is busy otherwise does not let them do all
	// the time.
	const tries = 5
	share := 0.0
	for try := 0; try < tries && share < atLeast; try++ {
		share = max(share, s.contend(device, "heavy", "light"))
	}
	if share < atLeast {
		t.Errorf("a group of weight 1000 beside one of 50 gets %.2f of what both do, want %.2f", share, atLeast)
	}
	s.must("release", "--all")
	s.same("after a release", before)
	if now := queueOf(t, number); now != queue {
		t.Errorf("after a release the queue is %q, was %q", now, queue)
	}
}

// A weight on a disk goes by BFQ where the kernel has it: it becomes the disk's scheduler, and with the release of
// everything the disk has its own again, and the aim of the kernel's write-back throttling.
func TestWeightByBFQ(t *testing.T) {
	f, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	if !f.BFQ {
		t.Skip("this kernel has no BFQ")
	}
	s := newSite(t)
	loop, number := testhost.LoopDevice(t, 128<<20)
	s.weigh(t, loop, number, "", "BFQ becomes its scheduler in place of", 0.8)
}

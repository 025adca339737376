//go:build root

package e2e

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// asmDisk makes a loop device with a header as a disk of ASM has it, over a file in memory. It is made after published
// listings: no ASM has ever seen it.
func asmDisk(t *testing.T, group string) (dev string, detach func()) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bulkhead-test-asm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "disk")
	header := make([]byte, 64<<20)
	header[2] = 1
	copy(header[32:], "ORCLDISK")
	header[32+0x27] = 3
	copy(header[32+0x48:], group)
	if err := os.WriteFile(file, header, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v\n%s", err, out)
	}
	dev = strings.TrimSpace(string(out))
	gone := false
	detach = func() {
		if !gone {
			if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
				t.Errorf("losetup --detach %s: %v\n%s", dev, err, out)
			}
			gone = true
		}
	}
	t.Cleanup(detach)
	return dev, detach
}

// readLimits are the limits on reading of a group, by device.
func (s *site) readLimits(group string) map[string]int64 {
	s.t.Helper()
	f, err := host.New("/").Facts()
	if err != nil {
		s.t.Fatal(err)
	}
	limits := map[string]int64{}
	for _, row := range knob.RowsFor(f) {
		if !row.Budget() || !slices.Contains(row.Keys, policy.KeyIOReadBandwidth) {
			continue
		}
		dirs := []string{group}
		for _, dir := range dirs {
			text, err := s.tree.Read(cgroup.File{Dir: s.at(row.HierarchyID(f), dir), Name: row.File})
			if err != nil {
				s.t.Fatal(err)
			}
			for _, dev := range row.Devices(text) {
				if n, limited := row.Amount(policy.KeyIOReadBandwidth, text, dev); limited {
					limits[dev] = n
				}
			}
		}
	}
	return limits
}

func sum(limits map[string]int64) (total int64) {
	for _, n := range limits {
		total += n
	}
	return total
}

// A limit of 50 MB/s on a disk group of four disks is 12,500,000 on each and of five 10,000,000, two seconds after the
// fifth has come, with no more than 50 MB/s on the way; and again four when it goes. Shared by use it follows what is
// read, and a release takes it all away.
func TestLimitFollowsDisksAndUse(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const limit = 50_000_000
	group := "BH" + strconv.Itoa(os.Getpid())
	var disks []string
	for range 4 {
		dev, _ := asmDisk(t, group)
		disks = append(disks, dev)
	}
	before := s.snapshot()
	write := func(split string) {
		s.write(fmt.Sprintf("groups:\n  load:\n    match: [{cmdline: 'matches nothing at all here'}]\n    io: [{on: "+
			"'asm:%s', read: {bandwidth: 50MB/s}, split: %s}]\n", group, split))
	}
	write("even")
	s.exits(0, []string{"the ASM disk group", "is on 4 devices"}, "plan", "--long")
	s.must("apply")
	each := func(n int, part int64) bool {
		got := s.readLimits("load")
		return len(got) == n && !slices.ContainsFunc(slices.Collect(maps.Values(got)),
			func(v int64) bool { return v != part })
	}
	if !each(4, 12_500_000) {
		t.Fatalf("over four disks: %v", s.readLimits("load"))
	}

	agent := s.start("agent", "--every", "100ms", "--full", "10m") // no full look but for what it notices
	soon(t, "the agent's first look", func() bool {
		return s.run("status").code == 0 &&
			strings.Contains(s.must("status"), "agent")
	})
	time.Sleep(1500 * time.Millisecond) // it has seen which disks there are, which shows nowhere
	follow := func(what string, n int, part int64, change func()) {
		t.Helper()
		change()
		begun := time.Now()
		for !each(n, part) {
			if total := sum(s.readLimits("load")); total > limit {
				t.Errorf("%s: the limits add up to %d on the way", what, total)
			}
			if time.Since(begun) > 20*time.Second {
				t.Fatalf("%s: still %v\n%s", what, s.readLimits("load"), agent.said())
			}
		}
		took := time.Since(begun)
		t.Logf("%s: shared anew within %s", what, took.Round(10*time.Millisecond))
		if took > 2*time.Second {
			t.Errorf("%s: only after %s", what, took)
		}
	}
	var detach func()
	follow("a fifth disk", 5, 10_000_000, func() { _, detach = asmDisk(t, group) })
	follow("four again", 4, 12_500_000, func() { detach() })

	write("by-use")
	s.must("apply")
	if got := s.readLimits("load"); sum(got) > limit || len(got) != 4 {
		t.Fatalf("by use begins with %v", got)
	}
	reader := s.start("run", "load", "--", "sh", "-c",
		"while :; do dd if="+disks[2]+" of=/dev/null bs=1M iflag=direct 2>/dev/null; done")
	number := numberOf(t, disks[2])
	begun := time.Now()
	for s.readLimits("load")[number] < 35_000_000 {
		got := s.readLimits("load")
		if sum(got) > limit {
			t.Fatalf("the limits add up to more than %d: %v", limit, got)
		}
		if time.Since(begun) > 60*time.Second {
			t.Fatalf("%v after a minute\n%s", got, agent.said())
		}
		time.Sleep(20 * time.Millisecond)
	}
	soon(t, "the rest of the new parts", func() bool { return sum(s.readLimits("load")) > limit*98/100 })
	got := s.readLimits("load")
	t.Logf("after %s: %v", time.Since(begun).Round(time.Second), got)
	for dev, n := range got {
		if n < limit/16 {
			t.Errorf("%s has %d, less than a quarter of an even part", dev, n)
		}
	}
	s.exits(0, nil, "plan", "--exit-code")
	s.exits(0, []string{"by use, of 50MB/s"}, "verify", "load", "--json")
	if history := s.must("history"); strings.Contains(history, "look") && strings.Count(history, "apply") != 2 {
		t.Errorf("history:\n%s", history)
	}
	_ = reader.Process.Kill()
	<-reader.done
	s.must("release", "--all")
	s.same("after a release", before)
}

// numberOf is the number of a block device.
func numberOf(t *testing.T, dev string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(dev), "dev"))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(text))
}

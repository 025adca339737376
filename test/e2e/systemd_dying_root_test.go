//go:build root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// A disk that stops answering, and one that dies, under load: every look of the agent goes on, the limits on it and on
// the other disk stay in force, and status says in a few seconds which path does not answer, or cannot be read.
func TestDiskThatDiesUnderLoad(t *testing.T) {
	needLab(t, "TestDiskThatDiesUnderLoad")
	const name = "bulkheadtest-dying"
	s := newSite(t)
	sectors := do(t, "blockdev", "--getsz", spareOne)
	do(t, "dmsetup", "create", name, "--table", "0 "+sectors+" linear "+spareOne+" 0")
	later(t, "wipefs", "-q", "-a", spareOne)
	later(t, "dmsetup", "remove", name)
	do(t, "mkfs.ext4", "-q", "/dev/mapper/"+name)
	dying := mounted(t, "/dev/mapper/"+name, "ext4", "")
	asked := filepath.Join(dying, "asked")
	if err := os.Mkdir(asked, 0o755); err != nil {
		t.Fatal(err)
	}
	const well = "/mnt/md0"
	files := []string{filepath.Join(dying, "bulkhead-test-file"), filepath.Join(well, "bulkhead-test-file")}
	t.Cleanup(func() { _ = os.Remove(files[1]) })
	for _, f := range files {
		do(t, "dd", "if=/dev/zero", "of="+f, "bs=1M", "count=24", "conv=fsync")
	}
	s.write(fmt.Sprintf("groups:\n  load:\n    match: [{cmdline: 'matches nothing at all here'}]\n    io: [{on: %s, "+
		"write: {bandwidth: 4MiB/s}}, {on: %s, write: {bandwidth: 4MiB/s}}]\n", asked, well))
	s.must("apply")
	t.Cleanup(func() { s.run("release", "--all") })
	agent := s.agent()
	var loads []*background
	for _, f := range files {
		b := s.start("run", "load", "--", "sh", "-c",
			"while :; do dd if=/dev/zero of="+f+" bs=256k count=96 oflag=direct conv=notrunc,nocreat || sleep 1; done")
		loads = append(loads, b)
		t.Cleanup(func() { _ = b.Process.Kill() })
	}
	soon(t, "the loads to be inside", func() bool {
		return !slices.ContainsFunc(loads, func(b *background) bool {
			return !strings.Contains(where(t,
				b.Process.Pid)[procfs.UnifiedID], "load")
		})
	})
	at := s.groupDir("load", loads[1].Process.Pid)
	limits := func() string {
		text, err := s.tree.Read(at.File("io.max"))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	want := limits()
	if strings.Count(want, "wbps=4194304") != 2 {
		t.Fatalf("limits are\n%s", want)
	}
	writtenTo := func(dev string) int64 { return s.did(at, []string{dev}).WrittenBytes }
	md := numberOf(t, "/dev/md0")

	// goOn holds the host to everything while the disk is as it is: looks go on, the other disk is written at its rate,
	// status answers.
	goOn := func(what, words string) {
		t.Helper()
		begun := time.Now()
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s: %+v\n%s", what, s.status().Problems, agent.said())
			}
		})
		soon(t, what+" to be said", func() bool {
			do(t, "timeout", "10", "sh", "-c",
				"echo 3 >/proc/sys/vm/drop_caches") // what a look finds in memory needs no disk
			asking := time.Now()
			st := s.status()
			if took := time.Since(asking); took > 15*time.Second { // in emulation; the wait for a disk is 2 s of it
				t.Errorf("%s: status took %s", what, took)
			}
			return strings.Contains(st.Agent.Error, words) &&
				slices.ContainsFunc(st.Problems, func(p policy.Problem) bool { return strings.Contains(p.Msg, asked) })
		})
		t.Logf("%s: status says so after %s", what, time.Since(begun).Round(100*time.Millisecond))
		looks, wrote, since := s.status().Agent.Looks, writtenTo(md), time.Now()
		time.Sleep(6 * time.Second)
		rate := float64(writtenTo(md)-wrote) / time.Since(since).Seconds()
		more := s.status().Agent.Looks - looks
		t.Logf("%s: %d looks in %s, the other disk is written at %.0f bytes a second", what, more,
			time.Since(since).Round(time.Second), rate)
		if more < 2 {
			t.Errorf("%s: only %d looks\n%s", what, more, agent.said())
		}
		if rate > 4<<20*1.1 || rate < 4<<20*0.5 {
			t.Errorf("%s: the other disk is written at %.0f bytes a second", what, rate)
		}
		if now := limits(); now != want {
			t.Errorf("%s: limits are\n%s\nwere\n%s", what, now, want)
		}
	}
	time.Sleep(2 * time.Second)
	do(t, "sync", "-f", dying) // what is not on the disk yet would stay in memory
	do(t, "dmsetup", "suspend", "--nolockfs", "--noflush", name)
	resumed := false
	t.Cleanup(func() {
		if !resumed {
			do(t, "dmsetup", "resume", name)
		}
	})
	goOn("a disk that does not answer", "has not answered")
	do(t, "dmsetup", "resume", name)
	resumed = true
	soon(t, "a look without a complaint", func() bool {
		st := s.status()
		return st.Agent.Error == "" &&
			len(st.Problems) == 0
	})
	s.verified("load")

	do(t, "dmsetup", "suspend", "--nolockfs", "--noflush", name)
	do(t, "dmsetup", "load", name, "--table", "0 "+sectors+" error")
	do(t, "dmsetup", "resume", name)
	goOn("a disk that gives errors", "input/output error")
	for _, b := range loads {
		_ = b.Process.Kill()
		<-b.done
	}
	s.must("release", "--all")
}

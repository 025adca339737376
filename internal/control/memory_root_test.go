//go:build root

package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/inspect"
	"bulkhead/internal/metrics"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/state"
	"bulkhead/internal/testhost"
)

// uncached makes a file whose pages no group is charged with yet.
func uncached(t testing.TB, bytes int64) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "bulkhead-test") // on a disk, also where /tmp is in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	name := filepath.Join(dir, "data")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for range bytes >> 20 {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return name
}

// memoryOf is what a group of the site is charged with.
func (s *site) memoryOf(group string) metrics.Memory {
	s.t.Helper()
	u, err := metrics.Read(testhost.Tree(s.t), s.at(s.of("memory").ID, group))
	if err != nil || u.Memory.Current == nil || u.Memory.OOMKills == nil {
		s.t.Fatalf("memory of %s: %+v, %v", group, u.Memory, err)
	}
	return u.Memory
}

// reclaiming is a policy with a time for memory to fall, and a group of 400 MiB without swap.
func (s *site) reclaiming(within string) string {
	swap := ""
	if f, err := s.Host.Facts(); err != nil || f.SwapTotal > 0 {
		swap = ", swap: 0"
	}
	return fmt.Sprintf("version: 1\nhost: {root: %s, reclaim: %s}\ngroups:\n  g: {match: [{exe: /nonexistent/x}], "+
		"memory: {max: 400MiB%s}}\n", s.root, within, swap)
}

// TestMemoryIsLoweredUnderLoad: a group that holds 100 MiB and reads a file larger than its limit again and again is
// lowered from 400 MiB to 220 MiB without an OOM kill; to 60 MiB it is refused, also when forced, in the time it has,
// and nothing is half done.
func TestMemoryIsLoweredUnderLoad(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	file := uncached(t, 500<<20)
	sources := s.sources("")
	sources[0].Text = s.reclaiming("4s")
	s.must(api.Request{Verb: "apply", Sources: sources})
	holder := testhost.HoldMemory(t)
	reader := testhost.Spawn(t, "sh", "-c", "while :; do cat '"+file+"' >/dev/null; done")
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{holder.ID.PID, reader.PID}, Tree: true})
	if !holder.Touch(100 << 20) {
		t.Fatal("the holder was killed before anything was lowered")
	}
	end := time.Now().Add(90 * time.Second)
	for ; *s.memoryOf("g").Current < 390<<20; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("only %d bytes in use", *s.memoryOf("g").Current)
		}
	}
	kills := *s.memoryOf("g").OOMKills

	begun := time.Now()
	s.must(api.Request{Verb: "set", Assign: []string{"g:memory.max=220MiB"}})
	t.Logf("from 400 to 220 MiB under load in %s", time.Since(begun).Round(time.Millisecond))
	s.holds("lowered", "g:memory.max=220MiB")
	if use := *s.memoryOf("g").Current; use > 220<<20 {
		t.Errorf("%d bytes in use", use)
	}
	s.unsqueezed("lowered")

	if _, err := s.try(api.Request{Verb: "set",
		Assign: []string{"g:memory.max=60MiB"}}); api.CodeOf(err) != api.CodeRefused ||
		!strings.Contains(fmt.Sprint(err), "cannot be reclaimed") {
		t.Errorf("60 MiB for 100 MiB that nobody can take: %v", err)
	}
	begun = time.Now()
	_, err := s.try(api.Request{Verb: "set", Assign: []string{"g:memory.max=60MiB"}, Force: true, Reason: "test"})
	took := time.Since(begun)
	var use *apply.UseError
	if api.CodeOf(err) != api.CodeRefused || !errors.As(err, &use) || api.HintOf(err) == "" {
		t.Errorf("forced: %v", err)
	}
	if took < 3*time.Second ||
		took > 8*time.Second { // where the machine is emulated, too: a write of memory.high is ended
		t.Errorf("refused after %s, with 4s to wait", took)
	}
	s.holds("refused", "g:memory.max=220MiB")
	s.unsqueezed("refused")
	if now := *s.memoryOf("g").OOMKills; now != kills || !s.Host.Proc.Alive(holder.ID) || !s.Host.Proc.Alive(reader) {
		t.Errorf("%d OOM kills, before %d; the holder lives %t, the reader %t", now, kills,
			s.Host.Proc.Alive(holder.ID), s.Host.Proc.Alive(reader))
	}
	if !holder.Touch(4 << 20) {
		t.Error("the holder cannot get more within its limit")
	}
	s.must(api.Request{Verb: "unset", Assign: []string{"g:memory.max"}})
	s.holds("unset", "g:memory.max=400MiB")
}

// unsqueezed says that memory.high was given back, where there is one.
func (s *site) unsqueezed(when string) {
	s.t.Helper()
	if h := s.of("memory"); h.Version == 2 {
		if high, err := testhost.Tree(s.t).Read(s.at(h.ID, "g").File("memory.high")); err != nil || high != "max" {
			s.t.Errorf("%s: memory.high is %s, %v", when, high, err)
		}
	}
}

// A fall of memory that takes a while is watched: the limit is in force only when it is there.
func TestMemoryWaitsForWhoLetsGo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sources := s.sources("")
	sources[0].Text = s.reclaiming("30s")
	s.must(api.Request{Verb: "apply", Sources: sources})
	holder, other := testhost.HoldMemory(t), testhost.HoldMemory(t)
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{holder.ID.PID, other.ID.PID}})
	if !holder.Touch(80<<20) || !other.Touch(150<<20) {
		t.Fatal("killed too early")
	}
	gone := make(chan time.Time, 1)
	go func() {
		time.Sleep(2 * time.Second) // the set waits meanwhile
		gone <- time.Now()
		if err := unix.Kill(other.ID.PID, unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}()
	s.must(api.Request{Verb: "set", Assign: []string{"g:memory.max=160MiB"}, Force: true,
		Reason: "the other one is about to end"})
	done := time.Now()
	if at := <-gone; done.Before(at) {
		t.Errorf("done %s before the other process was gone", at.Sub(done))
	}
	s.holds("after the wait", "g:memory.max=160MiB")
	if kills := *s.memoryOf("g").OOMKills; kills != 0 || !s.Host.Proc.Alive(holder.ID) {
		t.Errorf("%d OOM kills, alive %t", kills, s.Host.Proc.Alive(holder.ID))
	}
}

// A group that gets nowhere at its memory.high, as nothing of it can be reclaimed, is let go.
func TestStuckAtHighOnTheKernel(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if s.of("memory").Version != 2 {
		t.Skip("memory.high is of cgroup v2")
	}
	s.apply("groups:\n  g: {match: [{exe: /nonexistent/x}], memory: {high: 48MiB, max: 300MiB}}\n")
	hog := testhost.Spawn(t, "sh", "-c", "sleep 1; exec tail /dev/zero")
	s.must(api.Request{Verb: "move", Group: "g", PIDs: []int{hog.PID}, Tree: true})
	if _, err := s.Look(t.Context(), reconcile.LookOptions{Full: true, Changed: true}); err != nil {
		t.Fatal(err)
	}
	s.holds("applied", "g:memory.high=48MiB")
	begun, from, waited := time.Now(), *s.memoryOf("g").HighHits, s.waitedForMemory("g")
	var lifted []state.Lifted
	for time.Since(begun) < 90*time.Second && len(lifted) == 0 {
		if err := s.BreakStalls(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		st, err := inspect.Status(t.Context(), s.Reconciler.Controller)
		if err != nil {
			t.Fatal(err)
		}
		lifted = st.Lifted
		time.Sleep(time.Second)
	}
	t.Logf("after %s, %d events of memory.high, %s of waiting: %v", time.Since(begun).Round(time.Second),
		*s.memoryOf("g").HighHits-from, s.waitedForMemory("g")-waited, lifted)
	if len(lifted) != 1 {
		t.Fatal("nothing was lifted")
	}
	s.unsqueezed("lifted")
	s.holds("lifted", "g:memory.max=300MiB")
}

// waitedForMemory is for how long all of a group waited for memory at once.
func (s *site) waitedForMemory(group string) time.Duration {
	s.t.Helper()
	u, err := metrics.Read(testhost.Tree(s.t), s.at(s.of("memory").ID, group), "pressure.memory.full.total_us")
	full := u.Pressure["memory"].Full
	if err != nil || full == nil {
		s.t.Fatal("this kernel does not tell how long a group waits for memory")
	}
	return time.Duration(full.Total) * time.Microsecond
}

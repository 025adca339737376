//go:build root

package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/netshape"
	"bulkhead/internal/testhost"
)

// unit is what the tests call 1 Mbit/s: a tenth of it in short runs, for emulated machines.
func unit() int {
	if testing.Short() {
		return 100 // kbit/s
	}
	return 1000
}

// rate is n units as a policy has it.
func rate(n int) string { return fmt.Sprintf("%dkbit/s", n*unit()) }

// bytes counts what a class has let through. Groups are numbered in the order of their names.
func (s *site) bytes(slot netshape.Slot, d netshape.Direction) func() uint64 {
	return func() uint64 {
		state := s.look(device)
		held, ok := state.Held(slot, d)
		if !ok {
			s.t.Fatalf("nothing holds number %d for %s", slot, d)
		}
		return held.Bytes
	}
}

// span is how long a rate is measured.
func span() time.Duration {
	if text := os.Getenv("SPAN"); text != "" {
		if d, err := time.ParseDuration(text); err == nil {
			return d
		}
	}
	return time.Second
}

// measure gives rates over a span, in units of 1 Mbit/s.
func measure(span time.Duration, counters ...func() uint64) []float64 {
	before := make([]uint64, len(counters))
	for i, c := range counters {
		before[i] = c()
	}
	begin := time.Now()
	time.Sleep(span)
	rates := make([]float64, len(counters))
	for i, c := range counters {
		now := c()
		rates[i] = float64(now-before[i]) * 8 / time.Since(begin).Seconds() / 1000 / float64(unit())
	}
	return rates
}

// holds wants a rate within so many percent; a machine that was too busy to send as much gets further tries. More is a
// failure at once.
func holds(t testing.TB, what string, want, percent float64, counter func() uint64) {
	t.Helper()
	holdsOver(t, span(), what, want, percent, counter)
}

// holdsBothWays holds what group "out" sends to a sink, and what arrives at a port, with one connection and with many.
func (s *site) holdsBothWays(out, in netshape.Slot, sink, port string, leaves, arrives float64) {
	s.t.Helper()
	for _, connections := range []int{1, 32} {
		p, _ := s.traffic("out", "send", sink, connections)
		holds(s.t, "what leaves", leaves, 5, s.bytes(out, netshape.Egress))
		p.end()
		stop := s.flood(hostAddr+":"+port, connections)
		holds(s.t, "what arrives", arrives, 5, s.bytes(in, netshape.Ingress))
		stop()
	}
}

// holdsOver is holds over another span.
func holdsOver(t testing.TB, span time.Duration, what string, want, percent float64, counter func() uint64) {
	t.Helper()
	const tries = 6
	time.Sleep(300 * time.Millisecond) // what was saved up is spent
	for try := 1; ; try++ {
		got := measure(span, counter)[0]
		switch {
		case got > want*(1+percent/100):
			t.Errorf("%s: %.1f, more than %.1f", what, got, want)
			return
		case got >= want*(1-percent/100):
			t.Logf("%s: %.1f of %.1f", what, got, want)
			return
		case try == tries:
			t.Errorf("%s: %.1f, less than %.1f", what, got, want)
			return
		}
	}
}

// soon waits for something.
func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	testhost.WaitFor(t, what, is)
}

// programDirs are the directories of the site's groups in cgroup2: below the root group's, or the slices that systemd
// has for them.
func (s *site) programDirs() (all []string) {
	h := unified(s.t)
	slice := strings.ReplaceAll(s.root, "-", `\x2d`)
	_ = filepath.WalkDir(h, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && (strings.HasPrefix(p, filepath.Join(h, s.root)) ||
			strings.HasPrefix(p, filepath.Join(h, slice))) {
			all = append(all, p)
		}
		return nil
	})
	return all
}

// programDir is that of one group.
func (s *site) programDir(group string) string {
	s.t.Helper()
	for _, dir := range s.programDirs() {
		if base := filepath.Base(dir); base == group || strings.HasSuffix(base, "-"+group+".slice") {
			return dir
		}
	}
	s.t.Fatalf("group %s has none of %q", group, s.programDirs())
	return ""
}

func unified(t testing.TB) string {
	t.Helper()
	tree := testhost.Tree(t)
	for _, h := range testhost.Hierarchies(t) {
		if h.Version == 2 {
			return tree.Abs(cgroup.Dir{Hierarchy: h.ID, Path: "/"})
		}
	}
	t.Skip("this host has no cgroup2 hierarchy")
	return ""
}

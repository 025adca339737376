//go:build root

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/attribution"
)

// Loads of groups, as shell scripts that run until they are killed. FILE is a file of their own.
const (
	spins   = "while :; do :; done"
	idles   = "while :; do i=0; while [ $i -lt 300 ]; do i=$((i+1)); done; sleep 0.2; done"
	reads   = "while :; do dd if=FILE of=/dev/null bs=4k iflag=direct status=none; done"
	writes  = "while :; do dd if=/dev/zero of=FILE bs=1M count=64 oflag=direct conv=notrunc status=none; done"
	dirties = "while :; do dd if=/dev/zero of=FILE bs=1M count=256 conv=notrunc,fsync status=none; done"
)

// loaded applies a policy with a group for each load, by name, and starts the loads in them.
func (s *site) loaded(settings string, loads map[string]string) {
	s.t.Helper()
	policy := "groups:\n"
	for name := range loads {
		policy += fmt.Sprintf("  %s: {role: helper, match: [{exe: no-such-program-%s}]%s}\n", name, name, settings)
	}
	s.write(policy)
	s.must("apply")
	for name, load := range loads {
		file := filepath.Join(s.dir, name)
		if strings.Contains(load, "if=FILE") {
			if err := os.WriteFile(file, make([]byte, 64<<20), 0o600); err != nil {
				s.t.Fatal(err)
			}
		}
		s.start("run", name, "--", "sh", "-c", strings.ReplaceAll(load, "FILE", file))
	}
	for name := range loads {
		soon(s.t, "the load of "+name, func() bool { return len(s.group(name).Members) > 0 })
	}
}

// suspects asks who is to blame for what a group waits for, and checks that its figures add up.
func (s *site) suspects(group string, args ...string) *attribution.Report {
	s.t.Helper()
	r := &attribution.Report{}
	text := s.must(append([]string{"suspects", group, "--json"}, args...)...)
	if err := json.Unmarshal([]byte(text), r); err != nil {
		s.t.Fatal(err)
	}
	for _, one := range r.Resources {
		sum := 0.0
		for _, row := range one.Rows {
			sum += row.Seconds
		}
		if one.Known && math.Abs(sum-one.Waited) > 1e-6 {
			s.t.Errorf("%s: rows sum up to %v, and %v was waited: %s", one.Name, sum, one.Waited, text)
		}
	}
	s.t.Logf("%s\n%s", r.Verdict, text)
	return r
}

// first is the group that has most of a wait for a resource.
func first(r *attribution.Report, resource string) string {
	for _, one := range r.Resources {
		for _, row := range one.Rows {
			if one.Name == resource && row.Who == attribution.Other {
				return row.Group
			}
		}
	}
	return ""
}

// A neighbour that takes the victim's CPU is its first suspect of all groups, whatever else runs here.
func TestSuspectsOfCPU(t *testing.T) {
	s := newSite(t)
	s.loaded(`, cpu: {cpus: "0", weight: 100}`, map[string]string{"victim": spins, "guilty": spins, "bystander": idles})
	r := s.suspects("victim", "--for", "4s")
	if got := first(r, "cpu"); got != "guilty" || r.Nothing {
		t.Errorf("the first suspect is %q: %s", got, r.Verdict)
	}
	if text := s.must("suspects", "victim", "--for", "1s"); !strings.Contains(text, "bulkhead set guilty:cpu.limit=") {
		t.Errorf("it does not say what would hold it:\n%s", text)
	}
}

// A writer on the disk of a reader is its first suspect of all groups.
func TestSuspectsOfDisk(t *testing.T) {
	s := newSite(t)
	s.loaded("", map[string]string{"victim": reads, "guilty": writes, "bystander": idles})
	r := s.suspects("victim", "--for", "4s")
	if got := first(r, "disk"); got != "guilty" || r.Nothing {
		t.Errorf("the first suspect is %q: %s", got, r.Verdict)
	}
}

// Of random cases with four neighbours, one of them guilty, the guilty is first of all groups on the resource that it
// took in 95 % at least, and with nobody guilty at most 1 of 20 verdicts names a group first. Memory and network are no
// part of it: the one takes a host that is short of memory, and for the other the kernel counts no waiting.
func TestSuspectsOfRandomCases(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes ten minutes: LONG=1")
	}
	const cases = 80
	rng := rand.New(rand.NewPCG(29, 60))
	kinds := []struct{ what, resource, victim, guilty string }{
		{"CPU", "cpu", spins, spins}, {"direct writes", "disk", reads, writes},
		{"buffered writes", "disk", reads, dirties}, {"nobody", "cpu", idles, idles}}
	right, among, named, guilty, innocent := 0, 0, 0, 0, 0
	for n := range cases {
		kind := kinds[rng.IntN(len(kinds))]
		at := fmt.Sprintf("n%d", 1+rng.IntN(4))
		t.Run(fmt.Sprintf("%d %s %s", n, kind.what, at), func(t *testing.T) {
			s := newSite(t)
			loads := map[string]string{"victim": kind.victim, "n1": idles, "n2": idles, "n3": idles, "n4": idles}
			loads[at] = kind.guilty
			settings := ""
			if kind.what == "CPU" {
				settings = `, cpu: {cpus: "0", weight: 100}`
			}
			s.loaded(settings, loads)
			r := s.suspects("victim", "--for", "4s")
			if kind.what == "nobody" {
				innocent++
				if len(r.Suspects) > 0 && r.Suspects[0].Who == attribution.Other && !r.Nothing {
					named++
				}
				return
			}
			guilty++
			if first(r, kind.resource) == at {
				among++
			}
			if len(r.Suspects) > 0 && r.Suspects[0].Group == at {
				right++
			}
		})
	}
	t.Logf("the guilty was first in %d of %d, and in %d of the groups on what it took; in %d of %d without one a "+
		"group was named", right, guilty, among, named, innocent)
	if right*100 < guilty*95 || named*20 > innocent {
		t.Error("that is too bad")
	}
}

// ofCPU is what a report says of CPUs.
func ofCPU(r *attribution.Report) *attribution.Resource {
	for i := range r.Resources {
		if r.Resources[i].Name == "cpu" {
			return &r.Resources[i]
		}
	}
	return nil
}

// Where BPF programs count, every row of CPUs is counted, nobody is left unexplained, and who has a limit of his own
// that holds him back is not told to look at the one who runs meanwhile. Without them rows are estimated.
func TestSuspectsAreCounted(t *testing.T) {
	s := newSite(t)
	s.loaded(`, cpu: {cpus: "0", weight: 100}`, map[string]string{"victim": spins, "guilty": spins, "bystander": idles})
	one := ofCPU(s.suspects("victim", "--for", "4s"))
	if strings.Contains(one.Source, "no BPF programs count") {
		t.Skipf("this kernel cannot count: %s", one.Source)
	}
	if !strings.Contains(one.Source, "BPF programs") {
		t.Errorf("the source is %q", one.Source)
	}
	for _, row := range one.Rows {
		switch {
		case row.Who == attribution.Unexplained && row.Share > 0.1:
			t.Errorf("%.0f %% is unexplained", 100*row.Share)
		case row.Who != attribution.Unexplained && row.Grade != attribution.Counted:
			t.Errorf("%s %s is %s", row.Who, row.Group, row.Grade)
		}
	}
	without := ofCPU(s.suspects("victim", "--for", "4s", "--no-bpf"))
	if strings.Contains(without.Source, "BPF") {
		t.Errorf("the source is %q", without.Source)
	}
	for _, row := range without.Rows {
		if row.Who == attribution.Other && row.Grade != attribution.Estimated {
			t.Errorf("%s is %s", row.Group, row.Grade)
		}
	}
	if a, b := one.Part, without.Part; math.Abs(a-b) > 0.15 {
		t.Errorf("it waited for %.2f of its time by one, and for %.2f by the other", a, b)
	}
	s.must("set", "victim:cpu.limit=0.05", "--for", "5m")
	limited := ofCPU(s.suspects("victim", "--for", "4s"))
	if limited.Rows[0].Who != attribution.OwnLimit || limited.Rows[0].Grade != attribution.Counted {
		t.Errorf("it is held back, and first is %+v", limited.Rows[0])
	}
}

//go:build root

package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/attribution"
	"bulkhead/internal/testhost"
)

// Loads of groups, as shell scripts that run until they are killed. FILE is a file of their own.
const (
	spins   = "while :; do :; done"
	idles   = "while :; do i=0; while [ $i -lt 300 ]; do i=$((i+1)); done; sleep 0.2; done"
	reads   = "while :; do dd if=FILE of=/dev/null bs=4k iflag=direct status=none; done"
	writes  = "while :; do dd if=/dev/zero of=FILE bs=1M count=64 oflag=direct conv=notrunc status=none; done"
	rereads = "while :; do cat FILE >/dev/null; done" // 64 MiB
	fills   = "while :; do dd if=/dev/zero of=/dev/null bs=80M count=1 status=none; done"
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
	s.begin("", loads)
}

// begin starts loads in groups.
func (s *site) begin(above string, loads map[string]string) {
	s.t.Helper()
	for name, load := range loads {
		file := filepath.Join(s.dir, name)
		if strings.Contains(load, "if=FILE") || strings.Contains(load, "cat FILE") {
			if err := os.WriteFile(file, make([]byte, 64<<20), 0o600); err != nil {
				s.t.Fatal(err)
			}
			s.drop(file)
		}
		s.start("run", above+name, "--", "sh", "-c", strings.ReplaceAll(load, "FILE", file))
	}
	for name := range loads {
		soon(s.t, "the load of "+name, func() bool { return len(s.group(above+name).Members) > 0 })
	}
}

// drop writes a file to the disk and out of the page cache, so that who reads it first has it charged.
func (s *site) drop(file string) {
	s.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		s.t.Fatal(err)
	}
}

// sharing has loads in groups that share 128 MiB of memory.
func (s *site) sharing(loads map[string]string) {
	s.t.Helper()
	policy := "groups:\n  shared:\n    role: helper\n    memory: {max: 128MiB}\n    groups:\n"
	for name := range loads {
		policy += fmt.Sprintf("      %s: {role: helper, match: [{exe: no-such-program-%s}]}\n", name, name)
	}
	s.write(policy)
	s.must("apply")
	s.begin("shared/", loads)
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
	t.Setenv("TMPDIR", "/var/tmp") // on a disk, also where /tmp is in memory
	s := newSite(t)
	s.loaded("", map[string]string{"victim": reads, "guilty": writes, "bystander": idles})
	r := s.suspects("victim", "--for", "4s")
	if got := first(r, "disk"); got != "guilty" || r.Nothing {
		t.Errorf("the first suspect is %q: %s", got, r.Verdict)
	}
}

// A neighbour that fills the memory which both share, up to a limit of the group above them, is the first suspect of
// who reads the same file again and again.
func TestSuspectsOfMemory(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // on a disk, also where /tmp is in memory
	s := newSite(t)
	s.sharing(map[string]string{"victim": rereads, "guilty": fills, "bystander": idles})
	r := s.suspects("shared/victim", "--for", "4s")
	if got := first(r, "memory"); got != "shared/guilty" || r.Nothing {
		t.Errorf("the first suspect is %q: %s", got, r.Verdict)
	}
}

// Who reads a file again and again that is larger than a limit of its own on memory waits for that limit and for nobody
// else: as counted where BPF programs count reclaim.
func TestSuspectsOfOwnLimitOnMemory(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // on a disk, also where /tmp is in memory
	s := newSite(t)
	s.loaded(", memory: {max: 16MiB}", map[string]string{"victim": rereads, "bystander": idles})
	one := s.suspects("victim", "--for", "4s").Resources[2]
	requireCounted(t, one.Source)
	if row := one.Rows[0]; row.Who != attribution.OwnLimit || row.Share < 0.9 || row.Grade != attribution.Counted ||
		!strings.Contains(one.Source, "BPF programs on reclaim") {
		t.Errorf("the first row is %+v, by %s", row, one.Source)
	}
	without := s.suspects("victim", "--for", "4s", "--no-bpf").Resources[2]
	if without.Known && (without.Rows[0].Who != attribution.OwnLimit || strings.Contains(without.Source, "BPF")) {
		t.Errorf("the first row is %+v, by %s", without.Rows[0], without.Source)
	}
}

// A program outside of all groups that takes the victim's CPU is told by its name.
func TestSuspectsOutside(t *testing.T) {
	s := newSite(t)
	s.loaded(`, cpu: {cpus: "0", weight: 100}`, map[string]string{"victim": spins})
	name := filepath.Join(s.dir, "stranger")
	if err := os.Symlink("/bin/sh", name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, "-c", spins)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.startCommand(cmd)
	r := s.suspects("victim", "--for", "4s")
	for _, one := range r.Resources {
		for _, row := range one.Rows {
			if strings.HasPrefix(row.Name, "stranger (user root)") || strings.HasPrefix(row.Name, "unit ") {
				return
			}
		}
	}
	t.Errorf("it is not named: %s", r.Verdict)
}

// kindsOfCases are what one of four neighbours does, and what it takes.
var kindsOfCases = []struct{ what, resource, victim, guilty string }{
	{"CPU", "cpu", spins, spins}, {"direct writes", "disk", reads, writes}, {"buffered writes", "disk", reads, dirties},
	{"memory", "memory", rereads, fills}, {"nobody", "cpu", idles, idles}}

// Of random cases with four neighbours, one of them guilty, the guilty is first of all groups on the resource that it
// took in 95 % at least, and first of all in 95 % of those cases in which other programs of the machine had less than
// half a CPU. With nobody guilty at most 1 of 20 verdicts names a group first. test/network has cases of the network.
func TestSuspectsOfRandomCases(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp")
	if os.Getenv("LONG") == "" {
		t.Skip("takes twelve minutes: LONG=1")
	}
	cases, err := strconv.Atoi(cmp.Or(os.Getenv("CASES"), "75"))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(29, 60))
	var all, calm, among, right, rightCalm, named, innocent int
	of := map[string][2]int{} // by kind: first of groups, of so many
	for n := range cases {
		kind := kindsOfCases[n%len(kindsOfCases)]
		at := fmt.Sprintf("n%d", 1+rng.IntN(4))
		t.Run(fmt.Sprintf("%d %s %s", n, kind.what, at), func(t *testing.T) {
			s := newHeavySite(t)
			loads := map[string]string{"victim": kind.victim, "n1": idles, "n2": idles, "n3": idles, "n4": idles}
			loads[at] = kind.guilty
			above := ""
			switch kind.what {
			case "memory":
				above = "shared/"
				s.sharing(loads)
			case "CPU":
				s.loaded(`, cpu: {cpus: "0", weight: 100}`, loads)
			default:
				s.loaded("", loads)
			}
			before := s.others()
			r := s.suspects(above+"victim", "--for", "4s")
			taken := (s.others() - before) / 4
			if kind.what == "nobody" {
				innocent++
				if len(r.Suspects) > 0 && r.Suspects[0].Who == attribution.Other && !r.Nothing {
					named++
				}
				return
			}
			all++
			count := of[kind.what]
			count[1]++
			if first(r, kind.resource) == above+at {
				among++
				count[0]++
			}
			of[kind.what] = count
			is := len(r.Suspects) > 0 && r.Suspects[0].Group == above+at
			if is {
				right++
			}
			if taken < 0.5 {
				calm++
				if is {
					rightCalm++
				}
			}
		})
	}
	t.Logf("the guilty was first of groups on what it took in %d of %d (%v), and first of all in %d of %d; in %d of "+
		"%d while others had less than half a CPU. In %d of %d without one a group was named", among, all, of, right,
		all, rightCalm, calm, named, innocent)
	if among*100 < all*95 || rightCalm*100 < calm*95 || named*20 > innocent {
		t.Error("that is too bad")
	}
}

// others is the CPU time of what is not the site's, in seconds.
func (s *site) others() float64 {
	s.t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		s.t.Fatal(err)
	}
	busy := 0.0
	for i, word := range strings.Fields(strings.SplitN(string(text), "\n", 2)[0])[1:] {
		n, _ := strconv.ParseFloat(word, 64)
		if i != 3 && i != 4 && i < 8 { // neither idle nor waiting for a disk
			busy += n / 100
		}
	}
	own := 0.0
	for _, g := range s.status().Groups {
		if c := g.Usage.CPU.Total; c != nil && !strings.Contains(g.Group, "/") {
			own += float64(*c) / 1e6
		}
	}
	return busy - own
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
	if strings.Contains(one.Source, "no BPF programs count") && !testhost.CountsByBPF(t) {
		t.Skipf("this kernel cannot count: %s", one.Source)
	}
	if !strings.Contains(one.Source, "BPF programs") {
		t.Errorf("the source is %q", one.Source)
	}
	for _, row := range one.Rows {
		switch {
		case row.Who == attribution.Unexplained && row.Share > 0.1:
			t.Errorf("%.0f %% is unexplained", 100*row.Share)
		case row.Who != attribution.Unexplained && row.Grade != attribution.Counted && row.Name == "":
			t.Errorf("%s %s is %s", row.Who, row.Group, row.Grade)
		}
	}
	without := ofCPU(s.suspects("victim", "--for", "4s", "--no-bpf"))
	// What else runs on this host changes from look to look.
	for range 5 {
		if math.Abs(one.Part-without.Part) <= 0.15 {
			break
		}
		one = ofCPU(s.suspects("victim", "--for", "4s"))
		without = ofCPU(s.suspects("victim", "--for", "4s", "--no-bpf"))
	}
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

// requireCounted skips a test where nothing counts what Linux 5.11 can, and lets it fail where the kernel shows that it
// could.
func requireCounted(t *testing.T, source string) {
	t.Helper()
	switch {
	case !strings.Contains(source, "no BPF programs count"):
	case testhost.CountsByBPF(t) && testhost.Since(t, 5, 11):
		t.Fatalf("this kernel could count: %s", source)
	default:
		t.Skipf("this kernel cannot count: %s", source)
	}
}

// inTheWay says whether requests of the group itself have more than 5 % of its wait.
func inTheWay(row attribution.Row) bool { return row.Who == attribution.OwnLoad && row.Share > 0.05 }

// Who reads with one request at a time waits for the disk itself, which is no suspect; with eight readers it waits for
// its own load, which is the first of the disk.
func TestSuspectsOfOneWhoIsAloneAtADisk(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // on a disk, also where /tmp is in memory
	for readers, want := range map[int]attribution.Who{1: attribution.Service, 8: attribution.OwnLoad} {
		t.Run(fmt.Sprintf("%d readers", readers), func(t *testing.T) {
			s := newSite(t)
			s.loaded("", map[string]string{"victim": reads, "bystander": idles})
			load := strings.ReplaceAll(reads, "FILE", filepath.Join(s.dir, "victim"))
			for range readers - 1 {
				s.start("run", "victim", "--", "sh", "-c", load)
			}
			soon(t, "all readers", func() bool { return len(s.group("victim").Members) >= readers })
			var r *attribution.Report
			var rows []attribution.Row
			// Where the programs miss the end of a request, it counts as in the way of others for up to half a second.
			for range 3 {
				r = s.suspects("victim", "--for", "4s")
				requireCounted(t, r.Resources[1].Source)
				rows = slices.DeleteFunc(slices.Clone(r.Resources[1].Rows), func(row attribution.Row) bool {
					return row.Who == attribution.Outside // strangers
				})
				if want != attribution.Service || !slices.ContainsFunc(rows, inTheWay) {
					break
				}
				t.Logf("its own load has more than 5 %%: %+v", rows)
			}
			if rows[0].Who != want || rows[0].Grade != attribution.Counted {
				t.Errorf("first of the disk is not %s: %+v", want, rows[0])
			}
			if want == attribution.Service && slices.ContainsFunc(rows, inTheWay) {
				t.Errorf("its own load has more than 5 %%: %+v", rows)
			}
			for _, suspect := range r.Suspects {
				if suspect.Who == attribution.Service {
					t.Errorf("a suspect is %+v", suspect)
				}
			}
		})
	}
}

// Where BPF programs count requests, who writes directly is blamed for that as counted, and the source says so. Without
// them it is estimated. Who writes through the page cache is the first of groups all the same.
func TestSuspectsAreCountedAtDisks(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // on a disk, also where /tmp is in memory
	for _, guilty := range []string{writes, dirties} {
		s := newSite(t)
		s.loaded("", map[string]string{"victim": reads, "guilty": guilty, "bystander": idles})
		r := s.suspects("victim", "--for", "4s")
		one := r.Resources[1]
		requireCounted(t, one.Source)
		if got := first(r, "disk"); got != "guilty" || !strings.Contains(one.Source, "BPF programs on requests") {
			t.Errorf("the first suspect is %q, by %s", got, one.Source)
		}
		without := s.suspects("victim", "--for", "4s", "--no-bpf").Resources[1]
		if strings.Contains(without.Source, "BPF") {
			t.Errorf("the source is %q", without.Source)
		}
		for _, row := range slices.Concat(one.Rows, without.Rows) {
			if row.Who == attribution.Other && row.Group == "bystander" && row.Share > 0.05 {
				t.Errorf("who does nothing is blamed: %+v", row)
			}
		}
		if guilty == dirties {
			continue
		}
		for _, row := range one.Rows {
			if row.Group == "guilty" && row.Grade != attribution.Counted {
				t.Errorf("%+v", row)
			}
		}
		for _, row := range without.Rows {
			if row.Group == "guilty" && row.Grade != attribution.Estimated {
				t.Errorf("without BPF: %+v", row)
			}
		}
	}
}

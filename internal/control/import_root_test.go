//go:build root

package control

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/convert"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
)

// study is the cgconfig.conf of the Red Hat study (internal/convert/testdata/cgconfig/redhat.txtar) on this machine:
// without its mounts, its users by numbers, with the CPUs and nodes that there are.
func (s *site) study() string {
	s.t.Helper()
	facts := s.facts0()
	var nodes []int
	for _, n := range facts.Nodes {
		nodes = append(nodes, n.ID)
	}
	var b strings.Builder
	for i := 1; i <= 4; i++ {
		fmt.Fprintf(&b, `group test%d {
    perm {
        task {
            uid = %d;
            gid = 54330;
        }
        admin {
            uid = root;
            gid = root;
        }
    }
    cpuset {
        cpuset.cpus=%q;
        cpuset.mems=%q;
    }
}
`, i, 54320+i, facts.CPUs, idset.New(nodes...))
	}
	return b.String()
}

func (s *site) facts0() *host.Facts {
	s.t.Helper()
	facts, err := s.Host.Facts()
	if err != nil {
		s.t.Fatal(err)
	}
	return facts
}

// imported applies a cgconfig.conf as bulkhead reads it.
func (s *site) imported(text string) *convert.Result {
	s.t.Helper()
	r, err := libcgroup.Import([]policy.Source{{Path: "cgconfig.conf", Text: text}}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	_, groups, _ := strings.Cut(r.Policy, "version: 1\n")
	s.apply(groups)
	return r
}

var groupLine = regexp.MustCompile(`(?m)^group `)

// loaded has libcgroup's own parser make the same groups below another root.
func (s *site) loaded(text string) (root string) {
	s.t.Helper()
	program, err := exec.LookPath("cgconfigparser")
	if err != nil {
		s.t.Fatal("cgconfigparser is missing: apt-get install cgroup-tools")
	}
	root = testhost.Root(s.t)
	file := filepath.Join(s.t.TempDir(), "cgconfig.conf")
	if err := os.WriteFile(file, []byte(groupLine.ReplaceAllString(text, "group "+root+"/")), 0o600); err != nil {
		s.t.Fatal(err)
	}
	// A group of theirs in cpuset takes nothing before the one above it has CPUs and nodes.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		h, ok := s.facts0().HierarchyOf("cpuset")
		if !ok || h.Version != 1 {
			continue
		}
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		tree := testhost.Tree(s.t)
		if there, err := tree.Exists(top.Child(root)); err == nil && !there {
			if err := tree.Make(top.Child(root)); err != nil {
				s.t.Fatal(err)
			}
		}
		value, err := tree.Read(top.File(name))
		if err == nil {
			err = tree.Write(top.Child(root).File(name), value)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	if out, err := exec.Command(program, "-l", file).CombinedOutput(); err != nil {
		s.t.Fatalf("cgconfigparser: %v\n%s", err, out)
	}
	return root
}

// counter are files that count, or list who is inside: they differ between any two groups.
var counter = regexp.MustCompile(`^(tasks|cgroup\.procs|cgroup\.event_control)$|` +
	`usage|failcnt|stat$|pressure|events|effective|io_serviced|io_service_bytes|current`)

// described gives owner, mode and value of each file of a group, and of its directory.
func described(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{".": stat(t, dir)}
	for _, e := range entries {
		if e.IsDir() {
			continue // a group inside, such as the leaf of an inner one
		}
		text := stat(t, filepath.Join(dir, e.Name()))
		if value, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && !counter.MatchString(e.Name()) {
			text += " = " + strings.TrimSpace(string(value))
		}
		all[e.Name()] = text
	}
	return all
}

func stat(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.Command("stat", "-c", "%u:%g %a", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// compare holds every group that libcgroup's parser made to the one that bulkhead made: files, owners, modes and
// values. apart are values that are known to differ, by file.
func (s *site) compare(t *testing.T, theirs string, groups []string, apart map[string]string) {
	t.Helper()
	compared := 0
	for _, h := range s.facts0().Hierarchies {
		for _, group := range groups {
			dir := filepath.Join(h.Mount, theirs, group)
			if _, err := os.Stat(dir); err != nil {
				continue // not one of the controllers that the file names
			}
			want, got := described(t, dir), described(t, filepath.Join(h.Mount, s.root, group))
			for name, text := range want {
				if known, ok := apart[name]; ok {
					if got[name] != known {
						t.Errorf("%s/%s: %q, want %q", dir, name, got[name], known)
					}
					continue
				}
				if got[name] != text {
					t.Errorf("%s/%s: bulkhead has %q, libcgroup %q", dir, name, got[name], text)
				}
				compared++
			}
			if len(got) != len(want) {
				t.Errorf("%s: %d files, %d of libcgroup's", dir, len(got), len(want))
			}
		}
	}
	if compared == 0 {
		t.Fatal("nothing was compared")
	}
	t.Logf("%d files, owners and modes compared", compared)
}

// The four instances of the Red Hat study, as libcgroup's own parser makes them on this machine.
func TestImportedTreeIsThatOfLibcgroup(t *testing.T) {
	s := newSite(t)
	onV1(t, s, "cpuset")
	text := s.study()
	theirs := s.loaded(text)
	r := s.imported(text)
	if len(r.Left)+len(r.Changed) > 0 {
		t.Errorf("left %v, changed %v", r.Left, r.Changed)
	}
	s.compare(t, theirs, []string{"test1", "test2", "test3", "test4"}, nil)
	before := s.snapshotOf("test1")
	s.apply("groups:\n  test1: {cpu: {cpus: '" + s.facts0().CPUs.String() + "'}}\n")
	if after := s.snapshotOf("test1"); after == before || strings.Contains(after, "54321") {
		t.Errorf("the policy has no owner any more, and the files have: %s", after)
	}
	s.must(api.Request{Verb: "rollback", To: 1})
	if after := s.snapshotOf("test1"); after != before {
		t.Errorf("rolled back:\n%s\nbefore:\n%s", after, before)
	}
	s.must(api.Request{Verb: "release", All: true})
}

// onV1 ends a test that is about files of cgroup v1 where a controller is not there.
func onV1(t *testing.T, s *site, controller string) {
	t.Helper()
	if h, ok := s.facts0().HierarchyOf(controller); !ok || h.Version != 1 {
		t.Skipf("%s is no controller of cgroup v1 here; TestImportedOnUnified is about the other", controller)
	}
}

// snapshotOf is who owns what of a group in cpuset.
func (s *site) snapshotOf(group string) string {
	h := s.of("cpuset")
	var lines []string
	for name, text := range described(s.t.(*testing.T), filepath.Join(h.Mount, s.root, group)) {
		owner, _, _ := strings.Cut(text, " = ")
		lines = append(lines, name+" "+owner)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// sampleGroups are the groups that stand as comments in the sample of libcgroup 2.0.2, with numbers for Unix groups
// that no machine has.
const sampleGroups = `group daemons/www {
	perm {
		task {
			uid = root;
			gid = 54331;
		}
		admin {
			uid = root;
			gid = root;
		}
	}
	cpu {
		cpu.shares = 1000;
	}
}
group daemons/ftp {
	perm {
		task {
			uid = root;
			gid = 54332;
		}
		admin {
			uid = root;
			gid = root;
		}
	}
	cpu {
		cpu.shares = 500;
	}
}
`

// What libcgroup's package ships (its two groups stand there as comments), and limits of other controllers.
func TestImportedSampleIsThatOfLibcgroup(t *testing.T) {
	s := newSite(t)
	onV1(t, s, "cpu")
	const shipped = "/usr/share/doc/cgroup-tools/examples/cgconfig.conf"
	if sample, err := os.ReadFile(shipped); err == nil { // the lab's machines have no documentation
		if r, err := libcgroup.Import([]policy.Source{{Path: shipped, Text: string(sample)}}, nil); err != nil ||
			strings.Contains(r.Policy, "groups:") {
			t.Errorf("as shipped it makes no group: %v, %v", r, err)
		}
		for line := range strings.Lines(sampleGroups) {
			if !strings.Contains(string(sample), "#"+line) && !strings.Contains(line, "gid = 5433") {
				t.Errorf("the sample has no line %q", line)
			}
		}
	}
	groups := sampleGroups
	theirs := s.loaded(groups)
	r := s.imported(groups)
	if len(r.Left) > 0 || len(r.Changed) != 2 {
		t.Errorf("left %v, changed %v", r.Left, r.Changed)
	}
	root := "0:0 644"
	// Weights are whole numbers: 1000 and 500 shares are 1004 and 502, in the same ratio.
	for group, shares := range map[string]string{"daemons/www": "1004", "daemons/ftp": "502"} {
		s.compare(t, theirs, []string{group}, map[string]string{"cpu.shares": root + " = " + shares})
	}
	s.must(api.Request{Verb: "release", All: true})
}

// Limits of memory, CPU, disks and tasks, with modes of their own.
func TestImportedLimitsAreThoseOfLibcgroup(t *testing.T) {
	s := newSite(t)
	for _, controller := range []string{"cpu", "memory", "pids"} {
		onV1(t, s, controller)
	}
	text := `group db1 {
	perm {
		task { uid = 54321; gid = 54330; fperm = 664; }
		admin { uid = 54325; gid = 54330; fperm = 644; dperm = 775; }
	}
	cpu { cpu.shares = 2048; cpu.cfs_period_us = 50000; cpu.cfs_quota_us = 75000; }
	memory { memory.limit_in_bytes = 256M; memory.swappiness = 10; }
	pids { pids.max = 512; }
}
group db2/inner {
	cpu { cpu.shares = 256; }
	pids { pids.max = 99; }
}
`
	theirs := s.loaded(text)
	r := s.imported(text)
	if len(r.Left)+len(r.Changed) > 0 {
		t.Errorf("left %v, changed %v", r.Left, r.Changed)
	}
	s.compare(t, theirs, []string{"db1", "db2/inner"}, nil)
	s.must(api.Request{Verb: "release", All: true})
}

// On cgroup v2 the same files mean what docs/migrating.md says.
func TestImportedOnUnified(t *testing.T) {
	s := newSite(t)
	h, ok := s.facts0().HierarchyOf("cpuset")
	if !ok || h.Version != 2 {
		t.Skip("cpuset is no controller of cgroup v2 here; TestImportedTreeIsThatOfLibcgroup is about the other")
	}
	s.imported(s.study())
	for i := 1; i <= 4; i++ {
		dir := filepath.Join(h.Mount, s.root, "test"+strconv.Itoa(i))
		uid := strconv.Itoa(54320 + i)
		for name, want := range map[string]string{
			"cpuset.cpus": "0:0 644 = " + s.facts0().CPUs.String(), "cgroup.procs": uid + ":54330 644",
			"cgroup.threads": uid + ":54330 644", "cgroup.subtree_control": "0:0 644", ".": "0:0 755",
		} {
			if got := described(t, dir)[name]; got != want && got != want+" = " {
				t.Errorf("%s/%s: %q, want %q", dir, name, got, want)
			}
		}
	}
	s.must(api.Request{Verb: "release", All: true})
	text := `group db {
	perm { task { uid = 54321; gid = 54330; } admin { uid = 54325; gid = 54330; dperm = 775; } }
	cpu { cpu.shares = 2048; cpu.cfs_period_us = 50000; cpu.cfs_quota_us = 75000; }
	memory { memory.limit_in_bytes = 256M; }
	pids { pids.max = 512; }
}
`
	s.imported(strings.Replace(text, "group db", "group db1", 1))
	dir := filepath.Join(h.Mount, s.root, "db1")
	for name, want := range map[string]string{
		"cpu.weight": "200", "cpu.max": "75000 50000", "memory.max": "268435456", "pids.max": "512",
	} {
		if got := described(t, dir)[name]; got != "54325:54330 644 = "+want {
			t.Errorf("%s: %q, want %s, owned by 54325:54330", name, got, want)
		}
	}
	if got := fmt.Sprint(described(t, dir)["."], " ",
		described(t, dir)["cgroup.subtree_control"]); !strings.HasPrefix(got, "54325:54330 775 54325:54330 644") {
		t.Errorf("the directory: %s", got)
	}
	s.must(api.Request{Verb: "release", All: true})
}

//go:build root

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// page is docs/migrating.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// between gives the parts of a page between two marks.
func between(text, begin, end string) (parts []string) {
	for {
		_, rest, found := strings.Cut(text, "<!-- "+begin+" -->\n")
		if !found {
			return parts
		}
		part, after, _ := strings.Cut(rest, "<!-- "+end+" -->")
		parts, text = append(parts, part), after
	}
}

var fence = regexp.MustCompile("(?s)```([a-z]*) ?([^\n]*)\n(.*?)```")

// Each example of the page: its files are written, its commands run, and what it shows is what they print. The groups
// of an applied policy get a root of the test's own.
func TestExamplesOfMigrating(t *testing.T) {
	examples := between(page(t), "example", "/example")
	if len(examples) < 4 {
		t.Fatalf("%d examples", len(examples))
	}
	for i, text := range examples {
		t.Run(strconv.Itoa(i+1), func(t *testing.T) {
			s := newSite(t)
			var last result
			for _, block := range fence.FindAllStringSubmatch(text, -1) {
				kind, name, body := block[1], block[2], block[3]
				switch {
				case kind == "sh":
					for line := range strings.Lines(body) {
						last = s.example(t, strings.TrimSpace(line))
					}
				case name == "stderr":
					hold(t, name, last.err, body)
				case name == "stdout":
					hold(t, name, strings.Replace(last.out, "#bulkhead host: {root: "+s.root+"}\n", "", 1), body)
				case kind == "yaml":
					got, err := os.ReadFile(filepath.Join(s.dir, name))
					if err != nil {
						t.Fatal(err)
					}
					hold(t, name, strings.Replace(string(got), "host: {root: "+s.root+"}\n", "", 1), body)
				default:
					if err := os.WriteFile(filepath.Join(s.dir, name), []byte(body), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

func hold(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s is\n%s\nand the page has\n%s", what, got, want)
	}
}

// example runs one line of an example, `bulkhead … > FILE`.
func (s *site) example(t *testing.T, line string) result {
	t.Helper()
	command, into, redirected := strings.Cut(line, " > ")
	words := strings.Fields(command)
	if len(words) < 2 || words[0] != "bulkhead" {
		t.Fatalf("%q is no command of bulkhead", line)
	}
	r := s.run(words[1:]...)
	if r.code != 0 && !(words[1] == "verify" && r.code == int(api.CodeUnplaced)) {
		t.Fatalf("%s: exit code %d\n%s%s", line, r.code, r.out, r.err)
	}
	if redirected {
		text := r.out
		if into == "policy.yaml" {
			text = strings.Replace(text, "version: 1\n", "version: 1\nhost: {root: "+s.root+"}\n", 1)
		}
		if err := os.WriteFile(filepath.Join(s.dir, into), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// Each row of the page's table: libcgroup's command and bulkhead's, on groups of the same name, do the same.
func TestRowsOfMigrating(t *testing.T) {
	s := newSite(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	h, ok := facts.HierarchyOf("cpu")
	if !ok || h.Version != 1 {
		t.Skip("cpu is no controller of cgroup v1 here, and libcgroup 2.0.2 knows no other")
	}
	if _, err := exec.LookPath("cgcreate"); err != nil {
		t.Fatal("cgcreate is missing: apt-get install cgroup-tools")
	}
	theirs := testhost.Root(t)
	s.write("groups:\n  shop: {cpu: {weight: 100}, memory: {max: 1GiB}}\n")
	one, two := testhost.Spawn(t, "sleep", "300"), testhost.Spawn(t, "sleep", "300")
	dirs := [2]string{filepath.Join(h.Mount, theirs, "shop"), filepath.Join(h.Mount, s.root, "shop")}
	read := func(dir, file string) string {
		text, _ := os.ReadFile(filepath.Join(dir, file)) // "" when it is not there
		return strings.TrimSpace(string(text))
	}
	both := func(file, want string) error {
		for _, dir := range dirs {
			if got := read(dir, file); got != want {
				return fmt.Errorf("%s/%s is %q, want %q", dir, file, got, want)
			}
		}
		return nil
	}
	there := func(want bool) error {
		for _, dir := range dirs {
			if _, err := os.Stat(dir); (err == nil) != want {
				return fmt.Errorf("%s: %v", dir, err)
			}
		}
		return nil
	}
	says := func(out [2]string, words ...string) error {
		for i, word := range words {
			if !strings.Contains(out[i], word) {
				return fmt.Errorf("no %q in\n%s", word, out[i])
			}
		}
		return nil
	}
	checks := map[string]func(out [2]string) error{
		"cgcreate": func([2]string) error { return there(true) },
		"cgset":    func([2]string) error { return both("cpu.shares", "512") },
		"cgget":    func(out [2]string) error { return says(out, "cpu.shares: 512", "ok") },
		"cgexec":   func([2]string) error { return nil },
		"cgclassify": func([2]string) error {
			if !strings.Contains(read(dirs[0], "cgroup.procs"), strconv.Itoa(one.PID)) ||
				!strings.Contains(read(dirs[1], "cgroup.procs"), strconv.Itoa(two.PID)) {
				return fmt.Errorf("%d and %d are in %q and %q", one.PID, two.PID, read(dirs[0], "cgroup.procs"),
					read(dirs[1], "cgroup.procs"))
			}
			return nil
		},
		"lscgroup":   func(out [2]string) error { return says(out, theirs+"/shop", "shop") },
		"cgsnapshot": func(out [2]string) error { return says(out, theirs+"/shop", theirs) },
		"cgdelete":   func([2]string) error { return there(false) },
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `bulkhead ([^`]+)` \\|")
	rows := row.FindAllStringSubmatch(strings.Join(between(page(t), "rows", "/rows"), ""), -1)
	seen := map[string]bool{}
	for _, r := range rows {
		verb := strings.Fields(r[1])[0]
		seen[verb] = true
		t.Run(verb, func(t *testing.T) {
			command := strings.NewReplacer("shop", theirs+"/shop", "PID", strconv.Itoa(one.PID)).Replace(r[1])
			out, err := exec.Command("sh", "-c", command+" 2>/dev/null").Output()
			if err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			mine := s.run(strings.Fields(strings.ReplaceAll(r[2], "PID", strconv.Itoa(two.PID)))...)
			if mine.code != 0 && !(verb == "cgget" && mine.code == int(api.CodeUnplaced)) {
				t.Fatalf("%s: exit code %d\n%s%s", r[2], mine.code, mine.out, mine.err)
			}
			check := checks[verb]
			if check == nil {
				t.Fatalf("nothing holds what `%s` does", r[1])
			}
			if err := check([2]string{string(out), mine.out}); err != nil {
				t.Error(err)
			}
		})
	}
	for verb := range checks {
		if !seen[verb] {
			t.Errorf("%s has no row", verb)
		}
	}
}

// The page's session of commands and its policy give the same: the files of the kernel, and the process in the group.
// The group gets a name of the test's own, the disk is a loop device, and the limit on CPU one that any host can take.
func TestSessionOfMigrating(t *testing.T) {
	s := newSite(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	mounts := map[string]string{}
	for _, controller := range []string{"cpu", "memory", "blkio"} {
		h, ok := facts.HierarchyOf(controller)
		if !ok || h.Version != 1 {
			t.Skipf("%s is no controller of cgroup v1 here, and libcgroup 2.0.2 knows no other", controller)
		}
		mounts[controller] = h.Mount
	}
	if _, err := exec.LookPath("cgcreate"); err != nil {
		t.Fatal("cgcreate is missing: apt-get install cgroup-tools")
	}
	_, disk := testhost.LoopDevice(t, 64<<20)
	theirs := strings.TrimPrefix(testhost.Root(t), "/")
	blocks := fence.FindAllStringSubmatch(strings.Join(between(page(t), "session", "/session"), ""), -1)
	if len(blocks) != 2 {
		t.Fatalf("the session has %d blocks, wanted commands and a policy", len(blocks))
	}
	one, two := testhost.Spawn(t, "sleep", "300"), testhost.Spawn(t, "sleep", "30127")

	here := strings.NewReplacer("8:16", disk, "mysql23761", theirs+"/mysql23761", "400000", "100000", "3614",
		strconv.Itoa(one.PID), "/sys/fs/cgroup/cpu/", mounts["cpu"]+"/", "/sys/fs/cgroup/memory/",
		mounts["memory"]+"/", "/sys/fs/cgroup/blkio/", mounts["blkio"]+"/")
	if out, err := exec.Command("sh", "-ec", here.Replace(blocks[0][3])).CombinedOutput(); err != nil {
		t.Fatalf("the session: %v\n%s", err, out)
	}
	s.write(strings.NewReplacer("version: 1\n", "", "8:16", disk, "limit: 4", "limit: 1",
		"{engine: mysql, port: 23761}", "{cmdline: 'sleep 30127'}").Replace(blocks[1][3]))
	if r := s.run("apply"); r.code != 0 {
		t.Fatalf("apply: exit code %d\n%s%s", r.code, r.out, r.err)
	}

	for file, controller := range map[string]string{"cpu.cfs_period_us": "cpu", "cpu.cfs_quota_us": "cpu",
		"memory.limit_in_bytes": "memory", "memory.oom_control": "memory",
		"blkio.throttle.write_bps_device": "blkio", "blkio.throttle.write_iops_device": "blkio"} {
		var held [2]string
		for i, root := range []string{theirs, s.root} {
			text, err := os.ReadFile(filepath.Join(mounts[controller], root, "mysql23761", file))
			if err != nil {
				t.Fatal(err)
			}
			held[i] = strings.TrimSpace(string(text))
		}
		if held[0] != held[1] || held[0] == "" {
			t.Errorf("%s: the session wrote %q, the policy %q", file, held[0], held[1])
		}
	}
	for i, p := range []procfs.ID{one, two} {
		root := []string{theirs, s.root}[i]
		text, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), root+"/mysql23761"); n < 3 {
			t.Errorf("process %d is in %d hierarchies of its group:\n%s", p.PID, n, text)
		}
	}
}

//go:build root

package migrate

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/convert"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/testhost"
)

// TestMain makes processes that outlive a test end with it.
func TestMain(m *testing.M) {
	if err := testhost.SetSurroundings(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// below gives the groups and default sections of a cgconfig.conf with every group below a root of ours. Mounts,
// namespaces and sections for systemd are left out, as are templates. acts says that it would do something to
// processes of others.
func below(text, root string) (out string, acts bool) {
	var b strings.Builder
	all := tokens(text)
	for i := 0; i < len(all); i++ {
		kind := all[i].text
		end := blockEnd(all, i)
		if kind == "group" && i+1 < len(all) {
			fmt.Fprintf(&b, "group \"%s/%s\" %s\n", root, strings.TrimLeft(all[i+1].text, "/"),
				withoutComments(text[all[i+1].after:all[end].after]))
		} else if kind == "default" {
			fmt.Fprintf(&b, "default %s\n", withoutComments(text[all[i].after:all[end].after]))
		}
		i = end
	}
	out = b.String()
	return out, regexp.MustCompile(`\b(tasks|cgroup\.procs|release_agent|cgroup\.threads)"?\s*=`).MatchString(out)
}

func withoutComments(text string) string {
	return regexp.MustCompile(`(?m)^[ \t]*#.*$`).ReplaceAllString(text, "")
}

// blockEnd is the token that closes the block that begins behind a token.
func blockEnd(all []token, from int) int {
	depth := 0
	for i := from; i < len(all); i++ {
		switch {
		case all[i].quoted:
		case all[i].text == "{":
			depth++
		case all[i].text == "}":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(all) - 1
}

var account = regexp.MustCompile(`\b([ug])id(\s*=\s*)"?([A-Za-z_][A-Za-z0-9_.-]*)"?`)

// knownAccounts writes numbers for users and groups that this machine does not have.
func knownAccounts(text string) string {
	return account.ReplaceAllStringFunc(text, func(all string) string {
		m := account.FindStringSubmatch(all)
		_, err := user.Lookup(m[3])
		if m[1] == "g" {
			_, err = user.LookupGroup(m[3])
		}
		if err == nil {
			return all
		}
		number := 54000
		for _, c := range m[3] {
			number += int(c)
		}
		return fmt.Sprintf("%sid%s%d", m[1], m[2], number)
	})
}

// load has libcgroup's own parser make groups.
func load(t *testing.T, texts []string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("cgconfigparser")
	if err != nil {
		t.Fatal("cgconfigparser is missing: apt-get install cgroup-tools")
	}
	var args []string
	for _, text := range texts {
		file := filepath.Join(t.TempDir(), "cgconfig.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-l", file)
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	return string(out), err
}

// v1 are this machine's hierarchies of cgroup v1 with controllers, by mount point.
func v1(t *testing.T) (all []host.Hierarchy) {
	t.Helper()
	for _, h := range testhost.Hierarchies(t) {
		if h.Version == 1 && len(h.Controllers) > 0 {
			all = append(all, h)
		}
	}
	return all
}

// newRoot names a root group, and gives it the CPUs and nodes without which cpuset takes no group below it.
func newRoot(t *testing.T) string {
	t.Helper()
	root, tree := testhost.Root(t), testhost.Tree(t)
	for _, h := range v1(t) {
		if !h.Has("cpuset") {
			continue
		}
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		if err := tree.Make(top.Child(root)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := tree.Read(top.File(name))
			if err == nil {
				err = tree.Write(top.Child(root).File(name), value)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// counting are files that count, or say who is inside.
var counting = regexp.MustCompile(`^(tasks|cgroup\.procs|cgroup\.event_control)$|` +
	`usage|failcnt|stat$|pressure|events|effective|io_serviced|io_service_bytes|current`)

// tree gives owner, mode and value of every file below a root, by hierarchy and path.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, h := range v1(t) {
		top := filepath.Join(h.Mount, root)
		if _, err := os.Stat(top); err != nil {
			continue
		}
		err := filepath.WalkDir(top, func(file string, d fs.DirEntry, err error) error {
			if err != nil || file == top || filepath.Dir(file) == top && !d.IsDir() {
				return err
			}
			out, err := exec.Command("stat", "-c", "%u:%g %a", file).Output()
			text := strings.TrimSpace(string(out))
			if !d.IsDir() && err == nil && !counting.MatchString(d.Name()) {
				value, _ := os.ReadFile(file) // some are for writing only
				text += " = " + strings.TrimSpace(string(value))
			}
			rel, _ := filepath.Rel(top, file)
			all[h.ID+":"+rel] = text
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Source and export make the same groups with libcgroup's own parser: each file has the same owner, mode and value, but
// where the import said that it would not.
func TestLoadsAsLibcgroupLoadsTheSource(t *testing.T) {
	testhost.RequireRoot(t)
	if len(v1(t)) == 0 {
		t.Skip("there is no hierarchy of cgroup v1 here, and libcgroup's sources name its files")
	}
	loaded, fresh := 0, freshGroup(t)
	for _, s := range sets(t) {
		if len(s.config) == 0 {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			for i := range s.config {
				s.config[i].Text = knownAccounts(s.config[i].Text)
			}
			r, err := libcgroup.Import(s.config, s.rules)
			if err != nil {
				t.Logf("refused: %v", err)
				return
			}
			p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: r.Policy}})
			if err != nil {
				t.Fatal(err)
			}
			theirs := newRoot(t)
			var texts []string
			for _, f := range s.config {
				text, acts := below(f.Text, theirs)
				if acts {
					t.Log("not loaded: it names processes by number, and here these are of others")
					return
				}
				texts = append(texts, text)
			}
			if out, err := load(t, texts); err != nil {
				t.Logf("libcgroup does not load the source here: %v\n%s", err, out)
				return
			}
			ours := newRoot(t)
			text, _ := below(libcgroup.Export(p, libcgroup.Options{}).Files[0].Text, ours)
			if out, err := load(t, []string{text}); err != nil {
				t.Errorf("libcgroup does not load the export: %v\n%s\n%s", err, out, text)
				return
			}
			loaded++
			want, got, remarks := tree(t, theirs), tree(t, ours), remarked(r)
			for _, name := range sorted(want) {
				have, there := got[name]
				if have != want[name] && !expected(name, want[name], there, fresh, remarks) {
					t.Errorf("%s: libcgroup has %q from the source, %q from the export\n%s", name, want[name], have,
						said(r))
				}
			}
			t.Logf("%d files and directories compared", len(want))
		})
	}
	if os.Getenv("MIGRATE") == "" && loaded < 20 {
		t.Errorf("%d sources were loaded", loaded)
	}
}

func sorted(all map[string]string) []string {
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// remarked are the files of which an import said that they are left out or not quite the same.
func remarked(r *convert.Result) map[string]bool {
	all := map[string]bool{}
	for _, remark := range slices.Concat(r.Left, r.Changed) {
		file, _, _ := strings.Cut(remark.What, " = ")
		all[strings.TrimSpace(file)] = true
	}
	return all
}

// expected says whether a file may differ: the import has said so, or it belongs to a hierarchy in which the group has
// no limit, and has what every group has.
func expected(name, want string, there bool, fresh map[string]string, remarks map[string]bool) bool {
	hierarchy, rel, _ := strings.Cut(name, ":")
	file := filepath.Base(rel)
	_, value, _ := strings.Cut(want, " = ")
	_, isFile := fresh[hierarchy+":"+file]
	switch {
	case remarks[file], remarks["fperm"], remarks["dperm"]:
		return true
	case there:
		return false
	}
	return !isFile || value == fresh[hierarchy+":"+file]
}

// freshGroup gives what every file of a new group has, by hierarchy and name.
func freshGroup(t *testing.T) map[string]string {
	t.Helper()
	root, dirs, all := newRoot(t), testhost.Tree(t), map[string]string{}
	for _, h := range v1(t) {
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/" + root}
		if there, err := dirs.Exists(top); err == nil && !there {
			if err := dirs.Make(top); err != nil {
				t.Fatal(err)
			}
		}
		if err := dirs.Make(top.Child("fresh")); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range tree(t, root) {
		_, value, _ := strings.Cut(text, " = ")
		hierarchy, rel, _ := strings.Cut(name, ":")
		all[hierarchy+":"+filepath.Base(rel)] = value
	}
	return all
}

// The policy of each set is planned on this machine, or refused with places: what does not fit here, or cannot.
func TestPlansAreMade(t *testing.T) {
	testhost.RequireRoot(t)
	program := os.Getenv("BULKHEAD_PROGRAM")
	if program == "" {
		program = filepath.Join(t.TempDir(), "bulkhead")
		out, err := exec.Command("go", "build", "-o", program, "bulkhead/cmd/bulkhead").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	planned := 0
	for _, s := range sets(t) {
		for verb, im := range s.imports() {
			if im.err != nil {
				continue
			}
			t.Run(s.name+"/"+verb, func(t *testing.T) {
				dir := t.TempDir()
				file := filepath.Join(dir, "policy.yaml")
				if err := os.WriteFile(file, []byte(im.result.Policy), 0o600); err != nil {
					t.Fatal(err)
				}
				run := func(verb string) (string, int) {
					c := exec.Command(program, "--policy", file, "--state", filepath.Join(dir, "state"), "--socket",
						filepath.Join(dir, "s"), verb)
					var out bytes.Buffer
					c.Stdout, c.Stderr = &out, &out
					err := c.Run()
					if c.ProcessState == nil {
						t.Fatal(err)
					}
					return out.String(), c.ProcessState.ExitCode()
				}
				switch out, code := run("check"); {
				case code == 2 && strings.Contains(out, file+":"):
					t.Logf("does not fit this machine:\n%s", out)
					return
				case code != 0:
					t.Fatalf("check: exit code %d\n%s", code, out)
				}
				switch out, code := run("plan"); code {
				case 0:
					planned++
				case 5:
					t.Logf("refused for safety:\n%s", out)
				default:
					t.Errorf("plan: exit code %d\n%s", code, out)
				}
			})
		}
	}
	if os.Getenv("MIGRATE") == "" && planned < 20 {
		t.Errorf("%d policies were planned", planned)
	}
}

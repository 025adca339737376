//go:build root

// Package selinux tests changes of a real policy of SELinux, in the lab's machine of that name, which enforces it.
package selinux

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cli"
	"bulkhead/internal/selinux/remedy"
	"bulkhead/internal/testhost"
)

// TestMain makes this binary the program itself when it is called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "bulkhead" {
		os.Exit(cli.Main(os.Args[1:], os.Exit))
	}
	os.Exit(m.Run())
}

// rig is the program with a state directory of its own.
type rig struct {
	t       *testing.T
	dir     string
	program string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	inLab(t)
	dir, err := os.MkdirTemp("/var/lib", "bhs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := rigIn(t, dir)
	t.Cleanup(func() {
		if t.Failed() { // the next test wants the policy as it was
			t.Logf("denied lately:\n%s", r.must("sh", "-c", "ausearch -m AVC --raw | grep ^type=AVC | tail -n 400 | "+
				"audit2allow; ausearch -m AVC --raw | grep ^type=AVC | tail -n 30"))
			_ = r.command("selinux", "rollback").Run()
		}
	})
	return r
}

func inLab(t *testing.T) {
	t.Helper()
	testhost.RequireRoot(t)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("needs a host that enforces SELinux: in the lab's machine `selinux` only")
	}
}

// rigIn is one whose directory is there already.
func rigIn(t *testing.T, dir string) *rig {
	t.Helper()
	r := &rig{t: t, dir: dir, program: filepath.Join(dir, "bulkhead")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(r.program)
	if err := os.Symlink(self, r.program); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.must("setenforce", "0") }) // of this machine, which is the test's
	return r
}

func (r *rig) must(name string, args ...string) string {
	r.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *rig) command(args ...string) *exec.Cmd {
	return exec.Command(r.program, append([]string{"--state", filepath.Join(r.dir, "state"), "--policy",
		filepath.Join(r.dir, "policy.yaml"), "--socket", filepath.Join(r.dir, "none")}, args...)...)
}

// does runs the program and expects success; v, if not nil, takes its JSON.
func (r *rig) does(v any, args ...string) string {
	r.t.Helper()
	out, errs := r.silently(v, args...)
	r.t.Logf("bulkhead %s\n%s%s", strings.Join(args, " "), out, errs)
	return out
}

// plans holds values of a plan for what was denied since a time against those that are wanted, by the settings' names.
func (r *rig) plans(since string, wanted map[string]string) {
	r.t.Helper()
	var plan remedy.Plan
	r.does(&plan, "selinux", "plan", "--since", since)
	planned := map[string]string{}
	for _, s := range plan.Settings {
		planned[s.Name] = s.Value
	}
	for name, want := range wanted {
		if planned[name] != want {
			r.t.Errorf("the plan has %q for %s, want %s", planned[name], name, want)
		}
	}
}

// silently is does without printing what the program prints.
func (r *rig) silently(v any, args ...string) (out, errs string) {
	r.t.Helper()
	if v != nil {
		args = append([]string{"--json"}, args...)
	}
	cmd := r.command(args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("bulkhead %q: %v\n%s%s", args, err, o.String(), e.String())
	}
	if v != nil {
		if err := json.Unmarshal(o.Bytes(), v); err != nil {
			r.t.Fatalf("bulkhead %q: %v\n%s", args, err, o.String())
		}
	}
	return o.String(), e.String()
}

// policy is all that the host's SELinux is set up with: what is local, the modules, the booleans in force, the file
// contexts, the policy that is loaded, and the labels of some trees.
func (r *rig) policy(trees ...string) map[string]string {
	r.t.Helper()
	held := map[string]string{
		"semanage export": r.must("semanage", "export"),
		"semodule -lfull": r.must("semodule", "-lfull"),
		"the store": r.must("sh", "-c",
			"cd /var/lib/selinux/default/active && grep -hv '^#' *.local 2>/dev/null | grep . | sort"),
		"getsebool -a": r.must("getsebool", "-a"),
		"file contexts": r.must("sh", "-c", "cd /etc/selinux/default/contexts/files && "+
			"grep -hv '^#' file_contexts file_contexts.homedirs file_contexts.local 2>/dev/null; true"),
		"ports":             r.must("semanage", "port", "-l"),
		"the loaded policy": r.must("sha256sum", "/sys/fs/selinux/policy"),
	}
	for _, tree := range trees {
		held["labels of "+tree] = r.must("find", tree, "-printf", "%Z %p\n")
	}
	return held
}

// same compares a policy with what it was.
func (r *rig) same(when string, was, is map[string]string) {
	r.t.Helper()
	for what, text := range was {
		if is[what] != text {
			r.t.Errorf("%s: %s differs: it was\n%s\nit is\n%s", when, what, lines(text, is[what]),
				lines(is[what], text))
		}
	}
}

// lines are those of a text that another does not have.
func lines(of, other string) string {
	has := map[string]bool{}
	for line := range strings.Lines(other) {
		has[strings.TrimSpace(line)] = true
	}
	var own []string
	for line := range strings.Lines(of) {
		if line = strings.TrimSpace(line); !has[line] {
			own = append(own, line)
		}
	}
	return strings.Join(own, "\n")
}

// enforce has the kernel of this machine enforce the policy.
func (r *rig) enforce() {
	r.t.Helper()
	r.must("setenforce", "1")
	if got := r.must("getenforce"); got != "Enforcing" {
		r.t.Fatalf("this machine is %s", got)
	}
}

// write writes a file.
func (r *rig) write(file, text string) {
	r.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		r.t.Fatal(err)
	}
}

func sorted(lines []string) string {
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

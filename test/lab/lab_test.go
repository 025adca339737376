//go:build lab

package lab

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	mode   = flag.String("lab.mode", "unified", "cgroup `mode` of the machine: unified, hybrid or legacy, each also with systemd- before it")
	shell  = flag.Bool("lab.shell", false, "no tests: a shell in the machine, on this terminal")
	pkgs   = flag.String("lab.pkg", "", "only the root tests of these `packages`, also ones that a mode leaves out, and nothing else")
	only   = flag.String("lab.run", "", "only root tests whose name matches the `regexp`, as go test -run has it, and nothing else")
	limit  = flag.Duration("lab.limit", 25*time.Minute, "how long the machine may run")
	record = flag.String("lab.record", "", "write what the machine said to this `file`")
)

// packages are those whose root tests need a kernel and no database server.
var packages = []string{
	"internal/host", "internal/cgroup", "internal/cgroup/conformance", "internal/knob", "internal/testhost", "internal/apply", "internal/control",
}

// systemd is what the name of a mode begins with when systemd is PID 1 of the machine.
const systemd = "systemd-"

// machine is how the machine of a mode is built and booted.
type machine struct {
	recipe string
	pid1   string
	kernel []string // more words for the kernel's command line
	qemu   []string // more arguments
	spare  int      // empty disks of 512 MiB after the payload's
}

// machineFor gives the machine of a mode. Those with systemd have two NUMA nodes, real database servers as
// services and spare disks, which the guest partitions, puts under LVM and joins to a mirror.
func machineFor(t *testing.T, mode string) machine {
	t.Helper()
	cgroups, with := strings.CutPrefix(mode, systemd)
	if !with {
		return machine{recipe: "bookworm", pid1: "/sbin/lab-init", qemu: []string{"-smp", "2", "-m", "2048"}}
	}
	m := machine{recipe: "bookworm-systemd", pid1: "/lib/systemd/systemd", spare: 4, qemu: []string{
		"-smp", "4", "-m", "2048",
		"-object", "memory-backend-ram,id=m0,size=1024M", "-object", "memory-backend-ram,id=m1,size=1024M",
		"-numa", "node,nodeid=0,cpus=0-1,memdev=m0", "-numa", "node,nodeid=1,cpus=2-3,memdev=m1",
	}}
	switch cgroups {
	case "unified":
		m.kernel = []string{"systemd.unified_cgroup_hierarchy=1"}
	case "hybrid":
		m.kernel = []string{"systemd.unified_cgroup_hierarchy=0"}
	case "legacy":
		m.kernel = []string{"systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1"}
	default:
		t.Fatalf("unknown mode %q", mode)
	}
	return m
}

// exemptions are the tests left out of a mode. systemd co-mounts v1's controllers as the legacy machine does.
func exemptions(mode string) map[string]string {
	cgroups, with := strings.CutPrefix(mode, systemd)
	if with && cgroups == "hybrid" {
		cgroups = "legacy"
	}
	return exempt[cgroups]
}

// withoutSystemd are packages whose tests change the host through the verbs, which refuse one with systemd so far.
var withoutSystemd = []string{"internal/apply", "internal/control"}

// onSystemd are packages whose tests are about systemd.
var onSystemd = []string{"internal/systemd/conformance"}

// packagesOf gives the packages whose tests run in a mode, or those asked for.
func packagesOf(mode string) []string {
	if *pkgs != "" {
		var asked []string
		for p := range strings.FieldsSeq(*pkgs) {
			asked = append(asked, strings.TrimPrefix(filepath.Clean(p), "bulkhead/"))
		}
		return asked
	}
	if !strings.HasPrefix(mode, systemd) {
		return packages
	}
	return slices.DeleteFunc(slices.Concat(packages, onSystemd), func(p string) bool { return slices.Contains(withoutSystemd, p) })
}

// quick says that only some tests run, as somebody who works on them wants it: what the mode shows beside tests is left out,
// and the console goes to the terminal as it comes.
func quick() bool { return *only != "" || *pkgs != "" }

// exempt are the tests that are about what a mode does not have, with the reason.
var exempt = map[string]map[string]string{
	"unified": {
		"internal/knob.TestSplitOnTheKernel":              "is about the checks between directories that only v1's cpu controller makes",
		"internal/apply.TestKilledAtEveryStepOnTheKernel": "runs plans of v1 files written by hand; control's TestKillAfterEveryStepThenRollback walks through a v2 one",
		"internal/apply.TestKernelRefusesOnTheKernel":     "needs a refusal of v1's cpu controller",
	},
	"legacy": {
		"internal/apply.TestKilledAtEveryStepOnTheKernel": "writes plans for v1 controllers apart; control's TestKillAfterEveryStepThenRollback walks through co-mounts",
		"internal/apply.TestKernelRefusesOnTheKernel":     "writes a plan for v1 controllers apart",
	},
}

// top is the repository as seen from here.
const top = "../.."

// TestLab boots a machine, has it run the root tests, and holds it to each of them by name: one that was
// skipped or is missing counts as failed.
func TestLab(t *testing.T) {
	dir := cache(t)
	m := machineFor(t, *mode)
	img := build(t, dir, m.recipe)
	work := t.TempDir()
	want := payload(t, work)
	slot(t, dir)
	console := boot(t, m, img, work, filepath.Join(dir, "console-"+*mode+".txt"))
	if *shell {
		return
	}
	sections, broken := Transcript(bytes.NewReader(console))
	if *record != "" {
		must(t, os.WriteFile(*record, report(sections), 0o644))
	}
	byName := map[string]Section{}
	for _, s := range sections {
		byName[s.Name] = s
		if s.Status != 0 {
			t.Errorf("%s: exit status %d\n%s", s.Name, s.Status, s.Text())
		}
	}
	if broken != nil {
		t.Errorf("%v; the console ends with\n%s", broken, tail(console))
	}
	if err := CheckMode(strings.TrimPrefix(*mode, systemd), byName["mounts"].Lines); err != nil {
		t.Fatal(err)
	}
	for _, p := range packagesOf(*mode) {
		for _, test := range want[p] {
			if !byName[p].Passed(test) {
				t.Errorf("%s: %s did not pass", p, test)
			}
		}
	}
	if with := strings.HasPrefix(*mode, systemd); with != slices.Contains(byName["kernel"].Lines, "PID 1: systemd") {
		t.Fatalf("mode %s, but the machine says\n%s", *mode, byName["kernel"].Text())
	}
	if strings.HasPrefix(*mode, systemd) && !quick() {
		checkServices(t, byName["discover"].Text())
		if refused := byName["refused"]; refused.Status != 0 || !strings.Contains(refused.Text(), "systemd") {
			t.Errorf("apply on a host with systemd: %s", refused.Text())
		}
	}
	if before, after := byName["state-before"].Text(), byName["state-after"].Text(); before != after {
		t.Errorf("the tests left the machine as\n%s\nit was\n%s", after, before)
	}
}

// checkServices sees that the databases which systemd started are found, each in its unit.
func checkServices(t *testing.T, discovered string) {
	t.Helper()
	for _, want := range []string{"mariadb", "postgresql", "3306", "5432"} {
		if !strings.Contains(strings.ToLower(discovered), want) {
			t.Errorf("discover does not show %q:\n%s", want, discovered)
		}
	}
}

// payload makes the second disk: the test binaries, the repository's files beside which they run, and
// PID 1. It gives the tests that are to run, by package.
func payload(t *testing.T, work string) map[string][]string {
	t.Helper()
	root := filepath.Join(work, "payload")
	add := func(from, to string) {
		t.Helper()
		to = filepath.Join(root, to)
		must(t, os.MkdirAll(filepath.Dir(to), 0o755))
		install(t, from, to)
	}
	add("guest", "guest")
	must(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	run(t, "go", "build", "-o", filepath.Join(root, "bin", "bulkhead"), "bulkhead/cmd/bulkhead")
	var list strings.Builder
	want := map[string][]string{}
	for _, p := range packagesOf(*mode) {
		tests := rootTests(t, p)
		if len(tests) == 0 {
			continue
		}
		want[p] = tests
		pattern := "^(" + strings.Join(tests, "|") + ")$"
		if _, sub, ok := strings.Cut(*only, "/"); ok {
			pattern += "/" + sub
		}
		fmt.Fprintf(&list, "%s %s\n", p, pattern)
		must(t, os.MkdirAll(filepath.Join(root, "src", p), 0o755))
		binary := filepath.Join(root, "bin", p+".test")
		must(t, os.MkdirAll(filepath.Dir(binary), 0o755))
		run(t, "go", "test", "-c", "-tags", "root", "-o", binary, "bulkhead/"+p)
		testdata := filepath.Join(top, p, "testdata")
		if _, err := os.Stat(testdata); err == nil {
			must(t, os.CopyFS(filepath.Join(root, "src", p, "testdata"), os.DirFS(testdata)))
		}
	}
	if list.Len() == 0 {
		t.Fatalf("no root test of %q matches %q", packagesOf(*mode), *only)
	}
	must(t, os.WriteFile(filepath.Join(root, "list"), []byte(list.String()), 0o644))
	run(t, "mke2fs", "-q", "-t", "ext4", "-d", root, filepath.Join(work, "payload.img"), "512M")
	return want
}

// rootTests lists the tests of a package that stand behind the build tag "root".
func rootTests(t *testing.T, pkg string) []string {
	t.Helper()
	name, _, _ := strings.Cut(*only, "/") // what follows chooses among subtests
	filter, err := regexp.Compile(name)
	must(t, err)
	files, err := filepath.Glob(filepath.Join(top, pkg, "*_test.go"))
	must(t, err)
	var tests []string
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		must(t, err)
		if !needsRoot(file) {
			continue
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !isTest(f) || !filter.MatchString(f.Name.Name) {
				continue
			}
			if why, out := exemptions(*mode)[pkg+"."+f.Name.Name]; out {
				t.Logf("not for mode %s: %s.%s %s", *mode, pkg, f.Name.Name, why)
				continue
			}
			tests = append(tests, f.Name.Name)
		}
	}
	return tests
}

// needsRoot says whether a file is left out unless the build tag "root" is given.
func needsRoot(file *ast.File) bool {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if expr, err := constraint.Parse(c.Text); err == nil {
				with := func(tag string) bool { return tag == "root" || tag == "linux" || tag == "amd64" }
				without := func(tag string) bool { return tag != "root" && with(tag) }
				return expr.Eval(with) && !expr.Eval(without)
			}
		}
	}
	return false
}

func isTest(f *ast.FuncDecl) bool {
	rest, ok := strings.CutPrefix(f.Name.Name, "Test")
	return ok && f.Name.Name != "TestMain" && (rest == "" || !('a' <= rest[0] && rest[0] <= 'z'))
}

// boot runs a machine until it powers itself off and gives what its console said, which the file log shows
// on the way.
func boot(t *testing.T, m machine, img image, work, log string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *limit)
	defer cancel()
	args := slices.Concat([]string{"-accel", "tcg,thread=multi", "-cpu", "max"}, m.qemu, []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", img.kernel, "-initrd", img.initrd, "-append", m.append(),
	})
	drive := func(file string) { args = append(args, "-drive", "file="+file+",format=raw,if=virtio,snapshot=on") }
	drive(img.root)
	drive(filepath.Join(work, "payload.img"))
	for i := range m.spare {
		file := filepath.Join(work, fmt.Sprintf("spare%d.img", i))
		must(t, os.WriteFile(file, nil, 0o600))
		must(t, os.Truncate(file, 512<<20))
		drive(file)
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	// The machine does not outlive a driver that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := os.Remove(log); err != nil && !errors.Is(err, os.ErrNotExist) { // another run of this mode may be writing there
		t.Error(err)
	}
	live, err := os.Create(log)
	must(t, err)
	defer live.Close()
	var console, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&console, live), &complaints
	if quick() {
		cmd.Stdout = io.MultiWriter(&console, live, os.Stdout)
	}
	if *shell {
		cmd.Stdin, cmd.Stdout = os.Stdin, io.MultiWriter(os.Stdout, live)
	}
	t.Logf("the machine's console: %s", log)
	start := time.Now()
	err = cmd.Run()
	load, _ := os.ReadFile("/proc/loadavg") // emulation on a busy host cannot load a device up to its limit
	t.Logf("the machine ran for %v; the host's load average is now %s", time.Since(start).Round(time.Second), strings.TrimSpace(string(load)))
	switch {
	case ctx.Err() != nil:
		t.Errorf("the machine was not done after %v and was killed", *limit)
	case err != nil:
		t.Errorf("run the machine: %v\n%s", err, complaints.Bytes())
	}
	return console.Bytes()
}

// append is the kernel's command line.
func (m machine) append() string {
	words := append([]string{"console=ttyS0", "quiet", "loglevel=1", "panic=-1", "root=/dev/vda", "rw", "init=" + m.pid1, "lab.mode=" + strings.TrimPrefix(*mode, systemd)}, m.kernel...)
	if *shell {
		words = append(words, "lab.shell=1")
	}
	if quick() {
		words = append(words, "lab.quick=1")
	}
	return strings.Join(words, " ")
}

// report is what the machine said, without what only concerns this driver.
func report(sections []Section) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Root tests in an emulated machine, mode %s.\n", *mode)
	fmt.Fprintf(&b, "%s; qemu -accel tcg,thread=multi.\n", time.Now().Format(time.DateOnly))
	left := exemptions(*mode)
	if strings.HasPrefix(*mode, systemd) {
		fmt.Fprintf(&b, "Not for this mode: %s, whose verbs refuse to change a host with systemd so far.\n", strings.Join(withoutSystemd, " and "))
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		fmt.Fprintf(&b, "Not for this mode: %s %s.\n", name, left[name])
	}
	for _, s := range sections {
		s.Lines = slices.DeleteFunc(slices.Clone(s.Lines), func(line string) bool { return strings.HasPrefix(line, "=== ") })
		fmt.Fprintf(&b, "\n== %s: exit status %d\n%s", s.Name, s.Status, s.Text())
	}
	return b.Bytes()
}

// tail gives the last lines of a console.
func tail(console []byte) string {
	lines := strings.Split(strings.TrimSpace(string(console)), "\n")
	return strings.Join(slices.Clone(lines[max(0, len(lines)-40):]), "\n")
}

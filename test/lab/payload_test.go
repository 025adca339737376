//go:build lab

package lab

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// packages are those whose root tests need a kernel and no database server.
var packages = []string{
	"internal/host", "internal/cgroup", "internal/cgroup/conformance", "internal/knob", "internal/testhost",
	"internal/apply", "internal/control", "internal/bench", "test/network",
}

// onSystemd are packages whose tests are about systemd, too.
var onSystemd = []string{"internal/systemd/conformance", "test/script", "test/e2e"}

// apart are the packages of which only the files about systemd count where that is PID 1: their other tests are about
// groups that are made without it.
var apart = []string{"internal/apply", "internal/control", "test/script", "test/e2e", last}

// partly are the packages of which only the tests that match count: what the others show, the root tests outside of the
// lab do, with programs that the machines do not have.
var partly = map[string]*regexp.Regexp{"internal/bench": regexp.MustCompile("^Test(NUMA|Scenarios)"),
	"test/network": regexp.MustCompile("^Test(NetCls|Shares|Guarantees|ForeignQdisc|Watchdog|AgentKilled)")}

// installs are the files of the repository that the tests of a package need or install, beside the binary.
var installs = map[string][]string{"internal/bench": {},
	last: {"scripts/install", "packaging/*.service", "packaging/*.conf", "packaging/init.d/*", "docs/*.md",
		"CHANGELOG.md", "docs/policy.schema.json", "examples/*.yaml", "examples/monitoring/*"}}

// What modes have in common beside their names and releases.
const (
	noUnified     = "no cgroup2"
	noNetCls      = "no net_cls"
	noNetClsAlone = "net_cls and cgroup2"
)

// exempt are the tests, or whole packages, that are about what a mode does not have, with the reason. A mode is named
// whole, or by what it has in common with others: its cgroups, its release.
var exempt = map[string]map[string]string{
	"unified": {
		"internal/control.TestImportedTreeIsThatOfLibcgroup": "is about files of cgroup v1; " +
			"TestImportedOnUnified is about v2",
		"internal/control.TestImportedSampleIsThatOfLibcgroup": "is about files of cgroup v1; " +
			"TestImportedOnUnified is about v2",
		"internal/control.TestImportedLimitsAreThoseOfLibcgroup": "is about files of cgroup v1; " +
			"TestImportedOnUnified is about v2",
		"internal/knob.TestSplitOnTheKernel": "is about the checks between directories that only v1's " +
			"cpu controller makes",
		"internal/apply.TestKilledAtEveryStepOnTheKernel": "runs plans of v1 files written by hand; control's " +
			"TestKillAfterEveryStepThenRollback walks through a v2 one",
		"internal/apply.TestKernelRefusesOnTheKernel": "needs a refusal of v1's cpu controller",
		"internal/control.TestProbeOfAHalvedBudget": "takes loop devices faster than those of an emulated machine; " +
			"the root tests outside of the lab run it",
	},
	"hybrid": {
		"internal/bench.TestScenariosOnUnifiedRoot": "is about hosts with cgroup v2 alone; make bench-proof " +
			"runs every scenario on v1",
		"internal/bench.TestScenariosOfTheWireOnUnifiedRoot": "is about hosts with cgroup v2 alone; make bench-proof " +
			"runs every scenario on v1",
		"internal/bench.TestScenariosOfDatabasesOnUnifiedRoot": "is about hosts with cgroup v2 alone; " +
			"make bench-proof runs every scenario on v1",
		"internal/control.TestImportedOnUnified": "is about cgroup v2; TestImportedTreeIsThatOfLibcgroup is " +
			"about v1",
		"internal/control.TestStuckAtHighOnTheKernel": "is about memory.high, which is of cgroup v2",
		"internal/control.TestProbeOfAHalvedBudget": "takes loop devices faster than those of an emulated machine; " +
			"the root tests outside of the lab run it",
	},
	"systemd-unified": {
		"internal/bench.TestScenariosOfTheWireOnUnifiedRoot": "streams without a bound starve an emulated machine " +
			"that has systemd beside them",
	},
	noUnified: {
		"internal/bench.TestScenariosOnUnifiedRoot": "is about hosts with cgroup v2 alone; make bench-proof " +
			"runs every scenario on v1",
		"internal/bench.TestScenariosOfTheWireOnUnifiedRoot": "is about hosts with cgroup v2 alone; make bench-proof " +
			"runs every scenario on v1",
		"internal/bench.TestScenariosOfDatabasesOnUnifiedRoot": "is about hosts with cgroup v2 alone; " +
			"make bench-proof runs every scenario on v1",
		"test/network.TestNetClsBesidePrograms": "needs a cgroup2 hierarchy beside that of net_cls",
		"test/network.TestShares": "is about programs on cgroup2 directories; TestNetClsAlone " +
			"is about hosts without",
		"test/network.TestGuaranteesThroughTheVerbs":   "looks for programs on cgroup2 directories in the end",
		"test/network.TestForeignQdiscThroughTheVerbs": "looks for programs on cgroup2 directories in the end",
		"test/network.TestWatchdog":                    "looks for programs on cgroup2 directories in the end",
		"test/network.TestAgentKilledWhileItShapes":    "looks for programs on cgroup2 directories in the end",
	},
	noNetClsAlone: {
		"test/network.TestNetClsAlone": "is about hosts without cgroup2",
	},
	noNetCls: {
		"test/network.TestNetClsAlone":          "is about net_cls, which is not mounted",
		"test/network.TestNetClsBesidePrograms": "is about net_cls, which is not mounted",
	},
	"co-mounted": {
		"internal/bench.TestScenariosOnUnifiedRoot": "is about hosts with cgroup v2 alone; make bench-proof " +
			"runs every scenario on v1",
		"internal/bench.TestScenariosOfTheWireOnUnifiedRoot": "is about hosts with cgroup v2 alone; make bench-proof " +
			"runs every scenario on v1",
		"internal/bench.TestScenariosOfDatabasesOnUnifiedRoot": "is about hosts with cgroup v2 alone; " +
			"make bench-proof runs every scenario on v1",
		"internal/control.TestImportedOnUnified": "is about cgroup v2; TestImportedTreeIsThatOfLibcgroup is " +
			"about v1",
		"internal/control.TestStuckAtHighOnTheKernel": "is about memory.high, which is of cgroup v2",
		"internal/apply.TestKilledAtEveryStepOnTheKernel": "writes plans for v1 controllers apart; control's " +
			"TestKillAfterEveryStepThenRollback walks through co-mounts",
		"internal/apply.TestKernelRefusesOnTheKernel": "writes a plan for v1 controllers apart",
		"internal/control.TestProbeOfAHalvedBudget": "takes loop devices faster than those of an emulated machine; " +
			"the root tests outside of the lab run it",
	},
}

// once are the tests, or whole packages, that a run without -lab.long has in one mode alone, if that is among those
// asked for: what they show is the same in each, or was seen by the root tests outside of the lab. "" is none: it takes
// more time than a short run has.
var once = map[string]string{
	"internal/bench":              "",
	"internal/cgroup":             "systemd-unified",
	"internal/cgroup/conformance": "systemd-unified",
	"internal/host":               "systemd-unified",
	"internal/knob":               "systemd-unified",
	"internal/testhost":           "systemd-unified",
	"internal/control.TestAdoptedUnitMovesAtItsNextStart": "systemd-unified",
	"internal/control.TestBufferedWritesAreHeldOnV2Alone": "systemd-unified",
	"internal/control.TestDiskOfAServiceIsGivenBack":      "",
	"internal/control.TestLooseProcessesSitWithTheKeeper": "systemd-hybrid",
	"internal/control.TestPartOfAUnitNeedsAsking":         "",
	"internal/control.TestProbeUnderSystemd":              "systemd-unified",
	"internal/control.TestReleaseBeforeTheRestart":        "",
	"internal/control.TestRunIsAUnitOfItsOwn":             "",
	"internal/control.TestSharesOverTheRealTree":          "",
	"internal/control.TestSliceOfAnAdministrator":         "",
	"internal/control.TestUnitGetsItsOwnLimitBack":        "",
	"internal/control.TestUnitsKillAfterEveryStep":        "",
	"internal/host.TestStorageWhileDevicesComeAndGo":      "",
	"internal/systemd/conformance.TestSystemd":            "",
	"test/e2e.TestDiskThatDiesUnderLoad":                  "",
	"test/e2e.TestLimitBesideSystemdOutlivesAReload":      "systemd-unified",
	"test/e2e.TestLimitsOnRealStacks":                     "systemd-unified",
	"test/e2e.TestSecondDiskJoinsUnderLoad":               "",
	"test/e2e.TestWeightsInTheLab":                        "",
	"test/packaging.TestEveryKeyUnderTheUnit":             "",
	"test/network.TestAgentKilledWhileItShapes":           "",
	"test/network.TestForeignQdiscThroughTheVerbs":        "",
	"test/network.TestGuaranteesThroughTheVerbs":          "",
	"test/network.TestShares":                             "",
	"test/network.TestWatchdog":                           "",
	"test/packaging.TestInstalled":                        "",
	"test/packaging.TestInstalledAfterReboot":             "",
	"test/script.TestSlices":                              "systemd-hybrid",
}

// exemptions gives what is left out of a mode, and why.
func exemptions(m Mode) map[string]string {
	traits := []string{m.Name, m.Release}
	switch {
	case m.Cgroups == "unified":
		traits = append(traits, "unified")
	case m.Systemd || m.Cgroups == "legacy": // systemd co-mounts v1's controllers as the legacy machine does
		traits = append(traits, "co-mounted")
	}
	switch {
	case m.Cgroups == "legacy":
		traits = append(traits, noUnified)
	case m.Cgroups == "hybrid" && m.Systemd:
		traits = append(traits, noNetClsAlone)
	default:
		traits = append(traits, noNetCls)
	}
	all := map[string]string{}
	for _, trait := range traits {
		maps.Copy(all, exempt[trait])
	}
	if *long || quick() {
		return all
	}
	if !m.Systemd { // of these modes a short run leaves out what is too much for it, and no more
		all["internal/bench"] = "is left to LONG=1"
		return all
	}
	for test, in := range once {
		switch {
		case in == "":
			all[test] = "is left to LONG=1"
		case in != m.Name && slices.Contains(strings.Fields(*mode), in):
			all[test] = "is left to mode " + in + " in a short run"
		}
	}
	return all
}

// packagesOf gives the packages whose tests run in a mode, or those asked for.
func packagesOf(m Mode) []string {
	if *pkgs != "" {
		var asked []string
		for p := range strings.FieldsSeq(*pkgs) {
			asked = append(asked, strings.TrimPrefix(filepath.Clean(p), "bulkhead/"))
		}
		return asked
	}
	if m.Only != "" {
		return strings.Fields(m.Also + " " + m.Only)
	}
	all := packages
	if m.Systemd {
		all = slices.Concat(packages, onSystemd)
	}
	all = append(slices.Clone(all), last)
	left := exemptions(m)
	return slices.DeleteFunc(all, func(p string) bool { return left[p] != "" })
}

// payload is the second disk of the machines: the test binaries, the repository's files beside which they run, and what
// a machine does with them.
type payload struct {
	once  sync.Once
	work  string // a directory to work in
	modes []Mode
	image string
	tests map[string]map[string][]string // by mode and section of the console: those that are to run
}

// afterReboot ends the names of the tests that run once the machine was started anew, after all the others. What those
// are to find is left by others.
const afterReboot = "AfterReboot"

func (p *payload) make(t *testing.T) {
	t.Helper()
	root := filepath.Join(p.work, "payload")
	must(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	install(t, "guest", filepath.Join(root, "guest"))
	run(t, "go", "build", "-o", filepath.Join(root, "bin", "bulkhead"), "bulkhead/cmd/bulkhead")
	p.tests = map[string]map[string][]string{}
	compiled, sections := map[string]bool{}, map[string]string{"list-": "", "again-": "again/"}
	for _, m := range p.modes {
		lists := map[string]string{"list-": "", "again-": ""}
		p.tests[m.Name] = map[string][]string{}
		for _, pkg := range packagesOf(m) {
			first, later := rootTests(t, m, pkg), []string(nil)
			for _, test := range first {
				if strings.HasSuffix(test, afterReboot) {
					later = append(later, test)
				}
			}
			first = slices.DeleteFunc(first, func(test string) bool { return slices.Contains(later, test) })
			for list, tests := range map[string][]string{"list-": first, "again-": later} {
				if len(tests) > 0 {
					lists[list] += pkg + " " + pattern(tests) + "\n"
					p.tests[m.Name][sections[list]+pkg] = tests
				}
			}
			if len(first)+len(later) > 0 && !compiled[pkg] {
				compiled[pkg] = true
				compile(t, root, pkg)
			}
		}
		if len(p.tests[m.Name]) == 0 {
			t.Fatalf("mode %s: no root test of %q matches %q", m.Name, packagesOf(m), *only)
		}
		for list, text := range lists {
			must(t, os.WriteFile(filepath.Join(root, list+m.Name), []byte(text), 0o644))
		}
	}
	if p.wants("TestDebPackage") || p.wants("TestInitPackage") {
		for version, dir := range map[string]string{"v0.0.1": "first", "v0.0.2": "second"} {
			run(t, "make", "-C", top, "--no-print-directory", "packages", "ARCHES=amd64", "VERSION="+version,
				"OUT="+absolute(t, root, "src", "packages", dir))
		}
	}
	image := filepath.Join(p.work, "payload.img")
	run(t, "mke2fs", "-q", "-t", "ext4", "-d", root, image, "512M")
	p.image = image
}

// wants says whether a test is to run in any of the machines.
func (p *payload) wants(test string) bool {
	for _, sections := range p.tests {
		for _, tests := range sections {
			if slices.Contains(tests, test) {
				return true
			}
		}
	}
	return false
}

// pattern matches tests as -test.run does, with the subtests asked for.
func pattern(tests []string) string {
	pattern := "^(" + strings.Join(tests, "|") + ")$"
	if _, sub, ok := strings.Cut(*only, "/"); ok {
		pattern += "/" + sub
	}
	return pattern
}

// compile puts the test binary of a package below root, and the files that it reads.
func compile(t *testing.T, root, pkg string) {
	t.Helper()
	beside := filepath.Join(root, "src", pkg)
	must(t, os.MkdirAll(beside, 0o755))
	binary := filepath.Join(root, "bin", pkg+".test")
	must(t, os.MkdirAll(filepath.Dir(binary), 0o755))
	run(t, "go", "test", "-c", "-tags", "root", "-o", binary, "bulkhead/"+pkg)
	if installs[pkg] != nil {
		install(t, filepath.Join(root, "bin", "bulkhead"), filepath.Join(root, "src", "bulkhead"))
	}
	for _, pattern := range installs[pkg] {
		files, err := filepath.Glob(filepath.Join(top, pattern))
		must(t, err)
		for _, file := range files {
			name, err := filepath.Rel(top, file)
			must(t, err)
			to := filepath.Join(root, "src", name)
			must(t, os.MkdirAll(filepath.Dir(to), 0o755))
			install(t, file, to)
		}
	}
	testdata := filepath.Join(top, pkg, "testdata")
	if _, err := os.Stat(testdata); err == nil {
		must(t, os.CopyFS(filepath.Join(beside, "testdata"), os.DirFS(testdata)))
	}
}

// rootTests lists the tests of a package for a mode that stand behind the build tag "root". Those in
// files whose names begin with "systemd" are about it.
func rootTests(t *testing.T, m Mode, pkg string) []string {
	t.Helper()
	name, _, _ := strings.Cut(*only, "/") // what follows chooses among subtests
	filter, err := regexp.Compile(name)
	must(t, err)
	files, err := filepath.Glob(filepath.Join(top, pkg, "*_test.go"))
	must(t, err)
	var tests []string
	for _, name := range files {
		about := strings.HasPrefix(filepath.Base(name), "systemd")
		if about && !m.Systemd || !about && m.Systemd && *pkgs == "" && slices.Contains(apart, pkg) {
			continue
		}
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
			if !m.Runs(pkg, f.Name.Name, quick()) {
				continue
			}
			if few := partly[pkg]; few != nil && *pkgs == "" && !few.MatchString(f.Name.Name) {
				continue
			}
			if why, out := exemptions(m)[pkg+"."+f.Name.Name]; out {
				t.Logf("not for mode %s: %s.%s %s", m.Name, pkg, f.Name.Name, why)
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

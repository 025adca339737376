package hygiene

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func itoa(n int) string { return strconv.Itoa(n) }

// pure packages take values and give values.
var pure = []string{"calendar", "knob", "classify", "plan", "slo", "experiment"}

// rule looks at one file and tells what is wrong with it.
type rule struct {
	name  string
	check func(source) []string
	// bad holds files that the rule must object to: path and text.
	bad [][2]string
	// good holds files that it must leave alone.
	good [][2]string
}

var rules = []rule{
	{
		name:  "cmd imports cli alone",
		check: thinCommand,
		bad:   [][2]string{{"cmd/bulkhead/main.go", `package main; import _ "bulkhead/internal/host"`}},
		good:  [][2]string{{"cmd/bulkhead/main.go", `package main; import _ "bulkhead/internal/cli"`}},
	},
	{
		name:  "one door per interface",
		check: doors,
		bad: [][2]string{
			{"internal/apply/a.go", `package apply; import _ "os/exec"`},
			{"internal/host/a.go", `package host; import _ "go.yaml.in/yaml/v4"`},
			{"internal/agent/a.go", `package agent; import _ "github.com/spf13/cobra"`},
			{"internal/apply/a.go", `package apply; import _ "golang.org/x/sys/unix"`},
			{"internal/apply/a.go", `package apply; import _ "github.com/godbus/dbus/v5"`},
			{"internal/agent/a.go", `package agent; import _ "github.com/coreos/go-systemd/v22/dbus"`},
			{"internal/agent/a.go", `package agent; import _ "github.com/vishvananda/netlink/nl"`},
			{"internal/cgroup/a.go", `package cgroup; import _ "github.com/cilium/ebpf"`},
			{"internal/knob/a.go", `package knob; import _ "os"`},
		},
		good: [][2]string{
			{"internal/bench/a.go", `package bench; import _ "os/exec"`},
			{"internal/apply/a_test.go", `package apply; import _ "os/exec"`},
			{"internal/policy/yamlform/a.go", `package yamlform; import _ "go.yaml.in/yaml/v4"`},
			{"internal/systemd/a.go", `package systemd; import _ "github.com/godbus/dbus/v5"`},
		},
	},
	{
		name:  "banned modules",
		check: banned,
		bad: [][2]string{
			{"internal/host/a_test.go", `package host; import _ "github.com/stretchr/testify/require"`},
			{"internal/host/a.go", `package host; import _ "gopkg.in/yaml.v3"`},
			{"internal/host/a.go", `package host; import _ "log"`},
		},
		good: [][2]string{{"internal/host/a.go", `package host; import _ "log/slog"`}},
	},
	{
		name:  "kernel paths behind their doors",
		check: kernelPaths,
		bad: [][2]string{
			{"internal/apply/a.go", `package apply; const x = "/proc/self/exe"`},
			{"internal/plan/a.go", "package plan; var x = `/sys/fs/cgroup`"},
			{"internal/cli/a.go", `package cli; func f(s string) string { return "/proc/" + s }`},
		},
		good: [][2]string{
			{"internal/host/a.go", `package host; const x = "/proc/self"`},
			{"internal/apply/a.go", `package apply; const x = "is /proc mounted?"`},
			{"internal/knob/a.go", `package knob; const x = "/proc/PID/oom_score_adj"`},
			{"internal/apply/a_test.go", `package apply; const x = "/proc/self"`},
		},
	},
	{
		name:  "knob files are never created",
		check: noCreate,
		bad: [][2]string{
			{"internal/cgroup/a.go", `package cgroup; import "os"; func f() { os.WriteFile("x", nil, 0) }`},
			{"internal/apply/a.go", `package apply; import "os"; func f() { os.Create("x") }`},
			{"internal/cgroup/a.go", `package cgroup; import "os"; var x = os.O_CREATE`},
			{"internal/cgroup/a.go", `package cgroup; import "golang.org/x/sys/unix"; var x = unix.O_CREAT`},
		},
		good: [][2]string{{"internal/cgroup/a_test.go", `package cgroup; import "os"; func f() { os.Create("x") }`}},
	},
	{
		name:  "no clock in the pure core",
		check: noClock,
		bad: [][2]string{
			{"internal/plan/a.go", `package plan; import "time"; var x = time.Now()`},
			{"internal/knob/a.go", `package knob; import "time"; func f(t time.Time) { time.Since(t) }`},
		},
		good: [][2]string{{"internal/plan/a.go", `package plan; import "time"; const x = time.Second`}},
	},
	{
		name:  "interfaces have at most four methods",
		check: smallInterfaces,
		bad:   [][2]string{{"internal/plan/a.go", `package plan; type T interface { A(); B(); C(); D(); E() }`}},
		good:  [][2]string{{"internal/plan/a.go", `package plan; type T interface { A(); B(); C(); D() }`}},
	},
	{
		name:  "only cmd ends the program",
		check: noExit,
		bad:   [][2]string{{"internal/plan/a.go", `package plan; import "os"; func f() { os.Exit(1) }`}},
		good:  [][2]string{{"cmd/bulkhead/main.go", `package main; import "os"; func main() { os.Exit(1) }`}},
	},
	{
		name:  "only cli and cmd print",
		check: noPrint,
		bad:   [][2]string{{"internal/plan/a.go", `package plan; import "fmt"; func f() { fmt.Println(1) }`}},
		good: [][2]string{
			{"internal/cli/a.go", `package cli; import "fmt"; func f() { fmt.Println(1) }`},
			{"internal/plan/a.go", `package plan; import "fmt"; func f() string { return fmt.Sprint(1) }`},
		},
	},
	{
		name:  "what others chose is escaped in one place",
		check: onePrinter,
		bad: [][2]string{
			{"internal/cli/a.go", `package cli; import "fmt"; func f() { fmt.Fprintf(w, "%s", name) }`},
			{"internal/cli/render/a.go", `package render; import "fmt"; func f() { fmt.Fprintln(w, name) }`},
		},
		good: [][2]string{{"internal/cli/render/a.go", `package render; func f() { Printf(w, "%s", name) }`}},
	},
	{
		name:  "SELinux is never switched off",
		check: keepsEnforcing,
		bad: [][2]string{
			{"internal/linux/tunable/sepolicy/a.go", `package sepolicy; var x = []string{"setenforce", "0"}`},
			{"internal/cli/a.go", "package cli; const x = `sh -c 'setenforce 0'`"},
			{"internal/linux/selinux/a.go", `package selinux; const x = "SELINUX=permissive"`},
		},
		good: [][2]string{
			{"internal/cli/a_test.go", `package cli; const x = "setenforce"`},
			{"internal/linux/selinux/a.go", `package selinux; const x = "SELINUX="`},
		},
	},
	{
		name:  "packages are named by a noun of the field",
		check: packageNames,
		bad:   [][2]string{{"internal/util/a.go", `package util`}, {"internal/host/helpers/a.go", `package helpers`}},
	},
}

func TestRules(t *testing.T) {
	all := sources(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, bad := range r.bad {
				if len(r.check(parse(t, bad[0], bad[1]))) == 0 {
					t.Errorf("the rule lets this pass, in %s: %s", bad[0], bad[1])
				}
			}
			for _, good := range r.good {
				if wrong := r.check(parse(t, good[0], good[1])); len(wrong) > 0 {
					t.Errorf("the rule objects to this: %v", wrong)
				}
			}
			for _, s := range all {
				for _, wrong := range r.check(s) {
					t.Error(wrong)
				}
			}
		})
	}
}

func thinCommand(s source) []string {
	var wrong []string
	for _, i := range s.file.Imports {
		path := importPath(i)
		if s.dir == "cmd/bulkhead" && strings.HasPrefix(path, "bulkhead/") && path != "bulkhead/internal/cli" {
			wrong = append(wrong, s.at(i)+": cmd imports "+path+", only cli is for it")
		}
	}
	return wrong
}

// doors says which packages may import what, outside tests.
func doors(s source) []string {
	allowed := []struct {
		prefix   string
		packages []string
	}{
		{"os/exec", []string{"bench", "linux/relaunch", "linux/tunable/bootline", "linux/tunable/sepolicy",
			"linux/zfs"}},
		{"go.yaml.in/yaml", []string{"policy/yamlform", "engine/yamlfile"}},
		{"github.com/spf13", []string{"cli"}},
		{"github.com/coreos/go-systemd", []string{"systemd"}},
		{"github.com/godbus/dbus", []string{"systemd"}},
		{"github.com/vishvananda", []string{"linux/tc", "linux/ctxswitch"}},
		{"github.com/adhocore/gronx", []string{"calendar"}},
		{"github.com/go-sql-driver/mysql", []string{"dblogin", "dbstat", "bench"}},
		{"github.com/jackc/pgx", []string{"dblogin", "dbstat", "bench"}},
		{"github.com/redis/go-redis", []string{"dblogin", "dbstat", "bench"}},
		{"cel.dev", []string{"advise/rule"}},
		{"github.com/prometheus", []string{"observe/exposition", "cli/serve", "linux/hoststat"}},
		{"google.golang.org/protobuf", []string{"observe/figures"}},
		{"github.com/cilium/ebpf", []string{"linux/procevents", "linux/bpfcount", "netshape/bpf"}},
		{"golang.org/x/sys", []string{"host", "linux", "cgroup", "netshape", "watchdog", "probe", "journal",
			"reconcile",
			"agent", "cli", "testhost"}},
	}
	if s.test {
		return nil
	}
	below := func(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }
	var wrong []string
	for _, i := range s.file.Imports {
		path := importPath(i)
		for _, a := range allowed {
			if below(path, a.prefix) && !s.in(a.packages...) {
				wrong = append(wrong, s.at(i)+": "+path+" is not for "+s.dir)
			}
		}
		for _, p := range []string{"os", "io/fs", "syscall", "net", "math/rand"} {
			if below(path, p) && s.in(pure...) {
				wrong = append(wrong, s.at(i)+": "+path+": "+s.dir+" is pure")
			}
		}
	}
	return wrong
}

func banned(s source) []string {
	var wrong []string
	for _, i := range s.file.Imports {
		path := importPath(i)
		for _, b := range []string{"gopkg.in/yaml.v2", "gopkg.in/yaml.v3", "github.com/stretchr/testify",
			"github.com/sirupsen/logrus", "github.com/pkg/errors", "io/ioutil"} {
			if path == b || strings.HasPrefix(path, b+"/") {
				wrong = append(wrong, s.at(i)+": "+path+" is banned")
			}
		}
		if path == "log" {
			wrong = append(wrong, s.at(i)+": log/slog is the logger")
		}
	}
	return wrong
}

// kernelPath is a path that somebody may be about to open; "/proc/PID/…" is one that a reader is told about.
var kernelPath = regexp.MustCompile(`^/(proc|sys)(/|$)`)

func kernelPaths(s source) []string {
	if s.test || s.in("host", "linux", "cgroup", "testhost", "advise/fact", "advise/gather") {
		return nil
	}
	return literals(s, func(text string) bool {
		return kernelPath.MatchString(text) && !strings.Contains(text, "/PID/")
	}, "only internal/linux and internal/host read /proc and /sys, only internal/cgroup the cgroup file systems")
}

var switchesOff = regexp.MustCompile(`\bsetenforce\b|\bSELINUX=(permissive|disabled)`)

// keepsEnforcing finds what would switch SELinux off, now or at the next boot.
func keepsEnforcing(s source) []string {
	if s.test {
		return nil
	}
	return literals(s, switchesOff.MatchString, "only a domain is made permissive")
}

// literals finds texts, with what is said of each.
func literals(s source, wrong func(text string) bool, why string) (found []string) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(lit.Value); err == nil && wrong(text) {
			found = append(found, s.at(n)+": "+lit.Value+": "+why)
		}
		return true
	})
	return found
}

func noCreate(s source) []string {
	if s.test || !s.in("cgroup", "apply", "transaction", "control", "freeze", "release", "confirm", "reconcile",
		"agent") {
		return nil
	}
	return uses(s, map[string][]string{
		"os": {"WriteFile", "Create", "CreateTemp", "O_CREATE"}, "unix": {"O_CREAT"}, "syscall": {"O_CREAT"},
	}, "a knob file is opened without O_CREATE, and state is written by internal/journal")
}

func noClock(s source) []string {
	if s.test || !s.in(pure...) {
		return nil
	}
	return uses(s, map[string][]string{"time": {"Now", "Since", "Until", "After", "Sleep", "NewTimer", "NewTicker"}},
		"the core is pure")
}

func noExit(s source) []string {
	if s.test || s.dir == "cmd/bulkhead" || s.dir == "packaging/sbom" || s.in("testhost") {
		return nil
	}
	return uses(s, map[string][]string{"os": {"Exit"}}, "return an error or a code instead")
}

func noPrint(s source) []string {
	if s.test || s.dir == "cmd/bulkhead" || s.in("cli", "testhost") {
		return nil
	}
	return uses(s, map[string][]string{"fmt": {"Print", "Printf", "Println"}},
		"stdout is the answer and belongs to cli")
}

// onePrinter keeps the command line from writing past the functions that escape.
func onePrinter(s source) []string {
	if s.test || !s.in("cli") || s.path == "internal/cli/render/terminal.go" {
		return nil
	}
	return uses(s, map[string][]string{"fmt": {"Fprint", "Fprintf", "Fprintln"}}, "cli/render has Printf and Println")
}

// uses finds selections like os.Create by the name of the package.
func uses(s source, names map[string][]string, why string) []string {
	var wrong []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(names[x.Name], sel.Sel.Name) {
			wrong = append(wrong, s.at(n)+": "+x.Name+"."+sel.Sel.Name+": "+why)
		}
		return true
	})
	return wrong
}

func smallInterfaces(s source) []string {
	if s.test {
		return nil
	}
	var wrong []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		if i, ok := n.(*ast.InterfaceType); ok && i.Methods.NumFields() > 4 {
			wrong = append(wrong, s.at(n)+": an interface of "+itoa(i.Methods.NumFields())+" methods")
		}
		return true
	})
	return wrong
}

func packageNames(s source) []string {
	for _, bad := range []string{"util", "common", "helper", "manager", "misc"} {
		if strings.Contains(s.file.Name.Name, bad) {
			return []string{s.path + ": package " + s.file.Name.Name + " says nothing about what it owns"}
		}
	}
	return nil
}

func importPath(i *ast.ImportSpec) string {
	path, err := strconv.Unquote(i.Path.Value)
	if err != nil {
		panic(err) // the parser took it
	}
	return path
}

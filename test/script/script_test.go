package script

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cli"
	"bulkhead/internal/host"
)

// TestMain lets the scripts find this binary in PATH as bulkhead.
func TestMain(m *testing.M) {
	testscript.Main(interruptible{m}, map[string]func(){
		"bulkhead": func() { os.Exit(cli.Main(os.Args[1:], os.Exit)) },
	})
}

// interruptible are tests whose scripts can end what they leave in the background: that is by SIGINT, which what is
// started in the background of a shell ignores, and its children with it.
type interruptible struct{ *testing.M }

func (m interruptible) Run() int {
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt) // a signal that is asked for is not ignored by children
	}
	return m.M.Run()
}

// The scripts that everybody can run. None of them changes the host, and each is held to that.
func TestAnyone(t *testing.T) {
	each(t, "anyone", func(t *testing.T, file string) {
		root := fmt.Sprintf("bulkhead-script-%d", os.Getpid())
		t.Cleanup(func() { noGroups(t, root) })
		run(t, file, root, nil)
	})
}

// each runs the scripts of a folder as tests of their own.
func each(t *testing.T, folder string, do func(t *testing.T, file string)) {
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %q: %v", folder, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			headed(t, file)
			do(t, file)
		})
	}
}

// headed holds each script to begin with the behaviour it pins.
func headed(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if head, _, _ := strings.Cut(string(text), "\n"); !strings.HasPrefix(head, "# ") || len(head) < 20 {
		t.Errorf("%s: its first line says nothing about the behaviour it pins: %q", file, head)
	}
}

// run runs one script. In it, $ROOT is the name of a root group that nobody else has.
func run(t *testing.T, file, root string, more map[string]func(*testscript.TestScript, bool, []string)) {
	commands := map[string]func(*testscript.TestScript, bool, []string){
		"exits": exits, "expand": expand, "fill": fill, "untouched": untouched,
	}
	for name, command := range more {
		commands[name] = command
	}
	testscript.Run(t, testscript.Params{
		Files: []string{file},
		Cmds:  commands,
		Setup: func(e *testscript.Env) error {
			e.Setenv("ROOT", root)
			e.Setenv("STATE", filepath.Join(e.WorkDir, "state"))
			e.Setenv("SOCKET", filepath.Join(e.WorkDir, "s"))
			e.Setenv("SUDO_USER", "")
			return nil
		},
		RequireUniqueNames: true,
	})
}

// exits runs bulkhead with the script's own policy, state directory and socket, and holds it to an
// exit code:
//
//	exits 2 check
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE VERB…")
	}
	ends(ts, args[0], "bulkhead", append([]string{"--policy", "policy.yaml", "--state", ts.Getenv("STATE"), "--socket",
		ts.Getenv("SOCKET")}, args[1:]...)...)
}

// ends runs a program and holds it to an exit code.
func ends(ts *testscript.TestScript, code, program string, args ...string) {
	want, err := strconv.Atoi(code)
	ts.Check(err)
	got := 0
	err = ts.Exec(program, args...)
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		got = failed.ExitCode()
	case err != nil:
		ts.Fatalf("run %s: %v", program, err)
	}
	if got != want {
		ts.Fatalf("%s %s: exit code %d, want %d", program, strings.Join(args, " "), got, want)
	}
}

// expand writes the values of ${variables} into files.
func expand(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
	}
}

// fill makes a file of so many bytes: the letter a, or random ones.
//
//	fill policy.yaml 1000 random
func fill(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: fill FILE SIZE [random]")
	}
	size, err := strconv.Atoi(args[1])
	ts.Check(err)
	data := make([]byte, size)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same bytes on every run
	for i := range data {
		data[i] = 'a'
		if len(args) == 3 {
			data[i] = byte(random.Uint32())
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o600))
}

// untouched says that nothing was written: no group of the script's root, no state directory.
func untouched(ts *testscript.TestScript, _ bool, _ []string) {
	if _, err := os.Stat(ts.Getenv("STATE")); !errors.Is(err, fs.ErrNotExist) {
		ts.Fatalf("there is a state directory: %v", err)
	}
	ts.Check(groupsOf(ts.Getenv("ROOT")))
}

// groupsOf is an error when any hierarchy has a group of that name, or of the default one.
func groupsOf(root string) error {
	facts, err := host.New("/").Facts()
	if err != nil {
		return err
	}
	tree := cgroup.New(facts.Hierarchies)
	defer tree.Close()
	for _, h := range facts.Hierarchies {
		d := cgroup.Dir{Hierarchy: h.ID, Path: "/" + root}
		there, err := tree.Exists(d)
		if err != nil || there {
			return fmt.Errorf("%s is there (%v)", d, err)
		}
	}
	return nil
}

func noGroups(t *testing.T, root string) {
	t.Helper()
	if err := groupsOf(root); err != nil {
		t.Error(err)
	}
}

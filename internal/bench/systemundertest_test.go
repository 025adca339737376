package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

// recorder is a program that writes down how it was called, and then does as the script says.
func recorder(t *testing.T, script string) (program string, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	program = filepath.Join(dir, "bulkhead")
	text := "#!/bin/sh\necho \"$@\" >>" + log + "\n" + script + "\n"
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, func() string {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestSystemUnderTest(t *testing.T) {
	program, calls := recorder(t, "")
	n := process.NewSupervisor()
	defer n.Close()
	dir := t.TempDir()
	p := newSystemUnderTest(program, dir, n)
	if err := p.releaseAll(t.Context()); err != nil || calls() != "" {
		t.Errorf("with nothing applied, releasing ran %q, %v", calls(), err)
	}
	if err := p.apply(t.Context()); err != nil || !p.unreleased {
		t.Errorf("after applying: unreleased is %v, %v", p.unreleased, err)
	}
	if err := p.releaseAll(t.Context()); err != nil || p.unreleased {
		t.Errorf("after releasing: unreleased is %v, %v", p.unreleased, err)
	}
	flags := "--policy " + dir + "/policy.yaml --state " + dir + "/state --socket " + dir + "/agent.sock "
	want := flags + "apply --reason bench\n" + flags + "release --all --reason end of the proof\n"
	if calls() != want {
		t.Errorf("ran\n%swant\n%s", calls(), want)
	}
	run := strings.Join(p.run("mysql", []string{"sysbench", "--x"}), " ")
	if want := program + " " + flags + "run mysql -- sysbench --x"; run != want {
		t.Errorf("run is %q, want %q", run, want)
	}
}

func TestSystemUnderTestFails(t *testing.T) {
	program, _ := recorder(t, "echo 'bulkhead: no such knob' >&2; exit 1")
	n := process.NewSupervisor()
	defer n.Close()
	p := newSystemUnderTest(program, t.TempDir(), n)
	err := p.apply(t.Context())
	if err == nil || !strings.Contains(err.Error(), "bulkhead apply --reason bench: exit status 1") ||
		!strings.Contains(err.Error(), "no such knob") {
		t.Errorf("error is %v, want the verb, the status and what it said", err)
	}
	// What a failed apply has left must still be released.
	if !p.unreleased {
		t.Error("a failed apply counts as released")
	}
	if err := p.releaseAll(t.Context()); err == nil || !p.unreleased {
		t.Errorf("a failed release: %v, unreleased is %v", err, p.unreleased)
	}
}

func TestParseNotes(t *testing.T) {
	notes, err := parseNotes([]byte(`{"steps":[],"notes":[{"text":"general"},
		{"group":"g","key":"io.weight","text":"no","not_enforced":true}]}`))
	if err != nil || len(notes) != 1 || notes[0].Key != "io.weight" {
		t.Errorf("notes are %+v, %v", notes, err)
	}
	if _, err := parseNotes([]byte("no JSON")); err == nil {
		t.Error("what is no JSON was read as a plan")
	}
}

func TestLockMachine(t *testing.T) {
	name := fmt.Sprintf("bulkhead-test-%d", os.Getpid())
	first, err := lockMachine(name)
	if err != nil {
		t.Fatal(err)
	}
	var required *process.RequirementError
	if _, err := lockMachine(name); !errors.As(err, &required) || required.Hint == "" {
		t.Errorf("beside another demo: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockMachine(name)
	if err != nil {
		t.Fatalf("after it: %v", err)
	}
	again.Close()
}

func TestSweep(t *testing.T) {
	program, calls := recorder(t, "")
	n := process.NewSupervisor()
	defer n.Close()
	parent := t.TempDir()

	dead, lock, err := newWorkDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dead, "state"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sweep(t.Context(), parent, program, n); !errors.Is(err, errLocked) {
		t.Errorf("beside a running demo: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return // the directory is not root's and so not ours to take away
	}
	if err := sweep(t.Context(), parent, program, n); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(calls(), "--state "+dead+"/state --socket "+dead+"/agent.sock release --all") {
		t.Errorf("ran %q, want the dead demo's groups released", calls())
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%q is still there: %v", dead, err)
	}
}

// A directory whose groups could not be released is kept: it has the originals.
func TestSweepKeeps(t *testing.T) {
	if os.Geteuid() != 0 {
		return // not ours, as above
	}
	program, _ := recorder(t, "exit 1")
	n := process.NewSupervisor()
	defer n.Close()
	parent := t.TempDir()
	state := filepath.Join(parent, workPrefix+"1", "state")
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := sweep(context.Background(), parent, program, n); err == nil {
		t.Error("a failed release went unnoticed")
	}
	if _, err := os.Stat(state); err != nil {
		t.Errorf("the originals are gone: %v", err)
	}
}

// The policy of the demo is one that a person could have written.
func TestDemoPolicy(t *testing.T) {
	s := demoScenario(t)
	r := newRun(fitted{scenario: s,
		machine: machine{facts: &host.Facts{}, cpus: 2, available: 1 << 30, dir: "/var/tmp"}}, Options{})
	r.fit()
	in := &database.Instance{Database: s.Databases[0], Kind: database.MariaDB, Port: 3307, Socket: "/x/mysqld.sock"}
	r.databases = []*database.Instance{in}
	text, err := r.governor.policyText("ours")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parse.Policy([]policy.Source{{Path: "demo.yaml", Text: text}})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var paths []string
	for _, g := range parsed.Groups {
		paths = append(paths, g.Path)
	}
	for _, group := range s.Groups() {
		if !slices.Contains(paths, group) {
			t.Errorf("group %q is not among %v", group, paths)
		}
	}
	// The load is a client of the database, and the server is not.
	client := regexp.MustCompile(r.texts()["client.db"])
	sysbench := "sysbench oltp_read_only --db-driver=mysql --mysql-socket=/x/mysqld.sock --mysql-user=root"
	if !client.MatchString(sysbench) ||
		client.MatchString("mariadbd --no-defaults --socket=/x/mysqld.sock --port=3307") {
		t.Errorf("clients are told by %q", client)
	}
}

//go:build root

package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/systemd/unitname"
)

// ending is how one run of a chain of runs ends before its time.
type ending struct {
	signal syscall.Signal
	word   string           // of its progress; "" is its start
	after  time.Duration    // since then
	more   []syscall.Signal // that follow, as of somebody in a hurry
}

// swept is what a run says once it has taken away what others left.
const swept = "starting"

// A scenario that is interrupted at any moment leaves nothing behind, and one that is killed nothing that the next one
// does not take away. INTERRUPTS is at how many moments of each engine's run, spread over the whole of it; without it
// there are a few.
func TestInterruptedAnywhereRoot(t *testing.T) {
	needRoot(t)
	program := buildProgram(t)
	moments, err := strconv.Atoi(cmp.Or(os.Getenv("INTERRUPTS"), "0"))
	if err != nil {
		t.Fatalf("INTERRUPTS: %v", err)
	}
	if moments == 0 {
		last := "under the policy"
		if process.LookPath("cgcreate") != "" {
			last = "under shares"
		}
		interrupts(t, program, "redis", []ending{
			{syscall.SIGINT, "", 20 * time.Millisecond, nil},
			{syscall.SIGKILL, "under the policy", 1700 * time.Millisecond, nil}, // the server was started in its group
			{syscall.SIGTERM, swept, 500 * time.Millisecond, nil},
			{syscall.SIGINT, last, 1200 * time.Millisecond, []syscall.Signal{syscall.SIGINT, syscall.SIGHUP}},
		})
		return
	}
	for _, engine := range []string{"redis", "postgresql", "mariadb"} {
		t.Run(engine, func(t *testing.T) {
			began := time.Now()
			whole := startMarked(t, program, engine, filepath.Join(workArea(t), "0"))
			if err := whole.end(t); whole.cmd.ProcessState.ExitCode() != 0 {
				t.Fatalf("the scenario does not run: %v\n%s", err, whole.all)
			}
			step := time.Since(began) / time.Duration(moments)
			var all []ending
			for i := range moments {
				// Two thirds are interrupted; those that are killed are followed by one that is not.
				e := ending{[]syscall.Signal{syscall.SIGINT, syscall.SIGKILL, syscall.SIGTERM}[i%3], "",
					time.Duration(i) * step, nil}
				if i%3 == 2 {
					e.word = swept
				}
				all = append(all, e)
			}
			interrupts(t, program, engine, all)
		})
	}
}

// interrupts runs the scenario once for each ending, one after the other in one place, and looks after each.
func interrupts(t *testing.T, program, engine string, endings []ending) {
	t.Helper()
	dir := workArea(t)
	before := snapshot(t)
	// Should it fail below: what is left is released while the state is still there.
	t.Cleanup(func() {
		for _, work := range entriesOf(t, dir) {
			if err := process.EndMarked(context.Background(), work); err != nil {
				t.Error(err)
			}
		}
		for _, state := range states(t, filepath.Join(dir, "*")) {
			if out, err := exec.Command(program, "--state", state, "--socket", filepath.Join(dir, "none"), "release",
				"--all").CombinedOutput(); err != nil {
				t.Errorf("release: %v\n%s", err, out)
			}
		}
	})
	// the last one sweeps, if the one before was killed
	for i, e := range append(endings, ending{syscall.SIGINT, swept, 0, nil}) {
		// also what a run elsewhere left is taken away
		r := startMarked(t, program, engine, filepath.Join(dir, strconv.Itoa(i%2)))
		begun := time.Now()
		if e.word != "" {
			r.await(t, swept)
			if i > 0 && endings[i-1].signal == syscall.SIGKILL {
				r.onlyItself(t, dir, before, endings[i-1])
			}
			if e.word != swept {
				r.await(t, e.word)
			}
			begun = time.Now()
		}
		time.Sleep(time.Until(begun.Add(e.after))) // the moment is what is tested
		if err := r.cmd.Process.Signal(e.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		for _, s := range e.more {
			time.Sleep(50 * time.Millisecond)
			_ = r.cmd.Process.Signal(s)
		}
		err := r.end(t)
		what := fmt.Sprintf("%s: %v %v after %q", engine, e.signal, e.after, e.word)
		var exit *exec.ExitError
		if e.more != nil &&
			(!errors.As(err, &exit) || exit.ExitCode() < 1 || !strings.Contains(r.all.String(), "interrupted")) {
			t.Errorf("%s ended with %v, want an exit code above 0 and not a signal, and said\n%s", what, err, r.all)
		}
		if e.signal == syscall.SIGKILL {
			gone := time.Now().Add(10 * time.Second)
			for left := processesOf(t, dir); len(left) > 0; left = processesOf(t, dir) {
				if time.Now().After(gone) {
					t.Fatalf("%s: 10 s later there are still\n%s", what, strings.Join(left, "\n"))
				}
				time.Sleep(20 * time.Millisecond)
			}
			continue
		}
		if left := leftBehind(t, dir, before); len(left) > 0 {
			t.Errorf("%s left behind\n%s\nit said\n%s", what, strings.Join(left, "\n"), r.all)
		}
	}
}

// startMarked starts the scenario of an engine.
func startMarked(t *testing.T, program, engine, dir string) *running {
	t.Helper()
	load := map[string][2]string{"redis": {"redis-benchmark", "get"}, "postgresql": {"pgbench", "select-only"},
		"mariadb": {"sysbench", "oltp_read_only"}}[engine]
	text, err := template.ParseFiles(filepath.Join("testdata", "interrupted.yaml.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := text.Execute(&file, map[string]any{
		"Engine": engine, "Program": load[0], "Script": load[1], "Peer": process.LookPath("cgcreate") != "",
		"Backup": engine == "postgresql",
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "interrupted.yaml")
	if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return startProgram(t, dir, exec.Command(program, "bench", path, "--dir", dir))
}

// onlyItself checks that a run which has just begun to make its own things took away what a killed one left.
func (r *running) onlyItself(t *testing.T, dir string, before map[string]bool, killed ending) {
	t.Helper()
	entries := entriesOf(t, dir)
	if len(entries) != 1 {
		t.Fatalf("after a run that was killed %v after %q, and the start of the next, there are %q", killed.after,
			killed.word, entries)
	}
	for _, what := range leftBehind(t, dir, before) {
		if !strings.Contains(what, entries[0]) && what != pointer &&
			!strings.HasPrefix(what, fmt.Sprintf("process %d ", r.cmd.Process.Pid)) {
			t.Errorf("the run after one that was killed %v after %q did not take away %s", killed.after, killed.word,
				what)
		}
	}
}

// entriesOf are the files in the directories that runs are given below dir.
func entriesOf(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// leftBehind looks at everything a run may make and says what of it is there and was not before.
func leftBehind(t *testing.T, dir string, before map[string]bool) []string {
	t.Helper()
	left := append(processesOf(t, dir), entriesOf(t, dir)...)
	for what := range snapshot(t) {
		if !before[what] {
			left = append(left, what)
		}
	}
	slices.Sort(left)
	return left
}

// processesOf are processes that speak of a directory, have it in their environment, or work or hold a file in it.
func processesOf(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := host.New("/").Proc.Processes(procfs.Options{Env: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		proc := fmt.Sprintf("/proc/%d/", p.PID)
		marks := append(slices.Concat(p.Args, p.Env), linkOf(proc+"cwd"))
		if fds, err := os.ReadDir(proc + "fd"); err == nil {
			for _, fd := range fds {
				marks = append(marks, linkOf(proc+"fd/"+fd.Name()))
			}
		}
		if slices.ContainsFunc(marks, func(s string) bool { return strings.Contains(s, dir) }) {
			found = append(found, fmt.Sprintf("process %d (parent %d): %s", p.PID, p.PPID, strings.Join(p.Args, " ")))
		}
	}
	return found
}

func linkOf(path string) string {
	to, _ := os.Readlink(path) // "" of one that went away
	return to
}

// snapshot is everything on the machine that a run could have made: groups of the bench's names in every hierarchy,
// mounts, loop devices, named network namespaces, interfaces of its name, and shared memory without a process.
func snapshot(t *testing.T) map[string]bool {
	t.Helper()
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, h := range facts.Hierarchies {
		err := filepath.WalkDir(h.Mount, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() &&
				(strings.HasPrefix(d.Name(), benchName) || strings.HasPrefix(d.Name(), unitname.TopPrefix)) {
				there["group "+path] = true
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range linesOf(t, "/proc/self/mountinfo") {
		if fields := strings.Fields(line); len(fields) > 4 &&
			(strings.Contains(line, "nsfs") || strings.Contains(line, "bulkhead")) {
			there["mount "+fields[4]] = true
		}
	}
	for _, pattern := range []string{"/sys/block/loop*/loop/backing_file", "/run/netns/" + benchName + "*",
		"/sys/class/net/" + benchName[:8] + "*", "/sys/class/net/bhbench*", "/run/" + benchName + "*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			there[p] = true
		}
	}
	for _, line := range linesOf(t, "/proc/swaps")[1:] {
		if fields := strings.Fields(line); len(fields) > 0 {
			there["swap "+fields[0]] = true
		}
	}
	// key, shmid, perms, size, cpid, lpid, nattch, …: one that nobody is attached to stays for ever.
	for _, line := range linesOf(t, "/proc/sysvipc/shm")[1:] {
		if f := strings.Fields(line); len(f) > 6 && f[6] == "0" {
			there["shared memory "+f[1]+" made by process "+f[4]] = true
		}
	}
	return there
}

func linesOf(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

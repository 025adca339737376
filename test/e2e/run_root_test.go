//go:build root

package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// runSite is a site with one group to run commands in.
func runSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.write("groups:\n  batch: {role: batch, match: [{exe: no-such-program}], cpu: {limit: 2}, memory: {max: " +
		"512MiB}, tasks: 100, oom_score_adj: 100}\n")
	s.must("apply")
	return s
}

// batch is `run batch -- command`.
func (s *site) batch(command ...string) *exec.Cmd {
	return s.command(append([]string{"run", "batch", "--"}, command...)...)
}

// The exit status is the command's; without a command env(1)'s.
func TestRunExitStatus(t *testing.T) {
	s := runSite(t)
	s.exits(0, nil, "run", "batch", "--", "true")
	s.exits(3, nil, "run", "batch", "--", "sh", "-c", "exit 3")
	s.exits(127, []string{"not found"}, "run", "batch", "--", "no-such-command")
	s.exits(126, []string{"permission denied"}, "run", "batch", "--", s.policy)
	text := filepath.Join(s.dir, "text")
	if err := os.WriteFile(text, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.exits(126, []string{"exec format error"}, "run", "batch", "--", text)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGUSR1} {
		cmd := s.batch("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.waitInside(cmd.Process.Pid, "sleep")
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		var failed *exec.ExitError
		if !errors.As(err, &failed) || failed.Sys().(syscall.WaitStatus).Signal() != sig {
			t.Errorf("signal %v reaches the command: %v", sig, err)
		}
	}
	// A shell sees 128 + 15.
	r := exec.Command("sh", "-c",
		`"$@" & pid=$!; while ! grep -q sleep /proc/$pid/comm; do :; done; kill -TERM $pid; wait $pid; echo $?`,
		"sh", s.program, "--state", s.state, "--socket", s.socket, "run", "batch", "--", "sleep", "60")
	if out, err := r.Output(); err != nil || string(out) != "143\n" {
		t.Errorf("after TERM a shell sees %q, %v; want 143", out, err)
	}
}

// Commands that start at once, as cron's do, all get their turn.
func TestRunManyAtOnce(t *testing.T) {
	s := runSite(t)
	const many = 40
	commands := make([]*exec.Cmd, many)
	said := make([]bytes.Buffer, many)
	for i := range commands {
		commands[i] = s.batch("sh", "-c", "cat /proc/$$/cgroup")
		commands[i].Stdout, commands[i].Stderr = &said[i], &said[i]
		if err := commands[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, cmd := range commands {
		if err := cmd.Wait(); err != nil || !strings.Contains(said[i].String(), "/batch") {
			t.Errorf("command %d: %v\n%s", i, err, &said[i])
		}
	}
}

// waitInside waits until `run` has become its command.
func (s *site) waitInside(pid int, comm string) {
	s.t.Helper()
	soon(s.t, "run to become "+comm, func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return string(text) == comm+"\n"
	})
}

// A command is inside from its first instruction, in every hierarchy, with its children.
func TestRunIsInsideFromTheStart(t *testing.T) {
	s := runSite(t)
	want := []string{}
	for _, line := range strings.Split(s.must("run", "batch", "--", "cat", "/proc/self/cgroup"), "\n") {
		if hierarchy, p, ok := strings.Cut(strings.TrimLeft(line, "0123456789:"), ":"); ok &&
			strings.HasPrefix(p, "/"+s.root) {
			if p != "/"+s.root+"/batch" {
				t.Errorf("in %s at %s", hierarchy, p)
			}
			want = append(want, hierarchy)
		}
	}
	slices.Sort(want)
	if got := strings.Join(want, " "); got != "cpu cpuacct memory pids" {
		t.Errorf("inside in %s", got)
	}
	if out := s.must("run", "batch", "--", "sh", "-c",
		"cat /proc/self/oom_score_adj; sh -c 'grep :cpu: /proc/self/cgroup'"); out != "100\n1:cpu:/"+s.root+
		"/batch\n" && !strings.HasSuffix(out, ":cpu:/"+s.root+"/batch\n") {
		t.Errorf("children: %q", out)
	}
	// apply and the agent leave it there although no rule matches, and its pin ends with it.
	b := s.start("run", "batch", "--", "sleep", "60")
	s.waitInside(b.Process.Pid, "sleep")
	s.must("apply")
	s.agent()
	soon(t, "some looks", func() bool { return s.status().Agent.Looks > 12 })
	if in := s.inside(b.Process.Pid); in["cpu"] != "batch" {
		t.Errorf("after apply and some looks it is in %v", in)
	}
	if g := s.group("batch"); len(g.Members) != 1 || g.Members[0].PID != b.Process.Pid {
		t.Errorf("members %+v", g.Members)
	}
	b.signal(syscall.SIGKILL)
	b.ends()
	soon(t, "its end to be seen", func() bool { return len(s.group("batch").Members) == 0 })
}

// surroundings prints what a process inherits.
const surroundings = `pwd; umask; ulimit -n; ulimit -Hn; nice; env | grep -v '^_=' | sort; ` +
	`grep -E '^(Sig(Ign|Blk|Cgt)|Groups|Uid|Gid|CapEff|NoNewPrivs|Seccomp):' /proc/self/status; ls /proc/self/fd`

// Directory, environment, limits, signal masks and open files are what they would be without run.
func TestRunKeepsTheSurroundings(t *testing.T) {
	s := runSite(t)
	dir := t.TempDir()
	output := func(cmd *exec.Cmd) string {
		t.Helper()
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "A=1", "B=x y\nz", "EMPTY="}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd.Args, err)
		}
		return string(out)
	}
	plain := output(exec.Command("sh", "-c", surroundings))
	inside := output(s.batch("sh", "-c", surroundings))
	if plain != inside {
		t.Errorf("inside:\n%s\nwithout run:\n%s", inside, plain)
	}
	// Started with SIGINT and SIGHUP ignored, as shells without job control and nohup(1) do. Go's runtime
	// keeps no other signal ignored.
	const ignoring = `trap '' INT HUP; exec "$@"`
	plain = output(exec.Command("sh", "-c", ignoring, "sh", "sh", "-c", surroundings))
	cmd := s.batch("sh", "-c", surroundings)
	inside = output(exec.Command("sh", append([]string{"-c", ignoring, "sh"}, cmd.Args...)...))
	if plain != inside {
		t.Errorf("with signals ignored, inside:\n%s\nwithout run:\n%s", inside, plain)
	}
}

// Standard input, output and error are the command's, byte for byte.
func TestRunLeavesInputAndOutputAlone(t *testing.T) {
	s := runSite(t)
	data := make([]byte, 1<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	var out, errw bytes.Buffer
	cmd := s.batch("sh", "-c", "tee /dev/stderr")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &out, &errw
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), data) || !bytes.Equal(errw.Bytes(), data) {
		t.Errorf("%d bytes in, %d out, %d on standard error", len(data), out.Len(), errw.Len())
	}
	// A pipe that nobody reads ends the command as it would without run: by SIGPIPE.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	cmd = s.batch("yes")
	cmd.Stdout = w
	err = cmd.Run()
	_ = w.Close()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE {
		t.Errorf("writing to a closed pipe: %v", err)
	}
}

// --user takes the user's group and supplementary groups, --unix-group another primary group.
func TestRunAsSomebodyElse(t *testing.T) {
	s := runSite(t)
	for _, name := range []string{"postgres", "mysql", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			t.Fatalf("this test needs the user %s: %v", name, err)
		}
		want, err := exec.Command("id", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, as := range []string{name, u.Uid} {
			if got := s.must("run", "batch", "--user", as, "--", "id"); got != string(want) {
				t.Errorf("--user %s: %q, want %q", as, got, want)
			}
		}
		if got := s.must("run", "batch", "--user", name, "--unix-group", "daemon", "--", "id",
			"-gn"); got != "daemon\n" {
			t.Errorf("--unix-group daemon: %q", got)
		}
		ids := s.must("run", "batch", "--user", name, "--", "grep", "-E", "^(Uid|Gid|CapEff):", "/proc/self/status")
		if !strings.Contains(ids, fmt.Sprintf("Uid:\t%s\t%s\t%s\t%s\n", u.Uid, u.Uid, u.Uid, u.Uid)) ||
			!strings.Contains(ids, "CapEff:\t0000000000000000\n") {
			t.Errorf("--user %s leaves something of root: %s", name, ids)
		}
	}
	if got := s.must("run", "batch", "--unix-group", "daemon", "--", "id", "-G"); got != "1\n" {
		t.Errorf("--unix-group alone: groups %q", got)
	}
	// It is inside although it could not have entered itself.
	if out := s.must("run", "batch", "--user", "nobody", "--", "cat", "/proc/self/cgroup"); !strings.Contains(out,
		":cpu:/"+s.root+"/batch\n") {
		t.Errorf("as nobody: %s", out)
	}
	s.exits(126, nil, "run", "batch", "--user", "nobody", "--", s.policy)
}

// --tty gives the command a terminal of its own: size, Ctrl-C, end of input, exit status.
func TestRunOnATerminal(t *testing.T) {
	s := runSite(t)
	start := func(command ...string) (*exec.Cmd, *os.File, *bufio.Reader) {
		t.Helper()
		cmd := s.command(append([]string{"run", "batch", "--tty", "--"}, command...)...)
		cmd.SysProcAttr = nil
		screen, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 31, Cols: 97})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = screen.Close(); _ = cmd.Process.Kill() })
		return cmd, screen, bufio.NewReader(screen)
	}
	read := func(cmd *exec.Cmd, r *bufio.Reader, until string) string {
		t.Helper()
		text := make(chan string, 1)
		go func() {
			var all strings.Builder
			for !strings.Contains(all.String(), until) {
				b, err := r.ReadByte()
				if err != nil {
					break
				}
				all.WriteByte(b)
			}
			text <- all.String()
		}()
		select {
		case all := <-text:
			if !strings.Contains(all, until) {
				t.Fatalf("%v printed %q, not %q", cmd.Args, all, until)
			}
			return all
		case <-time.After(20 * time.Second):
			t.Fatalf("%v did not print %q", cmd.Args, until)
			return ""
		}
	}
	ends := func(cmd *exec.Cmd, r io.Reader, want int) {
		t.Helper()
		go io.Copy(io.Discard, r) // EIO at the end
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%v: exit code %d, want %d", cmd.Args, got, want)
		}
	}

	cmd, outer, r := start("sh", "-c", "tty; stty size; grep :cpu: /proc/self/cgroup; exit 9")
	all := read(cmd, r, "/batch")
	if !strings.Contains(all, "/dev/pts/") || !strings.Contains(all, "31 97") || strings.Contains(all, "not a tty") {
		t.Errorf("the command's terminal: %q", all)
	}
	if strings.Contains(all, outer.Name()+"\r") {
		t.Errorf("the command holds the caller's own terminal %s", outer.Name())
	}
	ends(cmd, r, 9)

	// Ctrl-C goes to the command, not to bulkhead.
	cmd, screen, r := start("sh", "-c", `trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done`)
	read(cmd, r, "ready")
	if _, err := screen.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	read(cmd, r, "caught")
	ends(cmd, r, 5)

	// What is typed arrives, Ctrl-D ends it.
	cmd, screen, r = start("cat")
	if _, err := screen.Write([]byte("typed\n")); err != nil {
		t.Fatal(err)
	}
	read(cmd, r, "typed\r\ntyped")
	if _, err := screen.Write([]byte{4}); err != nil {
		t.Fatal(err)
	}
	ends(cmd, r, 0)

	// The window's new size arrives; TERM to bulkhead ends the command, status 143.
	cmd, screen, r = start("sh", "-c", `trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done`)
	read(cmd, r, "ready")
	if err := pty.Setsize(screen, &pty.Winsize{Rows: 40, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	read(cmd, r, "40 132")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ends(cmd, r, 143)

	cmd, _, r = start("no-such-command")
	read(cmd, r, "not found")
	ends(cmd, r, 127)
}

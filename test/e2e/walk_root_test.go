//go:build root

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"

	"bulkhead/internal/systemd"
	"bulkhead/internal/testhost"
)

// walk is a person before a terminal of 80 columns, on a host of their own: processes, /etc, /usr/local, /run and what
// programs leave in /var are the walk's, the kernel's groups are the machine's.
type walk struct {
	t      *testing.T
	dir    string
	pid    string // of the first process of the host
	repo   string
	path   string
	typed  []string
	screen strings.Builder
}

// columns and rows are those of the terminal.
const columns, rows = 80, 24

// firstProcess makes the host, and is there until its standard input ends. A shell, since it reaps.
const firstProcess = `set -e
mkdir "$0"; mount -t tmpfs walk "$0"
for d in etc usr/local var/lib var/log run; do
	mkdir -p "$0/$d/upper" "$0/$d/work"
	mount -t overlay walk -o "lowerdir=/$d,upperdir=$0/$d/upper,workdir=$0/$d/work" "/$d"
done
echo 'report:x:54399:54399::/:/bin/sh' >>/etc/passwd
echo $(readlink /proc/self/ns/pid)
sleep infinity & wait_for=$!
read -r line || :
kill $wait_for
`

func newWalk(t *testing.T) *walk {
	t.Helper()
	testhost.RequireRoot(t)
	if systemd.Running("") {
		t.Skip("README's steps where systemd runs are those of test/packaging, in the lab")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("`make install` needs go: ", err)
	}
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	w := &walk{t: t, dir: t.TempDir(), repo: repo,
		path: filepath.Dir(tool) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c",
		firstProcess, w.upper(""))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.inside("bulkhead", "release", "--all").Run() // after a failure
		_ = end.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if n, err := ready.Read(make([]byte, 100)); err != nil || n == 0 {
		t.Fatalf("make a host: %v", err)
	}
	child, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	w.pid = strings.TrimSpace(string(child))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the terminal:\n%s", w.screen.String())
		}
	})
	return w
}

// upper is where on the machine that is what the walk's host has otherwise than it, or made, in a directory.
func (w *walk) upper(of string) string {
	if of == "" {
		return filepath.Join(w.dir, "differs")
	}
	return filepath.Join("/proc", w.pid, "root", w.dir, "differs", of, "upper")
}

// inside is a command of the walk's host.
func (w *walk) inside(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"-t", w.pid, "-m", "-p", "--", "env", "-u", "COLUMNS",
		"TERM=xterm", "LC_ALL=C.UTF-8", "PATH=" + w.path, "GOFLAGS=-trimpath", "CGO_ENABLED=0"}, args...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// runs starts a server's process in the walk's host.
func (w *walk) runs(d *database) {
	w.t.Helper()
	d.args = append([]string{"-t", w.pid, "-m", "-p", "--", "setpriv", "--reuid", strconv.Itoa(int(d.credit.Uid)),
		"--regid", strconv.Itoa(int(d.credit.Gid)), "--clear-groups", "--", d.program}, d.args...)
	d.program, d.credit = "nsenter", nil
	d.start()
}

var (
	// erased is progress, which is cleared; escapes are what moves the cursor, clears the screen and gives colours.
	erased  = regexp.MustCompile("[^\n\r]*\r\x1b\\[K")
	escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	// advised are the commands that an answer tells to type.
	advised = regexp.MustCompile("`bulkhead ([a-z]+)[^`]*`")
)

// types is a line typed at the terminal: it gives what is on the screen, and ends with an exit code. No line is wider
// than the terminal, and every command that is advised is there.
func (w *walk) types(code int, line string, words ...string) string {
	w.t.Helper()
	w.typed = append(w.typed, line)
	begin, cmd := time.Now(), w.inside("bash", "-c", line)
	cmd.SysProcAttr = nil
	screen, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: columns})
	if err != nil {
		w.t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(screen) // EIO when the last program has closed it
		read <- string(text)
	}()
	err = cmd.Wait()
	var text string
	select {
	case text = <-read:
	case <-time.After(10 * time.Second): // a daemon holds it
		w.t.Errorf("%s: something it has started holds the terminal", line)
		_ = screen.Close()
		text = <-read
	}
	_ = screen.Close()
	text = erased.ReplaceAllString(strings.ReplaceAll(text, "\r\n", "\n"), "")
	fmt.Fprintf(&w.screen, "$ %s (%v)\n%s", line, time.Since(begin).Round(10*time.Millisecond), text)
	text = escapes.ReplaceAllString(text, "")
	got := cmd.ProcessState.ExitCode()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		got = 128 + int(status.Signal()) // as a shell has it
	}
	if got != code {
		w.t.Fatalf("%s: exit code %d, want %d (%v)\n%s", line, got, code, err, text)
	}
	for _, said := range strings.Split(text, "\n") {
		if n := utf8.RuneCountInString(said); n > columns && !strings.Contains(line, "make install") {
			w.t.Errorf("%s: a line is %d wide:\n%s", line, n, said)
		}
	}
	for _, bad := range []string{"%!", "goroutine ", "<nil>", "0001-01-01"} {
		if strings.Contains(text, bad) {
			w.t.Errorf("%s: it says %q:\n%s", line, bad, text)
		}
	}
	for _, verb := range advised.FindAllStringSubmatch(strings.Join(strings.Fields(text), " "), -1) {
		if !slices.Contains(w.verbs(), verb[1]) {
			w.t.Errorf("%s: it advises %s", line, verb[0])
		}
	}
	w.says(line, text, words...)
	return text
}

// says holds what is on the screen to words, wherever its lines end.
func (w *walk) says(line, text string, words ...string) {
	w.t.Helper()
	flat := strings.Join(strings.Fields(text), " ")
	for _, word := range words {
		if !regexp.MustCompile(word).MatchString(flat) {
			w.t.Errorf("%s: it does not say %q:\n%s", line, word, text)
		}
	}
}

// verbs are those of the program.
func (w *walk) verbs() []string {
	out, err := w.inside("bulkhead", "--help").Output()
	if err != nil {
		w.t.Fatalf("bulkhead --help: %v", err)
	}
	var verbs []string
	for _, found := range regexp.MustCompile(`(?m)^  ([a-z]+)  +\S`).FindAllSubmatch(out, -1) {
		verbs = append(verbs, string(found[1]))
	}
	return verbs
}

// json decodes what a command prints for programs: on standard output is nothing else.
func (w *walk) json(into any, line string) {
	w.t.Helper()
	out, err := w.inside("bash", "-c", line+" --json 2>/dev/null").Output()
	if err != nil && len(out) == 0 {
		w.t.Fatalf("%s --json: %v", line, err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		w.t.Errorf("%s --json: %v:\n%s", line, err, out)
	}
}

// soon types a line until it ends with a code.
func (w *walk) soon(code int, line string) {
	w.t.Helper()
	soon(w.t, line, func() bool {
		err := w.inside("bash", "-c", line).Run()
		return err == nil && code == 0 || err != nil && code != 0 && strings.HasSuffix(err.Error(), strconv.Itoa(code))
	})
}

// writes makes a file of the walk's host.
func (w *walk) writes(file, text string) {
	w.t.Helper()
	cmd := w.inside("bash", "-c", `cat >"$0"`, file)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("write %s: %v\n%s", file, err, out)
	}
}

// reads gives what a file of the walk's host holds.
func (w *walk) reads(file string) string {
	w.t.Helper()
	out, err := w.inside("cat", file).Output()
	if err != nil {
		w.t.Fatalf("read %s: %v", file, err)
	}
	return strings.TrimSpace(string(out))
}

// blocks are the commands that a section of a document shows, and its samples of a policy. Of a line for hosts with
// systemd it is what its remark says of those without.
func blocks(t *testing.T, file, heading string) (commands, policies []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, block := range regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```").FindAllStringSubmatch(section, -1) {
		body := regexp.MustCompile("(?m)^"+block[1]).ReplaceAllString(block[3], "")
		if block[2] == "yaml" {
			policies = append(policies, body)
			continue
		}
		for line := range strings.Lines(body) {
			command, remark, _ := strings.Cut(strings.TrimSpace(line), "  #")
			if _, without, ok := strings.Cut(remark, "without systemd: "); ok {
				command = without
			}
			if command = strings.TrimSpace(command); command != "" && !strings.HasPrefix(command, "systemctl") {
				commands = append(commands, command)
			}
		}
	}
	return commands, policies
}

// shown holds every command that a document names in its text to having been typed: a word in capitals stands for
// another, and dots for more.
func (w *walk) shown(file string) {
	w.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, named := range regexp.MustCompile("`(bulkhead [^`\n]+)`").FindAllStringSubmatch(string(text), -1) {
		pattern := regexp.MustCompile(`[A-Z]{3,}|…`).ReplaceAllString(regexp.QuoteMeta(named[1]), `\S+`)
		if !slices.ContainsFunc(w.typed, regexp.MustCompile("^"+pattern).MatchString) {
			w.t.Errorf("%s shows %q, which nobody has typed", file, named[1])
		}
	}
}

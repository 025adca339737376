//go:build root

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/advise/proved"
	"bulkhead/internal/cli/advice/prove"
	"bulkhead/internal/testhost"
)

// apart is a network and a /etc of a test's own: sysctls of the network and files of /etc that are written there are
// nobody else's, and go with it.
type apart struct {
	t   *testing.T
	pid string
}

func newApart(t *testing.T) *apart {
	t.Helper()
	testhost.RequireRoot(t)
	cmd := exec.Command("unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec", `
		ip link set lo up
		mount -t tmpfs tmpfs "$0"
		mkdir "$0/upper" "$0/work"
		mount -t overlay overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" /etc
		echo ready
		exec cat`, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe() // at its end cat ends
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("make a network and a /etc: %v\n%s", err, &complaints)
	}
	return &apart{t, strconv.Itoa(cmd.Process.Pid)}
}

// inside is a command there.
func (a *apart) inside(cmd *exec.Cmd) *exec.Cmd {
	in := exec.Command("nsenter", append([]string{"--target", a.pid, "--net", "--mount", "--"}, cmd.Args...)...)
	in.Dir, in.Env, in.SysProcAttr = cmd.Dir, cmd.Env, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return in
}

// sh runs a script there and gives what it printed.
func (a *apart) sh(script string, args ...string) string {
	a.t.Helper()
	out, err := a.inside(exec.Command("sh", append([]string{"-ec", script}, args...)...)).CombinedOutput()
	if err != nil {
		a.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// as has a command drop root there, and die with the test.
func (d *database) as(command ...string) []string {
	id := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	return append([]string{"setpriv", "--reuid=" + id(d.credit.Uid), "--regid=" + id(d.credit.Gid), "--clear-groups",
		"--pdeathsig=KILL"}, command...)
}

// startIn starts a MySQL there, with clients that take a large answer over a connection of its own each time.
func (d *database) startIn(a *apart) {
	d.t.Helper()
	init, socket := filepath.Join(d.dir, "init.sql"), filepath.Join(d.dir, "m.sock")
	if err := os.WriteFile(init, []byte("CREATE DATABASE IF NOT EXISTS loaded;\n"), 0o644); err != nil {
		d.t.Fatal(err)
	}
	server := d.as(append(append([]string{d.program}, d.args...), "--init-file="+init)...)
	d.runIn(a, d.command(server[0], server[1:]...))
	testhost.WaitLong(d.t, startTimeout, "MariaDB", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	d.runIn(a, d.command(testhost.Program(d.t, "mariadb-client", "/usr/bin/mariadb-slap", "/usr/bin/mysqlslap"),
		"--no-defaults", "--host=127.0.0.1", "--protocol=tcp", fmt.Sprintf("--port=%d", d.port), "--user=root",
		"--query=SELECT REPEAT('x', 400000)", "--concurrency=2", "--number-of-queries=100000", "--detach=1",
		"--iterations=100000", "--no-drop", "--create-schema=loaded"))
}

// runIn starts a command there, which ends with the test and not before.
func (d *database) runIn(a *apart, cmd *exec.Cmd) {
	d.t.Helper()
	cmd = a.inside(cmd)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		var killed *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &killed) || killed.ProcessState.Exited() {
			d.t.Errorf("%q ended by itself: %v\n%s", cmd.Args, err, &said)
		}
	})
}

// slow is a rule of the site that does harm: a connection takes 4 KiB at a time.
const slow = `version: 1
rules:
  - id: SITE-01
    title: Buffers for what comes are not as small as they can be
    ok: host.memory < 0
    want: as small as they can be
    value: '"4096 4096 4096"'
    change: {class: sysctl, key: net.ipv4.tcp_rmem}
    means: There are {host.memory} bytes of memory.
    why: It is wrong, to see that it is taken back.
    severity: medium
    source: "-"
    checked: 2026-11
`

// On a MariaDB under load a change is measured in turns, by what the server counts itself and by how long it takes to
// answer. One that does harm is taken back, with the figures beside the noise and exit code 1; one that does not is
// kept.
func TestTuneBenchOfAnInstance(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes a minute: LONG=1")
	}
	a, s, d := newApart(t), newSite(t), mariadb(t)
	d.startIn(a)
	const seconds = "2"
	run := func(args ...string) (code int, out, complaints string) {
		t.Helper()
		var said, complained bytes.Buffer
		cmd := a.inside(s.command(args...))
		cmd.Stdout, cmd.Stderr = &said, &complained
		err := cmd.Run()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), said.String(), complained.String()
	}
	bench := func(rule string, more ...string) (code int, out, complaints string) {
		t.Helper()
		began := time.Now()
		code, out, complaints = run(append([]string{"tune", "apply", rule, "--bench", "--instance", d.name, "--dsn",
			fmt.Sprintf("%s=mysql://root@127.0.0.1:%d/", d.name, d.port), "--seconds", seconds}, more...)...)
		t.Logf("%s, %s: exit code %d\n%s%s", rule, time.Since(began).Round(time.Second), code, out, complaints)
		return code, out, complaints
	}
	held := func() string {
		return a.sh("cat /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_slow_start_after_idle; " +
			"cat /etc/sysctl.d/60-bulkhead.conf 2>&1 || :")
	}
	s.write("")
	if code, out, complaints := run("apply"); code != 0 {
		t.Fatalf("apply: exit code %d\n%s%s", code, out, complaints)
	}
	a.sh(`mkdir -p /etc/bulkhead/advise.d; printf %s "$0" >/etc/bulkhead/advise.d/site.yaml`, slow)
	before := held()

	code, out, complaints := bench("SITE-01", "--reason", "planted")
	row := regexp.MustCompile(`(?m)^Questions +\S+/s +\S+/s +-(\d+)\.\d % +-\S+ % to \+\S+ % +worse$`).
		FindStringSubmatch(out)
	if code != 1 || row == nil || !strings.Contains(out, "net.ipv4.tcp_rmem = 4096 4096 4096") ||
		!strings.Contains(out, "NOISE (A/A)") || !strings.Contains(complaints, "the change was taken back") {
		t.Error("what does harm is not shown as that")
	}
	if after := held(); after != before {
		t.Errorf("taken back, the host has %q and had %q", after, before)
	}
	if _, out, _ := run("tune", "status"); !strings.Contains(out, "no setting of the kernel is kept") {
		t.Errorf("tune status after it was taken back:\n%s", out)
	}

	code, out, complaints = bench("NET-07", "--json")
	var r prove.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v\n%s", code, err, complaints)
	}
	if !r.Kept || r.Verdict == proved.Worse || len(r.Samples) != 15 || len(r.Figures) != 3 ||
		len(r.Notes) > 0 {
		t.Errorf("what does no harm: %+v", r)
	}
	for _, f := range r.Figures {
		if !(f.Before > 0) || !(f.After > 0) || !(f.Spread.Low < 0) || !(f.Spread.High > 0) {
			t.Errorf("%s is not measured: %+v", f.Name, f)
		}
	}
	if now := held(); now == before || !strings.Contains(now, "net.ipv4.tcp_slow_start_after_idle = 0") {
		t.Errorf("kept, the host has %q", now)
	}
	if code, out, complaints := run("tune", "rollback"); code != 0 {
		t.Errorf("tune rollback: exit code %d\n%s%s", code, out, complaints)
	}
	if after := held(); after != before {
		t.Errorf("after tune rollback the host has %q and had %q", after, before)
	}
}

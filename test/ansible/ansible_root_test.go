//go:build root

// Package ansible runs the project's Ansible collection, as a person would, on three hosts that it reaches by ssh. A
// host is a set of namespaces of this machine: processes, mounts, /etc, /var and /run of its own, an sshd, and a root
// group for its limits, on the one kernel. No service manager runs there, so that no agent does. It is a part of
// `make test-long` and of `make ansible-test`.
package ansible

import (
	"fmt"
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

	"bulkhead/internal/testhost"
)

// site is three hosts and the machine that Ansible runs on.
type site struct {
	t     *testing.T
	dir   string
	venv  string // ansible-core
	short string // a directory with a short name, for sockets
	hosts []*host
}

type host struct {
	name string
	root string // its root group
	init int    // the first process of its namespaces
}

func TestMain(m *testing.M) {
	if err := testhost.SetSurroundings(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func newSite(t *testing.T) *site {
	t.Helper()
	if os.Getenv("LONG") == "" {
		t.Skip("some minutes: make ansible-test, or make test-long")
	}
	testhost.RequireRoot(t)
	s := &site{t: t, dir: t.TempDir(), venv: os.Getenv("ANSIBLE")}
	if _, err := os.Stat(filepath.Join(s.venv, "bin/ansible-playbook")); err != nil {
		t.Fatalf("no ansible-core in $ANSIBLE: make ansible-test installs it (%v)", err)
	}
	short, err := os.MkdirTemp("", "bh")
	s.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	s.short = short
	here, err := filepath.Abs("../../ansible")
	s.must(err)
	s.must(os.MkdirAll(filepath.Join(s.dir, "ansible_collections/bulkhead"), 0o755))
	s.must(os.Symlink(here, filepath.Join(s.dir, "ansible_collections/bulkhead/host")))
	return s
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) write(name, format string, args ...any) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	s.must(os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o600))
	return path
}

// holder holds 48 MiB and is in each host; worker has a limit of its tasks.
const holder, worker = "import time;held=b'x'*(48<<20);time.sleep(4815.2)", "sleep 4815.1"

const hostScript = `set -e
mount --make-rprivate /
mount -t tmpfs none %[1]s
for part in etc var usr/local; do
	mkdir -p %[1]s/upper/$part %[1]s/work/$part
	mount -t overlay overlay -o lowerdir=/$part,upperdir=%[1]s/upper/$part,workdir=%[1]s/work/$part /$part
done
rm -rf /etc/bulkhead /var/lib/bulkhead
mount -t tmpfs none /run
mkdir /run/sshd
sed -i 's/^root:[^:]*/root:*/' /etc/shadow
%[2]s &
python3 -c "%[3]s" &
/usr/sbin/sshd -D -e -f %[4]s &
while :; do wait || true; sleep 1; done
`

// start begins the hosts and writes the inventory.
func (s *site) start() {
	s.t.Helper()
	key := filepath.Join(s.dir, "key")
	for _, path := range []string{key, filepath.Join(s.dir, "hostkey")} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path).CombinedOutput()
		if err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
	}
	inventory := "[databases]\n"
	for n := range 3 {
		h := &host{name: "h" + strconv.Itoa(n+1), root: testhost.Root(s.t)}
		port := testhost.FreePort(s.t)
		config := s.write(h.name+".sshd", "Port %d\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s\n"+
			"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n", port,
			filepath.Join(s.dir, "hostkey"), key+".pub")
		ns := filepath.Join(s.dir, h.name)
		s.must(os.Mkdir(ns, 0o755))
		script := s.write(h.name+".sh", hostScript, ns, worker, holder, config)
		cmd := exec.Command("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", "sh",
			script)
		log, err := os.Create(filepath.Join(s.dir, h.name+".log"))
		s.must(err)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		s.must(cmd.Start())
		s.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = log.Close() })
		testhost.WaitFor(s.t, "the sshd of "+h.name, func() bool {
			c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		s.must(err)
		h.init, err = strconv.Atoi(strings.Fields(string(children))[0])
		s.must(err)
		s.hosts = append(s.hosts, h)
		inventory += fmt.Sprintf("%s ansible_host=127.0.0.1 ansible_port=%d bulkhead_root=%s\n", h.name, port, h.root)
	}
	inventory += "[databases:vars]\nansible_user=root\nbulkhead_become=false\nbulkhead_agent=false\n" +
		"ansible_python_interpreter=/usr/bin/python3\nbulkhead_health_delay=1\n" +
		"ansible_ssh_private_key_file=" + key + "\nansible_ssh_common_args='-o StrictHostKeyChecking=no -o " +
		"UserKnownHostsFile=/dev/null -o LogLevel=ERROR'\nbulkhead_program_file=" + os.Getenv("BULKHEAD_PROGRAM") + "\n"
	s.write("inventory", "%s", inventory)
}

// variables are those of a rollout: a limit of the worker, more of the policy, and more variables.
func (s *site) variables(tasks int, holderMax string, more string) string {
	return s.write("vars.yml", `bulkhead_host: {root: "{{ bulkhead_root }}"}
bulkhead_groups:
  work: {match: [{cmdline: '^sleep 4815[.]1$'}], tasks: %d}
  held: {match: [{cmdline: 'held=b.x.'}], memory: {max: %s}}
%s`, tasks, holderMax, more)
}

// recap is what Ansible says of a host in the end.
var recap = regexp.MustCompile(`(?m)^(h\d) +: ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)`)

// result of each host.
type result struct{ changed, unreachable, failed int }

// play runs the playbook.
func (s *site) play(args ...string) (string, map[string]result) {
	s.t.Helper()
	args = append([]string{"-i", filepath.Join(s.dir, "inventory"), "-e", "@" + filepath.Join(s.dir, "vars.yml"),
		"bulkhead.host.rollout"}, args...)
	out, err := s.ansible("ansible-playbook", s.dir, args...)
	found := map[string]result{}
	for _, m := range recap.FindAllStringSubmatch(out, -1) {
		var n [3]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[3+i])
		}
		found[m[1]] = result{n[0], n[1], n[2]}
	}
	s.t.Logf("%v: %v (%v)", args[5:], found, err)
	return out, found
}

// ansible runs one of its programs.
func (s *site) ansible(program, dir string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(s.venv, "bin", program), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ANSIBLE_COLLECTIONS_PATH="+s.dir, "ANSIBLE_HOME="+filepath.Join(s.dir, "home"),
		"ANSIBLE_NOCOLOR=1", "LC_ALL=C.UTF-8", "PATH="+filepath.Join(s.venv, "bin")+":"+os.Getenv("PATH"),
		"ANSIBLE_SSH_RETRIES=0", "ANSIBLE_PIPELINING=1", "ANSIBLE_SSH_CONTROL_PATH_DIR="+s.short)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// on runs a command in a host.
func (s *site) on(h *host, script string) string {
	s.t.Helper()
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(h.init), "--mount", "--pid", "--uts", "sh", "-c",
		script).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return string(out)
}

// state is all that a rollout may change on a host: files and their times, limits, history.
func (s *site) state(h *host) string {
	return s.on(h, `cd /
find etc/bulkhead var/lib/bulkhead tmp/bulkhead-policy-* ! -name lock -printf '%p %T@ %s\n' 2>/dev/null | sort
bulkhead history; for f in $(ls /sys/fs/cgroup/*/`+h.root+`/*/pids.max /sys/fs/cgroup/`+h.root+
		`/*/pids.max 2>/dev/null); do echo $f $(cat $f); done`)
}

// tasks is the limit of the worker's tasks that the kernel has.
func (s *site) tasks(h *host) string {
	return strings.TrimSpace(s.on(h, `cd /sys/fs/cgroup; cat pids/`+h.root+`/work/pids.max 2>/dev/null || cat `+
		h.root+`/work/pids.max`))
}

func (s *site) wantTasks(when string, want ...string) {
	s.t.Helper()
	for n, h := range s.hosts {
		if got := s.tasks(h); got != want[n] {
			s.t.Errorf("%s: %s has %q tasks, want %s", when, h.name, got, want[n])
		}
	}
}

func (s *site) want(out string, got map[string]result, want map[string]result) {
	s.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Fatalf("hosts: %v, want %v (changed, unreachable, failed)\n%s", got, want, out)
	}
}

func TestRollout(t *testing.T) {
	s := newSite(t)
	s.start()

	s.variables(50, "256MiB", "")
	out, got := s.play()
	if got["h1"].failed+got["h2"].failed+got["h3"].failed > 0 || len(got) != 3 {
		t.Fatalf("the first rollout: %v\n%s", got, out)
	}
	s.wantTasks("after the first rollout", "50", "50", "50")
	for _, h := range s.hosts {
		if text := s.on(h, "bulkhead status"); strings.Contains(text, "ON TRIAL") {
			t.Errorf("nothing was confirmed on %s:\n%s", h.name, text)
		}
	}

	if text := s.on(s.hosts[0], "ls /etc/bulkhead"); text != "policy.yaml\n" {
		t.Errorf("a rollout leaves in /etc/bulkhead\n%s", text)
	}

	same := map[string]result{"h1": {}, "h2": {}, "h3": {}}
	before := s.state(s.hosts[0])
	out, got = s.play("--diff")
	s.want(out, got, same)
	if after := s.state(s.hosts[0]); after != before {
		t.Errorf("the same policy again changes the host from\n%sto\n%s", before, after)
	}

	s.variables(60, "256MiB", "")
	out, got = s.play("--check", "--diff")
	for _, h := range s.hosts {
		if got[h.name].changed == 0 || got[h.name].failed > 0 {
			t.Errorf("check mode says of %s %+v\n%s", h.name, got[h.name], out)
		}
	}
	for _, want := range []string{`"-50"`, `"+60"`, "work/pids.max"} {
		if !strings.Contains(out, want) {
			t.Errorf("check mode does not show %s:\n%s", want, out)
		}
	}
	if after := s.state(s.hosts[0]); after != before {
		t.Errorf("check mode changes the host from\n%sto\n%s", before, after)
	}

	// A limit below what the process holds is refused, on the first host, and no other one is begun.
	s.variables(60, "16MiB", "")
	out, got = s.play()
	s.want(out, got, map[string]result{"h1": got["h1"]})
	if got["h1"].failed != 1 || !strings.Contains(out, "memory.max") {
		t.Errorf("a harmful policy: %v\n%s", got, out)
	}
	s.wantTasks("after a harmful policy", "50", "50", "50")
	if text := s.on(s.hosts[0], "cat /etc/bulkhead/policy.yaml"); !strings.Contains(text, `"tasks": 50`) {
		t.Errorf("the policy's file after a harmful policy:\n%s", text)
	}

	// A database that is not well under it has it taken back at once.
	s.variables(60, "256MiB", "bulkhead_health: [/bin/true, /bin/false]\n")
	out, got = s.play()
	s.want(out, got, map[string]result{"h1": got["h1"]})
	if got["h1"].failed != 1 || !strings.Contains(out, "Look at the databases") {
		t.Errorf("an unwell database: %v\n%s", got, out)
	}
	s.wantTasks("after an unwell database", "50", "50", "50")
	if text := s.on(s.hosts[0], "bulkhead status"); strings.Contains(text, "ON TRIAL") {
		t.Errorf("still on trial:\n%s", text)
	}

	// The second host is lost while its change is on trial: it takes it back by itself, and the third is not begun.
	lose := s.write("lose.sh", "kill -9 $(pgrep -x sshd)\n")
	s.variables(60, "256MiB", "bulkhead_confirm_within: 20s\nbulkhead_health: "+
		`["{{ '/bin/sh `+lose+`' if inventory_hostname == 'h2' else '/bin/true' }}"]`+"\n")
	out, got = s.play()
	if got["h1"].failed > 0 || got["h2"].unreachable != 1 || got["h3"].changed > 0 {
		t.Fatalf("a host whose ssh dies: %v\n%s", got, out)
	}
	if !strings.Contains(out, "not begun: h2") {
		t.Errorf("it does not say why it ended:\n%s", out)
	}
	lost := s.hosts[1]
	testhost.WaitLong(t, time.Minute, "h2 has taken the change back", func() bool { return s.tasks(lost) == "50" })
	s.wantTasks("after h2 was lost", "60", "50", "50")
	if text := s.on(lost, "bulkhead history"); !strings.Contains(text, "revert the apply of revision") {
		t.Errorf("the history of h2:\n%s", text)
	}
}

// The collection is as ansible-lint wants it, and its documentation can be printed.
func TestLint(t *testing.T) {
	s := newSite(t)
	dir := filepath.Join(s.dir, "ansible_collections/bulkhead/host")
	if out, err := s.ansible("ansible-lint", dir+"/.", "--offline", "--nocolor", "--strict"); err != nil {
		t.Errorf("ansible-lint: %v\n%s", err, out)
	}
	out, err := s.ansible("ansible-doc", s.dir, "-t", "role", "bulkhead.host.bulkhead")
	if err != nil || !strings.Contains(out, "bulkhead_confirm_within") {
		t.Errorf("ansible-doc: %v\n%s", err, out)
	}
}

//go:build root

// Package network tests limits on interfaces through the verbs, with real traffic between network namespaces. It shapes
// nothing but veth pairs that it made.
package network

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/cli"
	"bulkhead/internal/netshape"
	"bulkhead/internal/testhost"
)

// TestMain makes this binary the program itself, or one end of traffic, when it is called by that name.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "bulkhead":
		os.Exit(cli.Main(os.Args[1:], os.Exit))
	case "traffic", "sshd":
		if err := end(os.Args[1], os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, os.Args, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := testhost.SetSurroundings(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// end is one end of traffic until its stdin closes. Each line there it answers with how many bytes it took so far.
func end(how, address, connections string) error {
	n, err := strconv.Atoi(connections)
	if err != nil {
		return err
	}
	var taken atomic.Int64
	switch how {
	case "serve": // takes all that comes
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		fmt.Println(l.Addr().(*net.TCPAddr).Port)
		go serve(l, func(c net.Conn) { drain(c, &taken) })
	default:
		if how == "late" { // sends once it was asked for the first time
			fmt.Println("waits")
			if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
				return err
			}
			how = "send"
		}
		for range n {
			c, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			switch how {
			case "send":
				go flood(c)
			case "trickle":
				go trickle(c)
			default:
				go drain(c, &taken)
			}
		}
		fmt.Println("connected")
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(taken.Load())
	}
	return nil
}

func serve(l net.Listener, handle func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go handle(c)
	}
}

func flood(c net.Conn) {
	block := make([]byte, 64<<10)
	for {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

// trickle sends a little, again and again: 1.3 Mbit/s.
func trickle(c net.Conn) {
	block := make([]byte, 8<<10)
	for {
		if _, err := c.Write(block); err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// takeAll takes all that comes.
func takeAll(c net.Conn) {
	var taken atomic.Int64
	drain(c, &taken)
}

func drain(c net.Conn, taken *atomic.Int64) {
	block := make([]byte, 256<<10)
	for {
		n, err := c.Read(block)
		taken.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// namespace is a network namespace with a thread that stays in it: what it starts does not die before the test does.
type namespace struct {
	t    testing.TB
	file *os.File
	work chan func()
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	n := &namespace{t: t, work: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
		made <- err
		for f := range n.work {
			f()
		}
	}()
	if err := <-made; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { close(n.work); n.file.Close() })
	return n
}

// do runs f inside, one after the other.
func (n *namespace) do(f func()) {
	done := make(chan struct{})
	n.work <- func() { f(); close(done) }
	<-done
}

func (n *namespace) must(what string, f func() error) {
	n.t.Helper()
	var err error
	n.do(func() { err = f() })
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

// listen serves connections inside, and gives the address.
func (n *namespace) listen(address string, handle func(net.Conn)) (string, net.Listener) {
	n.t.Helper()
	var l net.Listener
	n.must("listen", func() (err error) { l, err = net.Listen("tcp", address); return err })
	n.t.Cleanup(func() { l.Close() })
	go serve(l, handle)
	return l.Addr().String(), l
}

// The interface that the tests shape, and one beside it that nobody touches.
const (
	device    = "up0"
	hostAddr  = "10.77.0.1"
	peerAddr  = "10.77.0.2"
	spareHost = "10.78.0.1"
	sparePeer = "10.78.0.2"
)

// site is a host of the test's own, with a peer.
type site struct {
	t                        testing.TB
	host, peer               *namespace
	root, dir, state, socket string
	policy, program          string
	env                      []string // of the next command
}

func newSite(t testing.TB) *site {
	t.Helper()
	testhost.RequireRoot(t)
	dir := t.TempDir()
	s := &site{
		t: t, host: newNamespace(t), peer: newNamespace(t), root: testhost.Root(t), dir: dir,
		state: filepath.Join(dir, "state"), policy: filepath.Join(dir, "policy.yaml"),
		program: filepath.Join(dir, "bulkhead"),
	}
	short, err := os.MkdirTemp("", "bn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	s.socket = filepath.Join(short, "s")
	for _, name := range []string{"bulkhead", "traffic", "sshd"} {
		if err := os.Symlink("/proc/self/exe", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		self, err := os.Executable()
		if err == nil {
			_ = os.Remove(filepath.Join(dir, name))
			err = os.Symlink(self, filepath.Join(dir, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.veth(device, "down0", hostAddr, peerAddr)
	s.veth("spare0", "spare1", spareHost, sparePeer)
	for _, n := range []*namespace{s.host, s.peer} {
		n.setUp("lo", "")
	}
	t.Cleanup(func() { s.run("release", "--all") })
	return s
}

func (s *site) veth(name, peer, address, peerAddress string) {
	s.t.Helper()
	s.host.must("make a veth pair", func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer,
			PeerNamespace: netlink.NsFd(s.peer.file.Fd())})
	})
	s.host.setUp(name, address)
	s.peer.setUp(peer, peerAddress)
}

func (n *namespace) setUp(name, address string) {
	n.t.Helper()
	n.must("set up "+name, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil && address != "" {
			a, _ := netlink.ParseAddr(address + "/24")
			err = netlink.AddrAdd(l, a)
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		return err
	})
}

// write makes a policy of the site's own root group; host is what else stands in that block.
func (s *site) write(host, groups string) {
	s.t.Helper()
	if host != "" {
		host = ", " + host
	}
	text := "version: 1\nhost: {root: " + s.root + host + "}\ngroups:\n" + groups
	if err := os.WriteFile(s.policy, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// result is what a command said and how it ended.
type result struct {
	code     int
	out, err string
	killed   bool
}

func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, append([]string{"--policy", s.policy, "--state", s.state, "--socket", s.socket},
		args...)...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs bulkhead on the host.
func (s *site) run(args ...string) (r result) {
	s.t.Helper()
	var out, errw bytes.Buffer
	cmd := s.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errw
	cmd.WaitDelay = time.Second // a watchdog that outlives it has its stderr
	var err error
	s.host.do(func() { err = cmd.Run() })
	r.out, r.err = out.String(), errw.String()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		r.code = failed.ExitCode()
		r.killed = failed.Sys().(syscall.WaitStatus).Signaled()
	} else if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		s.t.Fatalf("bulkhead %v: %v", args, err)
	}
	return r
}

// exits runs bulkhead, and wants an exit code and words in what it says.
func (s *site) exits(code int, words []string, args ...string) result {
	s.t.Helper()
	r := s.run(args...)
	if r.code != code {
		s.t.Fatalf("bulkhead %v: exit %d, want %d\n%s%s", args, r.code, code, r.out, r.err)
	}
	for _, w := range words {
		if !strings.Contains(r.out+r.err, w) {
			s.t.Errorf("bulkhead %v does not say %q:\n%s%s", args, w, r.out, r.err)
		}
	}
	return r
}

func (s *site) must(args ...string) result { s.t.Helper(); return s.exits(0, nil, args...) }

// verified has every limit read back, whether an agent runs or not.
func (s *site) verified() {
	s.t.Helper()
	if r := s.run("verify"); r.code != 0 && r.code != int(api.CodeUnplaced) {
		s.t.Fatalf("bulkhead verify: exit %d\n%s%s", r.code, r.out, r.err)
	}
}

func (s *site) status(group string) api.GroupStatus {
	s.t.Helper()
	var st api.Status
	if err := json.Unmarshal([]byte(s.must("status", "--json").out), &st); err != nil {
		s.t.Fatal(err)
	}
	i := slices.IndexFunc(st.Groups, func(g api.GroupStatus) bool { return g.Group == group })
	if i < 0 {
		s.t.Fatalf("status knows no group %s", group)
	}
	return st.Groups[i]
}

// process is one that runs beside the test.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	log  *bytes.Buffer
	gone chan struct{}
}

// start starts a command in a namespace, and ends it with the test.
func (s *site) start(n *namespace, cmd *exec.Cmd) *process {
	s.t.Helper()
	p := &process{t: s.t, cmd: cmd, log: &bytes.Buffer{}, gone: make(chan struct{})}
	cmd.Stderr, cmd.WaitDelay = p.log, time.Second
	var err1, err2 error
	p.in, err1 = cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		s.t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	n.must("start "+cmd.Path, cmd.Start)
	go func() { _ = cmd.Wait(); close(p.gone) }()
	s.t.Cleanup(p.end)
	return p
}

func (p *process) end() {
	p.in.Close()
	_ = p.cmd.Process.Kill()
	select {
	case <-p.gone:
	case <-time.After(5 * time.Second):
		p.t.Errorf("%v does not end", p.cmd.Args)
	}
}

func (p *process) line() string {
	p.t.Helper()
	text, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%v: %v\n%s", p.cmd.Args, err, p.log)
	}
	return strings.TrimSpace(text)
}

// taken is how many bytes it took so far.
func (p *process) taken() uint64 {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatal(err)
	}
	n, err := strconv.ParseUint(p.line(), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// traffic starts one end of traffic inside a group, from its first instruction; "" is none.
func (s *site) traffic(group, how, address string, connections int) (*process, string) {
	s.t.Helper()
	args := []string{filepath.Join(s.dir, "traffic"), how, address, strconv.Itoa(connections)}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if group != "" {
		cmd = s.command(append([]string{"run", group, "--"}, args...)...)
	}
	p := s.start(s.host, cmd)
	return p, p.line()
}

// sink takes what is sent to the peer.
func (s *site) sink(address string) string {
	var ignored atomic.Int64
	at, _ := s.peer.listen(address+":0", func(c net.Conn) { drain(c, &ignored) })
	return at
}

// flood sends from the peer until it is stopped.
func (s *site) flood(address string, connections int) (stop func()) {
	s.t.Helper()
	var all []net.Conn
	for range connections {
		s.peer.must("dial", func() error {
			c, err := net.DialTimeout("tcp", address, 5*time.Second)
			if err == nil {
				all = append(all, c)
				go flood(c)
			}
			return err
		})
	}
	return func() {
		for _, c := range all {
			c.Close()
		}
	}
}

// look reads the interface.
func (s *site) look(name string, dirs ...string) netshape.State {
	s.t.Helper()
	var state netshape.State
	k, err := netshape.Open(netshape.Options{Namespace: s.host.file})
	if err == nil {
		defer k.Close()
		state, err = k.Look(name, dirs)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

// clean fails when anything of ours is on the interface.
func (s *site) clean(what string) {
	s.t.Helper()
	state := s.look(device, s.programDirs()...)
	if state.Governed() || len(state.Programs)+len(state.Counters) > 0 {
		s.t.Errorf("%s: left on the interface: %+v", what, state)
	}
}

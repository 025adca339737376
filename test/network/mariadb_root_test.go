//go:build root

package network

import (
	"encoding/json"
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

	"bulkhead/examples"
	"bulkhead/internal/netshape"
	"bulkhead/internal/testhost"
)

// mariadb starts a MariaDB on the host that listens on the shaped interface, and gives its port.
func (s *site) mariadb() (port int, data string) {
	s.t.Helper()
	const pkg = "mariadb-server"
	dir, _, as := testhost.AccountDir(s.t, "mysql", pkg)
	data = filepath.Join(dir, "data")
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=" + dir, "TMPDIR=" + dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	install := command(testhost.Program(s.t, pkg, "/usr/bin/mariadb-install-db", "/usr/bin/mysql_install_db"),
		"--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	if out, err := install.CombinedOutput(); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	init := filepath.Join(dir, "init.sql")
	if err := os.WriteFile(init,
		[]byte("create database sbtest;\ncreate user bench@'%' identified by 'bench';\ngrant all on sbtest.* to "+
			"bench@'%';\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	port = 23761 // nobody else is in this namespace
	server := command(testhost.Program(s.t, pkg, "/usr/sbin/mariadbd", "/usr/sbin/mysqld"),
		"--no-defaults", "--datadir="+data, fmt.Sprintf("--port=%d", port), "--socket="+filepath.Join(dir, "m.sock"),
		"--init-file="+init,
		"--pid-file="+filepath.Join(dir, "m.pid"), "--bind-address="+hostAddr, "--innodb-buffer-pool-size=64M",
		"--skip-name-resolve")
	p := s.start(s.host, server)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var c net.Conn
		var err error
		s.host.do(func() { c, err = net.Dial("tcp", hostAddr+":"+strconv.Itoa(port)) })
		if err == nil {
			c.Close()
			break
		}
		select {
		case <-p.gone:
			s.t.Fatalf("MariaDB ended:\n%s", p.log)
		default:
		}
		if time.Now().After(end) {
			s.t.Fatalf("MariaDB does not listen: %v", err)
		}
	}
	if out, err := s.sysbench("--tables=1", "--table-size=2000", "prepare").CombinedOutput(); err != nil {
		s.t.Fatalf("sysbench: %v\n%s\n%s", err, out, p.log)
	}
	return port, data
}

// sysbench is a load from the peer, over TCP.
func (s *site) sysbench(args ...string) *exec.Cmd {
	program := testhost.Program(s.t, "sysbench", "/usr/bin/sysbench")
	cmd := exec.Command(program, append([]string{"oltp_read_only", "--db-driver=mysql", "--mysql-host=" + hostAddr,
		"--mysql-port=23761",
		"--mysql-user=bench", "--mysql-password=bench", "--mysql-db=sbtest"}, args...)...)
	// Commands of sysbench start on the peer.
	return inside(s.peer, cmd)
}

// inside has nsenter take a command into a namespace, so that it can be started from anywhere.
func inside(n *namespace, cmd *exec.Cmd) *exec.Cmd {
	entered := exec.Command("nsenter", append([]string{"--net=/proc/self/fd/3"}, cmd.Args...)...)
	entered.ExtraFiles = []*os.File{n.file}
	entered.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return entered
}

var queries = regexp.MustCompile(`queries:\s+\d+\s+\(([0-9.]+) per sec`)

// A real MariaDB that is read over TCP by sysbench: its answers leave at the limit of its group, its port is found, and
// what arrives for it is shaped by that. Its sessions were open before the limit, and one made after it is held by it.
func TestMariaDB(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a MariaDB takes too long where tests are short; the native run has it")
	}
	s := newSite(t)
	port, data := s.mariadb()
	// Of this server alone: the machine may have others.
	each := "  \"mysql{port}\":\n    each: {engine: mysql, datadir: " + data + "}\n"
	load := func(seconds int) (perSecond float64) {
		cmd := s.sysbench("--tables=1", "--table-size=2000", "--threads=4", "--range-size=1000", "--simple-ranges=4",
			fmt.Sprintf("--time=%d", seconds), "run")
		out, err := cmd.CombinedOutput()
		m := queries.FindSubmatch(out)
		if err != nil || m == nil {
			t.Fatalf("sysbench: %v\n%s", err, out)
		}
		perSecond, _ = strconv.ParseFloat(string(m[1]), 64)
		return perSecond
	}
	free := load(2)
	s.write("", each+"    network: [{on: default, egress: 20Mbit/s, ingress: 10Mbit/s}]\n")
	s.exits(2, []string{"network.on default: no route leads there"}, "check")
	s.write("", each+"    network: [{on: 10.77.0.0/16, egress: 20Mbit/s, ingress: 10Mbit/s}]\n")
	s.exits(2, []string{"no route leads there"}, "check")
	s.write("", each+"    network: [{on: 10.77.0.0/24, egress: 20Mbit/s, ingress: 10Mbit/s}]\n")
	s.exits(0, []string{fmt.Sprintf("what arrives for TCP port %d is led to a virtual NIC", port)}, "plan", "--long")
	s.must("apply")
	s.verified()
	group := fmt.Sprintf("mysql%d", port)
	if g := s.status(group).Traffic; g == nil || g.Outside == 0 || len(g.OutsidePorts) != 1 ||
		g.OutsidePorts[0] != port {
		t.Errorf("its listener was open before the group: %+v", g)
	}
	s.exits(0, []string{"opened before their process came into the group", "`by: ports`"}, "status", group)
	pid := s.status(group).Members[0].PID
	s.exits(0, []string{"listening; what it accepts is outside, too", "`by: ports` in the network entry holds it"},
		"explain", strconv.Itoa(pid))

	s.write("", each+"    network: [{on: 10.77.0.0/24, egress: 20Mbit/s, ingress: 10Mbit/s, by: ports}]\n")
	s.must("apply")
	done := make(chan float64)
	go func() { done <- load(4) }()
	time.Sleep(time.Second)
	holds(t, "what MariaDB sends", 20, 5, s.bytes(1, netshape.Egress))
	limited := <-done
	t.Logf("%.0f queries a second without a limit, %.0f with 20 Mbit/s", free, limited)
	if limited > free*.8 {
		t.Errorf("%.0f queries a second without a limit, %.0f with 20 Mbit/s", free, limited)
	}
	s.must("release", "--all")
	s.clean("released")

	// The example of all four kinds of limits, for this server and this interface.
	text, err := examples.Policies.ReadFile("mysql.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, groups, _ := strings.Cut(string(text), "groups:\n")
	s.write("", strings.NewReplacer("each: {engine: mysql}", "each: {engine: mysql, datadir: "+data+"}",
		"/var/lib/mysql", data, "eth0", device).Replace(groups))
	s.exits(0, nil, "check")
	s.exits(0, []string{"cpu.limit", "memory.max", "io.write.iops", "network.egress"}, "plan")
	s.must("apply")
	s.verified()
	s.must("release", "--all")
	s.clean("released again")
}

// The rates as iperf3 sees them: its goodput beside what the class counts.
func TestIperf(t *testing.T) {
	if os.Getenv("KILLS") != "all" {
		t.Skip("TestShares measures the same by itself; `make test-long` has this one, too (KILLS=all)")
	}
	s := newSite(t)
	program := testhost.Program(t, "iperf3", "/usr/bin/iperf3")
	s.write("", "  in: {network: [{on: up0, ingress: 50Mbit/s, ports: [5301]}]}\n  out: {network: [{on: up0, egress: "+
		"100Mbit/s}]}\n")
	s.must("apply")
	server := func(n *namespace, port string) {
		p := s.start(n, exec.Command(program, "-s", "-p", port, "--forceflush"))
		for !strings.Contains(p.line(), "listening") {
		}
	}
	server(s.peer, "5300")
	server(s.host, "5301")
	for _, connections := range []string{"1", "32"} {
		seconds := strconv.Itoa(int(span().Seconds()) + 1)
		args := []string{"-J", "-t", seconds, "-P", connections}
		goodput := func(n *namespace, cmd *exec.Cmd) (mbit func() float64) {
			var out []byte
			var err error
			done := make(chan struct{})
			started := make(chan struct{})
			go func() {
				close(started)
				n.do(func() { out, err = cmd.Output() })
				close(done)
			}()
			<-started
			return func() float64 {
				<-done
				var r struct {
					End struct {
						Received struct {
							Bits float64 `json:"bits_per_second"`
						} `json:"sum_received"`
					} `json:"end"`
				}
				if err != nil || json.Unmarshal(out, &r) != nil {
					t.Fatalf("iperf3: %v\n%s", err, out)
				}
				return r.End.Received.Bits / 1e6
			}
		}
		out := goodput(s.host, s.command(append([]string{"run", "out", "--", program, "-c", peerAddr, "-p", "5300"},
			args...)...))
		wire := s.wire(netshape.Slot(2), netshape.Egress)
		t.Logf("what leaves, %s connections: %.1f Mbit/s of goodput, %.1f on the wire", connections, out(), wire())
		if got := wire(); got > 105 {
			t.Errorf("what leaves, %s connections: %.1f Mbit/s", connections, got)
		}
		in := goodput(s.peer, exec.Command(program, append([]string{"-c", hostAddr, "-p", "5301"}, args...)...))
		wire = s.wire(netshape.Slot(1), netshape.Ingress)
		t.Logf("what arrives, %s connections: %.1f Mbit/s of goodput, %.1f on the wire", connections, in(), wire())
		if got := wire(); got > 52.5 {
			t.Errorf("what arrives, %s connections: %.1f Mbit/s", connections, got)
		}
	}
	s.must("release", "--all")
	s.clean("released")
}

// wire measures what a class lets through, from half a second from now on for as long as a rate is measured.
func (s *site) wire(slot netshape.Slot, d netshape.Direction) func() float64 {
	counter := s.bytes(slot, d)
	got := make(chan float64, 1)
	go func() {
		time.Sleep(500 * time.Millisecond)
		before, begin := counter(), time.Now()
		time.Sleep(span())
		got <- float64(counter()-before) * 8 / time.Since(begin).Seconds() / 1e6
	}()
	var result *float64
	return func() float64 {
		if result == nil {
			v := <-got
			result = &v
		}
		return *result
	}
}

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// demoDatabase is the schema that the load generator fills.
const demoDatabase = "sbtest"

// server is a throw-away MariaDB with a data directory, a port and a socket of its own. It listens
// on the loopback address only, and only root may log in, over the socket, by being root.
type server struct {
	port    int
	socket  string
	datadir string
	version string
	process *child
	log     string
}

// startServer makes a fresh data directory below dir, starts a server on it and waits until it
// answers. The data directory's owner and the server run as the unprivileged user name.
func startServer(ctx context.Context, n *nursery, p programs, dir, name string) (*server, error) {
	owner, err := credentialOf(name)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &server{
		port:    port,
		datadir: filepath.Join(dir, "data"),
		socket:  filepath.Join(dir, "run", "mysqld.sock"),
		log:     filepath.Join(dir, "run", "error.log"),
	}
	for _, d := range []string{s.datadir, filepath.Dir(s.socket)} {
		if err := makeOwned(d, owner); err != nil {
			return nil, err
		}
	}
	if err := s.install(ctx, n, p, name); err != nil {
		return nil, err
	}
	seed := filepath.Join(dir, "run", "init.sql")
	if err := os.WriteFile(seed, []byte("CREATE DATABASE "+demoDatabase+";\n"), 0o644); err != nil {
		return nil, fmt.Errorf("write MariaDB's init file: %w", err)
	}
	// In a session of its own, as any service.
	s.process, err = n.start(spec{args: s.command(p["mariadbd"], seed), dir: s.datadir, credential: owner, session: true})
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx); err != nil {
		s.process.kill()
		return nil, err
	}
	return s, nil
}

// install fills the data directory with the system tables.
func (s *server) install(ctx context.Context, n *nursery, p programs, name string) error {
	var out bytes.Buffer
	err := n.run(ctx, spec{
		args: []string{
			p["mariadb-install-db"], "--no-defaults", "--user=" + name, "--datadir=" + s.datadir,
			"--auth-root-authentication-method=socket", "--auth-root-socket-user=root",
			"--skip-test-db", "--skip-name-resolve", "--force",
		},
		stdout: &out, stderr: &out,
	})
	if err != nil {
		return fmt.Errorf("install MariaDB's system tables in %q: %w\n%s", s.datadir, err, lastLines(out.String(), 10))
	}
	return nil
}

// command is the server's argument list: no configuration file of the host, a small buffer pool that
// holds the demo's tables, direct IO.
func (s *server) command(program, seed string) []string {
	return []string{
		program, "--no-defaults",
		"--datadir=" + s.datadir, "--socket=" + s.socket, "--pid-file=" + s.socket + ".pid",
		"--port=" + strconv.Itoa(s.port), "--bind-address=127.0.0.1", "--skip-name-resolve",
		"--init-file=" + seed, "--log-error=" + s.log,
		"--innodb-buffer-pool-size=64M", "--innodb-flush-method=O_DIRECT",
		"--performance-schema=OFF", "--skip-log-bin", "--max-connections=5000",
	}
}

// await polls the socket until the server greets, and learns its version from the greeting.
func (s *server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		version, err := greeting(ctx, s.socket)
		if err == nil {
			s.version = version
			return nil
		}
		select {
		case <-s.process.done:
			return fmt.Errorf("start MariaDB: it ended: %w\n%s", s.process.err, s.lastLog())
		case <-ctx.Done():
			return fmt.Errorf("start MariaDB: %w (last answer: %w)\n%s", context.Cause(ctx), err, s.lastLog())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the server. Its data is thrown away, so it need not take long over it.
func (s *server) stop() error {
	s.process.stop(5 * time.Second)
	return nil
}

func (s *server) lastLog() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text), 10)
}

// greeting connects and reads the first packet a MySQL server sends: protocol version 10, then the
// server's version as a string ended by a zero byte.
func greeting(ctx context.Context, socket string) (version string, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	packet := make([]byte, 128)
	if _, err := io.ReadAtLeast(conn, packet, 6); err != nil {
		return "", fmt.Errorf("read the server's greeting: %w", err)
	}
	if packet[4] != 10 {
		return "", fmt.Errorf("read the server's greeting: protocol %d, not 10", packet[4])
	}
	text, _, _ := bytes.Cut(packet[5:], []byte{0})
	return cleanVersion(string(text)), nil
}

// cleanVersion makes "5.5.5-10.11.19-MariaDB-0+deb12u1" into "10.11.19-MariaDB": the prefix is there
// for old replicas, the end is the packager's.
func cleanVersion(v string) string {
	v = strings.TrimPrefix(v, "5.5.5-")
	if head, _, ok := strings.Cut(v, "-MariaDB"); ok {
		return head + "-MariaDB"
	}
	return v
}

// credentialOf looks up whom an unprivileged program is to run as.
func credentialOf(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("look up user %q: %w", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("look up user %q: uid %q: %w", name, u.Uid, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("look up user %q: gid %q: %w", name, u.Gid, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func makeOwned(dir string, owner *syscall.Credential) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("give directory away: %w", err)
	}
	return nil
}

// freePort asks the kernel for a TCP port that nobody listens on.
func freePort() (port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// lastLines is the end of a text, for an error message.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

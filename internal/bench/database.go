package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/scenario"
)

// instance is a database of a scenario: a throw-away server with a data directory, a port and a socket of its own, or one that
// exists. A throw-away one listens on the loopback address only.
type instance struct {
	scenario.Database
	engine    *engine
	host      string // of one that exists
	port      int
	socket    string
	datadir   string
	log       string
	buffer    int // MiB
	version   string
	process   *child // nil: not running, or not ours
	account   account
	owner     *syscall.Credential
	paths     programs
	nursery   *nursery
	rundir    string
	prepared  map[string]bool // what loads have filled
	restarted bool            // it was started inside its group
}

// account is how a load logs in; the database of one that exists is the one to log in to, where its loads do not work.
type account struct {
	user, password, database string
}

// engine is how the servers of one engine are made and started.
type engine struct {
	title    string
	programs []program
	user     string // the unprivileged user of Debian's package
	port     int    // where it listens by default
	// install fills the data directory; nil is nothing to fill.
	install func(ctx context.Context, in *instance) error
	// command is the argument list of the server.
	command func(in *instance) []string
	// greet learns the version over a connection.
	greet func(in *instance, conn net.Conn) (version string, err error)
	// end is the signal that ends the server soon: what it holds is thrown away.
	end syscall.Signal
}

var engines = map[string]*engine{"mariadb": mariadb, "postgresql": postgresql, "redis": redis}

// newInstance makes a database ready to start; dir is the run's work directory.
func newInstance(d scenario.Database, dir string, buffer int, p programs, n *nursery) (*instance, error) {
	in := &instance{Database: d, engine: engines[d.Engine], buffer: buffer, paths: p, nursery: n, prepared: map[string]bool{}}
	if d.DSN != "" {
		return in, in.readDSN()
	}
	var err error
	if in.owner, err = credentialOf(in.engine.user); err != nil {
		return nil, err
	}
	if in.port, err = freePort(); err != nil {
		return nil, err
	}
	base := filepath.Join(dir, d.Name)
	if err := os.Mkdir(base, 0o711); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	in.datadir, in.rundir = filepath.Join(base, "data"), filepath.Join(base, "run")
	in.log = filepath.Join(in.rundir, "error.log")
	for _, d := range []string{in.datadir, in.rundir} {
		if err := makeOwned(d, in.owner); err != nil {
			return nil, err
		}
	}
	in.account = account{user: "root", database: "sbtest"}
	return in, nil
}

// ours says whether the run starts and stops the server.
func (in *instance) ours() bool { return in.DSN == "" }

// start starts the server and waits until it answers. wrap makes its argument list one that starts inside a group; nil is
// outside of any.
func (in *instance) start(ctx context.Context, wrap func(user string, args []string) []string) error {
	if !in.ours() {
		return nil // it was looked at, and nothing here starts or stops it
	}
	if in.running() {
		return nil
	}
	s := spec{args: in.engine.command(in), dir: in.datadir, credential: in.owner, session: true, deathSignal: in.engine.end}
	if wrap != nil {
		// `bulkhead run --user` drops root itself, once it has joined the group.
		s.args, s.credential = wrap(in.engine.user, s.args), nil
	}
	var complaints bytes.Buffer
	s.stderr, s.stdout = &complaints, &complaints
	var err error
	if in.process, err = in.nursery.start(s); err != nil {
		return err
	}
	if err := in.await(ctx); err != nil {
		in.process.kill()
		if taken(in.port) && ctx.Err() == nil {
			return &RequirementError{Reason: fmt.Sprintf("%s cannot start: port %d, which was free, is another program's now", in.engine.title, in.port), Hint: "start it again: every run picks ports that are free"}
		}
		return fmt.Errorf("start %s: %w\n%s", in.engine.title, err, lastLines(in.lastLog()+"\n"+complaints.String(), 10))
	}
	return nil
}

// await polls the server until it answers.
func (in *instance) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		version, err := in.greet(ctx)
		if err == nil {
			in.version = version
			return nil
		}
		select {
		case <-in.process.done:
			return fmt.Errorf("it ended: %w", in.process.err)
		case <-ctx.Done():
			return fmt.Errorf("%w (last answer: %w)", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// running says whether our server is there.
func (in *instance) running() bool {
	if in.process == nil {
		return false
	}
	select {
	case <-in.process.done:
		return false
	default:
		return true
	}
}

// stop ends the server. Its data is thrown away, so it need not take long over it.
func (in *instance) stop() error {
	if !in.running() {
		return nil
	}
	in.process.signal(in.engine.end)
	select {
	case <-in.process.done:
	case <-time.After(5 * time.Second):
		in.process.kill()
	}
	return nil
}

func (in *instance) pid() int {
	if !in.running() {
		return 0
	}
	return in.process.pid()
}

func (in *instance) lastLog() string {
	text, err := os.ReadFile(in.log)
	if err != nil {
		return ""
	}
	return lastLines(string(text), 10)
}

func (in *instance) where() string {
	if in.host != "" {
		return net.JoinHostPort(in.host, strconv.Itoa(in.port))
	}
	return in.socket
}

// dial connects to our server as its clients do.
func (in *instance) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return d.DialContext(ctx, "unix", in.socket)
}

// texts are what a policy may say of the database.
func (in *instance) texts(into map[string]string) {
	into["port."+in.Name] = strconv.Itoa(in.port)
	into["socket."+in.Name] = in.socket
	// What every client of the database has on its command line, and the server has not.
	into["client."+in.Name] = "client-of-" + in.Name
	if in.socket != "" && in.ours() {
		into["client."+in.Name] = "(-mysql-socket=|-pgsql-host=| -h | -s )" + in.socketOfClient() + " "
	}
}

// socketOfClient is how clients name the socket: those of PostgreSQL its directory.
func (in *instance) socketOfClient() string {
	if in.engine == postgresql {
		return filepath.Dir(in.socket)
	}
	return in.socket
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

// taken says whether somebody listens on a port.
func taken(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return errors.Is(err, syscall.EADDRINUSE)
	}
	_ = l.Close() // it was open for no longer than this look
	return false
}

// lastLines is the end of a text, for an error message.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// tool runs a program to its end and gives the end of what it said when it fails.
func (in *instance) tool(ctx context.Context, as *syscall.Credential, args ...string) error {
	return in.client(ctx, nil, as, args...)
}

// client is tool with variables added to its environment.
func (in *instance) client(ctx context.Context, env []string, as *syscall.Credential, args ...string) error {
	var out bytes.Buffer
	if err := in.nursery.run(ctx, spec{args: args, env: env, credential: as, stdout: &out, stderr: &out}); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(args[0]), err, lastLines(out.String(), 10))
	}
	return nil
}

// greet connects and learns the version.
func (in *instance) greet(ctx context.Context) (version string, err error) {
	conn, err := in.dial(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	return in.engine.greet(in, conn)
}

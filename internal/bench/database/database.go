// Package database runs the throw-away database servers of a proof, MariaDB, PostgreSQL and Redis or a release in their
// place, and keeps a place of the proof's own in servers that exist. [NewInstance] makes one ready; its Start and Stop
// are for one goroutine.
package database

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
	"syscall"
	"time"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/scenario"
)

// Instance is a database of a scenario: a throw-away server with a data directory, a port and a socket of its own, or
// one that exists. A throw-away one listens on the loopback address only.
type Instance struct {
	scenario.Database
	Kind       *Engine
	Host       string // of one that exists
	Port       int
	Socket     string
	DataDir    string
	log        string
	buffer     int // MiB
	Version    string
	process    *process.Child // nil: not running, or not ours
	Account    Account
	login      *dblogin.Login // of one that exists
	owner      *syscall.Credential
	user       string // of the owner
	paths      process.Programs
	Supervisor *process.Supervisor
	RunDir     string
	Prepared   map[string]bool // what loads have filled
	Restarted  bool            // it was started inside its group
}

// Account is how a load logs in; the database of one that exists is the one to log in to, where its loads do not work.
type Account struct {
	User, Password, Database string
}

// Engine is how the servers of one engine are made and started.
type Engine struct {
	Title    string
	Programs []process.Program
	user     string // the unprivileged user of Debian's package
	port     int    // where it listens by default
	// Install fills the data directory; nil is nothing to fill.
	Install func(ctx context.Context, in *Instance) error
	// command is the argument list of the server.
	command func(in *Instance) []string
	// greet learns the version over a connection.
	greet func(in *Instance, conn net.Conn) (version string, err error)
	// end is the signal that ends the server soon: what it holds is thrown away.
	end syscall.Signal
}

// Programs are those of the server and of its helpers, where a release brings them.
func (in *Instance) Programs() process.Programs { return in.paths }

// Ours says whether the run starts and stops the server.
func (in *Instance) Ours() bool { return in.DSN == "" }

// Start starts the server and waits until it answers. wrap makes its argument list one that starts inside a group; nil
// is outside of any.
func (in *Instance) Start(ctx context.Context, wrap func(user string, args []string) []string) error {
	if !in.Ours() {
		return nil // it was looked at, and nothing here starts or stops it
	}
	if in.running() {
		return nil
	}
	s := process.Spec{Args: in.Kind.command(in), Dir: in.DataDir, Credential: in.owner, Session: true,
		DeathSignal: in.Kind.end}
	if wrap != nil {
		// `bulkhead run --user` drops root itself, once it has joined the group.
		s.Args, s.Credential = wrap(in.user, s.Args), nil
	}
	var complaints bytes.Buffer
	s.Stderr, s.Stdout = &complaints, &complaints
	var err error
	if in.process, err = in.Supervisor.Start(s); err != nil {
		return err
	}
	if err := in.await(ctx); err != nil {
		in.process.Kill()
		if taken(in.Port) && ctx.Err() == nil {
			return &process.RequirementError{
				Reason: fmt.Sprintf("%s cannot start: port %d, which was free, is another program's now",
					in.Kind.Title, in.Port),
				Hint: "start it again: every run picks ports that are free",
			}
		}
		return fmt.Errorf("start %s: %w\n%s", in.Kind.Title, err,
			process.LastLines(in.lastLog()+"\n"+complaints.String(), 10))
	}
	return nil
}

// await polls the server until it answers.
func (in *Instance) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		version, err := in.Greet(ctx)
		if err == nil {
			in.Version = version
			return nil
		}
		select {
		case <-in.process.Done:
			return fmt.Errorf("it ended: %w", in.process.Err)
		case <-ctx.Done():
			return fmt.Errorf("%w (last answer: %w)", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// running says whether our server is there.
func (in *Instance) running() bool {
	if in.process == nil {
		return false
	}
	select {
	case <-in.process.Done:
		return false
	default:
		return true
	}
}

// Stop ends the server. Its data is thrown away, so it need not take long over it.
func (in *Instance) Stop() error {
	if !in.running() {
		return nil
	}
	in.process.Signal(in.Kind.end)
	select {
	case <-in.process.Done:
	case <-time.After(5 * time.Second):
		in.process.Kill()
	}
	return nil
}

// PID is that of our server; 0 when it is not running.
func (in *Instance) PID() int {
	if !in.running() {
		return 0
	}
	return in.process.PID()
}

func (in *Instance) lastLog() string {
	text, err := os.ReadFile(in.log)
	if err != nil {
		return ""
	}
	return process.LastLines(string(text), 10)
}

// Where is the address of the server: host and port, or its socket.
func (in *Instance) Where() string {
	if in.Host != "" {
		return net.JoinHostPort(in.Host, strconv.Itoa(in.Port))
	}
	return in.Socket
}

// dial connects to our server as its clients do.
func (in *Instance) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return d.DialContext(ctx, "unix", in.Socket)
}

// Texts are what a policy may say of the database.
func (in *Instance) Texts(into map[string]string) {
	into["port."+in.Name] = strconv.Itoa(in.Port)
	into["socket."+in.Name] = in.Socket
	// What every client of the database has on its command line, and the server has not.
	into["client."+in.Name] = "client-of-" + in.Name
	if in.Socket != "" && in.Ours() {
		into["client."+in.Name] = "(-mysql-socket=|-pgsql-host=| -h | -s )" + in.SocketOfClient() + " "
	}
}

// SocketOfClient is how clients name the socket: those of PostgreSQL its directory.
func (in *Instance) SocketOfClient() string {
	if in.Engine == "postgresql" {
		return filepath.Dir(in.Socket)
	}
	return in.Socket
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

// FreePort asks the kernel for a TCP port that nobody listens on.
func FreePort() (port int, err error) {
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

// tool runs a program to its end and gives the end of what it said when it fails.
func (in *Instance) tool(ctx context.Context, as *syscall.Credential, args ...string) error {
	return in.Client(ctx, nil, as, args...)
}

// Client is tool with variables added to its environment.
func (in *Instance) Client(ctx context.Context, env []string, as *syscall.Credential, args ...string) error {
	var out bytes.Buffer
	if err := in.Supervisor.Run(ctx, process.Spec{Args: args, Env: env, Credential: as, Stdout: &out,
		Stderr: &out}); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(args[0]), err, process.LastLines(out.String(), 10))
	}
	return nil
}

// Greet connects and learns the version.
func (in *Instance) Greet(ctx context.Context) (version string, err error) {
	conn, err := in.dial(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	return in.Kind.greet(in, conn)
}

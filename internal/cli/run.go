package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"bulkhead/internal/control"
)

// Exit codes of run for a command that cannot be started, as env(1) has them.
const (
	codeNotEntered = 125
	codeCannotRun  = 126
	codeNotFound   = 127
)

// runFlags are the flags of run.
type runFlags struct {
	user, group string
	tty         bool
}

func (a *app) runCmd() *cobra.Command {
	var o runFlags
	c := &cobra.Command{
		Use:   "run GROUP [--user U] [--unix-group G] [--tty] -- CMD…",
		Short: "start a command inside a group from its first instruction",
		Long: `run enters the group and then becomes the command: working directory, environment, signals and exit status
are the command's own. Where systemd runs the host the command is a unit (a scope in the group's slice), which systemctl
status PID shows and which is gone when the command ends. 125: the group could not be entered; 126: the command cannot be run; 127: it was not found.`,
		Example: `  bulkhead run reports --user report -- psql -f month.sql
  bulkhead run batch -- nice tar czf /backup/x.tgz /srv/x`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch at := cmd.ArgsLenAtDash(); {
			case at < 0 && len(args) > 1:
				return errors.New("a -- goes between the group and the command: run GROUP -- CMD…")
			case at == 0 || at > 1:
				return errors.New("one group goes before the --")
			case at < 0 || len(args) < 2:
				return errors.New("say which command: run GROUP -- CMD…")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if o.tty {
				return a.runOnTerminal(args[0], args[1:], o)
			}
			return a.become(args[0], args[1:], o)
		},
	}
	c.Flags().StringVar(&o.user, "user", "", "run as this `user`, with its groups")
	c.Flags().StringVar(&o.group, "unix-group", "", "run with this primary `group`")
	c.Flags().BoolVar(&o.tty, "tty", false, "give the command a terminal of its own, as su --pty does")
	return c
}

// become enters the group, takes on the identity and replaces this process by the command.
func (a *app) become(group string, command []string, o runFlags) error {
	if os.Geteuid() != 0 && (o.user != "" || o.group != "") {
		return needRoot("run --user and --unix-group")
	}
	id, err := o.identity()
	if err != nil {
		return err
	}
	file, err := lookUp(command[0])
	if err != nil {
		return a.cannotRun(command[0], err)
	}
	if err := a.enter(group, filepath.Base(command[0])); err != nil {
		return err
	}
	if err := keepDeathSignal(id.take); err != nil {
		return fmt.Errorf("become user %q: %w", o.user, err)
	}
	// syscall.Exec gives back the limit of open files that the Go runtime raised.
	return a.cannotRun(command[0], syscall.Exec(file, command, os.Environ()))
}

// enter puts this process into a group; the agent does it for others than root.
func (a *app) enter(group, command string) error {
	if os.Geteuid() != 0 {
		running, err := a.agent(context.Background())
		switch {
		case err != nil:
			return a.notEntered(err)
		case running == nil:
			return a.notEntered(&control.Error{Code: control.CodeFailed, Err: errors.New("run needs root"), Hint: ownerHint})
		}
		if err := running.Enter(context.Background(), group, command); err != nil {
			return a.notEntered(err)
		}
		return nil
	}
	c, err := a.open()
	if err != nil {
		return err
	}
	if err := c.Enter(control.Entry{Group: group, By: who(), Command: command}); err != nil {
		return a.notEntered(err)
	}
	return c.Close()
}

// notEntered says why a group could not be entered, with a code that tells this from the command's own status. A
// mistake in the arguments keeps the code it has everywhere.
func (a *app) notEntered(err error) error {
	if code := a.report(err); code != int(control.CodeUsage) {
		return exit{codeNotEntered}
	}
	return exit{int(control.CodeUsage)}
}

// cannotRun says why a command cannot be started, with env(1)'s exit code.
func (a *app) cannotRun(name string, err error) error {
	fmt.Fprintf(a.err, "bulkhead: run %q: %v\n", name, err)
	if errors.Is(err, fs.ErrNotExist) {
		return exit{codeNotFound}
	}
	return exit{codeCannotRun}
}

// lookUp finds a command as a shell would: a name with a slash is a path, any other is looked for in
// PATH.
func lookUp(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	denied := error(nil)
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, name)
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("not found in PATH: %w", fs.ErrNotExist)
}

func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return &fs.PathError{Op: "run", Path: file, Err: syscall.EISDIR}
	}
	return unix.Access(file, unix.X_OK)
}

// identity is who the command runs as; the zero value is who calls.
type identity struct {
	set      bool
	uid, gid int
	groups   []int
}

func (o runFlags) identity() (identity, error) {
	if o.user == "" && o.group == "" {
		return identity{}, nil
	}
	id := identity{set: true, uid: os.Getuid(), gid: os.Getgid()}
	known := false // with its groups
	if o.user != "" {
		var err error
		if known, err = id.become(o.user); err != nil {
			return id, err
		}
	}
	if o.group != "" {
		gid, ok := number(o.group)
		if g, err := user.LookupGroup(o.group); err == nil {
			gid, ok = number(g.Gid)
		}
		if !ok {
			return id, &control.Error{Code: control.CodeUsage, Err: fmt.Errorf("no group %q in /etc/group", o.group), Hint: "a group that only LDAP or SSSD knows is given by its number: `getent group NAME` prints it"}
		}
		id.gid = gid
	}
	switch {
	case known:
	case o.group != "":
		id.groups = []int{id.gid}
	default:
		return id, &control.Error{Code: control.CodeUsage, Err: fmt.Errorf("user %s is not in /etc/passwd, so its group is not known", o.user), Hint: "give it with --unix-group: `id -g USER` prints it"}
	}
	return id, nil
}

// become takes on a user of /etc/passwd with its groups. One that is not in there, as users of LDAP and SSSD are
// not, can be given by its number; its groups are then not known.
func (id *identity) become(name string) (known bool, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		uid, ok := number(name)
		if !ok {
			return false, &control.Error{Code: control.CodeUsage, Err: fmt.Errorf("no user %q in /etc/passwd", name), Hint: "a user that only LDAP or SSSD knows is given by its number: `id -u USER` prints it"}
		}
		id.uid = uid
		return false, nil
	}
	names, err := u.GroupIds()
	if err != nil {
		return false, fmt.Errorf("groups of user %q: %w", name, err)
	}
	id.uid, _ = number(u.Uid)
	id.gid, _ = number(u.Gid)
	for _, n := range names {
		if g, ok := number(n); ok {
			id.groups = append(id.groups, g)
		}
	}
	return true, nil
}

// number reads the number of a user or a group. The largest one means "leave it" to setuid(2).
func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return int(n), err == nil && n < 1<<32-1
}

// take takes the identity on: groups first, the user last, after which nothing can be changed back.
func (id identity) take() error {
	if !id.set {
		return nil
	}
	if err := syscall.Setgroups(id.groups); err != nil {
		return err
	}
	if err := syscall.Setgid(id.gid); err != nil {
		return err
	}
	return syscall.Setuid(id.uid)
}

// keepDeathSignal does what changes the identity and sets the parent-death signal again (prctl(2), PR_SET_PDEATHSIG) that whoever
// started us asked for: the kernel clears it with every change of the user. Should the parent have ended meanwhile, the
// signal would never come, so this process sends it to itself. The signal belongs to the thread; ours is the first one, for good.
func keepDeathSignal(change func() error) error {
	var asked int32
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&asked)), 0, 0, 0); err != nil {
		return fmt.Errorf("ask for the parent-death signal: %w", err)
	}
	parent := os.Getppid()
	if err := change(); err != nil || asked == 0 {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(asked), 0, 0, 0); err != nil {
		return fmt.Errorf("keep the parent-death signal: %w", err)
	}
	if os.Getppid() != parent {
		return syscall.Kill(os.Getpid(), syscall.Signal(asked))
	}
	return nil
}

// runOnTerminal runs the command on a pseudo-terminal of its own, so that it never holds the caller's:
// a child of this program, started by this program's own `run` without --tty, while this one carries
// bytes, signals and the window's size across.
func (a *app) runOnTerminal(group string, command []string, o runFlags) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return &control.Error{Code: control.CodeUsage, Err: errors.New("--tty needs a terminal on standard input"), Hint: "leave --tty out"}
	}
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	defer master.Close()
	args := []string{"bulkhead", "--policy", a.policy, "--state", a.state, "--socket", a.socket, "run"}
	if o.user != "" {
		args = append(args, "--user", o.user)
	}
	if o.group != "" {
		args = append(args, "--unix-group", o.group)
	}
	args = append(append(args, group, "--"), command...)
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	child, err := os.StartProcess(self, args, &os.ProcAttr{
		Files: []*os.File{slave, slave, slave},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	_ = slave.Close()
	state, err := relay(master, child)
	if err != nil {
		return err
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return exit{128 + int(status.Signal())}
	}
	return exit{state.ExitCode()}
}

// relay carries the terminal across until the child ends.
func relay(master *os.File, child *os.Process) (*os.ProcessState, error) {
	old, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err == nil {
		defer term.Restore(int(os.Stdin.Fd()), old) //nolint:errcheck // nothing more can be done
	}
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	defer signal.Stop(sizes)
	_ = pty.InheritSize(os.Stdin, master)
	go func() {
		for range sizes {
			_ = pty.InheritSize(os.Stdin, master)
		}
	}()
	ends := make(chan os.Signal, 4)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(ends)
	go func() {
		for s := range ends {
			_ = child.Signal(s)
		}
	}()
	go func() { _, _ = io.Copy(master, os.Stdin) }()
	done := make(chan struct{})
	go func() { _, _ = io.Copy(os.Stdout, master); close(done) }()
	state, err := child.Wait()
	<-done // EIO once the last holder of the terminal is gone
	return state, err
}

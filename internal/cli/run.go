package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

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

func runCmd(s *session) *cobra.Command {
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
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.tty {
				return runOnTerminal(s, args[0], args[1:], o)
			}
			return become(cmd.Context(), s, args[0], args[1:], o)
		},
	}
	c.Flags().StringVar(&o.user, "user", "", "run as this `user`, with its groups")
	c.Flags().StringVar(&o.group, "unix-group", "", "run with this primary `group`")
	c.Flags().BoolVar(&o.tty, "tty", false, "give the command a terminal of its own, as su --pty does")
	return c
}

// become enters the group, takes on the identity and replaces this process by the command.
func become(ctx context.Context, s *session, group string, command []string, o runFlags) error {
	if os.Geteuid() != 0 && (o.user != "" || o.group != "") {
		return needRoot("run --user and --unix-group")
	}
	id, err := o.identity()
	if err != nil {
		return err
	}
	file, err := lookUp(command[0])
	if err != nil {
		return cannotRun(s, command[0], err)
	}
	if err := enter(ctx, s, group, filepath.Base(command[0])); err != nil {
		return err
	}
	if err := keepDeathSignal(id.take); err != nil {
		return fmt.Errorf("become user %q: %w", o.user, err)
	}
	// syscall.Exec gives back the limit of open files that the Go runtime raised.
	return cannotRun(s, command[0], syscall.Exec(file, command, os.Environ()))
}

// enter puts this process into a group; the agent does it for others than root.
func enter(ctx context.Context, s *session, group, command string) error {
	if os.Geteuid() != 0 {
		running, err := s.agent(ctx)
		switch {
		case err != nil:
			return notEntered(s, err)
		case running == nil:
			return notEntered(s, &control.Error{Code: control.CodeFailed, Err: errors.New("run needs root"), Hint: ownerHint})
		}
		if err := running.Enter(ctx, group, command); err != nil {
			return notEntered(s, err)
		}
		return nil
	}
	c, err := s.open()
	if err != nil {
		return err
	}
	if err := c.Enter(ctx, control.Entry{Group: group, By: who(), Command: command}); err != nil {
		return notEntered(s, err)
	}
	return c.Close()
}

// notEntered says why a group could not be entered, with a code that tells this from the command's own status. A
// mistake in the arguments keeps the code it has everywhere.
func notEntered(s *session, err error) error {
	if code := s.report(err); code != int(control.CodeUsage) {
		return exit{codeNotEntered}
	}
	return exit{int(control.CodeUsage)}
}

// cannotRun says why a command cannot be started, with env(1)'s exit code.
func cannotRun(s *session, name string, err error) error {
	fmt.Fprintf(s.err, "bulkhead: run %q: %v\n", name, err)
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

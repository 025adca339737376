package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/cli/command"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/control"
)

// Exit codes of run for a command that cannot be started, as env(1) has them.
const (
	codeNotEntered = 125
	codeCannotRun  = 126
	codeNotFound   = 127
)

// run is the verb with its flags.
type run struct {
	*session
	user, unixGroup string
	tty             bool
}

func runCmd(s *session) *cobra.Command {
	r := run{session: s}
	c := &cobra.Command{
		Use:   "run GROUP [--user U] [--unix-group G] [--tty] -- CMD…",
		Short: "start a command inside a group from its first instruction",
		Long: `run enters the group and then becomes the command: working directory, environment, signals and exit
status are the command's own. Where systemd runs the host the command is a unit (a scope in the group's slice),
which systemctl status PID shows and which is gone when the command ends.
125: the group could not be entered, or the user is unknown; 126: the command cannot be run; 127: it was not found.`,
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
			if r.tty {
				status, err := command.OnTerminal(r.again(args[0], args[1:]))
				if err != nil {
					return err
				}
				return exit{status}
			}
			return r.become(cmd.Context(), args[0], args[1:])
		},
	}
	c.Flags().StringVar(&r.user, "user", "", "run as this `user`, with its groups")
	c.Flags().StringVar(&r.unixGroup, "unix-group", "", "run with this primary `group`")
	c.Flags().BoolVar(&r.tty, "tty", false, "give the command a terminal of its own, as su --pty does")
	return c
}

// again gives the arguments that start the command in the same way, without --tty.
func (r *run) again(group string, argv []string) []string {
	args := r.runArgs()
	if r.user != "" {
		args = append(args, "--user", r.user)
	}
	if r.unixGroup != "" {
		args = append(args, "--unix-group", r.unixGroup)
	}
	return append(append(args, group, "--"), argv...)
}

// become enters the group, takes on the identity and replaces this process by the command.
func (r *run) become(ctx context.Context, group string, argv []string) error {
	if euid() != 0 && (r.user != "" || r.unixGroup != "") {
		return r.notEntered(needRoot("run --user and --unix-group"))
	}
	id, err := command.As(r.user, r.unixGroup)
	if err != nil {
		return r.notEntered(err)
	}
	file, err := command.LookPath(argv[0])
	if err != nil {
		return r.cannotRun(argv[0], err)
	}
	if err := r.enter(ctx, group, filepath.Base(argv[0])); err != nil {
		return err
	}
	if err := id.Take(); err != nil {
		return r.notEntered(fmt.Errorf("become user %q: %w", r.user, err))
	}
	// syscall.Exec gives back the limit of open files that the Go runtime raised.
	return r.cannotRun(argv[0], syscall.Exec(file, argv, os.Environ()))
}

// enter puts this process into a group, by the agent where one runs. Without one only root can.
func (r *run) enter(ctx context.Context, group, command string) error {
	running, err := r.agent(ctx)
	if err == nil && running != nil {
		if err = running.Enter(ctx, group, command, who()); err == nil {
			return nil
		}
		if errors.Is(err, client.ErrSilent) && euid() == 0 {
			render.Printf(r.err, "warning: going on without the agent: %v\n", err)
			err = nil
		}
	}
	if err == nil && euid() != 0 {
		err = &api.Error{Code: api.CodeFailed, Err: errors.New("run needs root"), Hint: ownerHint}
	}
	if err != nil {
		return r.notEntered(err)
	}
	c, err := r.open()
	if err != nil {
		return r.notEntered(err)
	}
	if err := control.Enter(ctx, c, control.Entry{Group: group, By: who(), Command: command}); err != nil {
		return r.notEntered(err)
	}
	return c.Close()
}

// notEntered says why a group could not be entered, with a code that tells this from the command's own status. A
// mistake in the arguments keeps the code it has everywhere.
func (r *run) notEntered(err error) error {
	if code := r.report(err); code != int(api.CodeUsage) {
		return exit{codeNotEntered}
	}
	return exit{int(api.CodeUsage)}
}

// cannotRun says why a command cannot be started, with env(1)'s exit code.
func (r *run) cannotRun(name string, err error) error {
	render.Printf(r.err, "bulkhead: run %q: %v\n", name, err)
	if errors.Is(err, fs.ErrNotExist) {
		return exit{codeNotFound}
	}
	return exit{codeCannotRun}
}

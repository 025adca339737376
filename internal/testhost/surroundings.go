package testhost

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// SetSurroundings gives this process, and with it what it starts, the surroundings that tests rely on, whoever started
// it (nohup(1), a scheduler, a shell with a umask of its own): no signal that ends a program is ignored, the umask is
// 022, the locale is C, and PATH has the directories of root's programs. It is called once, from TestMain.
func SetSurroundings() error {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTERM} {
		if signal.Ignored(s) {
			// A program that execve(2) starts has the default for a signal that is handled here. The channel is never
			// read, so that this process goes on ignoring the signal.
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	unix.Umask(0o022)
	for _, name := range []string{"LANG", "LANGUAGE", "LC_ALL"} {
		if err := os.Unsetenv(name); err != nil {
			return fmt.Errorf("unset %s: %w", name, err)
		}
	}
	path := os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
	for name, value := range map[string]string{"LC_ALL": "C", "PATH": path} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

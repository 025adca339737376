package testhost

import (
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// What a test starts does not ignore the signals that this process was started to ignore, and has the umask 022.
func TestSetSurroundings(t *testing.T) {
	t.Setenv("LC_ALL", "de_AT.UTF-8")
	t.Setenv("PATH", "/usr/bin:/bin")
	was := unix.Umask(0o077)
	defer unix.Umask(was)
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if err := SetSurroundings(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/bin/sh", "-c", "umask; echo $LC_ALL; grep SigIgn /proc/self/status").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "0022\nC\n") || !strings.HasSuffix(string(out), "0\n") {
		t.Errorf("%v:\n%s", err, out)
	}
}

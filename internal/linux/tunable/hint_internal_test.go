package tunable

import (
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What the agent's unit may not do is said with what to do about it.
func TestHints(t *testing.T) {
	for cause, want := range map[error]string{
		unix.EPERM:  "CapabilityBoundingSet=CAP_SYS_ADMIN",
		unix.EROFS:  "mkdir -p /etc/udev/rules.d && systemctl restart bulkhead",
		unix.EINVAL: "write /etc/udev/rules.d/x: invalid argument",
	} {
		err := failed("write", "/etc/udev/rules.d/x", &fs.PathError{Op: "open", Path: "x", Err: cause})
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", cause, err, want)
		}
	}
}

package selinux

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/auditlog"
	"bulkhead/internal/selinux/avc"
)

// noAudit leads to the logs of a host without auditd.
const noAudit = "without auditd the kernel's log has them: `journalctl -k | bulkhead selinux explain -`, or `dmesg`"

// readAudit reads the logs of auditd, the oldest first.
func readAudit(root *sysroot.FS, log *avc.Log, now time.Time) ([]string, error) {
	names, err := auditlog.Read(root, log, now)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, failed(err, "only root may read it: run it with sudo")
	case errors.Is(err, fs.ErrNotExist):
		return nil, failed(err, noAudit)
	}
	return names, err
}

func failed(err error, hint string) error {
	return &api.Error{Code: api.CodeFailed, Err: err, Hint: hint}
}

// readNamed reads one file, or standard input.
func readNamed(in io.Reader, name string, log *avc.Log, now time.Time) error {
	if name != "-" {
		f, err := os.Open(filepath.Clean(name))
		if err != nil {
			return failed(fmt.Errorf("read %q: %w", name, sysroot.Cause(err)),
				"name a log that is there and may be read, or - for standard input")
		}
		defer f.Close()
		in = f
	}
	if err := log.Read(in, now); err != nil {
		return failed(fmt.Errorf("read %q: %w", name, sysroot.Cause(err)), "name a file that is a log")
	}
	return nil
}

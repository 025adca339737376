package selinux

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/avc"
)

// auditConfig is auditd's, auditLog where it writes without a word there.
const auditConfig, auditLog = "/etc/audit/auditd.conf", "/var/log/audit/audit.log"

// noAudit leads to the logs of a host without auditd.
const noAudit = "without auditd the kernel's log has them: `journalctl -k | bulkhead selinux explain -`, or `dmesg`"

// auditLogs are the files of auditd, the oldest first; the newest may not be there.
func auditLogs(root *sysroot.FS) ([]string, error) {
	file := auditLog
	text, err := root.ReadOptional(auditConfig)
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("read %q: %w", auditConfig, err)
	}
	for line := range strings.Lines(text) {
		if key, value, is := strings.Cut(line, "="); is && strings.TrimSpace(key) == "log_file" {
			file = strings.TrimSpace(value)
		}
	}
	names := []string{file}
	const most = 999 // num_logs of auditd.conf(5)
	for n := 1; n <= most; n++ {
		name := file + "." + strconv.Itoa(n)
		if !root.Exists(name) {
			break
		}
		names = append([]string{name}, names...)
	}
	return names, nil
}

// readAudit reads the logs of auditd, the oldest first.
func readAudit(root *sysroot.FS, log *avc.Log, now time.Time) ([]string, error) {
	names, err := auditLogs(root)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := root.Open(name)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return nil, failed(fmt.Errorf("read %q: %w", name, sysroot.Cause(err)),
				"only root may read it: run it with sudo")
		case err != nil:
			return nil, failed(fmt.Errorf("read %q: %w", name, sysroot.Cause(err)), noAudit)
		}
		err = log.Read(f, now)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", name, sysroot.Cause(err))
		}
	}
	return names, nil
}

func failed(err error, hint string) error {
	return &api.Error{Code: api.CodeFailed, Err: err, Hint: hint}
}

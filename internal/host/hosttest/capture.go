package hosttest

import (
	"errors"
	"fmt"
	"io"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// Capture writes a txtar archive of every file that Facts and Processes read: a fixture for tests, which
// FromArchive takes. Environments are not in
// it, and what looks like a password in a command line is masked: read it before you pass it on.
func Capture(h *host.Host, w io.Writer) error {
	recorder := host.Over(h.Root.Record())
	if _, err := recorder.Facts(); err != nil {
		return fmt.Errorf("capture host: %w", err)
	}
	if _, err := recorder.Proc.Processes(procfs.Options{}); err != nil && !errors.Is(err, procfs.ErrHidden) {
		return fmt.Errorf("capture host: %w", err)
	}
	if _, err := io.WriteString(w, recorder.Root.Archive()); err != nil {
		return fmt.Errorf("capture host: %w", err)
	}
	return nil
}

// CaptureStorage writes a txtar archive of every file that tells what files lie on, down to the disks, as Capture
// does for the rest. Serial numbers are in it.
func CaptureStorage(h *host.Host, w io.Writer) error {
	recorder := host.Over(h.Root.Record())
	s, err := recorder.Block.Storage()
	if err != nil {
		return fmt.Errorf("capture storage: %w", err)
	}
	for _, m := range s.Mounts() {
		s.On(m)
	}
	s.Unused()
	if _, err := io.WriteString(w, recorder.Root.Archive()); err != nil {
		return fmt.Errorf("capture storage: %w", err)
	}
	return nil
}

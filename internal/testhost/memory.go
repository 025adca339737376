package testhost

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// MemoryHolder is a process, a copy of the test binary with several threads, that holds as much anonymous
// memory as it is told to.
type MemoryHolder struct{ *child }

// HoldMemory starts a process that holds nothing yet: put it into a group first.
func HoldMemory(t testing.TB) *MemoryHolder {
	t.Helper()
	return &MemoryHolder{copyOfSelf(t, "hold")}
}

// Touch has the process touch that many bytes more. It says false when the process was killed over it.
func (m *MemoryHolder) Touch(bytes int64) bool {
	m.t.Helper()
	_, err := m.ask(fmt.Sprint(bytes), 20*time.Second)
	if err != nil && !errors.Is(err, errEnded) {
		m.t.Fatalf("hold memory: %v", err)
	}
	return err == nil
}

// hold is the child: it reads numbers of bytes and answers each with itself. The memory is mapped past Go's
// heap, so that nothing gives it back.
func hold(commands io.Reader, answers io.Writer) error {
	for range 2 {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	for {
		var bytes int
		_, err := fmt.Fscanln(commands, &bytes)
		if errors.Is(err, io.EOF) {
			return nil // the test is over
		}
		if err != nil {
			return fmt.Errorf("read a command: %w", err)
		}
		_, err = unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
		if err != nil {
			return fmt.Errorf("map %d bytes: %w", bytes, err)
		}
		fmt.Fprintln(answers, bytes)
	}
}

package command

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func deathSignal(t *testing.T) (s int32) {
	t.Helper()
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&s)), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	return s
}

func setDeathSignal(s syscall.Signal) error {
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(s), 0, 0, 0)
}

// A change of the user clears the parent-death signal: `run --user` sets it again, and none where there was none.
func TestKeepDeathSignal(t *testing.T) {
	runtime.LockOSThread() // the signal is the thread's; the thread ends with this test
	cleared := func() error { return setDeathSignal(0) }
	for _, asked := range []syscall.Signal{syscall.SIGWINCH, 0} {
		if err := setDeathSignal(asked); err != nil {
			t.Fatal(err)
		}
		if err := keepDeathSignal(cleared); err != nil || deathSignal(t) != int32(asked) {
			t.Errorf("afterwards it is %d (%v), want %d", deathSignal(t), err, asked)
		}
	}
	refused := errors.New("refused")
	if err := keepDeathSignal(func() error { return refused }); !errors.Is(err, refused) {
		t.Errorf("error is %v", err)
	}
}

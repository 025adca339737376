package audit

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func message(kind uint16, numbers ...uint32) []byte {
	m := make([]byte, header)
	binary.NativeEndian.PutUint16(m[4:], kind)
	for _, n := range numbers {
		m = binary.NativeEndian.AppendUint32(m, n)
	}
	return m
}

func TestParse(t *testing.T) {
	got, err := parse(message(get, 0, 1, 2, 777, 30, 8192, 5, 6, 99, 100)) // two more of newer kernels
	if err != nil || got != (Status{Enabled: 1, PID: 777, RateLimit: 30, BacklogLimit: 8192, Lost: 5, Backlog: 6}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parse(message(unix.NLMSG_ERROR, ^uint32(unix.EPERM)+1)); !errors.Is(err, unix.EPERM) {
		t.Errorf("EPERM is %v", err)
	}
	for want, bytes := range map[string][]byte{"without its state": message(unix.NLMSG_ERROR, 0),
		"type 1000 with 28 bytes": message(get, 1, 2, 3, 4, 5, 6, 7), "3 bytes": {1, 2, 3},
		"type 1300": message(1300, 1, 2, 3, 4, 5, 6, 7, 8)} {
		if s, err := parse(bytes); err == nil || !strings.Contains(err.Error(), want) || s != (Status{}) {
			t.Errorf("%s: %+v, %v", want, s, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(get, 0, 1, 2, 777, 30, 8192, 5, 6))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if s, err := parse(answer); err != nil && s != (Status{}) {
			t.Errorf("an error and a state: %+v", s)
		}
	})
}

// The kernel answers root; others, and kernels without auditing, are told so, and nobody waits.
func TestOf(t *testing.T) {
	s, err := Of()
	t.Logf("%+v, %v", s, err)
	if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EPROTONOSUPPORT) &&
		!errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
}

func TestAcknowledged(t *testing.T) {
	if err := acknowledged(message(unix.NLMSG_ERROR, 0, 5)); err != nil {
		t.Error(err)
	}
	if err := acknowledged(message(unix.NLMSG_ERROR, ^uint32(unix.EPERM)+1)); !errors.Is(err, unix.EPERM) {
		t.Errorf("EPERM is %v", err)
	}
	for _, bytes := range [][]byte{{1, 2, 3}, message(get, 0), message(unix.NLMSG_ERROR)} {
		if err := acknowledged(bytes); err == nil {
			t.Errorf("%v is taken for an answer", bytes)
		}
	}
}

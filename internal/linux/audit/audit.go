// Package audit asks the kernel for the state of auditing (audit(7), struct audit_status of
// include/uapi/linux/audit.h): whether records are made, who takes them, and how many were lost; and has it write a
// record. It changes nothing.
package audit

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Status is what the kernel says.
type Status struct {
	// Enabled is 0 for off, 1 for on and 2 for on until the next boot.
	Enabled uint32 `json:"enabled"`
	// PID is of the process that takes the records, as auditd does; 0 is none, and they go to the kernel's log.
	PID uint32 `json:"pid"`
	// RateLimit is in records per second; 0 is none.
	RateLimit uint32 `json:"rate_limit"`
	// BacklogLimit is how many records may wait, and Backlog how many do.
	BacklogLimit uint32 `json:"backlog_limit"`
	Backlog      uint32 `json:"backlog"`
	// Lost is how many records were lost since boot.
	Lost uint32 `json:"lost"`
}

const (
	get     = 1000 // AUDIT_GET
	user    = 1005 // AUDIT_USER
	header  = 16   // struct nlmsghdr
	least   = 32   // eight numbers, which every kernel has
	seconds = 1    // that the kernel has to answer
)

// Of asks the kernel, for a second at most. It takes CAP_AUDIT_CONTROL in the first user namespace; the errno says what
// is missing. EPROTONOSUPPORT is of a kernel without auditing.
func Of() (Status, error) {
	answer, err := ask(get, unix.NLM_F_REQUEST, nil)
	if err != nil {
		return Status{}, err
	}
	return parse(answer)
}

// Mark has the kernel write a record of type USER with a text, as `auditctl -m` does: on one line, without quotes. It
// takes CAP_AUDIT_WRITE. Where auditing is off nothing is written, and that is no error.
func Mark(text string) error {
	answer, err := ask(user, unix.NLM_F_REQUEST|unix.NLM_F_ACK, append([]byte(text), 0))
	if err != nil {
		return err
	}
	return acknowledged(answer)
}

// ask sends a message and gives the answer.
func ask(kind, flags uint16, body []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_AUDIT)
	if err != nil {
		return nil, fmt.Errorf("open a socket to audit: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: seconds}); err != nil {
		return nil, err
	}
	message := make([]byte, header, header+len(body))
	binary.NativeEndian.PutUint32(message, uint32(header+len(body)))
	binary.NativeEndian.PutUint16(message[4:], kind)
	binary.NativeEndian.PutUint16(message[6:], flags)
	message = append(message, body...)
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("ask audit: %w", err)
	}
	buf := make([]byte, 8<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask audit: %w", err)
		}
		return buf[:n], nil
	}
}

// acknowledged reads the kernel's answer to a message that asks for nothing.
func acknowledged(answer []byte) error {
	native := binary.NativeEndian
	if len(answer) < header+4 || native.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("audit answered %d bytes without saying whether it took the message", len(answer))
	}
	if errno := int32(native.Uint32(answer[header:])); errno < 0 {
		return fmt.Errorf("tell audit: %w", unix.Errno(-errno))
	}
	return nil
}

// parse reads the kernel's answer: a status, or an error.
func parse(answer []byte) (s Status, err error) {
	if len(answer) < header+4 {
		return s, fmt.Errorf("audit answered %d bytes", len(answer))
	}
	native := binary.NativeEndian
	body := answer[header:]
	switch kind := native.Uint16(answer[4:]); {
	case kind == unix.NLMSG_ERROR:
		if errno := int32(native.Uint32(body)); errno < 0 {
			return s, fmt.Errorf("ask audit: %w", unix.Errno(-errno))
		}
		return s, errors.New("audit answered without its state")
	case kind != get || len(body) < least:
		return s, fmt.Errorf("audit answered a message of type %d with %d bytes", kind, len(body))
	}
	at := func(n int) uint32 { return native.Uint32(body[4*n:]) } // mask, enabled, failure, pid, …
	return Status{Enabled: at(1), PID: at(3), RateLimit: at(4), BacklogLimit: at(5), Lost: at(6), Backlog: at(7)}, nil
}

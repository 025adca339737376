package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/godbus/dbus/v5"
)

// Errors that callers branch on; the errors returned wrap them with the unit and systemd's own words.
var (
	ErrNotRunning = errors.New("systemd is not PID 1 here")
	ErrNoAnswer   = errors.New("systemd does not answer")            // within the time allowed
	ErrGone       = errors.New("the connection to systemd is gone")  // a bus that ended; the next call connects again
	ErrDenied     = errors.New("not permitted")                      // by polkit or the socket's mode
	ErrNoUnit     = errors.New("no such unit")                       // not loaded, and not found on disk
	ErrNoProcess  = errors.New("process belongs to no unit")         // or is not there
	ErrMasked     = errors.New("unit is masked")                     //
	ErrBadSetting = errors.New("unit has a bad setting")             // systemd refuses its file
	ErrExists     = errors.New("unit exists")                        // a transient unit of that name
	ErrNoProperty = errors.New("property unknown or not changeable") // one answer of systemd's for both
	ErrInvalid    = errors.New("refused by systemd")                 // a value or a name
	ErrInactive   = errors.New("unit is not active")                 //
	ErrBusy       = errors.New("units still run in it")              // a slice that was to be stopped
	ErrJob        = errors.New("job did not succeed")                // its result is in Error.Result
	ErrOld        = errors.New("this systemd is too old for it")     //
)

// Error is what the methods of Manager return.
type Error struct {
	Op     string // "start", "set properties of", …
	Unit   string // "" when it is about none
	Kind   error  // one of the ErrXxx of this package, or nil
	Name   string // the D-Bus error's name: "org.freedesktop.systemd1.NoSuchUnit"
	Result Result // of a job
	Cause  error  // what systemd said, or the connection
	Hint   string // what to do; may be empty
}

// Error gives `start "mysql.service": unit is masked: Unit mysql.service is masked.`
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Unit != "" {
		fmt.Fprintf(&b, " %q", e.Unit)
	}
	if e.Kind != nil {
		fmt.Fprintf(&b, ": %v", e.Kind)
	}
	if e.Result != "" {
		fmt.Fprintf(&b, ": %s", e.Result)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "; hint: %s", e.Hint)
	}
	return b.String()
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Kind, e.Cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Hint gives the hint of the first *Error in err's chain, "" when there is none.
func Hint(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// kinds maps the names of D-Bus errors. Those of 252 were read off a running one; the manual pages list them under
// org.freedesktop.systemd1(5), and they have not changed since 219 but for the ones added.
var kinds = map[string]error{
	"org.freedesktop.systemd1.NoSuchUnit":             ErrNoUnit,
	"org.freedesktop.systemd1.LoadFailed":             ErrBadSetting,
	"org.freedesktop.DBus.Error.UnixProcessIdUnknown": ErrNoProcess,
	// A sub-group that is not there, a scope without processes.
	"org.freedesktop.DBus.Error.FileNotFound":                     ErrInvalid,
	"org.freedesktop.systemd1.UnitExists":                         ErrExists,
	"org.freedesktop.systemd1.UnitMasked":                         ErrMasked,
	"org.freedesktop.systemd1.Masked":                             ErrMasked,
	"org.freedesktop.systemd1.BadUnitSetting":                     ErrBadSetting,
	"org.freedesktop.systemd1.UnitInactive":                       ErrInactive,
	"org.freedesktop.DBus.Error.PropertyReadOnly":                 ErrNoProperty,
	"org.freedesktop.DBus.Error.UnknownProperty":                  ErrNoProperty,
	"org.freedesktop.DBus.Error.InvalidArgs":                      ErrInvalid,
	"org.freedesktop.DBus.Error.BadMessage":                       ErrInvalid,
	"org.freedesktop.DBus.Error.InconsistentMessage":              ErrInvalid,
	"System.Error.ENXIO":                                          ErrInvalid, // a value of the wrong type
	"org.freedesktop.DBus.Error.UnknownMethod":                    ErrOld,
	"org.freedesktop.DBus.Error.AccessDenied":                     ErrDenied,
	"org.freedesktop.DBus.Error.InteractiveAuthorizationRequired": ErrDenied,
	"org.freedesktop.DBus.Error.NoReply":                          ErrNoAnswer,
	"org.freedesktop.DBus.Error.Timeout":                          ErrNoAnswer,
	"org.freedesktop.DBus.Error.TimedOut":                         ErrNoAnswer,
	"org.freedesktop.DBus.Error.Disconnected":                     ErrGone,
	"org.freedesktop.DBus.Error.ServiceUnknown":                   ErrNotRunning,
	"org.freedesktop.DBus.Error.NameHasNoOwner":                   ErrNotRunning,
}

var hints = map[error]string{
	ErrNotRunning: "bulkhead works without systemd through the cgroup files; inside a container give it the host's " +
		"/run/systemd",
	ErrNoAnswer: "is PID 1 busy with a daemon-reload, or stuck? `systemctl status` answers the same way; nothing " +
		"was changed that was not reported",
	ErrGone: "systemd ends its connections when it starts itself anew (daemon-reexec): try again; `systemctl " +
		"status` tells whether it answers",
	ErrDenied:     "run as root",
	ErrNoUnit:     "look the name up with `systemctl list-units --all`",
	ErrMasked:     "`systemctl unmask` it, or take it out of the policy",
	ErrBadSetting: "`systemd-analyze verify` says what is wrong with its file",
	ErrNoProperty: "this systemd does not know it, or it cannot be changed while the unit runs (Slice= waits for the " +
		"next start)",
	ErrInactive: "start it first",
}

// failed wraps what a call gave. It gives nil for nil.
func failed(op, unit string, err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return err
	}
	e := &Error{Op: op, Unit: unit, Cause: err}
	var answer dbus.Error
	switch {
	case errors.As(err, &answer):
		e.Name, e.Kind = answer.Name, kinds[answer.Name]
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		e.Kind = ErrNoAnswer
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		e.Kind = ErrNotRunning
	case errors.Is(err, os.ErrPermission):
		e.Kind = ErrDenied
	case errors.Is(err, dbus.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		e.Kind = ErrGone
	}
	e.Hint = hints[e.Kind]
	return e
}

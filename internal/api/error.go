package api

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// Code is a process exit code (design, "The command line").
type Code int

// The exit codes that errors carry.
const (
	CodeFailed  Code = 1
	CodeUsage   Code = 2
	CodeChanges Code = 3
	CodeVerify  Code = 4
	CodeRefused Code = 5
	CodeLocked  Code = 6
	// What keeps limits from being in force although none differs: for monitoring.
	CodeReleased    Code = 7 // everything was released
	CodeInterrupted Code = 8 // a change was cut off
	CodeUnplaced    Code = 9 // nobody places new processes
)

// Error is an error with the exit code it ends in and what to do next.
type Error struct {
	Code Code
	Err  error
	Hint string
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error from an exit code, a hint, which may be "", and a format as of fmt.Errorf.
func Errorf(code Code, hint, format string, args ...any) *Error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...), Hint: hint}
}

// CodeOf gives the exit code of any error of this program.
func CodeOf(err error) Code {
	var (
		own      *Error
		problems policy.Problems
		locked   *statedir.LockedError
		refused  *apply.RefusedError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &own):
		return own.Code
	case errors.As(err, &problems):
		return CodeUsage
	case errors.As(err, &locked):
		return CodeLocked
	case errors.As(err, &refused):
		return CodeRefused
	}
	return CodeFailed
}

// HintOf is what to do about an error, wherever it comes from; "" when nobody knows.
func HintOf(err error) string {
	var own *Error
	if errors.As(err, &own) && own.Hint != "" {
		return own.Hint
	}
	return cmp.Or(statedir.Hint(err), cgroup.Hint(err), systemd.Hint(err))
}

// NoGroup is the error for a name that none of the groups has.
func NoGroup(name string, names []string) error {
	slices.Sort(names)
	hint := "the applied policy has no group now"
	if len(names) > 0 {
		hint = "the groups are " + strings.Join(names, ", ")
	}
	return Errorf(CodeUsage, hint, "no group %q", name)
}

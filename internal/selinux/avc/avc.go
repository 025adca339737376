// Package avc reads denials of SELinux from logs: what auditd writes, what ausearch prints (raw or with -i), the
// journal and the kernel's ring buffer. It groups them as audit2allow does: source type, target type and class, with
// the permissions of all denials together.
//
// Read takes one log, or several one after the other, and gives a Log. Nothing here opens a file or asks a clock. A
// line that is no record of SELinux costs a search for a word; the time is linear in the size of the log.
//
// The grammar is that of the kernel (security/selinux/avc.c, kernel/audit.c) and of sepolgen
// (python/sepolgen/src/sepolgen/audit.py in https://github.com/SELinuxProject/selinux, commit 64c49eb3).
package avc

import (
	"strings"
	"time"
)

// Answer is what a log tells of something, or does not.
type Answer string

// Answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "not told"
)

// Context is a security context, "user:role:type" and a range that may have ":" and "," in it.
type Context struct {
	User, Role, Type, Range string
}

// ParseContext reads a context; ok is false for one that has no type.
func ParseContext(text string) (c Context, ok bool) {
	parts := strings.SplitN(text, ":", 4)
	if len(parts) < 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Context{}, false
	}
	c = Context{User: parts[0], Role: parts[1], Type: parts[2]}
	if len(parts) == 4 {
		c.Range = parts[3]
	}
	return c, true
}

// Domain says whether a target is a process or something of one, as its directory in /proc: a file's role is object_r.
func (c Context) Domain() bool { return c.Role != "object_r" }

// Denial is one record of an access that the policy does not grant.
type Denial struct {
	// Line is its number in the log, from 1, and Text the record as it stands there.
	Line int
	Text string
	// When is zero where the log does not tell. Serial is 0 outside of audit records.
	When   time.Time
	Serial uint64
	Node   string
	// User says that a program (systemd, D-Bus) has asked, not the kernel.
	User           bool
	Permissions    []string
	Source, Target Context
	Class          string
	// Permissive says whether it was allowed all the same.
	Permissive Answer
	PID        int
	Comm, Exe  string
	// Path is whole, or "" where the log does not have it; Name is the last part alone.
	Path, Name string
	// Port is that of a socket, 0 is none. Protocol is "tcp", "udp" or "".
	Port     int
	Protocol string
	inode    string
}

// Process is what a log tells of a process.
type Process struct {
	PID, Parent int
	Comm, Exe   string
	// Command is its command line, where a record of the event has it.
	Command []string
}

// Log is what was read.
type Log struct {
	// Lines were read, of which Records are denials.
	Lines   int
	Denials []Denial
	Granted int // records of allowed accesses: no denials
	// Loads are the times at which a policy was loaded, in the order of the log.
	Loads []time.Time
	// Processes, by id. An id that was used again is the last one.
	Processes map[int]Process
	// Lost says why there may be more denials than the log has.
	Lost []string
	// Unread are records that cannot be read, and why.
	Unread []Unread
}

// Unread is a record of SELinux that cannot be read.
type Unread struct {
	Line int
	Why  string
}

// Since leaves out the denials before a moment. Those without a time stay.
func (l *Log) Since(t time.Time) {
	var kept []Denial
	for _, d := range l.Denials {
		if d.When.IsZero() || !d.When.Before(t) {
			kept = append(kept, d)
		}
	}
	l.Denials = kept
}

// LastLoad is when the last policy was loaded; zero where the log does not tell.
func (l *Log) LastLoad() time.Time {
	var last time.Time
	for _, t := range l.Loads {
		if t.After(last) {
			last = t
		}
	}
	return last
}

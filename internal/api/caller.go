package api

import (
	"slices"
	"strings"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/terminal"
)

// Caller is who asks an agent and is not root: the process at the other end of its socket, as the kernel vouches for it
// (unix(7), SO_PEERCRED), with the Unix groups that the process is in.
type Caller struct {
	procfs.Identity

	PID int
}

// Is says whether an owner of a group is the caller: by user, or by one of its Unix groups. Root's own user and group
// are no owner, and neither is a name that this host does not know.
func (c *Caller) Is(o policy.Owner) bool {
	return o.UID != 0 && c.UID == o.UID || o.GID != 0 && slices.Contains(c.Groups, o.GID)
}

// ownersVerbs are those that an owner may ask for. Run is asked for by Enter.
var ownersVerbs = []string{"set", "unset", "move", "move-back", "freeze", "thaw"}

// The most that one request of an owner may hold, and how long an owner may stop a group.
const (
	mostWords        = 100
	mostText         = 1 << 10
	longestOwnFreeze = 24 * time.Hour
)

// validateCaller says what an owner cannot ask for at all: verbs that are about the whole host, what keeps others from
// changing it, and what gets past a refusal. Only a freeze may be forced: whoever may stop a database of its own knows
// that it is one.
func (r Request) validateCaller() error {
	if r.Caller == nil {
		return nil
	}
	words := len(r.Assign) + len(r.Groups) + len(r.PIDs)
	switch {
	case words > mostWords || len(r.Reason)+len(r.On)+len(strings.Join(r.Assign, ""))+len(strings.Join(r.Groups, ""))+
		len(r.Group) > mostText:
		return Errorf(CodeRefused, "ask for less at once",
			"%s: the history keeps what owners ask for, up to %d groups, limits and processes and %d bytes", r.Verb,
			mostWords, mostText)
	case terminal.Printable(r.Reason) != r.Reason:
		return Errorf(CodeUsage, "give one line of text", "--reason holds control characters")
	case r.Verb == "freeze" && r.For > longestOwnFreeze:
		return Errorf(CodeRefused, "root may stop it for longer", "an owner stops a group for at most %s",
			longestOwnFreeze)
	case !slices.Contains(ownersVerbs, r.Verb):
		return Errorf(CodeRefused, "run it with sudo", "only root may %s", r.Verb)
	case r.Force && r.Verb != "freeze", r.Migrate, r.ConfirmWithin != 0:
		return Errorf(CodeRefused, "run it with sudo, or leave them out",
			"only root may use --force, --migrate and --confirm-within with %s", r.Verb)
	}
	return nil
}

// OwnerID is the caller's user id; root, which is no caller, has 0.
func (c *Caller) OwnerID() int {
	if c == nil {
		return 0
	}
	return c.UID
}

// Package command has what a program needs that becomes another one: where a command is found, who it runs as, and a
// terminal of its own.
//
//	id, err := command.As("report", "")
//	file, err := command.LookPath("psql")
//	err = id.Take()
//	err = syscall.Exec(file, argv, os.Environ())
//
// As and LookPath only read. Take changes the whole process and is called once, on its first thread.
package command

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
)

// Identity is who a command runs as; the zero value is who calls.
type Identity struct {
	set      bool
	uid, gid int
	groups   []int
}

// As finds the identity of a user and a primary group, each a name of /etc/passwd and /etc/group or a number, or "" for
// that of who calls. A user that is in no file, as users of LDAP and SSSD are, is given by its number, and with a
// group.
func As(userName, groupName string) (Identity, error) {
	if userName == "" && groupName == "" {
		return Identity{}, nil
	}
	id := Identity{set: true, uid: os.Getuid(), gid: os.Getgid()}
	known := false // with its groups
	if userName != "" {
		var err error
		if known, err = id.become(userName); err != nil {
			return id, err
		}
	}
	if groupName != "" {
		gid, ok := number(groupName)
		if g, err := user.LookupGroup(groupName); err == nil {
			gid, ok = number(g.Gid)
		}
		if !ok {
			return id, unknown(
				"a group that only LDAP or SSSD knows is given by its number: `getent group NAME` prints it",
				"no group %q in /etc/group", groupName)
		}
		id.gid = gid
	}
	switch {
	case known:
	case groupName != "":
		id.groups = []int{id.gid}
	default:
		return id, unknown("give it with --unix-group: `id -g USER` prints it",
			"user %s is not in /etc/passwd, so its group is not known", userName)
	}
	return id, nil
}

// unknown is the error of a user or a group that cannot be found.
func unknown(hint, format, name string) error {
	return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf(format, name), Hint: hint}
}

// become reads a user of /etc/passwd with its groups. known is false for a number that is not in there: its groups are
// then not known.
func (id *Identity) become(name string) (known bool, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		uid, ok := number(name)
		if !ok {
			return false, unknown("a user that only LDAP or SSSD knows is given by its number: `id -u USER` prints it",
				"no user %q in /etc/passwd", name)
		}
		id.uid = uid
		return false, nil
	}
	names, err := u.GroupIds()
	if err != nil {
		return false, fmt.Errorf("groups of user %q: %w", name, err)
	}
	id.uid, _ = number(u.Uid)
	id.gid, _ = number(u.Gid)
	for _, n := range names {
		if g, ok := number(n); ok {
			id.groups = append(id.groups, g)
		}
	}
	return true, nil
}

// number reads the number of a user or a group. The largest one means "leave it" to setuid(2).
func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return int(n), err == nil && n < 1<<32-1
}

// Take gives this process the identity, for good: groups first, the user last. The parent-death signal stays as it was.
func (id Identity) Take() error {
	if !id.set {
		return nil
	}
	return keepDeathSignal(id.take)
}

func (id Identity) take() error {
	if err := syscall.Setgroups(id.groups); err != nil {
		return err
	}
	if err := syscall.Setgid(id.gid); err != nil {
		return err
	}
	return syscall.Setuid(id.uid)
}

// keepDeathSignal calls change, which changes the user, and then sets the parent-death signal of this process again
// (prctl(2), PR_SET_PDEATHSIG): the kernel clears it with every change of the user. If the parent has ended meanwhile,
// the signal would never come, so this process sends it to itself. The signal belongs to the thread: call it on the
// first one.
func keepDeathSignal(change func() error) error {
	var asked int32
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&asked)), 0, 0, 0); err != nil {
		return fmt.Errorf("ask for the parent-death signal: %w", err)
	}
	parent := os.Getppid()
	if err := change(); err != nil || asked == 0 {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(asked), 0, 0, 0); err != nil {
		return fmt.Errorf("keep the parent-death signal: %w", err)
	}
	if os.Getppid() != parent {
		return syscall.Kill(os.Getpid(), syscall.Signal(asked))
	}
	return nil
}

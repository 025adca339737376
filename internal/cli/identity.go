package cli

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/control"
)

// identity is who the command runs as; the zero value is who calls.
type identity struct {
	set      bool
	uid, gid int
	groups   []int
}

func (o runFlags) identity() (identity, error) {
	if o.user == "" && o.group == "" {
		return identity{}, nil
	}
	id := identity{set: true, uid: os.Getuid(), gid: os.Getgid()}
	known := false // with its groups
	if o.user != "" {
		var err error
		if known, err = id.become(o.user); err != nil {
			return id, err
		}
	}
	if o.group != "" {
		gid, ok := number(o.group)
		if g, err := user.LookupGroup(o.group); err == nil {
			gid, ok = number(g.Gid)
		}
		if !ok {
			return id, &control.Error{Code: control.CodeUsage, Err: fmt.Errorf("no group %q in /etc/group", o.group), Hint: "a group that only LDAP or SSSD knows is given by its number: `getent group NAME` prints it"}
		}
		id.gid = gid
	}
	switch {
	case known:
	case o.group != "":
		id.groups = []int{id.gid}
	default:
		return id, &control.Error{Code: control.CodeUsage, Err: fmt.Errorf("user %s is not in /etc/passwd, so its group is not known", o.user), Hint: "give it with --unix-group: `id -g USER` prints it"}
	}
	return id, nil
}

// become takes on a user of /etc/passwd with its groups. One that is not in there, as users of LDAP and SSSD are
// not, can be given by its number; its groups are then not known.
func (id *identity) become(name string) (known bool, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		uid, ok := number(name)
		if !ok {
			return false, &control.Error{Code: control.CodeUsage, Err: fmt.Errorf("no user %q in /etc/passwd", name), Hint: "a user that only LDAP or SSSD knows is given by its number: `id -u USER` prints it"}
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

// take takes the identity on: groups first, the user last, after which nothing can be changed back.
func (id identity) take() error {
	if !id.set {
		return nil
	}
	if err := syscall.Setgroups(id.groups); err != nil {
		return err
	}
	if err := syscall.Setgid(id.gid); err != nil {
		return err
	}
	return syscall.Setuid(id.uid)
}

// keepDeathSignal does what changes the identity and sets the parent-death signal again (prctl(2), PR_SET_PDEATHSIG) that whoever
// started us asked for: the kernel clears it with every change of the user. Should the parent have ended meanwhile, the
// signal would never come, so this process sends it to itself. The signal belongs to the thread; ours is the first one, for good.
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

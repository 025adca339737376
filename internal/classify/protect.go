package classify

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/terminal"
)

// Programs that reach the host or hand out root's shells.
var (
	// sshd-session since OpenSSH 9.8, sshd-auth since 10.0
	sshd   = []string{"sshd", "sshd-session", "sshd-auth", "dropbear"}
	logins = []string{"sshd", "sshd-session", "dropbear", "login", "agetty", "getty", "sulogin"}
	// substitutes run a shell or one command as another user.
	substitutes = []string{"su", "sudo", "runuser", "doas"}
	shells      = []string{"bash", "sh", "dash", "zsh", "ksh", "ksh93", "mksh", "fish", "tcsh", "csh", "ash", "busybox"}
)

// protected says why a process is never moved; "" when it may be.
func (l *look) protected(s *subject) string {
	p := s.p
	switch {
	case p.Kernel:
		return "it is a kernel thread"
	case p.PID == 1:
		return "it is PID 1"
	case p.ID == l.in.Self:
		return "it is bulkhead itself"
	case l.verb(p) == loadVerb:
		return "it is a load of `verify --probe`, which puts it where it belongs"
	case p.Exited():
		return "it has exited and waits for its parent (zombie)"
	case l.sshd(s):
		return "it is sshd"
	case l.rootLogin(s):
		return "it is a login shell of root"
	}
	if c := p.ContainerPath(); c != "" && c != l.own {
		return "it runs in a container (cgroup " + terminal.Printable(c) + ")"
	}
	if p.ForeignNamespace {
		return l.foreignContainer(s)
	}
	return ""
}

// sshd recognises the daemon and its helpers for each session. These may run as the user who logs in, and
// then root's sshd has started them: a program of that name that anybody started is none.
func (l *look) sshd(s *subject) bool {
	if !slices.Contains(sshd, path.Base(s.p.Exe)) {
		return false
	}
	parent := l.byPID[s.p.PPID]
	return s.p.UID == 0 || parent != nil && parent.p.UID == 0 && slices.Contains(sshd, path.Base(parent.p.Exe))
}

// foreignContainer looks for the container of a process in another pid namespace that no cgroup path of
// its own betrays: among its ancestors. Without one there is none, for anybody may make a namespace.
func (l *look) foreignContainer(s *subject) string {
	for parent := range l.chain(s) {
		if c := parent.p.ContainerPath(); c != "" && c != l.own {
			return fmt.Sprintf("it runs in a container (another pid namespace, started by process %d in cgroup %s)",
				parent.p.PID, terminal.Printable(c))
		}
	}
	return ""
}

// rootLogin recognises root's login shells: a shell of uid 0 whose name starts with "-" (login(1), "su -") or that a
// program of logins started; below su and the like one at a prompt alone, for they start jobs as well.
func (l *look) rootLogin(s *subject) bool {
	args, by := s.p.Args, ""
	if s.p.UID != 0 || !slices.Contains(shells, path.Base(s.p.Exe)) {
		return false
	}
	if parent := l.byPID[s.p.PPID]; parent != nil {
		by = path.Base(parent.p.Exe)
	}
	if slices.Contains(substitutes, by) {
		return atPrompt(args)
	}
	return len(args) > 0 && strings.HasPrefix(args[0], "-") || slices.Contains(logins, by)
}

// atPrompt says that a shell was given neither a script nor a command ("-c", "-lc"), so that it asks a person.
func atPrompt(args []string) bool {
	for i := 1; i < len(args); i++ {
		if a := args[i]; slices.Contains([]string{"-o", "+o", "-O", "+O", "-C", "--rcfile", "--init-file"}, a) {
			i++ // what follows is its value
		} else if strings.TrimLeft(a, "-+") == a || !strings.HasPrefix(a, "--") && strings.Contains(a, "c") {
			return false
		}
	}
	return true
}

// Protected says why the process is never moved, by a rule or by hand (design, safety 4); "" when it
// may be. A process that is not in the table may not: nothing is known of it.
func Protected(pid int, in Input) string { return Protector(in)(pid) }

// Protector is Protected for many processes of one look.
func Protector(in Input) func(pid int) string {
	l := newLook(in)
	return func(pid int) string {
		s := l.byPID[pid]
		if s == nil {
			return "it is not there"
		}
		return l.protected(s)
	}
}

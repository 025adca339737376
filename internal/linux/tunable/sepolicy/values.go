package sepolicy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// pattern is a regular expression that is compiled when it is needed first. Those that count to 255 take a megabyte
// together, and most processes need none of them.
type pattern func() *regexp.Regexp

func compiled(text string) pattern {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

func (p pattern) MatchString(text string) bool { return p().MatchString(text) }

const aName = `[a-zA-Z][a-zA-Z0-9_.]{0,254}`

var (
	typeName    = compiled(`^` + aName + `$`)
	portType    = compiled(`^` + aName + `( from ` + aName + `)?$`)
	booleanName = typeName
	// moduleName has the prefix of bulkhead's own modules, or that of `semanage permissive`.
	moduleName = compiled(`^(bulkhead|permissive)_[a-zA-Z0-9_.]{1,200}$`)
	portAddr   = compiled(`^(tcp|udp|sctp|dccp)/([1-9]\d{0,4})(?:-([1-9]\d{0,4}))?$`)
	switched   = compiled(`^on$`)
	cil        = compiled(`^(\(typepermissive [\w.]+\)|` + rule + `( ` + rule + `)*)$`)
)

// oneRule takes a rule apart.
var oneRule = compiled(`\(allow ([\w.]+) ([\w.]+) \((\w+) \(([\w ]+)\)\)\)`)

// rule is one as Rule writes it.
const rule = `\(allow [\w.]+ [\w.]+ \(\w+ \(\w+( \w+)*\)\)\)`

func matching(names pattern, what string) func(string) error {
	return func(addr string) error {
		if !names.MatchString(addr) {
			return fmt.Errorf("%q is not the name of %s", addr, what)
		}
		return nil
	}
}

func checkPort(addr string) error {
	if !portAddr.MatchString(addr) {
		return fmt.Errorf("%q is not a port: write tcp/4444, or udp/4567-4568", addr)
	}
	return nil
}

// whole are more such directories, and "/".
var whole = []string{"/", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/share", "/usr/local", "/var/lib",
	"/var/log", "/var/tmp", "/var/run", "/var/cache", "/var/spool", "/etc/selinux", "/var/lib/selinux", "/run/systemd",
	"/run/user", "/etc/systemd", "/etc/ssl", "/etc/pki"}

// notOwn are directories below "/" that no database has for itself.
var notOwn = []string{"/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt",
	"/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var"}

// checkTree refuses what is no path, what semanage takes no path for, and directories of the whole system.
func checkTree(addr string) error {
	switch {
	case !strings.HasPrefix(addr, "/") || path.Clean(addr) != addr:
		return fmt.Errorf("%q is no whole path, or has . or .. in it", addr)
	case strings.ContainsFunc(addr, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\'' }):
		return fmt.Errorf("%q: file contexts take no path with blanks, quotes or letters outside of ASCII", addr)
	case slices.Contains(whole, addr) || slices.Contains(notOwn, addr):
		return fmt.Errorf("%s is a directory of the whole system: name the database's own directory", addr)
	case strings.HasPrefix(addr, "/proc/") || strings.HasPrefix(addr, "/sys/") || strings.HasPrefix(addr, "/dev/"):
		return fmt.Errorf("%s is of the kernel: its labels are not set", addr)
	}
	return nil
}

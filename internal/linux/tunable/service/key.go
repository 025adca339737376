package service

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
)

// Kinds of settings of services. The address is "db.service/LimitNOFILE".
const (
	// KindSetting is a line of the drop-in; "" is no line.
	KindSetting change.Kind = "unit setting"
	// KindLimit is a limit of the main process: a number where the soft and the hard one are the same, else
	// "1024:524288"; "infinity" is none.
	KindLimit change.Kind = "limit of a running service"
)

// Prefix begins the name of a setting of a service: "unit db.service/LimitNOFILE".
const Prefix = "unit "

// File is the drop-in of a unit. It comes after those of distributions, and before an administrator's of 99.
func File(unit string) string { return "/etc/systemd/system/" + unit + ".d/" + fileName }

const fileName = "90-bulkhead.conf"

// key is a setting, what it takes, and that in words.
type key struct {
	name   string
	values *regexp.Regexp
	want   string
	limit  *limit // of a limit of processes
}

const (
	keyScore = "OOMScoreAdjust"
	keyTHP   = "MemoryTHP"
)

// since are the versions of systemd that brought settings, where that is not long ago: an older one reads over them.
var since = map[string]int{keyTHP: 260}

// Since is the version of systemd that brought the setting of a target; 0 is any.
func Since(t change.Target) int { return since[path.Base(t.Addr)] }

// OwnPages says whether a target is a service's own mode of transparent huge pages.
func OwnPages(t change.Target) bool { return t.Kind == KindSetting && path.Base(t.Addr) == keyTHP }

var keys = []key{
	{"LimitNOFILE", regexp.MustCompile(`^[1-9]\d{0,9}$`), "a number of files, at most fs.nr_open", openFiles},
	{"LimitNPROC", regexp.MustCompile(`^([1-9]\d{0,9}|infinity)$`), "a number of processes, or infinity", processes},
	{"LimitMEMLOCK", regexp.MustCompile(`^(\d{1,15}[KMGT]?|infinity)$`), "bytes (64M), or infinity", locked},
	{keyScore, regexp.MustCompile(`^(0|-?[1-9]\d{0,2}|-?1000)$`), "a number from -1000 to 1000", nil},
	{"ManagedOOMPreference", regexp.MustCompile(`^(none|avoid|omit)$`), "none, avoid or omit", nil},
	{keyTHP, regexp.MustCompile(`^(inherit|disable|madvise|system)$`), "inherit, disable, madvise or system", nil},
	{"TimeoutSec", duration, wantDuration, nil},
	{"TimeoutStartSec", duration, wantDuration, nil},
	{"TimeoutStopSec", duration, wantDuration, nil},
}

var duration = regexp.MustCompile(`^([1-9]\d{0,6}(s|min|h)?|infinity)$`)

const wantDuration = "seconds, or a time as 15min, or infinity"

// serviceName is the name of a service that is no template.
var serviceName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\@-]+)?\.service$`)

// split takes an address apart.
func split(addr string) (unit string, k key, err error) {
	at := strings.LastIndex(addr, "/")
	unit, name := addr[:max(at, 0)], addr[at+1:]
	i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
	switch {
	case i < 0:
		var known []string
		for _, k := range keys {
			known = append(known, k.name)
		}
		err = fmt.Errorf("%q is not a setting of a unit that is set here: %s are", name, strings.Join(known, ", "))
	case !serviceName.MatchString(unit) || len(unit) > 255:
		err = fmt.Errorf("%q is not a service: write its name as systemctl shows it, with .service", unit)
	default:
		k = keys[i]
	}
	return unit, k, err
}

// wayIn are the services of OpenSSH, by the names of Debian and of others, with those of one connection each.
var wayIn = regexp.MustCompile(`^sshd?(@.*)?\.service$`)

// Check says what is wrong with a setting and its value. What nobody may lose when memory is short, the way in to the
// host and bulkhead itself, keeps the score of its unit.
func Check(addr, value string) error {
	unit, k, err := split(addr)
	switch {
	case err != nil:
		return err
	case !k.values.MatchString(value):
		return fmt.Errorf("%s takes no %q, but %s", k.name, value, k.want)
	case k.name == keyScore && wayIn.MatchString(unit):
		return fmt.Errorf("OOMScoreAdjust of %s is not set here: without sshd there is no way in to the host when its "+
			"memory is short; leave the line out, and sshd protects itself", unit)
	case k.name == keyScore && unit == "bulkhead.service":
		return fmt.Errorf("OOMScoreAdjust of %s is not set here: it is of bulkhead itself, which undoes what goes "+
			"wrong; leave the line out, and its unit protects it", unit)
	}
	return nil
}

// Target is that of a setting.
func Target(addr string) change.Target { return change.Target{Kind: KindSetting, Addr: addr} }

// Running is the limit of the running service that a setting is of, where it is one.
func Running(t change.Target) (running change.Target, has bool) {
	_, k, err := split(t.Addr)
	return change.Target{Kind: KindLimit, Addr: t.Addr}, t.Kind == KindSetting && err == nil && k.limit != nil
}

// Unit is the service that a target is of.
func Unit(t change.Target) string { return path.Dir(t.Addr) }

// Counts says in words from when on a change counts; "" is at once, or said of another target.
func Counts(t change.Target) string {
	unit, k, err := split(t.Addr)
	switch {
	case err != nil:
	case t.Kind == KindLimit:
		return "the process that runs has it at once, with those that it starts from now on. A database that looks " +
			"at its limit only when it starts, as MySQL does, uses it after its next start"
	case t.Kind == KindSetting && (k.name == keyScore || k.name == keyTHP):
		return fmt.Sprintf("it counts when %s starts next; bulkhead restarts no service", unit)
	}
	return ""
}

// limit is one of the limits of a process (getrlimit(2)): its number, and its line in /proc/PID/limits.
type limit struct {
	resource int
	line     string
}

var (
	openFiles = &limit{unix.RLIMIT_NOFILE, "Max open files"}
	processes = &limit{unix.RLIMIT_NPROC, "Max processes"}
	locked    = &limit{unix.RLIMIT_MEMLOCK, "Max locked memory"}
)

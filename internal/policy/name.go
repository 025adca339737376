package policy

import (
	"fmt"
	"regexp"
)

// ownGroup is the name of the leaf that holds the processes of a group that has children.
const ownGroup = "db"

// Names become directory names, so they hold nothing that a path, a shell or `group:key=value` gives
// a meaning to.
const (
	NamePattern     = `^[a-z0-9A-Z][a-zA-Z0-9_.-]*$`
	placeholders    = `\{(port|socket|datadir|sid|engine|instance|user)\}`
	TemplatePattern = `^([a-z0-9A-Z]|` + placeholders + `)([a-zA-Z0-9_.-]|` + placeholders + `)*$`
	NameHint        = "a name starts with a letter or a digit and goes on with letters, digits, _ . and -"
	maxName         = 128
)

var (
	nameRegexp = regexp.MustCompile(NamePattern)
	// Braces matches a placeholder of any name.
	Braces = regexp.MustCompile(`\{[a-z]+\}`)
	// Placeholder matches a placeholder that there is.
	Placeholder = regexp.MustCompile(placeholders)
)

// ValidName says whether a text is a name that a group or a root group may have.
func ValidName(name string) bool { return len(name) <= maxName && nameRegexp.MatchString(name) }

// Names that make no directory, or one that means something to somebody else. They are whole names, or
// prefixes that end in "." or "-".
const (
	// kernelNames are files that the kernel puts into every directory: mkdir(2) fails with EEXIST, and a
	// later kernel may add more under the same prefixes.
	kernelNames = `^(tasks|notify_on_release|release_agent)$` +
		`|^(cgroup|cpu|cpuacct|cpuset|memory|blkio|io|pids|hugetlb|freezer|devices|net_cls|net_prio|perf_event|rdma|` +
		`misc|dmem|debug)\.`
	// containerNames are those by which a container's processes are told, which are never moved.
	containerNames = `^(docker|kubepods|lxc|libpod|libpod_parent|machine|kubepods\.slice|machine\.slice)$` +
		`|^(docker|kubepods|libpod|cri-containerd|crio)-|^lxc\.(payload|monitor)`
	// unitNames are systemd's.
	unitNames = `\.(slice|scope|service)$`

	ReservedGroup = `^` + ownGroup + `$|` + kernelNames + `|` + containerNames
	ReservedRoot  = kernelNames + `|` + containerNames + `|` + unitNames
)

var kernelName, containerName, unitName = regexp.MustCompile(kernelNames), regexp.MustCompile(containerNames),
	regexp.MustCompile(unitNames)

// ReservedName says why no group can have a name of the right form; "" when one can.
func ReservedName(name string) string {
	if name == ownGroup {
		return fmt.Sprintf("%q is reserved: it holds the own processes of a group that has groups inside", name)
	}
	return reservedAnywhere(name)
}

func reservedAnywhere(name string) string {
	switch {
	case kernelName.MatchString(name):
		return fmt.Sprintf("%q is reserved: the kernel has files of such names in every control group", name)
	case containerName.MatchString(name):
		return fmt.Sprintf("%q is reserved: processes below such a name count as those of a container, which "+
			"are never moved", name)
	}
	return ""
}

// ReservedRootName is ReservedName for the root group, which stands beside systemd's units.
func ReservedRootName(name string) string {
	if unitName.MatchString(name) {
		return fmt.Sprintf("%q is reserved: it is the name of a systemd unit", name)
	}
	return reservedAnywhere(name)
}

// GroupPathPattern is the path of a group.
const GroupPathPattern = `^[a-z0-9A-Z][a-zA-Z0-9_.-]*(/[a-z0-9A-Z][a-zA-Z0-9_.-]*)*$`

// GroupPathRegexp matches GroupPathPattern.
var GroupPathRegexp = regexp.MustCompile(GroupPathPattern)

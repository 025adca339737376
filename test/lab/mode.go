package lab

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Mode is a machine of the lab: a release of Debian, what mounts the control groups, and how.
type Mode struct {
	Name    string
	Release string // Debian's code name
	Systemd bool   // PID 1; a shell script otherwise
	Cgroups string // unified, hybrid or legacy
	// Only is the package whose tests alone it runs, since they leave the machine changed; "" for those of its kind.
	Only string
	// Also are packages, between blanks, whose tests it runs before them; "" for none.
	Also string
	// Tests is what the names of its tests match, and no other mode runs; "" for every test of Only.
	Tests string
	// Extra is a directory like the recipe's with more packages, of contrib too, and a hook; "" for none.
	Extra string
	Words []string // more of the kernel's command line
	Nodes int      // NUMA nodes of 2 GiB, with a CPU each and one that has pages of 1 GiB; 0: two nodes of 1 GiB
}

// Modes are all that the lab can boot.
var Modes = []Mode{
	{Name: "unified", Release: "bookworm", Cgroups: "unified"},
	{Name: "hybrid", Release: "bookworm", Cgroups: "hybrid"},
	{Name: "legacy", Release: "bookworm", Cgroups: "legacy"},
	{Name: "systemd-unified", Release: "bookworm", Systemd: true, Cgroups: "unified"},
	{Name: "systemd-hybrid", Release: "bookworm", Systemd: true, Cgroups: "hybrid"},
	{Name: "systemd-legacy", Release: "bookworm", Systemd: true, Cgroups: "legacy"},
	{Name: "trixie-unified", Release: "trixie", Systemd: true, Cgroups: "unified"},
	{Name: "trixie-legacy", Release: "trixie", Systemd: true, Cgroups: "legacy"},
	{Name: "bullseye-unified", Release: "bullseye", Systemd: true, Cgroups: "unified"},
	{Name: "bullseye-hybrid", Release: "bullseye", Systemd: true, Cgroups: "hybrid"},
	{Name: "bullseye-legacy", Release: "bullseye", Systemd: true, Cgroups: "legacy"},
}

// last is the package whose tests come after all others, in every mode: with systemd they leave the machine governed,
// for what is looked at after it was started anew.
const last = "test/packaging"

// Alone are the modes of machines for the tests of one package, or for some of them. They are no row of what is
// supported.
var Alone = []Mode{
	{Name: "advice", Release: "bookworm", Systemd: true, Cgroups: "unified", Only: "test/advice", Extra: "advice",
		Words: []string{"elevator=noop"}},
	{Name: "deb-bookworm", Release: "bookworm", Systemd: true, Cgroups: "unified", Only: last,
		Tests: "^TestDebPackage"},
	{Name: "deb-trixie", Release: "trixie", Systemd: true, Cgroups: "unified", Only: last,
		Tests: "^TestDebPackage"},
	{Name: "memory", Release: "bookworm", Cgroups: "unified", Only: "internal/memory", Nodes: 4, Extra: "memory",
		Words: []string{"hugepagesz=1G", "hugepages=2:1,3:1"}},
	{Name: "zfs", Release: "bookworm", Cgroups: "unified", Only: "test/zfs", Extra: "zfs"},
	{Name: "selinux", Release: "bookworm", Systemd: true, Cgroups: "unified", Only: "test/selinux", Extra: "selinux",
		Also: "internal/confinement", Words: []string{"security=selinux", "selinux=1", "enforcing=0", "audit=1"}},
	{Name: "deb-plain", Release: "bookworm", Cgroups: "unified", Only: last, Tests: "^TestInitPackage"},
}

// ParseModes gives the modes that a text names, "all" being each of them.
func ParseModes(text string) ([]Mode, error) {
	var asked []Mode
	every := slices.Concat(Modes, Alone)
	for name := range strings.FieldsSeq(text) {
		at := slices.IndexFunc(every, func(m Mode) bool { return m.Name == name })
		switch {
		case name == "all":
			asked = append(asked, every...)
		case at < 0:
			return nil, fmt.Errorf("unknown mode %q", name)
		default:
			asked = append(asked, every[at])
		}
	}
	if len(asked) == 0 {
		return nil, fmt.Errorf("%q names no mode", text)
	}
	return asked, nil
}

// Runs says whether a mode has a test, as far as modes of machines alone go: a test of theirs is run by no other mode,
// unless somebody asked for tests by name, and they run nothing else.
func (m Mode) Runs(pkg, test string, asked bool) bool {
	has := func(m Mode) bool { return m.Only == pkg && regexp.MustCompile(m.Tests).MatchString(test) }
	if m.Only == pkg {
		return has(m)
	}
	return asked || !slices.ContainsFunc(Alone, has)
}

// Image is the name of the image that it boots.
func (m Mode) Image() string {
	if m.Extra != "" {
		return m.Release + "-" + m.Name
	}
	return m.Release
}

// Kernel gives the words of the kernel's command line that make systemd mount the control groups so. Without systemd
// the guest does that.
func (m Mode) Kernel() []string {
	if !m.Systemd {
		return nil
	}
	var words []string
	if m.Cgroups != "unified" && m.Release == "trixie" {
		// Without it systemd 256 and later boot unified all the same.
		words = []string{"SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"}
	}
	switch m.Cgroups {
	case "unified":
		return append(words, "systemd.unified_cgroup_hierarchy=1")
	case "legacy":
		return append(words, "systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=1")
	default: // legacy_systemd_cgroup_controller=0 is the default where Debian builds hybrid; said here to be sure
		return append(words, "systemd.unified_cgroup_hierarchy=0", "systemd.legacy_systemd_cgroup_controller=0")
	}
}

// Check holds the cgroup mounts of a machine, as /proc/mounts lists them, against its mode.
func (m Mode) Check(mounts []string) error {
	var v1, v2 []string
	for _, line := range mounts {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return fmt.Errorf("no line of /proc/mounts: %q", line)
		}
		switch fields[2] {
		case "cgroup":
			v1 = append(v1, fields[1])
		case "cgroup2":
			v2 = append(v2, fields[1])
		default:
			return fmt.Errorf("no cgroup mount: %q", line)
		}
	}
	// systemd keeps its units in a hierarchy of its own: where it is legacy, on v1 alone.
	own := slices.Contains(v1, "/sys/fs/cgroup/systemd")
	var ok bool
	switch m.Cgroups {
	case "unified":
		ok = len(v1) == 0 && slices.Equal(v2, []string{"/sys/fs/cgroup"})
	case "hybrid":
		ok = len(v1) > 0 && slices.Equal(v2, []string{"/sys/fs/cgroup/unified"}) && own == m.Systemd
	case "legacy":
		ok = len(v1) > 0 && len(v2) == 0 && own == m.Systemd
	}
	if !ok {
		return fmt.Errorf("mode %s is not what is mounted: v1 at %q, v2 at %q", m.Name, v1, v2)
	}
	return nil
}

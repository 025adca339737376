package tunable

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/optionfile"
	"bulkhead/internal/linux/tunable/service"
)

// sysctlDirs are where sysctl.d(5) reads; a file hides those of its name in later directories.
var sysctlDirs = []string{
	"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d",
}

// Overruled says which lines of other files win over bulkhead's at boot, or when a service starts, for settings by
// their targets: the last file by name does. It reads sysctl.d(5), without systemd sysctl.conf(5), rules of udev(7),
// drop-ins of units, and option files beside bulkhead's; a line that sets the same value is no rival.
func Overruled(root *sysroot.FS, wanted map[change.Target]string) (by map[change.Target]string) {
	by = map[change.Target]string{}
	files := laterFiles(root, sysctlDirs, SysctlFile, ".conf")
	if !root.Exists("/run/systemd/system") {
		files = append(files, "/etc/sysctl.conf") // which `sysctl --system` reads last, and systemd does not
	}
	for _, file := range files {
		text, _ := root.ReadText(file)
		for number, line := range strings.Split(text, "\n") {
			key, value, is := strings.Cut(line, "=")
			key = strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(key), "-"), "/", ".")
			if !is || strings.HasPrefix(key, "#") || strings.HasPrefix(key, ";") {
				continue
			}
			for target, want := range wanted {
				matches, _ := path.Match(key, strings.ReplaceAll(target.Addr, "/", "."))
				switch {
				case target.Kind != KindSysctl || !matches:
				case slices.Equal(strings.Fields(value), strings.Fields(want)):
					delete(by, target)
				default:
					by[target] = fmt.Sprintf("line %d of %s sets %s", number+1, file, strings.TrimSpace(value))
				}
			}
		}
	}
	overruledQueues(root, wanted, by)
	service.Overruled(root, wanted, by)
	optionfile.Overruled(root, wanted, by)
	return by
}

package service

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
)

// Overruled adds which lines of drop-ins of others win over bulkhead's when a service starts: the last file by name
// does, whichever directory it is in. A line that sets the same value is no rival.
func Overruled(root *sysroot.FS, wanted, by map[change.Target]string) {
	files := map[string][]string{} // by unit
	for target, want := range wanted {
		unit, k, err := split(target.Addr)
		if target.Kind != KindSetting || err != nil {
			continue
		}
		if _, known := files[unit]; !known {
			files[unit] = laterDropIns(root, unit)
		}
		for _, file := range files[unit] {
			text, _ := root.ReadText(file)
			for number, line := range strings.Split(text, "\n") {
				name, value, is := strings.Cut(strings.TrimSpace(line), "=")
				value = strings.TrimSpace(value)
				switch {
				case !is || !k.sets(strings.TrimSpace(name)):
				case value == want || k.limit != nil && (Limits{}).Same(target.Addr, want, value):
					delete(by, target)
				default:
					by[target] = fmt.Sprintf("line %d of %s sets %s", number+1, file, cmp.Or(value, "the default"))
				}
			}
		}
	}
}

// sets says whether a line of a name sets the key.
func (k key) sets(name string) bool {
	return name == k.name || name == "TimeoutSec" && strings.HasPrefix(k.name, "Timeout") ||
		k.name == "TimeoutSec" && (name == "TimeoutStartSec" || name == "TimeoutStopSec")
}

// laterDropIns are the drop-ins of a unit that systemd reads after bulkhead's, in that order. "db-a.service" has those
// of "db-.service", too, and all services have those of "service" (systemd.unit(5)).
func laterDropIns(root *sysroot.FS, unit string) (later []string) {
	of := names(unit)
	for _, name := range names(unit) {
		stem := strings.TrimSuffix(name, ".service")
		for at := strings.LastIndex(stem, "-"); at > 0; at = strings.LastIndex(stem[:at], "-") {
			of = append(of, stem[:at+1]+".service")
		}
	}
	of = append(of, "service")
	files := map[string]string{}
	for _, name := range slices.Backward(of) {
		for _, dir := range slices.Backward(dirs) {
			all, _ := root.ReadDir(path.Join(dir, name+".d")) // one that is not there has no files
			for _, file := range all {
				if file > fileName && path.Ext(file) == ".conf" {
					files[file] = path.Join(dir, name+".d", file)
				}
			}
		}
	}
	var order []string
	for file := range files {
		order = append(order, file)
	}
	slices.Sort(order)
	for _, file := range order {
		later = append(later, files[file])
	}
	return later
}

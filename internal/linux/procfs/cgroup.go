package procfs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/sysroot"
)

// ParseCgroup reads /proc/PID/cgroup (cgroups(7)): "4:memory:/user.slice", "1:name=systemd:/",
// "0::/" for cgroup2. It gives the path by Hierarchy.ID.
func ParseCgroup(text []byte) (map[string]string, error) {
	paths := make(map[string]string, bytes.Count(text, []byte{'\n'}))
	err := sysroot.Lines("cgroup", text, func(line string) error {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) < 3 || !strings.HasPrefix(fields[2], "/") {
			return fmt.Errorf("%q is not NUMBER:CONTROLLERS:/PATH", line)
		}
		paths[lineID(fields[0], fields[1])] = fields[2]
		return nil
	})
	return paths, err
}

func lineID(number, list string) string {
	if number == "0" && list == "" {
		return UnifiedID
	}
	name := ""
	var controllers []string
	for item := range strings.SplitSeq(list, ",") {
		if strings.HasPrefix(item, "name=") {
			name = item
		} else {
			controllers = append(controllers, item)
		}
	}
	return HierarchyID(controllers, name)
}

// UnifiedID is the Hierarchy.ID of cgroup2.
const UnifiedID = "unified"

// HierarchyID makes the ID of a v1 hierarchy from its controllers and its name.
func HierarchyID(controllers []string, name string) string {
	if len(controllers) == 0 {
		return name
	}
	sorted := slices.Clone(controllers)
	slices.Sort(sorted)
	return strings.Join(sorted, ",")
}
